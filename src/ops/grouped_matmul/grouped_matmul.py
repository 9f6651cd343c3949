"""grouped_matmul: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.matmul import reference as groups_of

# m rows of g groups, whose matrices are k x n. `e`: groups in all, `offset`: the first at hand; `mx`: rows of x.
CASES = {
    "example": dict(tags="ci wire", m=8, k=32, n=16, g=3, sizes=(3, 0, 5)),
    "transposed": dict(tags="ci", m=40, k=40, n=24, g=4, sizes=(1, 21, 0, 18), transposed=True),
    "gathered_with_bias": dict(
        tags="ci beyond_plain", m=24, k=64, n=40, g=4, sizes="balanced", mx=6, bias=True
    ),
    "rows_of_no_group": dict(tags="ci", m=20, k=48, n=33, g=3, sizes=(4, 0, 7)),
    "group_offset": dict(
        tags="ci beyond_plain", m=30, k=24, n=20, g=2, sizes=(5, 8, 0, 9, 6), e=5, offset=1
    ),
    "sizes_that_do_not_fit": dict(
        tags="ci beyond_plain", m=12, k=16, n=24, g=4, sizes=(-3, 7, 2**31 - 1, 4)
    ),
    "one_takes_all": dict(tags="ci", m=150, k=96, n=72, g=4, sizes=(0, 0, 150, 0)),
    "zipf_f32_sums": dict(
        tags="ci", m=64, k=80, n=48, g=16, sizes="zipf", out_dtype="f32", transposed=True
    ),
    "smollm2_cut_32": dict(tags="bench_cpu", m=32, k=576, n=1536, g=32, sizes="balanced"),
    "qwen3_30b_a3b_1": dict(tags="bench", m=8, k=2048, n=1536, g=128, sizes="zipf"),
    "qwen3_30b_a3b_64": dict(tags="bench", m=512, k=2048, n=1536, g=128, sizes="balanced"),
    "qwen3_30b_a3b_512": dict(tags="bench", m=4096, k=2048, n=1536, g=128, sizes="balanced"),
    "gpt_oss_20b_16": dict(
        tags="bench", m=64, k=2880, n=5760, g=32, sizes="balanced", transposed=True
    ),
    "mixtral_64": dict(tags="bench", m=128, k=4096, n=28672, g=8, sizes="balanced"),
}


def arguments(
    rng,
    dtype,
    *,
    m,
    k,
    n,
    g,
    sizes,
    e=None,
    offset=None,
    mx=None,
    bias=False,
    transposed=False,
    out_dtype="auto",
):
    """Random operands in spec order, and attributes."""

    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    group_sizes = np.array(groups_of.sizes_of(sizes, m, e or g), np.int32)
    rows = None if mx is None else rng.integers(-1, mx, m).astype(np.int32)
    operands = [
        normal(m if mx is None else mx, k),
        normal(g, n, k) if transposed else normal(g, k, n),
        group_sizes,
        None if offset is None else np.array([offset], np.int32),
        rows,
        normal(g, n) if bias else None,
    ]
    attributes = {"transposed": transposed} | (
        {} if out_dtype == "auto" else {"out_dtype": out_dtype}
    )
    return operands, attributes


def reference(
    x, w, group_sizes, group_offset=None, rows=None, bias=None, transposed=False, out_dtype="auto"
):
    """The results in spec order. Numbers are f64."""
    if transposed:
        w = w.swapaxes(1, 2)
    m = len(x) if rows is None else len(rows)
    taken = np.arange(m) if rows is None else rows
    valid = (taken >= 0) & (taken < len(x))
    out = np.zeros((m, w.shape[2]))
    offset = 0 if group_offset is None else int(group_offset[0])
    for i, (begin, end) in enumerate(groups_of.ranges(group_sizes, m, len(w), offset)):
        inside = np.arange(begin, end)[valid[begin:end]]
        out[inside] = x[taken[inside]] @ w[i] + (0 if bias is None else bias[i])
    return [out]


def magnitudes(x, w, group_sizes, group_offset=None, rows=None, bias=None, **attributes):
    """The sums of absolute values."""
    x, w, bias = (None if a is None else np.abs(a) for a in (x, w, bias))
    return reference(x, w, group_sizes, group_offset, rows, bias, **attributes)


def floor(dtype_bytes, *, m, k, n, g, sizes, e=None, offset=None, mx=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    rows, touched = groups_of.covered(groups_of.sizes_of(sizes, m, e or g), m, g, offset or 0)
    taken = rows if mx is None else min(rows, mx)
    return dtype_bytes * (taken * k + touched * k * n + m * n), 2 * rows * k * n


def plain_xla(x, w, group_sizes, *absent, transposed=False, out_dtype="auto"):
    """The same in jax.lax, as a user without this library would write it."""
    import jax.numpy as jnp
    from jax import lax

    if transposed:
        w = w.swapaxes(1, 2)
    dtype = jnp.float32 if out_dtype == "f32" else x.dtype
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return [lax.ragged_dot(x, w, group_sizes, precision=precision, preferred_element_type=dtype)]
