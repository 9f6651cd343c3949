"""What a model's files say about its hyperparameters: GGUF metadata, or Hugging Face's JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.models.config import LayerKind, ModelConfig, Rope

# GGUF's general.architecture, and the first of `architectures` in config.json.
GGUF_ARCHITECTURES = ("llama", "qwen2", "gemma3")
HF_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Gemma3ForCausalLM",
)
_GEMMA3 = {
    "activation": "gelu_tanh",
    "qk_norm": True,
    "post_norms": True,
    "norm_in_f32": True,
    "fits_f16": False,
}
# Five layers with a sliding window and a rope base of their own, then one that sees everything.
_GEMMA3_PERIOD, _GEMMA3_LOCAL_THETA = 6, 10000.0
_GEMMA3_27B_LAYERS = 62


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab: int,
    tie_embeddings: bool,
    qkv_bias: bool,
    rope_divisors: tuple[float, ...] | None,
) -> ModelConfig:
    """Builds the configuration from GGUF metadata; what only its tensors say comes by keyword."""
    architecture = metadata["general.architecture"]
    if architecture not in GGUF_ARCHITECTURES:
        raise ValueError(
            f"GGUF: general.architecture is {architecture!r}, "
            f"expected one of {', '.join(GGUF_ARCHITECTURES)}"
        )

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if value is None:
            raise ValueError(f"GGUF: key {architecture}.{key} is missing")
        return value

    hidden, heads, layers = get("embedding_length"), get("attention.head_count"), get("block_count")
    head_dim = get("attention.key_length", hidden // heads)
    if (rope_dim := get("rope.dimension_count", head_dim)) != head_dim:
        raise ValueError(f"GGUF: rope.dimension_count is {rope_dim}, expected {head_dim}")
    scaling = get("rope.scaling.type", "none")
    if scaling == "linear":
        rope_divisors = (float(get("rope.scaling.factor")),) * (head_dim // 2)
    elif scaling != "none":
        raise ValueError(f"GGUF: rope.scaling.type is {scaling!r}, expected none or linear")
    rope = Rope(get("rope.freq_base", 10000.0), rope_divisors)
    window = get("attention.sliding_window", 0) or None
    traits: dict[str, Any] = {"layer_kinds": (LayerKind(rope, window),)}
    if architecture == "gemma3":
        # Where the file is silent, the values that llama.cpp has for this architecture
        # (src/llama-model.cpp, LLM_ARCH_GEMMA3). In its 27B alone, the scores are not scaled by
        # the head dim.
        local = LayerKind(Rope(get("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)), window)
        period = get("attention.sliding_window_pattern", _GEMMA3_PERIOD)
        divisor = hidden / heads if layers == _GEMMA3_27B_LAYERS else head_dim
        traits = _GEMMA3 | {
            "layer_kinds": (*(local,) * (period - 1), LayerKind(rope)),
            "attention_scale": get("attention.scale", divisor**-0.5),
            "embed_scale": math.sqrt(hidden),
        }
    eos = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return ModelConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=get("feed_forward_length"),
        vocab=vocab,
        rms_eps=get("attention.layer_norm_rms_epsilon"),
        qkv_bias=qkv_bias,
        tie_embeddings=tie_embeddings,
        max_positions=get("context_length"),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(dict.fromkeys(token for token in eos if token is not None)),
        **traits,
    )


def config_from_hf(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Builds the configuration from config.json and generation_config.json (empty if absent)."""
    if not config.get("architectures"):
        expected = ", ".join(HF_ARCHITECTURES)
        raise ValueError(f"config.json: got no architectures, expected one of {expected}")
    architecture = config["architectures"][0]
    if architecture not in HF_ARCHITECTURES:
        raise ValueError(
            f"config.json: architecture is {architecture!r}, "
            f"expected one of {', '.join(HF_ARCHITECTURES)}"
        )
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    traits = (_gemma3_from_hf if "Gemma3" in architecture else _llama_from_hf)(config, head_dim)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelConfig(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        rms_eps=config.get("rms_norm_eps", 1e-6),
        max_positions=config.get("max_position_embeddings", 2048),
        bos_id=config.get("bos_token_id"),
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        **traits,
    )


