"""Weights of plain numbers in 8 or 4 bits, by rounding to the nearest code."""

import numpy as np

from intarsia._packing import BLOCK_COLUMNS, TILE_ROWS, PackedWeight, from_codes

_GROUPS = (128, 64, BLOCK_COLUMNS, 16)
_ROWS_AT_ONCE = 256 * TILE_ROWS


def group_for(columns: int) -> int:
    """Columns that share a scale: 128, or the largest smaller size that divides a row."""
    return next((group for group in _GROUPS if columns % group == 0), BLOCK_COLUMNS)


def round_to_nearest(weight: np.ndarray, bits: int, group: int | None = None) -> PackedWeight:
    """Rounds a matrix to codes of 8 or 4 bits, with an f16 scale for each group of columns.

    A group's number of the largest magnitude becomes the code that has no opposite (-128, -8), as in ggml's Q4_0, so that all codes are in
    use. Numbers of the other sign end at 127/128 or 7/8 of it.

    Args:
        weight: [rows, columns] f32.
        bits: Of a code.
        group: 16 or a multiple of 32; `group_for(columns)` if None. The last group of a row may have fewer.

    Raises:
        ValueError: `bits` is another number, or a number is not finite, or too large for a scale in f16.
    """
    if bits not in (4, 8):
        raise ValueError(f"repack: bits is {bits}, expected 4 or 8")
    group = group or group_for(weight.shape[1])
    parts = [
        _rounded(weight[first : first + _ROWS_AT_ONCE], bits, group)
        for first in range(0, len(weight), _ROWS_AT_ONCE)
    ]
    codes, scales = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return from_codes(codes, scales, format="u4b8" if bits == 4 else "i8", group=group)


def _rounded(weight: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes u8 [rows, columns] and scales f16 [rows, g]."""
    rows, columns = weight.shape
    groups, half = -(-columns // group), 1 << (bits - 1)
    whole = np.zeros((rows, groups * group), np.float32)
    whole[:, :columns] = weight
    whole = whole.reshape(rows, groups, group)
    largest = np.take_along_axis(whole, np.abs(whole).argmax(axis=2, keepdims=True), axis=2)
    with np.errstate(over="ignore"):
        scales = (largest / -half).astype(np.float16)
    if not np.isfinite(scales).all():
        raise ValueError(
            f"quantize: a weight is {largest[~np.isfinite(scales)][0]:g}, beyond 16-bit scales"
        )
    divisors = np.where(scales == 0, np.float16(1), scales).astype(np.float32)
    codes = np.clip(np.rint(whole / divisors), -half, half - 1).astype(np.int8)
    codes = codes.reshape(rows, -1)[:, :columns].view(np.uint8)
    # u4b8 counts from -8; two's complement is i8's own form.
    return (codes + half if bits == 4 else np.ascontiguousarray(codes)), scales[..., 0]
