"""linear_quantized: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import ml_dtypes
import numpy as np
from intarsia_src.matmul import quantized

_F16, _F32 = np.float16, np.float32
_Q4_1 = dict(format="u4", group=32, scale=_F16, zero=_F16, zeros_are="minimums")
_Q4_K = dict(quantized.Q4_K, zeros_are="minimums")
_Q8_0 = dict(format="i8", group=32, scale=_F16)
_AWQ = dict(format="u4", group=128, scale=_F16, zero=np.uint8)
# m rows, c tiles of 16 results, k columns. `outer`: groups that share an outer scale, or "all"; each
# format is named as in ggml or in checkpoints.
CASES = {
    "example": dict(tags="ci wire", m=2, c=1, k=64, **_Q4_1),
    "q4_0": dict(tags="ci", m=1, c=5, k=96, format="u4b8", group=32, scale=_F16),
    "q4_1_bias": dict(tags="ci", m=3, c=3, k=160, bias=True, **_Q4_1),
    "q5_0": dict(tags="ci", m=1, c=3, k=64, format="u5b16", group=32, scale=_F16),
    "q5_1": dict(tags="ci", m=9, c=6, k=64, **dict(_Q4_1, format="u5")),
    "q8_0": dict(tags="ci", m=4, c=3, k=96, **_Q8_0),
    "q4_k": dict(tags="ci", m=2, c=3, k=512, **_Q4_K),
    "q5_k": dict(tags="ci", m=7, c=2, k=256, **dict(_Q4_K, format="u5")),
    "q6_k": dict(tags="ci", m=1, c=3, k=512, **quantized.Q6_K),
    "awq": dict(tags="ci", m=1, c=4, k=256, **_AWQ),
    "gptq_symmetric_k_of_100": dict(
        tags="ci", m=2, c=2, k=100, format="u4b8", group=32, scale=_F16
    ),
    "int8_channels": dict(tags="ci", m=5, c=5, k=96, format="i8", group=0, scale=_F32),
    "fp8_blocks": dict(tags="ci", m=1, c=3, k=320, format="e4m3", group=128, scale=_F32),
    "mxfp4": dict(
        tags="ci", m=3, c=2, k=96, format="e2m1", group=32, scale=ml_dtypes.float8_e8m0fnu
    ),
    "nvfp4": dict(tags="ci", m=6, c=3, k=80, **quantized.NVFP4),
    "smollm2_gate_up_1": dict(tags="bench_cpu", m=1, c=192, k=576, **_Q4_1),
    "smollm2_gate_up_32": dict(tags="bench_cpu", m=32, c=192, k=576, **_Q4_1),
    "smollm2_gate_up_512": dict(tags="bench_cpu", m=512, c=192, k=576, **_Q4_1),
    "smollm2_logits_1": dict(tags="bench_cpu", m=1, c=3072, k=576, **_Q8_0),
    "llama3_8b_wo_1": dict(tags="bench_cpu bench", m=1, c=256, k=4096, **_AWQ),
}


def arguments(
    rng,
    dtype,
    *,
    m,
    c,
    k,
    format,
    group,
    scale,
    zero=None,
    zeros_are="points",
    outer=None,
    outer_dtype=_F32,
    bias=False,
):
    """Random operands in spec order, and attributes."""
    bits, r, g = quantized.BITS[format], -(-k // 32), -(-k // group) if group else 1
    packed = rng.integers(0, 256, (c, r, bits, 16, 4)).astype(np.uint8)
    if format == "e4m3":
        packed[packed & 127 == 127] = 0  # NaN

    def factors(kind, low, high):
        if np.issubdtype(kind, np.integer):
            return rng.integers(low, high, (c, g, 16)).astype(kind)
        return rng.uniform(0.01, 1, (c, g, 16)).astype(kind)

    def outer_factors(sign):
        shape = (1,) if outer == "all" else (c, g // outer, 16)
        return (sign * rng.uniform(0.01, 1, shape)).astype(outer_dtype)

    points = zeros_are == "points"
    operands = [
        rng.standard_normal((m, k)).astype(dtype),
        packed,
        factors(scale, 1, 64),
        None if zero is None else factors(zero, 0, 16 if points else 64),
        None if outer is None else outer_factors(1),
        None if outer is None or zero is None or points else outer_factors(-1),
        rng.standard_normal(16 * c).astype(dtype) if bias else None,
    ]
    return operands, {"format": format, "group": group, "zeros_are": zeros_are}


def reference(
    x,
    packed,
    scales,
    zeros=None,
    outer_scales=None,
    outer_zeros=None,
    bias=None,
    *,
    format="u4",
    group=0,
    zeros_are="points",
    out_dtype="auto",
    absolute=False,
):
    """The results in spec order. Operands are f64, but for integers."""
    w = quantized.weights(
        packed,
        scales,
        zeros,
        outer_scales,
        outer_zeros,
        x.shape[-1],
        format,
        group,
        zeros_are,
        absolute,
    )
    out = x @ w.T
    return [out if bias is None else out + bias]


def magnitudes(x, packed, scales, *others, **attributes):
    """The sums of absolute values."""
    *factors, bias = others
    bias = None if bias is None else np.abs(bias)
    return reference(np.abs(x), packed, scales, *factors, bias, **attributes, absolute=True)


def floor(dtype_bytes, *, m, c, k, format, group, scale, zero=None, bias=False, **_):
    """The least a call must do: (bytes moved, flops)."""
    factors = c * 16 * (-(-k // group) if group else 1)
    of_each = np.dtype(scale).itemsize + (0 if zero is None else np.dtype(zero).itemsize)
    codes = 16 * c * k * quantized.BITS[format] // 8
    return codes + factors * of_each + dtype_bytes * (m * k + m * 16 * c), 32 * m * c * k


def plain_xla(x, packed, scales, *others, **attributes):
    """The same in jax.numpy: a product with decoded weights."""
    from intarsia.jax._quantized import by_xla

    return [by_xla(x, packed, scales, *others, **attributes)]
