"""What Hugging Face's config.json says about a model's hyperparameters, read and written."""

import math
from collections.abc import Mapping
from typing import Any

from intarsia.models.config import LayerKind, ModelConfig, Rope
from intarsia.models.families import GEMMA3, GEMMA3_LOCAL_THETA, GEMMA3_PERIOD
from intarsia.models.fields import LARGEST_HEAD, MOST_LAYERS, Fields
from intarsia.models.mixtures import gpt_oss_from_hf, mixtral_from_hf, qwen3_moe_from_hf
from intarsia.models.ropes import (
    layer_kinds,
    rope_from_hf,
    rope_settings,
    rope_settings_by_layer,
    theta_from_hf,
)


def config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Builds the configuration from config.json."""
    expected = ", ".join(_FROM_HF)
    if not config.get("architectures"):
        raise ValueError(f"got no architectures, expected one of {expected}")
    architecture = Fields(config).texts("architectures")[0]
    if architecture not in _FROM_HF:
        raise ValueError(f"architecture is {architecture!r}, expected one of {expected}")
    fields = Fields({**_DEFAULTS[architecture], **config})
    hidden, heads = (
        fields.whole("hidden_size"),
        fields.whole("num_attention_heads", most=MOST_LAYERS),
    )
    head_dim = fields.whole("head_dim", hidden // heads, most=LARGEST_HEAD)
    traits = _FROM_HF[architecture](fields, head_dim)
    if "intermediate" not in traits:
        traits["intermediate"] = fields.whole("intermediate_size")
    return ModelConfig(
        hidden=hidden,
        layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=fields.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab=fields.whole("vocab_size"),
        rms_eps=fields.number("rms_norm_eps"),
        max_positions=fields.whole("max_position_embeddings", least=2),
        bos_id=next(iter(fields.tokens("bos_token_id")), None),
        eos_ids=fields.tokens("eos_token_id"),
        **traits,
    )


def _llama_from_hf(config: Fields, head_dim: int) -> dict[str, Any]:
    """What Llama, Mistral, Qwen2 and Qwen3 say in ways of their own."""
    config.expect("hidden_act", "silu")
    architecture = config.texts("architectures")[0]
    if architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        config.expect("use_sliding_window", False)
    rope = rope_settings(config)
    theta = theta_from_hf(rope, config.number("rope_theta", 10000.0, above=0))
    window = config.whole("sliding_window", None) if architecture == "MistralForCausalLM" else None
    kinds: tuple[LayerKind, ...] = (LayerKind(rope_from_hf(rope, theta, head_dim), window),)
    if architecture == "Qwen3ForCausalLM":
        config.expect("attention_bias", False)
        kinds = layer_kinds(config, {"full_attention": kinds[0]}, ["full_attention"])
    return {
        "layer_kinds": kinds,
        "qkv_bias": architecture == "Qwen2ForCausalLM",
        "qk_norm": architecture == "Qwen3ForCausalLM",
        "tie_embeddings": config.flag("tie_word_embeddings", False),
    }


def _gemma3_from_hf(config: Fields, head_dim: int) -> dict[str, Any]:
    """What Gemma 3 (text only) says."""
    config.expect("hidden_activation", "gelu_pytorch_tanh")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.expect(key, None)
    config.expect("use_bidirectional_attention", False)
    of_global, of_local = rope_settings_by_layer(config)
    theta = theta_from_hf(of_global, config.number("rope_theta", 1e6, above=0))
    local = theta_from_hf(
        of_local, config.number("rope_local_base_freq", GEMMA3_LOCAL_THETA, above=0)
    )
    kinds = {
        "full_attention": LayerKind(rope_from_hf(of_global, theta, head_dim)),
        "sliding_attention": LayerKind(
            rope_from_hf(of_local, local, head_dim), config.whole("sliding_window")
        ),
    }
    period = config.whole("sliding_window_pattern", GEMMA3_PERIOD, most=MOST_LAYERS)
    pattern = ["sliding_attention"] * (period - 1) + ["full_attention"]
    return GEMMA3 | {
        "layer_kinds": layer_kinds(config, kinds, pattern),
        "attention_scale": config.number("query_pre_attn_scalar", 256, above=0) ** -0.5,
        "embed_scale": math.sqrt(config.whole("hidden_size")),
        "tie_embeddings": config.flag("tie_word_embeddings", True),
    }


_FROM_HF = {
    "LlamaForCausalLM": _llama_from_hf,
    "MistralForCausalLM": _llama_from_hf,
    "Qwen2ForCausalLM": _llama_from_hf,
    "Qwen3ForCausalLM": _llama_from_hf,
    "Gemma3ForCausalLM": _gemma3_from_hf,
    "MixtralForCausalLM": mixtral_from_hf,
    "Qwen3MoeForCausalLM": qwen3_moe_from_hf,
    "GptOssForCausalLM": gpt_oss_from_hf,
}
# What transformers takes for keys that a file does not have, where architectures differ; the functions above have other defaults.
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048} | _TOKENS
_QWEN = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768}
_MISTRAL = {"num_key_value_heads": 8, "max_position_embeddings": 131072} | _TOKENS
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL | {"rms_norm_eps": 1e-6, "sliding_window": 4096},
    "Qwen2ForCausalLM": _QWEN | {"num_key_value_heads": 32},
    "Qwen3ForCausalLM": _QWEN | {"num_key_value_heads": 32, "head_dim": 128},
    "Gemma3ForCausalLM": {
        "head_dim": 256,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "sliding_window": 4096,
    },
    "MixtralForCausalLM": _MISTRAL | {"rms_norm_eps": 1e-5},
    "Qwen3MoeForCausalLM": _QWEN | {"num_key_value_heads": 4},
    "GptOssForCausalLM": {
        "head_dim": 64,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "sliding_window": 128,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
}
HF_ARCHITECTURES = tuple(_FROM_HF)
"""The first of `architectures` in config.json."""


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """What config.json says of a configuration: the inverse of `config_from_hf`.

    The keys are those of transformers 4, which later versions understand.

    Raises:
        ValueError: The model has experts, biases beside norms of q and k, or a window where no Qwen has one. Or its rope is more
            than one factor: the file of such a model has lost the parameters by which transformers names the scaling.
    """
    if config.experts:
        raise ValueError(
            "a model with experts is not written yet; its own directory is what others load"
        )
    # Layers of a kind are alike: two kinds are one with a window, and one without.
    local = next(
        (kind for kind in config.layer_kinds if kind.sliding_window), config.layer_kinds[0]
    )
    whole = next((kind for kind in config.layer_kinds if not kind.sliding_window), local)
    said = {
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate,
        "vocab_size": config.vocab,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids),
        "rope_theta": whole.rope.theta,
        "rope_scaling": _rope_scaling(whole.rope),
    }
    if config.post_norms:
        if local.sliding_window and _rope_scaling(local.rope):
            raise ValueError("rope: layers with a window have a factor, expected none")
        kinds = [config.kind(layer) for layer in range(config.layers)]
        types = ["sliding_attention" if kind.sliding_window else "full_attention" for kind in kinds]
        return said | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": types,
            "sliding_window": local.sliding_window
            or config.max_positions,  # without such layers any
            "rope_local_base_freq": local.rope.theta,
            "query_pre_attn_scalar": round((config.attention_scale or 1) ** -2, 3),
        }
    if config.qk_norm and config.qkv_bias:
        raise ValueError(
            "self_attn has biases of q, k and v, expected none beside norms of q and k: Qwen3's config.json cannot say so"
        )
    model = (
        "qwen3"
        if config.qk_norm
        else "qwen2"
        if config.qkv_bias
        else "mistral"
        if config.layer_kinds[0].sliding_window
        else "llama"
    )
    if model.startswith("qwen") and local.sliding_window:
        raise ValueError(
            f"sliding_window is {local.sliding_window}, expected none in a model of {model}"
        )
    return said | {
        "architectures": [f"{model.capitalize()}ForCausalLM"],
        "model_type": model,
        "hidden_act": "silu",
        "sliding_window": config.layer_kinds[0].sliding_window,
    }


def _rope_scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.amplitude != 1:
        raise ValueError(f"rope: its amplitude is {rope.amplitude}, expected 1")
    if rope.divisors is None:
        return None
    if len(set(rope.divisors)) > 1:
        raise ValueError("rope: frequencies are divided by different numbers, expected one factor")
    return {"rope_type": "linear", "factor": rope.divisors[0]}