def _llama_from_hf(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """What Llama, Mistral and Qwen2 say in ways of their own."""
    _expect(config, "hidden_act", "silu")
    architecture = config["architectures"][0]
    if architecture == "Qwen2ForCausalLM":
        _expect(config, "use_sliding_window", False)
    # transformers 5 writes rope_parameters; before it there were rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    window = config.get("sliding_window") if architecture == "MistralForCausalLM" else None
    return {
        "layer_kinds": (LayerKind(_rope(rope, theta, head_dim), window),),
        "qkv_bias": architecture == "Qwen2ForCausalLM",
        "tie_embeddings": config.get("tie_word_embeddings", False),
    }


def _gemma3_from_hf(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """What Gemma 3 (text only) says."""
    _expect(config, "hidden_activation", "gelu_pytorch_tanh")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        _expect(config, key, None)
    _expect(config, "use_bidirectional_attention", False)
    # transformers 5 writes rope parameters for each type of layer; before it, scaling was only of
    # the layers that see everything.
    ropes = config.get("rope_parameters") or {}
    of_global = ropes.get("full_attention") or config.get("rope_scaling") or {}
    of_local = ropes.get("sliding_attention") or {}
    theta = of_global.get("rope_theta") or config.get("rope_theta") or 1e6
    local = of_local.get("rope_theta") or config.get("rope_local_base_freq") or _GEMMA3_LOCAL_THETA
    kinds = {
        "full_attention": LayerKind(_rope(of_global, float(theta), head_dim)),
        "sliding_attention": LayerKind(
            _rope(of_local, float(local), head_dim), config["sliding_window"]
        ),
    }
    period = config.get("sliding_window_pattern") or _GEMMA3_PERIOD
    pattern = ["sliding_attention"] * (period - 1) + ["full_attention"]
    layer_types = config.get("layer_types") or pattern
    for kind in set(layer_types) - kinds.keys():
        expected = " or ".join(kinds)
        raise ValueError(f"config.json: layer type is {kind!r}, expected {expected}")
    return _GEMMA3 | {
        "layer_kinds": tuple(kinds[kind] for kind in _period(layer_types)),
        "attention_scale": (config.get("query_pre_attn_scalar") or 256) ** -0.5,
        "embed_scale": math.sqrt(config["hidden_size"]),
        "tie_embeddings": config.get("tie_word_embeddings", True),
    }


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """What config.json says of a configuration: the inverse of `config_from_hf`.

    The keys are those of transformers 4, which later versions understand.

    Raises:
        ValueError: The frequencies of its rope are divided by different numbers: the file that it comes
            from has lost the parameters by which transformers names such a scaling.
    """
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
        "rope_theta": config.layer_kinds[-1].rope.theta,
        "rope_scaling": _rope_scaling(config.layer_kinds[-1].rope),
    }
    if config.post_norms:
        kinds = [config.kind(layer) for layer in range(config.layers)]
        types = ["sliding_attention" if kind.sliding_window else "full_attention" for kind in kinds]
        return said | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": types,
            "sliding_window": config.layer_kinds[0].sliding_window,
            "rope_local_base_freq": config.layer_kinds[0].rope.theta,
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
    if rope.divisors is None:
        return None
    if len(set(rope.divisors)) > 1:
        raise ValueError("rope: frequencies are divided by different numbers, expected one factor")
    return {"rope_type": "linear", "factor": rope.divisors[0]}


def _expect(config: Mapping[str, Any], key: str, expected: Any) -> None:
    """Raises ValueError unless a setting is absent or has the only value that is supported."""
    if (got := config.get(key)) is not None and got != expected:
        raise ValueError(f"config.json: {key} is {got!r}, expected {expected!r}")


def _period(sequence: Sequence[str]) -> Sequence[str]:
    """The shortest beginning that gives the whole sequence when it is repeated."""
    for n in range(1, len(sequence)):
        if all(item == sequence[i % n] for i, item in enumerate(sequence)):
            return sequence[:n]
    return sequence


def _rope(settings: Mapping[str, Any], theta: float, head_dim: int) -> Rope:
    """Turns Hugging Face's rope scaling into one divisor a frequency."""
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, (float(settings["factor"]),) * (head_dim // 2))
    if kind != "llama3":
        raise ValueError(
            f"config.json: rope type is {kind!r}, expected one of default, linear, llama3"
        )
    # Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, the band between
    # blended linearly in the number of turns that fit into the original context.
    factor, low, high = (
        float(settings[key]) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        turns = settings["original_max_position_embeddings"] / wavelength
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / (kept + (1.0 - kept) / factor))
    return Rope(theta, tuple(divisors))
