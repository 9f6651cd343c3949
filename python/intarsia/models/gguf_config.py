"""What a GGUF file's metadata say about a model's hyperparameters.

Keys and defaults are llama.cpp's: gguf-py/gguf/constants.py names them, and src/llama-model.cpp with src/models reads them.
"""

import math
from collections.abc import Mapping
from typing import Any

from intarsia.models.config import Experts, LayerKind, ModelConfig, Rope
from intarsia.models.families import GEMMA3, GEMMA3_LOCAL_THETA, GEMMA3_PERIOD, GPT_OSS
from intarsia.models.fields import LARGEST_HEAD, MOST_LAYERS, Fields
from intarsia.models.ropes import YARN_FAST, YARN_SLOW, Yarn

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "gpt-oss")
"""GGUF's general.architecture; Mixtral's is llama."""
_MIXTURES = ("qwen3moe", "gpt-oss")  # in any case
_GEMMA3_27B_LAYERS = 62
_GPT_OSS_PERIOD = 2
_SCALINGS = ("none", "linear", "yarn")


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab: int,
    tie_embeddings: bool,
    qkv_bias: bool,
    rope_divisors: tuple[float, ...] | None,
) -> ModelConfig:
    """Builds the configuration from GGUF metadata; what only its tensors say comes by keyword.

    Raises:
        ValueError: A key is missing, has a value that makes no sense, or asks for what is not supported; the text names it.
    """
    architecture = Fields(metadata).text("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise ValueError(
            f"general.architecture is {architecture!r}, "
            f"expected one of {', '.join(GGUF_ARCHITECTURES)}"
        )
    fields = Fields(metadata, f"{architecture}.")
    hidden, heads = (
        fields.whole("embedding_length"),
        fields.whole("attention.head_count", most=MOST_LAYERS),
    )
    layers = fields.whole("block_count", most=MOST_LAYERS)
    head_dim = fields.whole("attention.key_length", hidden // heads, most=LARGEST_HEAD)
    if (rope_dim := fields.whole("rope.dimension_count", head_dim)) != head_dim:
        raise ValueError(f"rope.dimension_count is {rope_dim}, expected {head_dim}")
    # gpt-oss was trained with a band that begins and ends between indices (transformers' `truncate`), which no key says.
    truncates = architecture != "gpt-oss"
    rope = _rope(fields, head_dim, rope_divisors, truncates=truncates)
    traits: dict[str, Any] = {"qkv_bias": qkv_bias}
    if architecture == "gemma3":
        divisor = hidden / heads if layers == _GEMMA3_27B_LAYERS else head_dim
        traits |= _gemma3(fields, rope, divisor) | {"embed_scale": math.sqrt(hidden)}
    elif architecture == "gpt-oss":
        window = fields.whole("attention.sliding_window")
        traits |= GPT_OSS | {"layer_kinds": _local_then_whole(fields, rope, window)}
    else:
        # Some files have attention.sliding_window, which llama.cpp's graphs of these ignore (build_attn_inp_kv in src/models).
        traits["layer_kinds"] = (LayerKind(rope),)
        traits["qk_norm"] = architecture in ("qwen3", "qwen3moe")
    experts = _experts(fields, architecture)
    tokens = Fields(metadata, "tokenizer.ggml.")
    eos = tokens.tokens("eos_token_id") + tokens.tokens("eot_token_id")
    return ModelConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=_intermediate(fields, architecture, experts),
        experts=experts,
        vocab=vocab,
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tie_embeddings=tie_embeddings,
        max_positions=fields.whole("context_length", least=2),
        bos_id=next(iter(tokens.tokens("bos_token_id")), None),
        eos_ids=tuple(dict.fromkeys(eos)),
        **traits,
    )


