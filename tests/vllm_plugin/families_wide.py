"""Heads of 512 beside those of 256: Gemma 4's."""

from family import BOTH, Family

_GEMMA4 = {
    "head_dim": 256,
    "global_head_dim": 512,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 32,
    "layer_types": BOTH,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 512,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
_TEXT_ONLY = {"language_model_only": True}
_VISION = {
    "vision_config": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 32,
    }
}
WIDE = {
    "gemma4": Family("gemma4_text", _GEMMA4),
    "gemma4_mm": Family(
        "gemma4",
        _GEMMA4 | {"num_hidden_layers": 4, "layer_types": BOTH * 2},
        _TEXT_ONLY,
        _VISION,
    ),
    "gemma4_moe": Family(
        "gemma4",
        _GEMMA4
        | {
            "num_hidden_layers": 4,
            "layer_types": BOTH * 2,
            "num_key_value_heads": 2,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 64,
        },
        _TEXT_ONLY,
        _VISION,
    ),
    "gemma4_e": Family(  # E2B and E4B: an embedding for each layer, and layers that read another's cache
        "gemma4",
        _GEMMA4
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "attention_k_eq_v": False,
            "layer_types": BOTH * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 64,
            "use_double_wide_mlp": True,
        },
        _TEXT_ONLY,
        _VISION,
    ),
    "gemma4_unified": Family(
        "gemma4_unified",
        {k: v for k, v in _GEMMA4.items() if "per_layer_input" not in k}
        | {"num_hidden_layers": 4, "layer_types": BOTH * 2},
        _TEXT_ONLY,
        {
            "vision_config": {"mm_embed_dim": 64, "num_soft_tokens": 4},
            "audio_config": {"audio_embed_dim": 64},
        },
    ),
}
