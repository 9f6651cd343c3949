"""The hyperparameters of a Llama-family model, from a GGUF header or from Hugging Face's JSON."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# GGUF's general.architecture, and the first of `architectures` in config.json.
GGUF_ARCHITECTURES = ("llama", "qwen2")
HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What `llama.forward` needs to know about a model besides its weights.

    Attributes:
        hidden: Width n of the residual stream.
        layers: Number of transformer blocks.
        heads: Query heads h.
        kv_heads: Key and value heads hk; divides `heads`.
        head_dim: Width d of one head.
        intermediate: Width of the gated feed-forward layer.
        vocab: Rows of the embedding table.
        rope_theta: Base of the rotary frequencies.
        rope_divisors: What each of the head_dim / 2 rotary frequencies is divided by, or None.
            Every supported kind of rope scaling ("linear", "llama3") comes down to this.
        rms_eps: Added to the mean square in every norm.
        tie_embeddings: Whether the embedding table is also the output projection.
        qkv_bias: Whether the q, k and v projections have a bias (Qwen2).
        sliding_window: Keys that a query sees, itself included; None means all (Mistral 7B v0.1).
        max_positions: Longest sequence that the model was trained for.
        bos_id: Token that begins a text, if the model has one.
        eos_ids: Tokens that end a completion.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float = 10000.0
    rope_divisors: tuple[float, ...] | None = None
    rms_eps: float = 1e-6
    tie_embeddings: bool = False
    qkv_bias: bool = False
    sliding_window: int | None = None
    max_positions: int = 2048
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"config: heads={self.heads} must be a multiple of kv_heads={self.kv_heads}"
            )
        if self.rope_divisors is not None and len(self.rope_divisors) != self.head_dim // 2:
            raise ValueError(
                f"config: rope_divisors has {len(self.rope_divisors)} values, "
                f"expected head_dim / 2 = {self.head_dim // 2}"
            )

    def rope_table(self, max_len: int) -> np.ndarray:
        """Returns the cosines and then the sines of every position: f32 [max_len, head_dim].

        Computed in f32 step by step as transformers does, so that tokens can be compared.
        """
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = np.float32(1.0) / np.float32(self.rope_theta) ** exponents
        if self.rope_divisors is not None:
            frequencies = frequencies / np.asarray(self.rope_divisors, np.float32)
        angles = np.arange(max_len, dtype=np.float32)[:, None] * frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)


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

    hidden, heads = get("embedding_length"), get("attention.head_count")
    head_dim = get("attention.key_length", hidden // heads)
    if (rope_dim := get("rope.dimension_count", head_dim)) != head_dim:
        raise ValueError(f"GGUF: rope.dimension_count is {rope_dim}, expected {head_dim}")
    scaling = get("rope.scaling.type", "none")
    if scaling == "linear":
        rope_divisors = (float(get("rope.scaling.factor")),) * (head_dim // 2)
    elif scaling != "none":
        raise ValueError(f"GGUF: rope.scaling.type is {scaling!r}, expected none or linear")
    eos = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return ModelConfig(
        hidden=hidden,
        layers=get("block_count"),
        heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=get("feed_forward_length"),
        vocab=vocab,
        rope_theta=get("rope.freq_base", 10000.0),
        rope_divisors=rope_divisors,
        rms_eps=get("attention.layer_norm_rms_epsilon"),
        tie_embeddings=tie_embeddings,
        qkv_bias=qkv_bias,
        sliding_window=get("attention.sliding_window", 0) or None,
        max_positions=get("context_length"),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(dict.fromkeys(token for token in eos if token is not None)),
    )


def config_from_hf(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Builds the configuration from config.json and generation_config.json (empty if absent)."""
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in HF_ARCHITECTURES:
        raise ValueError(
            f"config.json: architecture is {architecture!r}, "
            f"expected one of {', '.join(HF_ARCHITECTURES)}"
        )
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"config.json: hidden_act is {activation!r}, expected 'silu'")
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    # transformers 5 writes rope_parameters; before it there were rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    if config.get("use_sliding_window") and architecture == "Qwen2ForCausalLM":
        raise ValueError("config.json: use_sliding_window is true, expected false for Qwen2")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelConfig(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        rope_theta=theta,
        rope_divisors=_rope_divisors(rope, theta, head_dim),
        rms_eps=config.get("rms_norm_eps", 1e-6),
        tie_embeddings=config.get("tie_word_embeddings", False),
        qkv_bias=architecture == "Qwen2ForCausalLM",
        sliding_window=config.get("sliding_window") if "Mistral" in architecture else None,
        max_positions=config.get("max_position_embeddings", 2048),
        bos_id=config.get("bos_token_id"),
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    )


def _rope_divisors(
    rope: Mapping[str, Any], theta: float, head_dim: int
) -> tuple[float, ...] | None:
    """Turns Hugging Face's rope scaling into one divisor a frequency."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return (float(rope["factor"]),) * (head_dim // 2)
    if kind != "llama3":
        raise ValueError(
            f"config.json: rope type is {kind!r}, expected one of default, linear, llama3"
        )
    # Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, the band between
    # blended linearly in the number of turns that fit into the original context.
    factor, low, high = (
        float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / (kept + (1.0 - kept) / factor))
    return tuple(divisors)
