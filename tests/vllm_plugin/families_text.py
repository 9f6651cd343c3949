"""Decoders of text: dense, and with experts."""

from family import BOTH, DENSE_FIRST, HEAD, Family, rope
from vllm_models import LLAMA3_ROPE

DENSE = {
    "llama": Family(
        "llama",
        HEAD | {"rope_parameters": LLAMA3_ROPE},
    ),
    "qwen2": Family("qwen2", {"hidden_size": 512, "rope_parameters": rope(1e6)}),
    "qwen3": Family("qwen3", HEAD | {"rope_parameters": rope(1e6)}),
    "seed_oss": Family("seed_oss", HEAD | {"attention_bias": True}),
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
    "glm": Family("glm", HEAD | {"attention_bias": True}),
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
EXPERTS = {
    "qwen3_moe": Family(
        "qwen3_moe",
        HEAD
        | {
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": Family("mixtral", HEAD | {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "gpt_oss": Family(
        "gpt_oss",
        {
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 32,
            "layer_types": BOTH,
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
    "olmoe": Family(
        "olmoe",
        {"hidden_size": 512, "num_experts": 16, "num_experts_per_tok": 4},
    ),
    "glm4_moe": Family(
        "glm4_moe",
        HEAD
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
        HEAD
        | {
            "hidden_size": 512,
            "moe_intermediate_size": 64,
            "moe_layer_end_index": 1,
            "rope_parameters": rope(500000.0),
        },
    ),
    "minimax_m2": Family(
        "minimax_m2",
        HEAD
        | {
            "intermediate_size": 128,
            "num_local_experts": 256,
            "rotary_dim": 64,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "num_mtp_modules": 0,
            "rope_parameters": rope(5000000.0, partial_rotary_factor=0.5),
        },
    ),
    "hunyuan_v1_moe": Family(
        "hunyuan_v1_moe",
        HEAD | {"intermediate_size": 64, "num_experts": 64, "moe_topk": 8},
    ),
    "hy_v3": Family(
        "hy_v3",
        HEAD
        | {
            "moe_intermediate_size": 64,
            "num_experts": 192,
            "mlp_layer_types": DENSE_FIRST,
            "first_k_dense_replace": 1,
            "expert_hidden_dim": 64,
            "route_norm": True,
            "qk_norm": True,
        },
    ),
    "afmoe": Family(
        "afmoe",
        HEAD
        | {
            "moe_intermediate_size": 64,
            "num_experts": 64,
            "num_shared_experts": 1,
            "sliding_window": 32,
            "layer_types": BOTH,
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
        HEAD
        | {
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "num_experts": 64,
            "num_attention_heads_per_layer": [4, 4],
            "sliding_window": 32,
            "layer_types": BOTH,
            "mlp_layer_types": DENSE_FIRST,
            "moe_routed_scaling_factor": 2.5,
        },
        # vLLM 0.33 does not load it from this model's files.
        factors={"e_score_correction_bias": 0},
    ),
    "mimo_v2_flash": Family(
        "mimo_v2_flash",
        {
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "moe_intermediate_size": 128,
            "n_routed_experts": 64,
            "sliding_window_size": 128,
            "layer_types": ["full_attention", "sliding_attention"],
            "hybrid_layer_pattern": [0, 1],
            "mlp_layer_types": DENSE_FIRST,
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
        HEAD
        | {
            "moe_intermediate_size": 64,
            "sliding_window": 32,
            "layer_types": BOTH,
            "mlp_layer_types": ["sparse", "sparse"],
        },
    ),
}
