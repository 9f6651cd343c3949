"""grouped_matmul_weight_gradient: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.matmul import reference as groups_of

# m rows of e groups; `groups` of them from `offset` on are at hand.
CASES = {
    "example": dict(tags="ci wire", m=8, k=32, n=16, e=3, sizes=(3, 0, 5)),
    "rows_of_no_group": dict(tags="ci", m=40, k=33, n=24, e=4, sizes=(1, 21, 0, 9)),
    "some_of_the_groups": dict(
        tags="ci beyond_plain", m=30, k=24, n=20, e=5, sizes=(5, 8, 0, 9, 6), groups=2, offset=1
    ),
    "sizes_that_do_not_fit": dict(
        tags="ci beyond_plain", m=12, k=16, n=24, e=4, sizes=(-3, 7, 2**31 - 1, 4)
    ),
    "one_takes_all_f32_sums": dict(
        tags="ci", m=150, k=144, n=72, e=3, sizes=(0, 150, 0), out_dtype="f32"
    ),
    "smollm2_cut_8": dict(tags="bench_cpu", m=512, k=576, n=384, e=8, sizes="balanced"),
    "qwen3_30b_a3b_512": dict(tags="bench", m=4096, k=2048, n=1536, e=128, sizes="balanced"),
    "mixtral_4096": dict(tags="bench", m=8192, k=4096, n=14336, e=8, sizes="balanced"),
}


def arguments(rng, dtype, *, m, k, n, e, sizes, groups=None, offset=None, out_dtype="auto"):
    """Random operands in spec order, and attributes."""
    x, d_out = (rng.standard_normal((m, columns)).astype(dtype) for columns in (k, n))
    group_sizes = np.array(groups_of.sizes_of(sizes, m, e), np.int32)
    group_offset = None if offset is None else np.array([offset], np.int32)
    attributes = {} if groups is None else {"num_groups": groups}
    if out_dtype != "auto":
        attributes["out_dtype"] = out_dtype
    return [x, d_out, group_sizes, group_offset], attributes


def reference(x, d_out, group_sizes, group_offset=None, num_groups=None, out_dtype="auto"):
    """The results in spec order. Numbers are f64."""
    count = len(group_sizes) if num_groups is None else num_groups
    offset = 0 if group_offset is None else int(group_offset[0])
    out = np.zeros((count, x.shape[1], d_out.shape[1]))
    for i, (begin, end) in enumerate(groups_of.ranges(group_sizes, len(x), count, offset)):
        out[i] = x[begin:end].T @ d_out[begin:end]
    return [out]


def magnitudes(x, d_out, group_sizes, group_offset=None, **attributes):
    """The sums of absolute values."""
    return reference(np.abs(x), np.abs(d_out), group_sizes, group_offset, **attributes)


def floor(dtype_bytes, *, m, k, n, e, sizes, groups=None, offset=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    count = groups or e
    rows, _ = groups_of.covered(groups_of.sizes_of(sizes, m, e), m, count, offset or 0)
    return dtype_bytes * (rows * (k + n) + count * k * n), 2 * rows * k * n


def plain_xla(x, d_out, group_sizes, *absent, out_dtype="auto"):
    """The same in jax.lax, as a user without this library would write it."""
    import jax.numpy as jnp
    from jax import lax

    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([0], [0]), ([], [])),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[],
    )
    return [
        lax.ragged_dot_general(
            x,
            d_out,
            group_sizes,
            numbers,
            precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32 if out_dtype == "f32" else x.dtype,
        )
    ]
