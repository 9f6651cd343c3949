"""Layers with a state: short convolutions and gated delta nets, beside attention."""

from families_wrapped import TEXT_ONLY
from family import Family, rope

_LFM2 = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,  # of 64
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "tie_word_embeddings": True,
}
_DENSE = {
    "block_auto_adjust_ff_dim": False,
    "block_dim": 256,
    "block_ff_dim": 256,
    "conv_dim": 256,
    "conv_dim_out": 256,
}
_DELTA = {
    "head_dim": 256,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_EXPERTS = {
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
_OF_TEXT = rope(1e7, partial_rotary_factor=0.25)
_OF_IMAGES = _OF_TEXT | {"mrope_section": [11, 11, 10], "mrope_interleaved": True}
_VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 256,
    "deepstack_visual_indexes": [],
}
_LARGE = {"kv_cache_memory_bytes": 64 << 20}  # a state is as large as many tokens
_NEMOTRON = {
    "head_dim": 128,
    "ssm_state_size": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "conv_kernel": 4,
    "use_conv_bias": True,
}
_NEMOTRON_EXPERTS = _NEMOTRON | {
    "hybrid_override_pattern": "MEM*E",
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 128,
    "routed_scaling_factor": 2.5,
}
RECURRENT = {
    "nemotron_h": Family("nemotron_h", _NEMOTRON | {"hybrid_override_pattern": "M-M*-"}, _LARGE),
    "nemotron_h_moe": Family("nemotron_h", _NEMOTRON_EXPERTS, _LARGE),
    "nemotron_h_latent": Family("nemotron_h", _NEMOTRON_EXPERTS | {"moe_latent_size": 128}, _LARGE),
    "qwen3_next": Family(
        "qwen3_next",
        _DELTA | _EXPERTS | {"num_experts_per_tok": 10, "rope_parameters": _OF_TEXT},
        _LARGE,
    ),
    "qwen3_5": Family(
        "qwen3_5",
        _DELTA | {"rope_parameters": _OF_IMAGES},
        TEXT_ONLY | _LARGE,
        {"vision_config": _VISION},
    ),
    "qwen3_5_moe": Family(
        "qwen3_5_moe",
        _DELTA | _EXPERTS | {"rope_parameters": _OF_IMAGES},
        TEXT_ONLY | _LARGE,
        {"vision_config": _VISION},
    ),
    "minicpmv4_6": Family(
        "minicpmv4_6",
        {"model_type": "qwen3_5_text"} | _DELTA | {"rope_parameters": _OF_IMAGES},
        TEXT_ONLY | _LARGE,
        {
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "insert_layer_id": 1,
            }
        },
    ),
    "intern_s2": Family(
        "qwen3_5_moe",
        _DELTA | _EXPERTS | {"rope_parameters": _OF_IMAGES},
        TEXT_ONLY | _LARGE | {"trust_remote_code": True},
        {"vision_config": _VISION},
        architecture="InternS2PreviewForConditionalGeneration",
    ),
    "lfm2": Family("lfm2", _LFM2 | _DENSE),
    "lfm2_moe": Family(
        "lfm2_moe",
        _LFM2
        | {
            "moe_intermediate_size": 64,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "num_dense_layers": 2,
            "use_expert_bias": True,
            "norm_topk_prob": True,
        },
    ),
    "lfm2_vl": Family(
        "lfm2_vl",
        {"model_type": "lfm2"} | _LFM2 | _DENSE,
        TEXT_ONLY,
        {
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
            "projector_hidden_size": 64,
        },
    ),
}
_QWEN3_5 = RECURRENT["qwen3_5"]
D3 = _QWEN3_5._replace(
    config=_QWEN3_5.config
    | {"layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"]},
    architecture="D3ForSequenceClassification",
)
"""Full attention in both directions, delta nets that stay causal. Two layers of attention: the last token is the same by the last
one, either way."""
