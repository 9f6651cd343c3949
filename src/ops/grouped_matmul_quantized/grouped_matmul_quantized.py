"""grouped_matmul_quantized: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import ml_dtypes
import numpy as np
from intarsia_src.matmul import quantized
from intarsia_src.matmul import reference as groups_of

_MXFP4 = dict(format="e2m1", group=32, scale=ml_dtypes.float8_e8m0fnu)
_INT4 = dict(format="u4b8", group=64, scale=np.float16)
_AWQ = dict(format="u4", group=32, scale=np.float16, zero=np.uint8)
# m rows of g groups, whose matrices have c tiles of 16 results and k columns. `e`: groups in all, `offset`: the first at hand;
# `mx`: rows of x.
CASES = {
    "example": dict(tags="ci wire", m=8, k=128, c=1, g=3, sizes=(3, 0, 5), **_INT4),
    "mxfp4": dict(tags="ci", m=8, k=64, c=1, g=3, sizes=(3, 0, 5), **_MXFP4),
    "gathered_with_bias": dict(
        tags="ci beyond_plain", m=24, k=64, c=3, g=4, sizes="balanced", mx=6, bias=True, **_INT4
    ),
    "rows_of_no_group": dict(tags="ci", m=20, k=96, c=2, g=3, sizes=(4, 0, 7), **_AWQ),
    "group_offset": dict(
        tags="ci beyond_plain", m=30, k=32, c=1, g=2, sizes=(5, 8, 0, 9, 6), e=5, offset=1, **_AWQ
    ),
    "sizes_that_do_not_fit": dict(
        tags="ci beyond_plain", m=12, k=40, c=2, g=4, sizes=(-3, 7, 2**31 - 1, 4), **_MXFP4
    ),
    "one_takes_all": dict(tags="ci", m=150, k=96, c=5, g=4, sizes=(0, 0, 150, 0), **_MXFP4),
    "zipf_f32_sums": dict(
        tags="ci", m=64, k=80, c=3, g=16, sizes="zipf", out_dtype="f32",
        format="i8", group=0, scale=np.float32,
    ),
    "q4_k": dict(tags="ci", m=26, k=512, c=3, g=4, sizes="balanced", **quantized.Q4_K),
    "q6_k_gathered": dict(tags="ci beyond_plain", m=9, k=512, c=2, g=3, sizes=(1, 6, 2), mx=5, **quantized.Q6_K),
    "nvfp4_with_an_offset": dict(
        tags="ci beyond_plain", m=30, k=80, c=1, g=2, sizes=(5, 8, 0, 9, 6), e=5, offset=1, **quantized.NVFP4
    ),
    "gpt_oss_20b_4": dict(tags="bench_cpu bench", m=16, k=2880, c=360, g=32, sizes="balanced", **_MXFP4),
}  # fmt: skip


def arguments(
    rng,
    dtype,
    *,
    m,
    k,
    c,
    g,
    sizes,
    format,
    group,
    scale,
    zero=None,
    outer=None,
    outer_dtype=np.float32,
    e=None,
    offset=None,
    mx=None,
    bias=False,
    out_dtype="auto",
):
    """Random operands in spec order, and attributes."""
    packed, scales, zeros, *outers = quantized.draw_matrices(
        rng, (g, c), k, format, group, scale, zero, outer, outer_dtype
    )
    operands = [
        rng.standard_normal((m if mx is None else mx, k)).astype(dtype),
        packed,
        scales,
        np.array(groups_of.sizes_of(sizes, m, e or g), np.int32),
        zeros,
        None if offset is None else np.array([offset], np.int32),
        None if mx is None else rng.integers(-1, mx, m).astype(np.int32),
        rng.standard_normal((g, 16 * c)).astype(dtype) if bias else None,
        *outers,
    ]
    attributes = {"format": format, "group": group}
    if outer is not None and zero is not None:
        attributes["zeros_are"] = "minimums"
    return operands, attributes | ({} if out_dtype == "auto" else {"out_dtype": out_dtype})


def reference(
    x,
    packed,
    scales,
    group_sizes,
    zeros=None,
    group_offset=None,
    rows=None,
    bias=None,
    outer_scales=None,
    outer_zeros=None,
    format="u4",
    group=0,
    zeros_are="points",
    out_dtype="auto",
    absolute=False,
):
    """The results in spec order. Operands are f64, but for integers."""
    arrays = packed, scales, zeros, outer_scales, outer_zeros
    w = quantized.matrices(arrays, x.shape[1], format, group, zeros_are, absolute)
    m = len(x) if rows is None else len(rows)
    taken = np.arange(m) if rows is None else rows
    valid = (taken >= 0) & (taken < len(x))
    out = np.zeros((m, w.shape[1]))
    offset = 0 if group_offset is None else int(group_offset[0])
    for i, (begin, end) in enumerate(groups_of.ranges(group_sizes, m, len(w), offset)):
        inside = np.arange(begin, end)[valid[begin:end]]
        out[inside] = x[taken[inside]] @ w[i].T + (0 if bias is None else bias[i])
    return [out]


def magnitudes(x, packed, scales, group_sizes, zeros, offset, rows, bias, *outers, **attributes):
    """The sums of absolute values."""
    bias = None if bias is None else np.abs(bias)
    operands = (np.abs(x), packed, scales, group_sizes, zeros, offset, rows, bias, *outers)
    return reference(*operands, **attributes, absolute=True)


def floor(
    dtype_bytes, *, m, k, c, g, sizes, format, scale, group, zero=None, e=None, offset=None, mx=None, **_
):  # fmt: skip
    """The least a call must do: (bytes moved, flops)."""
    rows, touched = groups_of.covered(groups_of.sizes_of(sizes, m, e or g), m, g, offset or 0)
    of_matrix = quantized.bytes_of(16 * c, k, format, group, scale, zero)
    taken = rows if mx is None else min(rows, mx)
    return touched * of_matrix + dtype_bytes * (taken * k + m * 16 * c), 32 * rows * k * c


def plain_xla(
    x, packed, scales, group_sizes, zeros, offset, rows, bias, *outers, out_dtype="auto", **attributes
):  # fmt: skip
    """The same in jax.lax: a ragged product with decoded weights."""
    import jax.numpy as jnp
    from intarsia.jax._quantized import decoded_stack
    from jax import lax

    w = decoded_stack(x.shape[1], (packed, scales, zeros, *outers), **attributes).swapaxes(1, 2)
    out = lax.ragged_dot(x.astype(jnp.float32), w, group_sizes, precision=lax.Precision.HIGHEST)
    return [out if out_dtype == "f32" else out.astype(x.dtype)]