def _rope(
    fields: Fields, head_dim: int, divisors: tuple[float, ...] | None, *, truncates: bool
) -> Rope:
    """The rope of layers that see everything; a scaling divides beside what the file's tensor divides by."""
    theta = float(fields.number("rope.freq_base", 10000.0, above=0))
    # Linear where a factor stands alone, also by its old name.
    factors = ("rope.scaling.factor", "rope.scale_linear")
    named = next((key for key in factors if fields.has(key)), None)
    scaling = fields.text("rope.scaling.type", "linear" if named else "none")
    if scaling not in _SCALINGS:
        raise ValueError(
            f"rope.scaling.type is {scaling!r}, expected {', '.join(_SCALINGS[:-1])} or {_SCALINGS[-1]}"
        )
    if divisors is not None and len(divisors) != head_dim // 2:
        raise ValueError(
            f"tensor rope_freqs.weight has {len(divisors)} numbers, expected {head_dim // 2}"
        )
    # llama.cpp multiplies by it whatever the type is (yarn_attn_factor in src/llama-context.cpp).
    fields.expect("rope.scaling.attn_factor", 1.0)
    # 0 stands for 1 in all types (ropescale in src/llama-model.cpp); src/llama-model-saver.cpp writes it.
    factor = 1.0
    if scaling != "none":
        factor = float(fields.number(named or factors[0], 0.0)) or 1.0
    if scaling != "yarn" and factor == 1:
        return Rope(theta, divisors)
    if scaling == "yarn":
        yarn = _yarn(fields, factor, truncates=truncates)
        scaled, amplitude = yarn.divisors(theta, head_dim), yarn.amplitude()
    else:
        scaled, amplitude = (factor,) * (head_dim // 2), 1.0
    if divisors is not None:
        scaled = tuple(a * b for a, b in zip(divisors, scaled, strict=True))
    return Rope(theta, scaled, amplitude)


def _yarn(fields: Fields, factor: float, *, truncates: bool) -> Yarn:
    place = "rope.scaling."
    for key in ("yarn_ext_factor", "yarn_attn_factor"):
        fields.expect(place + key, 1.0)
    fields.expect(f"{place}yarn_log_multiplier", 0.0)
    fast, slow = (
        float(fields.number(f"{place}yarn_{key}", default, above=0))
        for key, default in (("beta_fast", YARN_FAST), ("beta_slow", YARN_SLOW))
    )
    context = fields.whole(f"{place}original_context_length")
    return Yarn(factor, context, truncates, fast, slow)


def _gemma3(fields: Fields, rope: Rope, divisor: float) -> dict[str, Any]:
    """Gemma 3's traits; in its 27B alone, the scores are not scaled by the head dim (LLM_ARCH_GEMMA3)."""
    window = fields.whole("attention.sliding_window", 0, least=0) or None
    theta = fields.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA, above=0)
    local = LayerKind(Rope(theta), window)
    period = fields.whole("attention.sliding_window_pattern", GEMMA3_PERIOD, most=MOST_LAYERS)
    return GEMMA3 | {
        "layer_kinds": (*(local,) * (period - 1), LayerKind(rope)),
        "attention_scale": fields.number("attention.scale", divisor**-0.5, above=0),
    }


def _experts(fields: Fields, architecture: str) -> Experts | None:
    """A mixture's experts; the weights of a token's experts sum to 1, as llama.cpp has it for these architectures."""
    if architecture in _MIXTURES:
        count = fields.whole("expert_count")
    else:
        count = fields.whole("expert_count", 0, least=0)
        if not count:
            return None
        if architecture != "llama":
            raise ValueError(f"{architecture}.expert_count is {count}, expected none or 0")
    for key, fine in (("expert_shared_count", (0,)), ("expert_weights_scale", (0, 1))):
        if (got := fields.number(key, 0)) not in fine:
            raise ValueError(f"{architecture}.{key} is {got}, expected {fine[-1]}")
    used = fields.whole("expert_used_count", most=count)
    return Experts(count, used, biases=architecture == "gpt-oss")


def _intermediate(fields: Fields, architecture: str, experts: Experts | None) -> int:
    """Columns of the feed-forward layers, of each expert in a mixture."""
    if architecture not in _MIXTURES:
        return int(fields.whole("feed_forward_length"))
    own = "expert_feed_forward_length"
    if architecture == "qwen3moe" and not fields.has(own):
        # As llama.cpp does: n_ff_exp in src/models/qwen3moe.cpp.
        assert experts is not None
        return (
            int(fields.whole("feed_forward_length", least=experts.per_token)) // experts.per_token
        )
    return int(fields.whole(own))


def _local_then_whole(fields: Fields, rope: Rope, window: int) -> tuple[LayerKind, ...]:
    """gpt-oss's kinds of layers: a window and none in turn."""
    period = fields.whole("attention.sliding_window_pattern", _GPT_OSS_PERIOD, most=MOST_LAYERS)
    theta = float(fields.number("rope.freq_base_swa", rope.theta, above=0))
    if theta != rope.theta:
        raise ValueError(
            f"rope.freq_base_swa is {theta}, expected {rope.theta}, which rope.freq_base is"
        )
    return (*(LayerKind(rope, window),) * (period - 1), LayerKind(rope))
