"""Models that transformers has by another name: `family_checkpoints` says what their own files have."""

from families_text import DENSE, EXPERTS
from families_wrapped import TEXT_ONLY
from family import BOTH, DENSE_FIRST, HEAD, Family, rope

_REMOTE = {"trust_remote_code": True}
_SIGMOID = {
    "moe_intermediate_size": 128,
    "n_routed_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "use_qk_norm": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-6,
}
_STEP = HEAD | {
    "moe_intermediate_size": 64,
    "share_expert_dim": 64,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "moe_router_scaling_factor": 3.0,
    "use_moe_router_bias": True,
    "need_fp32_gate": True,
    "use_head_wise_attn_gate": True,
    "norm_expert_weight": True,
    "sliding_window": 32,
    "layer_types": BOTH,
    "mlp_layer_types": DENSE_FIRST,
    "num_sliding_attention_heads": 6,
    "swiglu_limits": [0.0, 7.0],
    "swiglu_limits_shared": [0.0, 16.0],
    "rope_parameters": {
        "sliding_attention": rope(1e4, partial_rotary_factor=1.0),
        "full_attention": rope(5e6, partial_rotary_factor=0.5),
    },
}
_STEP_VISION = {"vision_config": {"width": 64, "layers": 1, "heads": 2, "mlp_ratio": 1.0}}
OWN = {
    "k2_horizon": Family(  # whose reference is `family_k2_horizon`
        "k2_horizon",
        HEAD
        | {
            "rope_head_dim": 64,
            "layernorm_num_groups": 4,
            "attention_gate_func": "silu",
            "query_key_norm": True,
            "attention_bias": False,
            "num_experts": 0,
            "rope_parameters": rope(1e6),
            "layer_types": ["full_attention"] * 2,
        },
        _REMOTE,
        architecture="K2HorizonForCausalLM",
    ),
    "ring_fp8": Family(
        "glm4_moe",
        HEAD | _SIGMOID | {"rope_parameters": rope(6e5, partial_rotary_factor=0.5)},
        _REMOTE,
        form="fp8_block",
        architecture="BailingMoeV2ForCausalLM",
    ),
    "param2": Family(
        "glm4_moe",
        HEAD
        | _SIGMOID
        | {"n_routed_experts": 64, "rope_parameters": rope(1e4, partial_rotary_factor=1.0)},
        _REMOTE,
        architecture="Param2MoEForCausalLM",
    ),
    "plamo3": Family(
        "gemma3_text",
        HEAD
        | {
            "hidden_activation": "silu",
            "query_pre_attn_scalar": 128,
            "sliding_window": 32,
            "layer_types": BOTH,
        },
        _REMOTE,
        architecture="Plamo3ForCausalLM",
    ),
    "step3p5": Family("step3p7", _STEP, around=_STEP_VISION, architecture="Step3p5ForCausalLM"),
    "step3p7": Family(
        "step3p7",
        _STEP | {"allow_global_per_layer_attribute_access": True},
        TEXT_ONLY | _REMOTE,
        _STEP_VISION,
        architecture="Step3p7ForConditionalGeneration",
    ),
    "ernie4_5_vl_moe": Family(
        "ernie4_5_vl_moe",
        HEAD
        | {
            "hidden_size": 512,
            "moe_intermediate_size": [64, 32],
            "mlp_layer_types": DENSE_FIRST,
            "rope_parameters": rope(5e5, mrope_section=[22, 22, 20]),
        },
        TEXT_ONLY | _REMOTE,
        {
            "vision_config": {
                "depth": 1,
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_heads": 2,
            }
        },
        architecture="Ernie4_5_VLMoeForConditionalGeneration",
    ),
    "internvl3_5": DENSE["qwen3"]._replace(
        options=TEXT_ONLY | _REMOTE | {"skip_tokenizer_init": False},
        architecture="InternVLChatModel",
    ),
    "intern_s1": EXPERTS["qwen3_moe"]._replace(
        options=TEXT_ONLY | _REMOTE, architecture="InternS1ForConditionalGeneration"
    ),
    "phi4_multimodal": DENSE["phi4_mini"]._replace(
        options=TEXT_ONLY | _REMOTE, architecture="Phi4MMForCausalLM"
    ),
}
