"""Layers with a state: short convolutions beside attention."""

from families_wrapped import TEXT_ONLY
from family import Family

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
RECURRENT = {
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
