"""The language half of models that also take images."""

from family import BOTH, HEAD, Family, rope

TEXT_ONLY = {"language_model_only": True}
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
WRAPPED = {
    "qwen2_5_vl": Family(
        "qwen2_5_vl",
        {
            "hidden_size": 512,
            "rope_parameters": rope(1e6, mrope_section=[16, 24, 24]),
            "layer_types": ["full_attention"] * 2,
        },
        TEXT_ONLY,
        {"vision_config": _QWEN_VISION | {"out_hidden_size": 512}},
    ),
    "qwen3_vl": Family(
        "qwen3_vl",
        HEAD | {"rope_parameters": rope(5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)},
        TEXT_ONLY,
        {"vision_config": _QWEN_VISION},
    ),
    "qwen3_vl_moe": Family(
        "qwen3_vl_moe",
        HEAD
        | {
            "rope_parameters": rope(5e6, mrope_section=[24, 20, 20], mrope_interleaved=True),
            "num_experts": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
        TEXT_ONLY,
        {"vision_config": _QWEN_VISION},
        "transposed",
    ),
    "glm4v": Family(
        "glm4v",
        {
            "hidden_size": 512,
            "attention_bias": True,
            "rope_parameters": rope(1e4, partial_rotary_factor=0.5, mrope_section=[8, 12, 12]),
        },
        TEXT_ONLY,
        {"vision_config": _QWEN_VISION | {"out_hidden_size": 512}},
    ),
    "glm4v_moe": Family(
        "glm4v_moe",
        HEAD
        | {
            "moe_intermediate_size": 64,
            "use_qk_norm": False,
            "attention_bias": True,
            "rope_parameters": rope(1e4, partial_rotary_factor=0.5, mrope_section=[8, 12, 12]),
        },
        TEXT_ONLY,
        {"vision_config": _QWEN_VISION},
    ),
    "internvl": Family(
        "internvl",
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 2} | HEAD,
        TEXT_ONLY,
        {"vision_config": _VISION},
    ),
    "mistral3": Family(
        "mistral3",
        {"model_type": "ministral3"} | HEAD,
        TEXT_ONLY,
        {"vision_config": _VISION | {"head_dim": 32}},
    ),
    "muse_glimmer": Family(
        "muse_glimmer",
        HEAD | {"sliding_window": 32, "layer_types": BOTH, "layer_rope_theta": [10000.0, 0]},
        TEXT_ONLY,
        {"vision_config": _VISION, "out_hidden_size": 256},
    ),
    "llama4": Family(
        "llama4",
        HEAD
        | {
            "intermediate_size": 64,
            "intermediate_size_mlp": 64,
            "moe_layers": [0, 1],
            "no_rope_layers": [1, 0],
            "layer_types": ["chunked_attention", "full_attention"],
            "attention_chunk_size": 64,
            "for_llm_compressor": False,
        },
        TEXT_ONLY,
        {
            "vision_config": _VISION
            | {"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64}
        },
    ),
    "gemma3": Family(
        "gemma3",
        {
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "sliding_window": 32,
            "layer_types": BOTH,
            "tie_word_embeddings": True,
        },
        TEXT_ONLY,
        {"vision_config": _VISION},
        factors={"lm_head": 0.2},  # which embeds, too, times 16: a model that says each token again
    ),
}
