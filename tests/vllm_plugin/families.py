"""Families of models, each as small as it can be with what vLLM's layers see of it: head's dimension, routing, layers.

`family_models.py` makes models of them, and says what their tokens are.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

BASE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_HEAD = {"head_dim": 128}
_BOTH = ["sliding_attention", "full_attention"]
_TEXT_ONLY = {"language_model_only": True}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 256,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}
_DENSE_FIRST = ["dense", "sparse"]


ARCHITECTURES = {
    "afmoe": ("AfmoeForCausalLM",),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM",),
    "gemma3": ("Gemma3ForConditionalGeneration",),
    "glm": ("GlmForCausalLM",),
    "glm4_moe": ("Glm4MoeForCausalLM",),
    "glm4v": ("Glm4vForConditionalGeneration",),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration",),
    "gpt_oss": ("GptOssForCausalLM",),
    "granite": ("GraniteForCausalLM",),
    "hunyuan_v1_moe": ("HunYuanMoEV1ForCausalLM",),
    "hy_v3": ("HYV3ForCausalLM",),
    "internvl": ("InternVLForConditionalGeneration",),
    "laguna": ("LagunaForCausalLM",),
    "llama": ("LlamaForCausalLM",),
    "mellum": ("MellumForCausalLM",),
    "mimo_v2_flash": ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"),
    "minimax_m2": ("MiniMaxM2ForCausalLM",),
    "mistral3": ("Mistral3ForConditionalGeneration",),
    "mixtral": ("MixtralForCausalLM",),
    "muse_glimmer": ("MuseGlimmerForConditionalGeneration", "MuseGlimmerForCausalLM"),
    "phi3": ("Phi3ForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM",),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration",),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration",),
    "seed_oss": ("SeedOssForCausalLM",),
}
"""vLLM's classes that stand for a model type of transformers', the first as the test's config.json names it."""


class Family(NamedTuple):
    """One kind of model."""

    kind: str
    """transformers' model type."""
    config: Mapping[str, Any]
    """What config.json has of the language model beside `BASE`."""
    options: Mapping[str, Any] = {}
    """Of vLLM's engine."""
    around: Mapping[str, Any] | None = None
    """What config.json has beside the language model, where that is a part of it."""
    form: str = ""
    """Of the checkpoint's weights, one of `family_weights.FORMS`; by default transformers' own, in f32."""

    zeros: str = ""
    """A part of the names of tensors that are 0."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """vLLM's classes that the family shows to be served."""
        return ARCHITECTURES[self.kind]


def _rope(theta: float, **others: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta} | others


