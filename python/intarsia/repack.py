"""The quantized weights of checkpoints, packed as `intarsia.jax.linear_quantized` takes them.

Each function takes a matrix of one format as NumPy arrays, as the file has them, and returns a `PackedWeight`. It moves bits and
changes no number.
"""

import numpy as np

from intarsia._gguf_blocks import GGUF_TYPES, from_gguf, from_gguf_mxfp4
from intarsia._joining import joined, stacked
from intarsia._packing import (
    PackedWeight,
    codes_of,
    decoded,
    factors_of,
    from_codes,
    from_pairs,
    packed_by_rows,
)
from intarsia._rounding import round_to_nearest
from intarsia._words import AWQ_PLACES, across, fields

__all__ = [
    "GGUF_TYPES",
    "PackedWeight",
    "check_order",
    "codes_of",
    "decoded",
    "factors_of",
    "from_awq",
    "from_codes",
    "from_compressed_tensors",
    "from_fp8",
    "from_gguf",
    "from_gguf_mxfp4",
    "from_gptq",
    "from_int8",
    "from_mxfp4",
    "from_nvfp4",
    "joined",
    "round_to_nearest",
    "stacked",
]

# --------------------------------------------------------------------------------- AWQ, GPTQ, compressed-tensors


def _group_of(columns: int, groups: int) -> int:
    """Columns of a group, where all columns are shared evenly by groups; 0: of one."""
    if groups == 1:
        return 0
    if columns % groups:
        raise ValueError(f"repack: {columns} columns, expected a multiple of the {groups} groups")
    return columns // groups


def _rows_first(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.T)


