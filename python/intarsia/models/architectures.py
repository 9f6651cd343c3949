"""What a model's files say about its hyperparameters: GGUF metadata, or Hugging Face's JSON."""

import math
from collections.abc import Mapping
from typing import Any

from intarsia.models.config import LayerKind, ModelConfig, Rope
from intarsia.models.fields import Fields
from intarsia.models.mixtures import gpt_oss_from_hf, mixtral_from_hf, qwen3_moe_from_hf
from intarsia.models.ropes import (
    layer_kinds,
    rope_from_hf,
    rope_settings,
    rope_settings_by_layer,
    theta_from_hf,
)

# GGUF's general.architecture.
GGUF_ARCHITECTURES = ("llama", "qwen2", "gemma3")
_GEMMA3 = {
    "activation": "gelu_tanh",
    "qk_norm": True,
    "post_norms": True,
    "norm_in_f32": True,
    "norms_less_one": True,
    "fits_f16": False,
}
# Five layers with a sliding window and a rope base of their own, then one that sees everything.
_GEMMA3_PERIOD, _GEMMA3_LOCAL_THETA = 6, 10000.0
_GEMMA3_27B_LAYERS = 62
# Bounds of what decides the size of tables; beyond any model.
_LARGEST_HEAD, _MOST_LAYERS = 1 << 16, 1 << 16


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab: int,
    tie_embeddings: bool,
    qkv_bias: bool,
    rope_divisors: tuple[float, ...] | None,
) -> ModelConfig:
    """Builds the configuration from GGUF metadata; what only its tensors say comes by keyword."""
    architecture = Fields(metadata).text("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise ValueError(
            f"general.architecture is {architecture!r}, "
            f"expected one of {', '.join(GGUF_ARCHITECTURES)}"
        )
    fields = Fields(metadata, f"{architecture}.")
    if fields.has("expert_count") and fields.get("expert_count") != 0:
        raise ValueError(
            f"{architecture}.expert_count is {fields.get('expert_count')}, expected none: models with experts are read from "
            "safetensors alone"
        )
    hidden, heads = (
        fields.whole("embedding_length"),
        fields.whole("attention.head_count", most=_MOST_LAYERS),
    )
    layers = fields.whole("block_count", most=_MOST_LAYERS)
    head_dim = fields.whole("attention.key_length", hidden // heads, most=_LARGEST_HEAD)
    if (rope_dim := fields.whole("rope.dimension_count", head_dim)) != head_dim:
        raise ValueError(f"rope.dimension_count is {rope_dim}, expected {head_dim}")
    # As llama.cpp reads it (src/llama-model.cpp): linear where a factor stands alone, also by its old name.
    factors = ("rope.scaling.factor", "rope.scale_linear")
    named = next((key for key in factors if fields.has(key)), None)
    scaling = fields.text("rope.scaling.type", "linear" if named else "none")
    if scaling == "linear":
        factor = fields.number(named or factors[0], 1.0, above=0)
        rope_divisors = tuple(factor * x for x in rope_divisors or (1.0,) * (head_dim // 2))
    elif scaling != "none":
        raise ValueError(f"rope.scaling.type is {scaling!r}, expected none or linear")
    rope = Rope(fields.number("rope.freq_base", 10000.0, above=0), rope_divisors)
    window = fields.whole("attention.sliding_window", 0, least=0) or None
    traits: dict[str, Any] = {"layer_kinds": (LayerKind(rope, window),)}
    if architecture == "gemma3":
        # Where the file is silent, the values that llama.cpp has for this architecture
        # (src/llama-model.cpp, LLM_ARCH_GEMMA3). In its 27B alone, the scores are not scaled by
        # the head dim.
        theta = fields.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA, above=0)
        local = LayerKind(Rope(theta), window)
        period = fields.whole("attention.sliding_window_pattern", _GEMMA3_PERIOD, most=_MOST_LAYERS)
        divisor = hidden / heads if layers == _GEMMA3_27B_LAYERS else head_dim
        traits = _GEMMA3 | {
            "layer_kinds": (*(local,) * (period - 1), LayerKind(rope)),
            "attention_scale": fields.number("attention.scale", divisor**-0.5, above=0),
            "embed_scale": math.sqrt(hidden),
        }
    tokens = Fields(metadata, "tokenizer.ggml.")
    eos = tokens.tokens("eos_token_id") + tokens.tokens("eot_token_id")
    return ModelConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=fields.whole("feed_forward_length"),
        vocab=vocab,
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        qkv_bias=qkv_bias,
        tie_embeddings=tie_embeddings,
        max_positions=fields.whole("context_length", least=2),
        bos_id=next(iter(tokens.tokens("bos_token_id")), None),
        eos_ids=tuple(dict.fromkeys(eos)),
        **traits,
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
        fields.whole("num_attention_heads", most=_MOST_LAYERS),
    )
    head_dim = fields.whole("head_dim", hidden // heads, most=_LARGEST_HEAD)
    traits = _FROM_HF[architecture](fields, head_dim)
    if "intermediate" not in traits:
        traits["intermediate"] = fields.whole("intermediate_size")
    return ModelConfig(
        hidden=hidden,
        layers=fields.whole("num_hidden_layers", most=_MOST_LAYERS),
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
    """What Llama, Mistral and Qwen2 say in ways of their own."""
    config.expect("hidden_act", "silu")
    architecture = config.texts("architectures")[0]
    if architecture == "Qwen2ForCausalLM":
        config.expect("use_sliding_window", False)
    rope = rope_settings(config)
    theta = theta_from_hf(rope, config.number("rope_theta", 10000.0, above=0))
    window = config.whole("sliding_window", None) if architecture == "MistralForCausalLM" else None
    return {
        "layer_kinds": (LayerKind(rope_from_hf(rope, theta, head_dim), window),),
        "qkv_bias": architecture == "Qwen2ForCausalLM",
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
        of_local, config.number("rope_local_base_freq", _GEMMA3_LOCAL_THETA, above=0)
    )
    kinds = {
        "full_attention": LayerKind(rope_from_hf(of_global, theta, head_dim)),
        "sliding_attention": LayerKind(
            rope_from_hf(of_local, local, head_dim), config.whole("sliding_window")
        ),
    }
    period = config.whole("sliding_window_pattern", _GEMMA3_PERIOD, most=_MOST_LAYERS)
    pattern = ["sliding_attention"] * (period - 1) + ["full_attention"]
    return _GEMMA3 | {
        "layer_kinds": layer_kinds(config, kinds, pattern),
        "attention_scale": config.number("query_pre_attn_scalar", 256, above=0) ** -0.5,
        "embed_scale": math.sqrt(config.whole("hidden_size")),
        "tie_embeddings": config.flag("tie_word_embeddings", True),
    }


_FROM_HF = {
    "LlamaForCausalLM": _llama_from_hf,
    "MistralForCausalLM": _llama_from_hf,
    "Qwen2ForCausalLM": _llama_from_hf,
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
        ValueError: The model has experts, or its rope is more than one factor: the file of such a model has lost the parameters by
            which transformers names the scaling.
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
    model = (
        "qwen2"
        if config.qkv_bias
        else "mistral"
        if config.layer_kinds[0].sliding_window
        else "llama"
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
