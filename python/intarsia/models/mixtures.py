"""Mixtures of experts: what config.json says of Mixtral, Qwen3-MoE and gpt-oss, and the tensors of their experts."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from intarsia.models.config import Experts, LayerKind, ModelConfig
from intarsia.models.expert_codes import stack_experts
from intarsia.models.families import GPT_OSS
from intarsia.models.fields import Fields
from intarsia.models.gguf_mixtures import (
    has_gguf_experts,
    read_gguf_experts,
    read_packed_gguf_experts,
)
from intarsia.models.ropes import layer_kinds, rope_from_hf, rope_settings, theta_from_hf

_FULL, _SLIDING = "full_attention", "sliding_attention"
# Where a layer's router and experts are, and an expert's gate, up and down projection. gpt-oss has one tensor for
# all experts.
_GPT_OSS_PLACE = "mlp."
_PLACES = {
    "block_sparse_moe.": ("w1", "w3", "w2"),  # Mixtral
    "mlp.": ("gate_proj", "up_proj", "down_proj"),  # Qwen3-MoE
}


def mixtral_from_hf(config: Fields, head_dim: int) -> dict[str, Any]:
    """What Mixtral says."""
    config.expect("hidden_act", "silu")
    rope = rope_settings(config)
    theta = theta_from_hf(rope, config.number("rope_theta", 1e6, above=0))
    kind = LayerKind(rope_from_hf(rope, theta, head_dim), config.whole("sliding_window", None))
    return {
        "layer_kinds": (kind,),
        "experts": _experts(config, "num_local_experts"),
        "tie_embeddings": config.flag("tie_word_embeddings", False),
    }


def qwen3_moe_from_hf(config: Fields, head_dim: int) -> dict[str, Any]:
    """What Qwen3-MoE says, where every layer has experts."""
    config.expect("hidden_act", "silu")
    config.expect("use_sliding_window", False)
    config.expect("attention_bias", False)
    config.expect("decoder_sparse_step", 1)
    config.expect("mlp_only_layers", [])
    rope = rope_settings(config)
    theta = theta_from_hf(rope, config.number("rope_theta", 10000.0, above=0))
    return {
        "intermediate": config.whole("moe_intermediate_size"),
        "layer_kinds": (LayerKind(rope_from_hf(rope, theta, head_dim)),),
        "experts": _experts(
            config, "num_experts", renormalize=config.flag("norm_topk_prob", False)
        ),
        "qk_norm": True,
        "tie_embeddings": config.flag("tie_word_embeddings", False),
    }


def gpt_oss_from_hf(config: Fields, head_dim: int) -> dict[str, Any]:
    """What gpt-oss says."""
    config.expect("hidden_act", "silu")
    config.expect("attention_bias", True)
    settings = rope_settings(config)
    theta = theta_from_hf(settings, config.number("rope_theta", 150000.0, above=0))
    rope = rope_from_hf(settings, theta, head_dim)
    kinds = {_SLIDING: LayerKind(rope, config.whole("sliding_window")), _FULL: LayerKind(rope)}
    limit = float(config.number("swiglu_limit", 7.0, above=0))
    return GPT_OSS | {
        "layer_kinds": layer_kinds(config, kinds, (_SLIDING, _FULL)),
        "experts": _experts(config, "num_local_experts", biases=True, limit=limit),
        "tie_embeddings": config.flag("tie_word_embeddings", False),
    }


def _experts(config: Fields, count: str, **traits: Any) -> Experts:
    number = config.whole(count)
    return Experts(number, config.whole("num_experts_per_tok", most=number), **traits)


def _place_of(names: Collection[str], layer: str) -> tuple[str, tuple[str, str, str]]:
    """What the names of a layer's router and experts begin with, and those of an expert's gate, up and down."""
    place = next((p for p in _PLACES if f"{layer}{p}gate.weight" in names), "mlp.")
    return layer + place, _PLACES[place]


def read_experts(
    config: ModelConfig, names: Collection[str], layer: str, read: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """Reads a layer's router and experts, by role.

    Args:
        config: The model's configuration.
        names: Tensors of the file.
        layer: What the names of the layer's tensors begin with.
        read: Reads a tensor of a name and a shape.
    """
    assert config.experts is not None
    if has_gguf_experts(names):
        return read_gguf_experts(config, layer, read)
    if config.experts.biases:
        return _read_gpt_oss(config, layer + _GPT_OSS_PLACE, read)
    e, n, i = config.expert_sizes
    place, (gate, up, down) = _place_of(names, layer)

    def matrix(expert: int, name: str, rows: int, columns: int) -> np.ndarray:
        return read(f"{place}experts.{expert}.{name}.weight", rows, columns)

    router = read(f"{place}gate.weight", e, n)
    gate_up = [
        np.concatenate([matrix(expert, name, i, n) for name in (gate, up)]) for expert in range(e)
    ]
    return {
        "router": router,
        "experts_gate_up": np.stack(gate_up),
        "experts_down": np.stack([matrix(expert, down, n, i) for expert in range(e)]),
    }


def read_packed_experts(
    config: ModelConfig,
    names: Collection[str],
    layer: str,
    read: Callable[..., np.ndarray],
    read_packed: Callable[..., Any],
) -> dict[str, Any] | None:
    """`read_experts` with matrices in the file's codes, stacked; None if one of them is plain numbers.

    Args:
        config, names, layer, read: As there.
        read_packed: Reads a tensor of a name and the shape of one matrix: a weight or several, None for plain numbers.

    Raises:
        UnheldCodesError: No op takes such experts.
    """
    assert config.experts is not None
    if has_gguf_experts(names):
        return read_packed_gguf_experts(config, layer, read, read_packed)
    e, n, i = config.expert_sizes
    if config.experts.biases:
        place = layer + _GPT_OSS_PLACE
        gate_up = read_packed(f"{place}experts.gate_up_proj", 2 * i, n, e)
        down = read_packed(f"{place}experts.down_proj", n, i, e)
        if gate_up is None or down is None:
            return None
        return stack_experts(place, [(weight,) for weight in gate_up], down) | _gpt_oss_others(
            config, place, read
        )
    place, (gate, up, down) = _place_of(names, layer)

    def matrix(expert: int, name: str, rows: int, columns: int) -> Any:
        return read_packed(f"{place}experts.{expert}.{name}.weight", rows, columns)

    shapes = ((gate, i, n), (up, i, n), (down, n, i))
    gates, ups, downs = ([matrix(x, *shape) for x in range(e)] for shape in shapes)
    if any(weight is None for weight in (*gates, *ups, *downs)):
        return None
    pairs = list(zip(gates, ups, strict=True))
    return stack_experts(place, pairs, downs) | {"router": read(f"{place}gate.weight", e, n)}


def _read_gpt_oss(
    config: ModelConfig, place: str, read: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """Its matrices are [in, out] in the file, and gate and up take turns in its columns."""
    e, n, i = config.expert_sizes
    return _gpt_oss_others(config, place, read) | {
        "experts_gate_up": _transposed(read(f"{place}experts.gate_up_proj", e, n, 2 * i)),
        "experts_down": _transposed(read(f"{place}experts.down_proj", e, i, n)),
    }


def _gpt_oss_others(
    config: ModelConfig, place: str, read: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """The router, and all biases."""
    e, n, i = config.expert_sizes
    return {
        "router": read(f"{place}router.weight", e, n),
        "router_bias": read(f"{place}router.bias", e),
        "experts_gate_up_bias": read(f"{place}experts.gate_up_proj_bias", e, 2 * i),
        "experts_down_bias": read(f"{place}experts.down_proj_bias", e, n),
    }


def _transposed(matrices: np.ndarray) -> np.ndarray:
    swapped = matrices.swapaxes(1, 2)
    return np.ascontiguousarray(swapped) if isinstance(swapped, np.ndarray) else swapped