def from_awq(qweight: np.ndarray, qzeros: np.ndarray, scales: np.ndarray) -> PackedWeight:
    """Packs a matrix of AWQ's "gemm" form, in 4 bits with zero points.

    Args:
        qweight: [columns, rows / 8] i32.
        qzeros: [g, rows / 8] i32.
        scales: [g, rows].
    """
    columns, words = qweight.shape
    group = _group_of(columns, len(scales))

    def pack(rows: slice) -> PackedWeight:
        of_rows = slice(rows.start // 8, rows.stop // 8)
        zeros = _rows_first(fields(qzeros[:, of_rows], 4, AWQ_PLACES))
        factors = _rows_first(scales[:, rows]), zeros
        if columns % 8:
            codes = _rows_first(fields(qweight[:, of_rows], 4, AWQ_PLACES))
            return from_codes(codes, *factors, format="u4", group=group)
        lines = across(qweight[:, of_rows])[list(AWQ_PLACES)]
        pairs = lines.transpose(2, 0, 1).reshape(-1, columns // 8).view(np.uint8)
        return from_pairs(pairs, *factors, format="u4", group=group)

    return packed_by_rows(8 * words, columns, pack)


def from_gptq(
    qweight: np.ndarray,
    qzeros: np.ndarray | None,
    scales: np.ndarray,
    g_idx: np.ndarray | None = None,
    *,
    bits: int = 4,
    zeros_less_one: bool = True,
) -> PackedWeight:
    """Packs a matrix of GPTQ, in 4 or 8 bits.

    Args:
        qweight: [columns * bits / 32, rows] i32.
        qzeros: [g, rows * bits / 32] i32, or None for symmetric weights, whose zero points are half of the range.
        scales: [g, rows].
        g_idx: [columns], the group of each column, which must be in order: act-order is not supported.
        bits: Of a code.
        zeros_less_one: Whether zero points are kept less 1, as in version 1 of the format.

    Raises:
        NotImplementedError: Codes have other than 4 or 8 bits, or columns are not in the order of their groups.
        ValueError: A zero point has no code.
    """
    _check_bits(bits)
    columns = len(qweight) * 32 // bits
    group = _group_of(columns, len(scales))
    if g_idx is not None:
        check_order(g_idx, columns, group)
    zeros = None
    if qzeros is not None:
        wide = _rows_first(fields(qzeros, bits)).astype(np.int32) + zeros_less_one
        if wide.max(initial=0) >> bits:
            raise ValueError(f"repack: qzeros has {wide.max()}, expected less than {1 << bits}")
        zeros = wide.astype(np.uint8)

    def pack(rows: slice) -> PackedWeight:
        of_rows = None if zeros is None else zeros[rows]
        words = _rows_first(qweight[:, rows])
        return _of_integers(words, columns, _rows_first(scales[:, rows]), of_rows, bits, group)

    return packed_by_rows(qweight.shape[1], columns, pack)


def _check_bits(bits: int) -> None:
    if bits not in (4, 8):
        raise NotImplementedError(f"repack: codes have {bits} bits, expected 4 or 8")


def check_order(g_idx: np.ndarray, columns: int, group: int) -> None:
    """Raises NotImplementedError unless columns are in the order of their groups."""
    if not np.array_equal(g_idx, np.arange(columns) // (group or columns)):
        raise NotImplementedError("repack: g_idx puts columns out of order (act-order)")


def _of_integers(
    words: np.ndarray,
    columns: int,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    bits: int,
    group: int,
) -> PackedWeight:
    """Unsigned codes in words i32 [rows, w], the first ones lowest; without zero points they are symmetric around half of the range."""
    format = "u4b8" if zeros is None else "u4"
    if bits == 4 and columns == 8 * words.shape[1]:
        pairs = np.ascontiguousarray(words).view(np.uint8)
        return from_pairs(pairs, scales, zeros, format=format, group=group)
    codes = np.ascontiguousarray(fields(words, bits)[:, :columns])
    if bits == 4:
        return from_codes(codes, scales, zeros, format=format, group=group)
    # 128 less, of both: two's complement.
    if zeros is not None:
        zeros = (zeros ^ 128).view(np.int8)
    return from_codes(codes ^ 128, scales, zeros, format="i8", group=group)


def from_compressed_tensors(
    weight_packed: np.ndarray,
    weight_scale: np.ndarray,
    weight_zero_point: np.ndarray | None = None,
    *,
    bits: int = 4,
    columns: int | None = None,
) -> PackedWeight:
    """Packs a matrix of compressed-tensors' `pack-quantized`, in 4 or 8 bits.

    Args:
        weight_packed: [rows, columns * bits / 32] i32.
        weight_scale: [rows, g].
        weight_zero_point: [rows * bits / 32, g] i32.
        bits: Of a code.
        columns: If they do not fill the words.

    Raises:
        NotImplementedError: Codes have other than 4 or 8 bits.
    """
    _check_bits(bits)
    count, words = weight_packed.shape
    columns = words * 32 // bits if columns is None else columns
    zeros = None
    if weight_zero_point is not None:
        zeros = _rows_first(fields(_rows_first(weight_zero_point), bits))
    group = _group_of(columns, weight_scale.shape[1])

    def pack(rows: slice) -> PackedWeight:
        of_rows = None if zeros is None else zeros[rows]
        scales = weight_scale[rows]
        return _of_integers(weight_packed[rows], columns, scales, of_rows, bits, group)

    return packed_by_rows(count, columns, pack)


# --------------------------------------------------------------------------------- numbers of 8 and 4 bits


def _columns_of_scales(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Scales of a tensor [] or [1], of rows [rows] or [rows, 1], or of groups [rows, g], as [rows, g]."""
    rows = len(weight)
    if scale.size == 1:
        return np.broadcast_to(scale.reshape(1, 1), (rows, 1))
    if scale.ndim > 2 or scale.ndim == 0 or len(scale) != rows:
        expected = f"[], [1], [{rows}] or [{rows}, g]"
        raise ValueError(f"repack: scale has shape {[*scale.shape]}, expected {expected}")
    return scale.reshape(rows, -1)


def from_int8(
    weight: np.ndarray, scale: np.ndarray, zeros: np.ndarray | None = None
) -> PackedWeight:
    """Packs int8 [rows, columns] with scales, and int8 zero points, of the tensor, of rows, or of groups [rows, g]."""
    if weight.dtype != np.int8:
        raise ValueError(f"repack: weight is {weight.dtype}, expected int8")
    scales = _columns_of_scales(weight, scale)
    group = _group_of(weight.shape[1], scales.shape[1])
    zeros = zeros if zeros is None else _columns_of_scales(weight, zeros)
    return from_codes(weight, scales, zeros, format="i8", group=group)


def from_fp8(
    weight: np.ndarray, scale: np.ndarray, *, block: tuple[int, int] | None = None
) -> PackedWeight:
    """Packs float8_e4m3fn [rows, columns].

    Args:
        weight: The matrix.
        scale: What codes are multiplied by: of the tensor, of rows, of groups [rows, g]; with `block`
            `weight_scale_inv` [ceil(rows / block[0]), ceil(columns / block[1])].
        block: Rows and columns that share a scale, 128 by 128 in DeepSeek's checkpoints.
    """
    if weight.dtype.name not in ("float8_e4m3fn", "uint8"):
        raise ValueError(f"repack: weight is {weight.dtype}, expected float8_e4m3fn, or its bytes")
    if block is None:
        scales = _columns_of_scales(weight, scale)
        group = _group_of(weight.shape[1], scales.shape[1])
    else:
        scales, group = np.repeat(scale, block[0], axis=0)[: len(weight)], block[1]
    return from_codes(weight, scales, format="e4m3", group=group)


def from_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> PackedWeight:
    """Packs e2m1 codes [rows, columns / 2] or [rows, columns / 32, 16] u8 with e8m0 scales [rows, columns / 32], as u8 or as such."""
    import ml_dtypes

    return _of_e2m1(blocks, scales.view(ml_dtypes.float8_e8m0fnu), None, group=32)


def from_nvfp4(
    weight: np.ndarray, scales: np.ndarray, global_scale: np.ndarray, *, divides: bool = False
) -> PackedWeight:
    """Packs e2m1 codes [rows, columns / 2] u8 with e4m3 scales [rows, columns / 16] and an f32 scale of all, or of each row.

    Args:
        weight: Codes.
        scales: Of 16 columns each.
        global_scale: What scales are multiplied by, ModelOpt's `weight_scale_2`; with `divides` what they are
            divided by, compressed-tensors' `weight_global_scale`. Also one for each row [rows], as layers in one have.
        divides: See there.

    Raises:
        ValueError: A number of `global_scale` is not finite, or with `divides` not above 0.
    """
    if global_scale is None:
        raise ValueError("repack: global_scale is None, expected a number, or one for each row")
    outer = given = np.asarray(global_scale, np.float32).reshape(-1)
    fits = np.isfinite(given)
    if divides:
        with np.errstate(divide="ignore", over="ignore"):
            outer = np.reciprocal(given)
        fits &= np.isfinite(outer) & (given > 0)
    if not fits.all():
        expected = "finite ones above 0, as their reciprocals" if divides else "finite ones"
        raise ValueError(f"repack: global_scale has {given[~fits][0]}, expected {expected}")
    return _of_e2m1(weight, scales, outer if outer.size == 1 else outer[:, None], group=16)


def _of_e2m1(
    pairs: np.ndarray, scales: np.ndarray, outer: np.ndarray | None, group: int
) -> PackedWeight:
    """Codes of 4 bits, two in a byte, the lower half first."""
    pairs = pairs.view(np.uint8).reshape(len(pairs), -1)

    def pack(rows: slice) -> PackedWeight:
        of_rows = outer if outer is None or outer.ndim == 1 else outer[rows]
        return from_pairs(pairs[rows], scales[rows], None, of_rows, format="e2m1", group=group)

    return packed_by_rows(len(pairs), 2 * pairs.shape[1], pack)
