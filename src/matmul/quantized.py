"""Weights in 8 bits or less, in NumPy f64: what each code stands for, read bit by bit as quantized.h says."""

import ml_dtypes
import numpy as np

BITS = {"u4": 4, "u4b8": 4, "e2m1": 4, "u5": 5, "u5b16": 5, "u6b32": 6, "i8": 8, "e4m3": 8}


def codes(packed: np.ndarray) -> np.ndarray:
    """The codes [16 c, 32 r] of u8 [c, r, bits, 16, 4]."""
    c, r, bits, _, _ = packed.shape
    words = packed.astype(np.int64) @ (1 << np.arange(0, 32, 8))  # [c, r, bits, 16]
    found = np.zeros((c, r, 32, 16), np.int64)
    for column in range(32):
        if bits == 8:
            found[:, :, column] = words[:, :, column // 4] >> 8 * (column % 4) & 255
            continue
        found[:, :, column] = words[:, :, column // 8] >> 4 * (column % 8) & 15
        if bits == 5:
            found[:, :, column] |= (words[:, :, 4] >> column & 1) << 4
        if bits == 6:
            found[:, :, column] |= (words[:, :, 4 + column // 16] >> 2 * (column % 16) & 3) << 4
    return found.transpose(0, 3, 1, 2).reshape(16 * c, 32 * r)


def numbers(format: str, packed: np.ndarray) -> np.ndarray:
    """What the codes stand for, f64."""
    found = codes(packed)
    types = {"i8": np.int8, "e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}
    if format in types:
        return found.astype(np.uint8).view(types[format]).astype(np.float64)
    return found - {"u4b8": 8.0, "u5b16": 16.0, "u6b32": 32.0}.get(format, 0.0)


def weights(
    packed,
    scales,
    zeros,
    outer_scales,
    outer_zeros,
    columns,
    format,
    group,
    zeros_are,
    absolute=False,
):
    """The weights [16 c, columns]; `absolute`: the sums of what they are made of, without signs."""
    kept = np.abs if absolute else np.asarray

    def times(inner, outer):
        """Factors of each column, f64 [16 c, columns]."""
        if outer is not None and outer.ndim > 1:
            outer = np.repeat(outer, inner.shape[1] // outer.shape[1], axis=1)
        inner = inner.astype(np.float64)
        rows = (
            (inner if outer is None else inner * outer).swapaxes(1, 2).reshape(-1, inner.shape[1])
        )
        return np.repeat(rows, group or max(columns, 1), axis=1)[:, :columns]

    q, scale = numbers(format, packed)[:, :columns], times(scales, outer_scales)
    if zeros is None:
        return kept(q * scale)
    zero = times(zeros, outer_zeros)
    if zeros_are == "points":
        zero = -zero * scale
    return kept(q * scale) + kept(zero)


def matrices(packed, scales, zeros, columns, format, group, zeros_are, absolute=False):
    """`weights` of stacked matrices, [g, 16 c, columns]."""
    parts = zip(packed, scales, [None] * len(packed) if zeros is None else zeros, strict=True)
    return np.stack(
        [weights(p, s, z, None, None, columns, format, group, zeros_are, absolute) for p, s, z in parts]
    )  # fmt: skip


def draw_matrices(rng, lead, columns, format, group, scale, zero=None, size=1.0):
    """Codes, scales and zeros of random matrices [*lead tiles, columns], whose numbers are about `size`."""
    groups = -(-columns // group) if group else 1
    packed = rng.integers(0, 256, (*lead, -(-columns // 32), BITS[format], 16, 4)).astype(np.uint8)
    if format == "e4m3":
        packed[packed & 127 == 127] = 0  # NaN
    largest = {"e2m1": 3.0, "i8": 75.0, "e4m3": 200.0}.get(format, 2.0 ** (BITS[format] - 2))
    scales = (rng.uniform(0.3, 1, (*lead, groups, 16)) * size / largest).astype(scale)
    if zero is None:
        return packed, scales, None
    return packed, scales, rng.integers(0, 1 << BITS[format], (*lead, groups, 16)).astype(zero)


def bytes_of(rows, columns, format, group, scale, zero=None):
    """Of a matrix's codes, scales and zeros."""
    factors = np.dtype(scale).itemsize + (0 if zero is None else np.dtype(zero).itemsize)
    groups = -(-columns // group) if group else 1
    return rows * columns * BITS[format] // 8 + rows * groups * factors
