"""Weights of linear layers in 8 bits or less, in the one layout that `linear_quantized` reads.

`PackedWeight` holds a matrix [rows, columns] as codes and factors. `from_codes` makes one, `codes_of` gives the codes back,
`decoded` the numbers. Packing moves bits and computes nothing, so it is exact and can be undone. It is NumPy: weights are packed
once, as their file is read, on the host. `intarsia.repack` packs the formats of checkpoints.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

TILE_ROWS, BLOCK_COLUMNS = 16, 32
# What lies between file and result takes up to ten bytes for each of these.
_CODES_AT_ONCE = 1 << 20


class Format(NamedTuple):
    """What a code stands for: the code less `bias`, unless it is the number of an element type."""

    bits: int
    bias: int = 0
    element: str | None = None


FORMATS = {
    "u4": Format(4),
    "u4b8": Format(4, 8),
    "e2m1": Format(4, element="float4_e2m1fn"),
    "u5": Format(5),
    "u5b16": Format(5, 16),
    "u6b32": Format(6, 32),
    "i8": Format(8, element="int8"),
    "e4m3": Format(8, element="float8_e4m3fn"),
}
"""By the words of `linear_quantized`'s attribute `format`."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The numbers of `e2m1` by code."""


@dataclasses.dataclass(frozen=True)
class PackedWeight:
    """A matrix of weights [rows, columns], for each result a row, as `linear_quantized` takes it.

    Attributes:
        packed: Codes, u8 [c, kb, bits, 16, 4]; `src/matmul/quantized.h` says which bit is where.
        scales: [c, kg, 16], of each group of each row.
        zeros: The same, or None.
        outer_scales, outer_zeros: What those are multiplied by, [c, ko, 16] or [1], or None: outer factors, such as
            the scales of GGUF's super-blocks and nvfp4's global scale.
        rows, columns: Of the matrix; tiles have 16 rows, the last one perhaps fewer.
        format: One of `FORMATS`.
        group: Columns that share a scale; 0: all.
        zeros_are: "points" or "minimums".
    """

    packed: Any
    scales: Any
    zeros: Any
    outer_scales: Any
    outer_zeros: Any
    rows: int
    columns: int
    format: str
    group: int
    zeros_are: str = "points"

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        """Of all its arrays."""
        return sum(a.nbytes for a in self.arrays if a is not None)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Operands 1 to 5 of `linear_quantized`."""
        return self.packed, self.scales, self.zeros, self.outer_scales, self.outer_zeros

    def with_arrays(
        self, arrays: Sequence[Any], rows: int, columns: int | None = None
    ) -> "PackedWeight":
        """The same with other arrays, and the numbers of rows and perhaps columns that these have."""
        packed, scales, zeros, outer_scales, outer_zeros = arrays
        return dataclasses.replace(
            self,
            packed=packed,
            scales=scales,
            zeros=zeros,
            outer_scales=outer_scales,
            outer_zeros=outer_zeros,
            rows=rows,
            columns=self.columns if columns is None else columns,
        )

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of `linear_quantized`."""
        return {"format": self.format, "group": self.group, "zeros_are": self.zeros_are}


ARRAYS = ("packed", "scales", "zeros", "outer_scales", "outer_zeros")


def from_codes(
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    outer_scales: np.ndarray | None = None,
    outer_zeros: np.ndarray | None = None,
    *,
    format: str,
    group: int,
    zeros_are: str = "points",
) -> PackedWeight:
    """Packs a matrix.

    Args:
        codes: [rows, columns] u8; numbers of one byte may have their own dtype.
        scales: [rows, g].
        zeros: [rows, g].
        outer_scales, outer_zeros: [rows, o] or [1].
        format, group, zeros_are: As in `PackedWeight`.

    Raises:
        ValueError: A code has more bits than the format, or factors have another shape.
    """
    if format not in FORMATS:
        raise ValueError(f"repack: format is {format!r}, expected {' or '.join(FORMATS)}")
    if codes.ndim != 2 or codes.dtype.itemsize != 1:
        said = f"{codes.dtype} {[*codes.shape]}"
        raise ValueError(f"repack: codes are {said}, expected [rows, columns], a byte each")
    bits = FORMATS[format].bits
    codes = codes.view(np.uint8)
    if bits < 8 and codes.size and codes.max() >> bits:
        raise ValueError(f"repack: a code is {codes.max()}, expected less than {1 << bits}")
    factors = (scales, zeros, outer_scales, outer_zeros)
    return _with_factors(_packed(codes, bits), codes.shape, factors, format, group, zeros_are)


