"""Experts in codes, stacked as `fused_experts_quantized` takes them, or refused."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from intarsia._joining import (
    form_in_words,
    forms_in_words,
    is_for_all_rows,
    joined,
    rows_in_turn,
    same_form,
    stacked,
)
from intarsia._packing import TILE_ROWS
from intarsia.repack import PackedWeight, round_to_nearest


class UnheldCodesError(NotImplementedError):
    """Experts are in codes that no op takes; as plain numbers they can be loaded."""


def stack_experts(
    place: str,
    gate_up: Sequence[Sequence[PackedWeight]],
    down: Sequence[PackedWeight],
    *,
    takes_turns: bool = False,
) -> dict[str, Any]:
    """Stacks the matrices of a layer's experts.

    Args:
        place: What the names of the experts begin with, but for "experts".
        gate_up: Of each expert one matrix, or gate and up, whose rows come one after the other.
        down: Of each expert.
        takes_turns: Whether rows of gate and up take turns instead.

    Returns:
        "experts_gate_up" and "experts_down", each array with an axis in front for the expert.

    Raises:
        UnheldCodesError: No op takes such experts.
    """
    try:
        pairs = _with_outer_scales_of_rows(gate_up)
        return _stacked_codes([_as_one(parts, takes_turns) for parts in pairs], down)
    except ValueError as error:
        raise UnheldCodesError(f"{place}experts: {error}; --quantize none widens them") from error


def _as_one(parts: Sequence[PackedWeight], takes_turns: bool) -> PackedWeight:
    if len(parts) == 1:
        return parts[0]
    gate, up = parts
    if gate.rows % TILE_ROWS:
        raise ValueError(f"gate and up have {gate.rows} rows, expected a multiple of {TILE_ROWS}")
    if not same_form(gate, up):
        of_gate, of_up = forms_in_words(gate, up)
        raise ValueError(f"gate is in {of_gate}, up in {of_up}, expected one form")
    # An outer scale for all rows is the same in both, and then the whole's.
    outer = gate.outer_scales if is_for_all_rows(gate.outer_scales) else None
    if outer is not None:
        gate, up = (dataclasses.replace(part, outer_scales=None) for part in parts)
    whole = rows_in_turn(gate, up) if takes_turns else joined([gate, up])[0]
    return whole if outer is None else dataclasses.replace(whole, outer_scales=outer)


def _with_outer_scales_of_rows(
    experts: Sequence[Sequence[PackedWeight]],
) -> Sequence[Sequence[PackedWeight]]:
    """The same with outer scales of rows [c, 1, 16], if gate and up of an expert have different ones [1].

    Raises:
        ValueError: Some parts have outer scales [1], and others do not.
    """

    def differ(parts: Sequence[PackedWeight]) -> bool:
        scales = (part.outer_scales for part in parts)
        return len({scale.item() for scale in scales if is_for_all_rows(scale)}) > 1

    if not any(map(differ, experts)):
        return experts
    if not all(is_for_all_rows(part.outer_scales) for parts in experts for part in parts):
        forms = sorted({form_in_words(part) for parts in experts for part in parts})
        raise ValueError(f"gate and up are in {' and in '.join(forms)}, expected one form for all")

    def of_rows(part: PackedWeight) -> PackedWeight:
        shape = (len(part.packed), 1, TILE_ROWS)
        return dataclasses.replace(
            part, outer_scales=np.ascontiguousarray(np.broadcast_to(part.outer_scales, shape))
        )

    return [[of_rows(part) for part in parts] for parts in experts]


def _stacked_codes(gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight]) -> dict[str, Any]:
    """Refuses what `fused_experts_quantized` does not take."""
    made = {"experts_gate_up": stacked(gate_up), "experts_down": stacked(down)}
    first, second = made.values()
    has_both = first.zeros is not None and second.zeros is not None
    if has_both and first.zeros_are != second.zeros_are:
        raise ValueError(
            f"gate and up have {first.zeros_are}, down has {second.zeros_are}, expected one kind of zeros"
        )
    return made


def round_experts(arrays: dict[str, np.ndarray], bits: int, dtype: Any) -> dict[str, Any]:
    """What `read_experts` gives, in f32, with matrices rounded to codes of 8 or 4 bits, and the rest in a dtype."""
    matrices = ("experts_gate_up", "experts_down")
    rounded = {role: [round_to_nearest(w, bits) for w in arrays[role]] for role in matrices}
    others = {role: a.astype(dtype) for role, a in arrays.items() if role not in matrices}
    return _stacked_codes(*rounded.values()) | others
