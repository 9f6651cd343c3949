"""Experts in codes, stacked as `fused_experts_quantized` takes them, or refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from intarsia._joining import alike, in_turn
from intarsia._packing import TILE_ROWS
from intarsia.repack import PackedWeight, joined, round_to_nearest, stacked


class UnheldCodesError(NotImplementedError):
    """Experts are in codes that no op takes; as plain numbers they can be loaded."""


def held(
    place: str,
    gate_up: Sequence[Sequence[PackedWeight]],
    down: Sequence[PackedWeight],
    *,
    takes_turns: bool = False,
) -> dict[str, Any]:
    """The matrices stacked, by role.

    Args:
        place: What the names of the experts begin with, but for "experts".
        gate_up: Of each expert one matrix, or gate and up, whose rows come one after the other.
        down: Of each expert.
        takes_turns: Whether rows of gate and up take turns instead.

    Raises:
        UnheldCodesError: No op takes such experts.
    """
    try:
        if any(part.outer_scales is not None for part in (*gate_up[0], down[0])):
            raise ValueError("they have scales of scales (nvfp4), which no op of experts takes")
        return _stacked_codes([_as_one(parts, takes_turns) for parts in gate_up], down)
    except ValueError as error:
        raise UnheldCodesError(f"{place}experts: {error}; --quantize none widens them") from error


def _as_one(parts: Sequence[PackedWeight], takes_turns: bool) -> PackedWeight:
    if len(parts) == 1:
        return parts[0]
    gate, up = parts
    if gate.rows % TILE_ROWS:
        raise ValueError(f"gate and up have {gate.rows} rows, expected a multiple of {TILE_ROWS}")
    if not alike(gate, up):
        raise ValueError(
            f"gate is in {gate.format} in groups of {gate.group}, up in {up.format} in groups of {up.group}, "
            "expected one form"
        )
    return in_turn(gate, up) if takes_turns else joined(parts)[0]


def _stacked_codes(gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight]) -> dict[str, Any]:
    """Refuses what `fused_experts_quantized` does not take."""
    made = {"experts_gate_up": stacked(gate_up), "experts_down": stacked(down)}
    first, second = made.values()
    if (first.format, first.zeros_are) != (second.format, second.zeros_are):
        raise ValueError(
            f"gate and up are in {first.format}, down in {second.format}, expected one format"
        )
    return made


def round_experts(arrays: dict[str, np.ndarray], bits: int, dtype: Any) -> dict[str, Any]:
    """What `read_experts` gives, in f32, with matrices rounded to codes of 8 or 4 bits, and the rest in a dtype."""
    matrices = ("experts_gate_up", "experts_down")
    rounded = {role: [round_to_nearest(w, bits) for w in arrays[role]] for role in matrices}
    others = {role: a.astype(dtype) for role, a in arrays.items() if role not in matrices}
    return _stacked_codes(*rounded.values()) | others
