"""A GGUF file's experts: one tensor for all gates, one for all ups and one for all downs of a layer.

Names are those of `checkpoint.py`, shapes NumPy's: [experts, out, in].
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from intarsia.models.config import ModelConfig
from intarsia.models.expert_codes import stack_experts
from intarsia.models.lazy import arrays_in_turn, beside

_FIRST = "model.layers.0.mlp.experts.gate_proj.weight"
_FIRST_OF_EACH = "model.layers.0.ffn_gate.0.weight"


def has_gguf_experts(names: Collection[str]) -> bool:
    """Whether a checkpoint's experts are as GGUF has them: one tensor for all gates of a layer, which no directory has."""
    return _FIRST in names


def check_gguf_experts(config: ModelConfig, names: Collection[str]) -> None:
    """Raises ValueError if a mixture's file has no such experts."""
    if config.experts is None or has_gguf_experts(names):
        return
    old = "; it has a tensor for each expert, as old files do: convert the model again"
    raise ValueError(
        f"tensor blk.0.ffn_gate_exps.weight is missing{old if _FIRST_OF_EACH in names else ''}"
    )


def read_gguf_experts(
    config: ModelConfig, layer: str, read: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """`mixtures.read_experts` of such a file."""
    e, n, i = config.expert_sizes
    place = f"{layer}mlp.experts."
    gate, up = (read(f"{place}{p}_proj.weight", e, i, n) for p in ("gate", "up"))
    return {
        "experts_gate_up": _together(config, gate, up),
        "experts_down": read(f"{place}down_proj.weight", e, n, i),
    } | _others(config, layer, read)


def read_packed_gguf_experts(
    config: ModelConfig,
    layer: str,
    read: Callable[..., np.ndarray],
    read_packed: Callable[..., Any],
) -> dict[str, Any] | None:
    """`mixtures.read_packed_experts` of such a file."""
    e, n, i = config.expert_sizes
    place = f"{layer}mlp."
    shapes = {"gate": (i, n), "up": (i, n), "down": (n, i)}
    gates, ups, downs = (
        read_packed(f"{place}experts.{p}_proj.weight", *shape, e) for p, shape in shapes.items()
    )
    if gates is None or ups is None or downs is None:
        return None
    pairs = list(zip(gates, ups, strict=True))
    takes_turns = config.activation == "swigluoai"
    return stack_experts(place, pairs, downs, takes_turns=takes_turns) | _others(
        config, layer, read
    )


def _others(
    config: ModelConfig, layer: str, read: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """The router, and biases if there are any."""
    assert config.experts is not None
    e, n, i = config.expert_sizes
    place = f"{layer}mlp."
    made = {"router": read(f"{place}router.weight", e, n)}
    if config.experts.biases:
        gate, up = (read(f"{place}experts.{p}_proj.bias", e, i) for p in ("gate", "up"))
        made |= {
            "router_bias": read(f"{place}router.bias", e),
            "experts_gate_up_bias": _together(config, gate, up),
            "experts_down_bias": read(f"{place}experts.down_proj.bias", e, n),
        }
    return made


def _together(config: ModelConfig, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Rows of gate and up of each expert as `fused_experts` takes them: swigluoai's in turn."""
    return arrays_in_turn(gate, up) if config.activation == "swigluoai" else beside(gate, up)
