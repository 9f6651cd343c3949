"""Weights in codes under tensor parallelism: tiles of rows, and blocks and groups of columns, go to devices whole."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec as P
from jax.tree_util import GetAttrKey

from intarsia._packing import ARRAYS, BLOCK_COLUMNS, TILE_ROWS, PackedWeight, decoded
from intarsia.models.linear import PackedMatrix

OF_CODES = tuple(map(GetAttrKey, ARRAYS))
"""Last keys of paths to a packed weight's arrays."""
_EXPERTS, _ROWS, _COLUMNS = -3, -2, -1


class UndividedCodesError(ValueError):
    """Weights in codes cannot be divided among so many devices; as plain numbers they can."""


def cut_matrix(
    role: str,
    matrix: PackedMatrix,
    axis: int | None,
    size: int,
    order: Callable[[str, Sequence[int]], np.ndarray],
) -> PackedMatrix | np.ndarray:
    """A matrix whose arrays can be spread evenly, with the rows and columns that one device has of it.

    A table of the vocabulary becomes plain numbers, of whose rows devices have as many as they like.

    Args:
        role: Its name in `Params`.
        matrix: The whole.
        axis: The axis that is spread, -2 or -1; None if each device has all.
        size: Number of devices.
        order: Gives the rows in the order in which devices need them.

    Raises:
        UndividedCodesError: A tile, block or group would have to be cut.
    """
    if axis is None:
        return matrix
    if role in ("embed", "lm_head"):
        (table,) = matrix.parts
        return decoded(table).astype(matrix.dtype)
    if axis == _COLUMNS:
        parts = [_cut_columns(role, part, size) for part in matrix.parts]
    else:
        parts = [_cut_rows(role, matrix.parts, size, order)]
    return PackedMatrix(tuple(parts), matrix.dtype, matrix.int8_activations)


def check_experts(role: str, experts: PackedWeight, axis: int | None) -> PackedWeight:
    """Stacked experts, which go to devices whole."""
    if axis not in (None, _EXPERTS):
        _refuse(role, "experts in codes are divided by --expert-parallel alone")
    return experts


def _refuse(role: str, why: str) -> None:
    raise UndividedCodesError(
        f"tensor_parallel: {role} is in codes, expected plain arrays: {why}; "
        "load the model with quantize=None (--quantize none)"
    )


def _cut_rows(
    role: str,
    parts: Sequence[PackedWeight],
    size: int,
    order: Callable[[str, Sequence[int]], np.ndarray],
) -> PackedWeight:
    if len(parts) > 1:
        _refuse(role, f"its {len(parts)} parts are in formats or of scales of their own")
    (whole,) = parts
    places = order(role, (whole.rows, 1))
    tiles = places.reshape(-1, TILE_ROWS) if len(places) % (TILE_ROWS * size) == 0 else None
    if (
        tiles is None
        or (tiles != tiles[:, :1] // TILE_ROWS * TILE_ROWS + np.arange(TILE_ROWS)).any()
    ):
        _refuse(role, f"{size} devices would cut its tiles of {TILE_ROWS} rows")
    assert tiles is not None
    chosen = tiles[:, 0] // TILE_ROWS
    arrays = [a if a is None or a.ndim == 1 else np.asarray(a)[chosen] for a in whole.arrays]
    return whole.with_arrays(arrays, len(places) // size, whole.columns)


def _cut_columns(role: str, whole: PackedWeight, size: int) -> PackedWeight:
    if whole.columns % (BLOCK_COLUMNS * size):
        _refuse(role, f"{size} devices would cut its blocks of {BLOCK_COLUMNS} columns")
    columns = whole.columns // size
    counts = [a.shape[1] for a in whole.arrays[1:] if a is not None and a.ndim > 1]
    uneven = any(count > 1 and count % size for count in counts)
    if uneven or (whole.scales.shape[1] > 1 and columns % whole.group):
        _refuse(role, f"{size} devices would cut its groups of {whole.group} columns")
    return whole.with_arrays(whole.arrays, whole.rows, columns)


def spec_of_codes(name: str, array: Any, axis: int | None, mesh_axis: str) -> P:
    """How one of a packed weight's arrays, perhaps with an axis of layers in front, is spread."""
    own = 5 if name == "packed" else 3
    if axis == _EXPERTS and array.ndim < own:  # one for each expert
        return P(*[None] * (array.ndim - 1), mesh_axis)
    if axis is None or array.ndim < own:
        return P()
    lead = array.ndim - own
    if axis == _EXPERTS:
        return P(*[None] * (lead - 1), mesh_axis)
    at = lead if axis == _ROWS else lead + 1
    # One group is everybody's.
    return P() if axis == _COLUMNS and array.shape[at] == 1 else P(*[None] * at, mesh_axis)
