"""Multi-head latent attention, alone and in models that also take images: heads of 192 for keys and 128 for values, made of a latent of 512."""

from families_wrapped import WRAPPED
from family import Family

_HEADS = {
    "num_key_value_heads": 4,
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 256,
    },
}
_IN_GROUPS = {"n_routed_experts": 256, "n_group": 8, "topk_group": 4}
_KIMI = {"n_routed_experts": 384, "n_group": 1, "topk_group": 1}
LATENT = {
    "mistral_large_3_fp8": Family(
        "mistral3",
        {k: v for k, v in _HEADS.items() if k not in ("topk_method", "scoring_func")}
        | {
            "model_type": "mistral4",
            "n_routed_experts": 128,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 1.0,
            "rope_parameters": _HEADS["rope_parameters"]
            | {"original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1},
        },
        around=WRAPPED["mistral3"].around,
        form="fp8_tensor",
        architecture="MistralLarge3ForCausalLM",
    ),
    "deepseek_v3_fp8": Family("deepseek_v3", _HEADS | _IN_GROUPS, form="fp8_block"),
    "kimi_k2_int4": Family("deepseek_v3", _HEADS | _KIMI, form="kimi_int4"),
    "kimi_k25_int4": Family(
        "kimi_k25",
        {"model_type": "deepseek_v3"} | _HEADS | _KIMI,
        {"language_model_only": True},
        {
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            }
        },
        "kimi_int4",
        architecture="KimiK25ForConditionalGeneration",
    ),
    "kimi_k2_fp8": Family("deepseek_v3", _HEADS | _KIMI, form="fp8_block"),
}