def from_pairs(
    pairs: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    outer_scales: np.ndarray | None = None,
    *,
    format: str,
    group: int,
) -> PackedWeight:
    """`from_codes` of codes of 4 bits that lie two in a byte, the lower half first, u8 [rows, columns / 2]: bytes only move."""
    rows, half = pairs.shape
    factors = (scales, zeros, outer_scales, None)
    return _with_factors(_packed_pairs(pairs), (rows, 2 * half), factors, format, group, "points")


def _with_factors(
    packed: np.ndarray,
    shape: tuple[int, ...],
    factors: Sequence[np.ndarray | None],
    format: str,
    group: int,
    zeros_are: str,
) -> PackedWeight:
    """A matrix of that shape from its packed codes and from `from_codes`' factors, which are checked."""
    rows, columns = shape
    scales, zeros, outer_scales, outer_zeros = factors
    groups = -(-columns // group) if group else 1
    for name, factor in (("scales", scales), ("zeros", zeros)):
        if factor is not None and factor.shape != (rows, groups):
            raise ValueError(f"repack: {name} are {[*factor.shape]}, expected {[rows, groups]}")
    for name, factor in (("outer_scales", outer_scales), ("outer_zeros", outer_zeros)):
        if factor is None or factor.shape == (1,):
            continue
        outers = factor.shape[1] if factor.ndim == 2 and len(factor) == rows else 0
        if outers == 0 or groups % outers:
            expected = f"[1] or [{rows}, a divisor of {groups}]"
            raise ValueError(f"repack: {name} are {[*factor.shape]}, expected {expected}")

    def tiled(array: np.ndarray | None) -> np.ndarray | None:
        return array if array is None or array.ndim == 1 else _tiled(array)

    arrays = tiled(scales), tiled(zeros), tiled(outer_scales), tiled(outer_zeros)
    return PackedWeight(packed, *arrays, rows, columns, format, group, zeros_are)


def packed_by_rows(rows: int, columns: int, pack: Callable[[slice], PackedWeight]) -> PackedWeight:
    """A matrix that is packed some rows at a time, whole tiles of them, so that this takes little memory."""
    at_once = max(_CODES_AT_ONCE // max(columns, 1) // TILE_ROWS, 1) * TILE_ROWS
    if rows <= at_once:
        return pack(slice(0, rows))
    whole: PackedWeight | None = None
    for first in range(0, rows, at_once):
        part = pack(slice(first, min(first + at_once, rows)))
        whole = whole or _room_for(part, rows)
        for to, of_part in zip(whole.arrays, part.arrays, strict=True):
            if to is not None and to.ndim > 1:
                to[first // TILE_ROWS :][: len(of_part)] = of_part
    assert whole is not None
    return whole


def _room_for(part: PackedWeight, rows: int) -> PackedWeight:
    """A weight like this one with more rows, whose arrays hold nothing yet but what is one for all rows."""
    tiles = -(-rows // TILE_ROWS)
    arrays = [
        a if a is None or a.ndim == 1 else empty((tiles, *a.shape[1:]), a.dtype)
        for a in part.arrays
    ]
    return part.with_arrays(arrays, rows)


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array whose memory a CPU device of JAX takes as it is: it begins at a cache line."""
    dtype = np.dtype(dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : len(memory) - 64 + begin].view(dtype).reshape(shape)


def _whole_tiles(array: np.ndarray, columns: int) -> np.ndarray:
    """[c, 16, columns], with zeros behind the rows and columns that there are."""
    rows = -(-len(array) // TILE_ROWS) * TILE_ROWS
    if array.shape != (rows, columns):
        whole = np.zeros((rows, columns), array.dtype)
        whole[: array.shape[0], : array.shape[1]] = array
        array = whole
    return array.reshape(rows // TILE_ROWS, TILE_ROWS, columns)


def _tiled(array: np.ndarray) -> np.ndarray:
    """[rows, kg] as [c, kg, 16]."""
    return np.ascontiguousarray(_whole_tiles(array, array.shape[1]).swapaxes(1, 2))


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [rows, columns] as [c, kb, bits, 16, 4]."""
    blocks = -(-codes.shape[1] // BLOCK_COLUMNS)
    codes = _whole_tiles(codes, blocks * BLOCK_COLUMNS)
    codes = codes.reshape(len(codes), TILE_ROWS, blocks, BLOCK_COLUMNS)
    packed = empty((len(codes), blocks, bits, TILE_ROWS, 4), np.uint8)

    def put(first: int, lines: int, planes: np.ndarray) -> None:
        """Bytes of some lines, [c, 16, r, lines * 4]."""
        planes = planes.reshape(*planes.shape[:3], lines, 4)
        packed[:, :, first : first + lines] = planes.transpose(0, 2, 3, 1, 4)

    if bits == 8:
        put(0, 8, codes)
        return packed
    put(0, 4, (codes[..., ::2] & 15) | (codes[..., 1::2] << 4))
    if bits == 5:
        put(4, 1, np.packbits(codes >> 4, axis=-1, bitorder="little"))
    if bits == 6:
        upper = codes >> 4
        put(
            4,
            2,
            upper[..., ::4] | upper[..., 1::4] << 2 | upper[..., 2::4] << 4 | upper[..., 3::4] << 6,
        )
    return packed


def _packed_pairs(pairs: np.ndarray) -> np.ndarray:
    """The same of codes of 4 bits, two in a byte: words of 8 codes change places."""
    blocks = -(-2 * pairs.shape[1] // BLOCK_COLUMNS)
    tiles = _whole_tiles(pairs, blocks * BLOCK_COLUMNS // 2)
    packed = empty((len(tiles), blocks, 4, TILE_ROWS, 4), np.uint8)
    words = np.ascontiguousarray(tiles).view(np.uint32).reshape(len(tiles), TILE_ROWS, blocks, 4)
    packed.view(np.uint32)[..., 0] = words.transpose(0, 2, 3, 1)
    return packed


def by_rows(packed: Any) -> Any:
    """`packed` as [c * 16, r, bits, 4]: the bytes of each row by itself."""
    c, r, bits, rows, width = packed.shape
    return packed.transpose(0, 3, 1, 2, 4).reshape(c * rows, r, bits, width)


def row_codes(xp: Any, lines: Any) -> Any:
    """Codes u8 [..., r * 32] of rows whose lines are [..., r, bits, 4], by NumPy or jax.numpy (`xp`)."""
    *lead, r, bits, _ = lines.shape
    if bits == 8:
        return lines.reshape(*lead, r * BLOCK_COLUMNS)

    def split(planes: Any, width: int) -> Any:
        """Codes of `width` bits, the lowest first."""
        planes = planes.reshape(*lead, r, -1, 1)
        shifts = xp.arange(0, 8, width, dtype=xp.uint8)
        return ((planes >> shifts) & ((1 << width) - 1)).reshape(*lead, r * BLOCK_COLUMNS)

    codes = split(lines[..., :4, :], 4)
    if bits > 4:
        codes = codes | split(lines[..., 4:, :], bits - 4) << 4
    return codes.astype(xp.uint8)


def codes_of(weight: PackedWeight) -> np.ndarray:
    """The codes [rows, columns], u8."""
    codes = row_codes(np, by_rows(np.asarray(weight.packed)))
    return codes[: weight.rows, : weight.columns]


def factors_of(weight: PackedWeight) -> list[np.ndarray | None]:
    """scales, zeros, outer_scales and outer_zeros as `from_codes` takes them."""

    def rows(array: Any) -> np.ndarray | None:
        if array is None or array.ndim == 1:
            return array
        flat = np.asarray(array).swapaxes(1, 2).reshape(-1, array.shape[1])
        return flat[: weight.rows]

    return [rows(array) for array in weight.arrays[1:]]


def decoded(weight: PackedWeight) -> np.ndarray:
    """The numbers that the codes stand for, f32 [rows, columns]; scales and zeros are applied in f32."""
    import ml_dtypes

    form, codes = FORMATS[weight.format], codes_of(weight)
    if weight.format == "e2m1":
        numbers = E2M1[codes]
    elif form.element:
        numbers = codes.view(getattr(ml_dtypes, form.element, form.element)).astype(np.float32)
    else:
        numbers = codes.astype(np.float32) - form.bias
    scales, zeros, outer_scales, outer_zeros = (
        None if a is None else np.asarray(a, np.float32) for a in factors_of(weight)
    )

    def times(factor: np.ndarray, outer: np.ndarray | None) -> np.ndarray:
        if outer is not None and outer.ndim > 1:
            outer = np.repeat(outer, factor.shape[1] // outer.shape[1], axis=1)
        factor = factor if outer is None else factor * outer
        return np.repeat(factor, weight.group or weight.columns, axis=1)[:, : weight.columns]

    assert scales is not None
    scale = times(scales, outer_scales)
    if zeros is None:
        return numbers * scale
    zero = times(zeros, outer_zeros)
    return (numbers - zero) * scale if weight.zeros_are == "points" else numbers * scale + zero
