"""Weights in 8 bits or less, in NumPy f64: what each code stands for, read bit by bit as quantized.h says."""

import ml_dtypes
import numpy as np

Q4_K = dict(format="u4", group=32, scale=np.uint8, zero=np.uint8, outer=8, outer_dtype=np.float16)
Q6_K = dict(format="u6b32", group=16, scale=np.int8, outer=16, outer_dtype=np.float16)
NVFP4 = dict(format="e2m1", group=16, scale=ml_dtypes.float8_e4m3fn, outer="all")

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


def matrices(arrays, columns, format, group, zeros_are, absolute=False):
    """`weights` of stacked matrices, [g, 16 c, columns]; arrays: packed, scales, zeros, outer_scales, outer_zeros."""

    def matrix(i):
        parts = [None if a is None else a[i : i + 1] if a.ndim == 1 else a[i] for a in arrays]
        return weights(*parts, columns, format, group, zeros_are, absolute)

    return np.stack([matrix(i) for i in range(len(arrays[0]))])


def draw_matrices(
    rng, lead, columns, format, group, scale, zero=None, outer=None, outer_dtype=np.float32, size=1.0
):  # fmt: skip
    """What `matrices` takes of random matrices [*lead tiles, columns], whose numbers are about `size`.

    `outer`: groups that share outer factors, or "all" of a matrix. With outer factors zeros are minimums.
    """
    groups = -(-columns // group) if group else 1
    packed = rng.integers(0, 256, (*lead, -(-columns // 32), BITS[format], 16, 4)).astype(np.uint8)
    if format == "e4m3":
        packed[packed & 127 == 127] = 0  # NaN
    largest = {"e2m1": 3.0, "i8": 75.0, "e4m3": 200.0}.get(format, 2.0 ** (BITS[format] - 2))
    step, shape = size / largest, (*lead, groups, 16)
    if outer is None:
        scales = (rng.uniform(0.3, 1, shape) * step).astype(scale)
        zeros = None if zero is None else rng.integers(0, 1 << BITS[format], shape).astype(zero)
        return packed, scales, zeros, None, None

    def factors(dtype):
        return None if dtype is None else rng.integers(1, 64, shape).astype(dtype)

    def outer_factors(of_all):
        shape = lead[:1] if outer == "all" else (*lead, groups // outer, 16)
        return (rng.uniform(0.3, 1, shape) * of_all).astype(outer_dtype)

    outer_zeros = None if zero is None else outer_factors(-size / 32)
    return packed, factors(scale), factors(zero), outer_factors(step / 32), outer_zeros


def bytes_of(rows, columns, format, group, scale, zero=None):
    """Of a matrix's codes, scales and zeros; its outer factors are few."""
    factors = np.dtype(scale).itemsize + (0 if zero is None else np.dtype(zero).itemsize)
    groups = -(-columns // group) if group else 1
    return rows * columns * BITS[format] // 8 + rows * groups * factors