_DENSE = {
    "llama": Family(
        "llama",
        _HEAD
        | {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "qwen2": Family("qwen2", {"hidden_size": 512, "rope_parameters": _rope(1e6)}),
    "qwen3": Family("qwen3", _HEAD | {"rope_parameters": _rope(1e6)}),
    "seed_oss": Family("seed_oss", _HEAD | {"attention_bias": True}),
    "phi3": Family("phi3", {"hidden_size": 512}),
    "phi4_mini": Family(
        "phi3",
        {
            "hidden_size": 512,
            "original_max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0 + 0.01 * i for i in range(48)],
                "long_factor": [1.0 + 0.1 * i for i in range(48)],
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "glm": Family("glm", _HEAD | {"attention_bias": True}),
    "granite": Family(
        "granite",
        {
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
        },
    ),
}
_EXPERTS = {
    "qwen3_moe": Family(
        "qwen3_moe",
        _HEAD
        | {
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": Family("mixtral", _HEAD | {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "gpt_oss": Family(
        "gpt_oss",
        {
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 32,
            "layer_types": _BOTH,
            "initial_context_length": 512,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 2.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "glm4_moe": Family(
        "glm4_moe",
        _HEAD
        | {
            "moe_intermediate_size": 64,
            "n_routed_experts": 128,
            "attention_bias": True,
            "use_qk_norm": True,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 0,
        },
    ),
    "ernie4_5_moe": Family(
        "ernie4_5_moe",
        _HEAD
        | {
            "hidden_size": 512,
            "moe_intermediate_size": 64,
            "moe_layer_end_index": 1,
            "rope_parameters": _rope(500000.0),
        },
    ),
    "minimax_m2": Family(
        "minimax_m2",
        _HEAD
        | {
            "intermediate_size": 128,
            "num_local_experts": 256,
            "rotary_dim": 64,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "num_mtp_modules": 0,
            "rope_parameters": _rope(5000000.0, partial_rotary_factor=0.5),
        },
    ),
    "hunyuan_v1_moe": Family(
        "hunyuan_v1_moe",
        _HEAD | {"intermediate_size": 64, "num_experts": 64, "moe_topk": 8},
    ),
    "hy_v3": Family(
        "hy_v3",
        _HEAD
        | {
            "moe_intermediate_size": 64,
            "num_experts": 192,
            "mlp_layer_types": _DENSE_FIRST,
            "first_k_dense_replace": 1,
            "expert_hidden_dim": 64,
            "route_norm": True,
            "qk_norm": True,
        },
    ),
    "afmoe": Family(
        "afmoe",
        _HEAD
        | {
            "moe_intermediate_size": 64,
            "num_experts": 64,
            "num_shared_experts": 1,
            "sliding_window": 32,
            "layer_types": _BOTH,
            "route_scale": 2.5,
            "route_norm": True,
            "score_func": "sigmoid",
            "n_group": 1,
            "topk_group": 1,
            "mup_enabled": True,
        },
    ),
    "laguna": Family(
        "laguna",
        _HEAD
        | {
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "num_experts": 64,
            "num_attention_heads_per_layer": [4, 4],
            "sliding_window": 32,
            "layer_types": _BOTH,
            "mlp_layer_types": _DENSE_FIRST,
            "moe_routed_scaling_factor": 2.5,
        },
        zeros="e_score_correction_bias",  # which vLLM 0.33 does not load from this model's files
    ),
    "mimo_v2_flash": Family(
        "mimo_v2_flash",
        {
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "moe_intermediate_size": 128,
            "n_routed_experts": 64,
            "sliding_window": 32,
            "sliding_window_size": 32,
            "layer_types": ["full_attention", "sliding_attention"],
            "hybrid_layer_pattern": [0, 1],
            "mlp_layer_types": _DENSE_FIRST,
            "moe_layer_freq": [0, 1],
            "add_swa_attention_sink_bias": True,
            "layernorm_epsilon": 1e-6,
            "rope_theta": 5000000.0,
            "swa_rope_theta": 10000.0,
            "partial_rotary_factor": 0.334,
            "scoring_func": "sigmoid",
        },
    ),
    "mellum": Family(
        "mellum",
        _HEAD
        | {
            "moe_intermediate_size": 64,
            "sliding_window": 32,
            "layer_types": _BOTH,
            "mlp_layer_types": ["sparse", "sparse"],
        },
    ),
}
_WRAPPED = {
    "qwen2_5_vl": Family(
        "qwen2_5_vl",
        {
            "hidden_size": 512,
            "rope_parameters": _rope(1e6, mrope_section=[16, 24, 24]),
            "layer_types": ["full_attention"] * 2,
        },
        _TEXT_ONLY,
        {"vision_config": _QWEN_VISION | {"out_hidden_size": 512}},
    ),
    "qwen3_vl": Family(
        "qwen3_vl",
        _HEAD | {"rope_parameters": _rope(5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)},
        _TEXT_ONLY,
        {"vision_config": _QWEN_VISION},
    ),
    "qwen3_vl_moe": Family(
        "qwen3_vl_moe",
        _HEAD
        | {
            "rope_parameters": _rope(5e6, mrope_section=[24, 20, 20], mrope_interleaved=True),
            "num_experts": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
        _TEXT_ONLY,
        {"vision_config": _QWEN_VISION},
        "transposed",
    ),
    "glm4v": Family(
        "glm4v",
        {
            "hidden_size": 512,
            "attention_bias": True,
            "rope_parameters": _rope(1e4, partial_rotary_factor=0.5, mrope_section=[8, 12, 12]),
        },
        _TEXT_ONLY,
        {"vision_config": _QWEN_VISION | {"out_hidden_size": 512}},
    ),
    "glm4v_moe": Family(
        "glm4v_moe",
        _HEAD
        | {
            "moe_intermediate_size": 64,
            "use_qk_norm": False,
            "attention_bias": True,
            "rope_parameters": _rope(1e4, partial_rotary_factor=0.5, mrope_section=[8, 12, 12]),
        },
        _TEXT_ONLY,
        {"vision_config": _QWEN_VISION},
    ),
    "internvl": Family(
        "internvl",
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 2} | _HEAD,
        _TEXT_ONLY,
        {"vision_config": _VISION},
    ),
    "mistral3": Family(
        "mistral3",
        {"model_type": "ministral3"} | _HEAD,
        _TEXT_ONLY,
        {"vision_config": _VISION | {"head_dim": 32}},
    ),
    "muse_glimmer": Family(
        "muse_glimmer",
        _HEAD | {"sliding_window": 32, "layer_types": _BOTH, "layer_rope_theta": [10000.0, 0]},
        _TEXT_ONLY,
        {"vision_config": _VISION, "out_hidden_size": 256},
    ),
    "gemma3": Family(
        "gemma3",
        {
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "sliding_window": 32,
            "layer_types": _BOTH,
            "tie_word_embeddings": True,
        },
        _TEXT_ONLY,
        {"vision_config": _VISION},
    ),
}
_QUANTISED = {
    "gpt_oss_mxfp4": _EXPERTS["gpt_oss"]._replace(form="mxfp4"),
    "mimo_v2_flash_fp8": _EXPERTS["mimo_v2_flash"]._replace(form="fp8_block"),
    "minimax_m2_fp8": _EXPERTS["minimax_m2"]._replace(form="fp8_block"),
    "qwen3_fp8": Family("qwen3", _HEAD, form="fp8_block"),
    "mistral3_fp8": _WRAPPED["mistral3"]._replace(form="fp8_tensor"),
}
FAMILIES = _DENSE | _EXPERTS | _WRAPPED | _QUANTISED
