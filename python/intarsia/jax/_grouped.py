"""Products of groups of rows, each with a matrix of its own: our op, and XLA's version on platforms without it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from intarsia import _native
from intarsia.jax._call import abstract, as_array, as_count, call
from intarsia.jax._grad import functions_with_gradient
from intarsia.jax._platforms import with_fallback
from intarsia.jax._segments import add_weighted_rows, sums_of_rows, weighted_sums_of_rows
from intarsia.jax._types import refuse_sharded, vary_alike
from intarsia.jax._vmap import one_by_one

_NAME, _GRADIENT = "grouped_matmul", "grouped_matmul_weight_gradient"
_OPERANDS = ("x", "w", "group_sizes", "group_offset", "rows", "bias")
# f32 products that are made before they are added to rows of the result. Memory is bounded, and most calls have one slice: each
# takes some 0.15 ms of launches and waits more on an H200 (docs/notebook/grouped.md). Rows are sorted by group, so slices read few
# matrices twice.
_SLICE_BYTES = 512 << 20
functions_with_gradient.add(_NAME)


def grouped_matmul(
    x: ArrayLike,
    w: ArrayLike,
    group_sizes: ArrayLike,
    precision: lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    rows: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    transposed: bool = False,
    out_rows: ArrayLike | None = None,
    out_weights: ArrayLike | None = None,
    num_out_rows: int | None = None,
) -> jax.Array:
    """Products of groups of rows, each with a matrix of its own: `jax.lax.ragged_dot` by our kernels.

    `out[r] = x[r] @ w[i] + bias[i]` for row r of group i, summed in f32 and rounded once. Rows 0 ... m - 1 belong to one group
    after the other, `group_sizes[i]` to group i; rows of no group give 0, without a bias. Sizes are read on the device and may hold
    anything: a negative one counts as 0, and groups end at row m. It takes part in grad (of x, w and bias), vmap (one call after
    the other), shard_map and export.

    Args:
      x: [m, k] T; rows, group after group. With `rows`: [mx, k], in any order.
      w: [g, k, n] T; a matrix for each group.
      group_sizes: [g] i32 or i64; rows of each group. With `group_offset` [e], of all groups.
      precision: as `ragged_dot` has it, and not looked at: sums are f32, and products of f32 keep f32's precision.
      preferred_element_type: dtype of the result: T, which is the default, or f32 for the sums as they are. Its cotangent is
        rounded to T.
      group_offset: [1] i32 or i64; which of the e groups w begins with. Rows of groups that w lacks give 0.
      rows: [m] i32 or i64; which row of x each row takes. An index that is no row of x gives 0, without a bias;
        INTARSIA_CHECK=1 in the environment makes one beyond x an error.
      bias: [g, n] T; added to the sums before they are rounded.
      transposed: w is [g, n, k], a row for each result, as checkpoints have it.
      out_rows: [m] i32 or i64; which row of the result each product is added to. Products of an index that is no row of the result
        are dropped. They are added in f32, in an order that no schedule changes, slice by slice: 512 MB of them exist at once,
        and in a gradient all of them.
      out_weights: [m] float; what each product is multiplied by before. The default is 1.
      num_out_rows: rows of the result, mo; with out_rows only, and required there.

    T is one of f32, f16 and bf16.

    Returns:
      [m, n]; with `out_rows` [mo, n].

    Raises:
      ValueError: shapes or dtypes do not fit; the text names the operand, what was got and expected.

    Source: jax.lax.ragged_dot; MegaBlocks (Gale et al. 2022, arXiv:2211.15841).

    Example:
      >>> x, w = jnp.ones((8, 64)), jnp.ones((3, 64, 32))
      >>> print(jax.typeof(grouped_matmul(x, w, jnp.array([3, 0, 5]))))
      float32[8,32]
    """
    del precision
    x = as_array(f"{_NAME}: x", x)
    out_dtype = _out_dtype(x.dtype, preferred_element_type)
    if out_rows is None and (out_weights is not None or num_out_rows is not None):
        name = "num_out_rows" if out_weights is None else "out_weights"
        raise ValueError(f"{_NAME}: {name} is given without out_rows, expected both or neither")
    given = dict(zip(_OPERANDS, (x, w, group_sizes, group_offset, rows, bias), strict=True))
    arrays = [None if a is None else as_array(f"{_NAME}: {n}", a) for n, a in given.items()]
    product_dtype = out_dtype if out_rows is None else "f32"
    form = _Form(tuple(a is not None for a in arrays), transposed, product_dtype)
    _native.main_library().infer(
        _NAME, [abstract(a) for a in arrays], form.attributes
    )  # or it raises
    for name, array in zip(_OPERANDS, arrays, strict=True):
        if array is not None:
            refuse_sharded(f"{_NAME}: {name}", array)
    if out_rows is None:
        return _function(form)(*(a for a in vary_alike(arrays) if a is not None))
    out = _scattered(form, arrays, out_rows, out_weights, num_out_rows)
    return out if out_dtype == "f32" else out.astype(x.dtype)


def _scattered(
    form: "_Form",
    arrays: Sequence[Any],
    out_rows: ArrayLike,
    out_weights: ArrayLike | None,
    num_out_rows: int | None,
) -> jax.Array:
    """Products in f32, each times its weight, added to the rows of the result that they belong to: [num_out_rows, n] f32."""
    x, w, _, _, rows, _ = arrays
    m, n = (x if rows is None else rows).shape[0], w.shape[1 if form.transposed else 2]
    count = as_count(f"{_NAME}: num_out_rows", num_out_rows)
    owners = as_array(f"{_NAME}: out_rows", out_rows)
    weights = jnp.ones(m, jnp.float32)
    if out_weights is not None:
        weights = as_array(f"{_NAME}: out_weights", out_weights)
    indexes = owners.dtype in (jnp.int32, jnp.int64)  # others may not hold num_out_rows
    for name, array, fits, wanted in (
        ("out_rows", owners, indexes, "int32 or int64"),
        ("out_weights", weights, jnp.issubdtype(weights.dtype, jnp.floating), "floating"),
    ):
        if array.shape != (m,) or not fits:
            got = f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"{_NAME}: {name} is {got}, expected {wanted} [{m}]")
    longest = max(256, _SLICE_BYTES // (4 * max(n, 1)) // 256 * 256)
    slices = -(-m // longest)
    given = vary_alike((owners, weights.astype(jnp.float32), *arrays))
    return _scattering(form, count, slices)(*(a for a in given if a is not None))


def _out_dtype(dtype: Any, wanted: DTypeLike | None) -> str:
    if wanted is None or jnp.dtype(wanted) == dtype:
        return "auto"
    if jnp.dtype(wanted) == jnp.float32:
        return "f32"
    raise ValueError(
        f"{_NAME}: preferred_element_type is {jnp.dtype(wanted)}, expected float32 or x's {dtype}"
    )


class _Form(NamedTuple):
    """What a call is besides its arrays: which operands it has, and its attributes."""

    given: tuple[bool, ...]
    transposed: bool
    out_dtype: str

    @property
    def attributes(self) -> dict[str, Any]:
        return {"transposed": self.transposed, "out_dtype": self.out_dtype}

    def spread(self, arrays: Sequence[Any], absent: Any = None) -> list[Any]:
        """The operands in spec order from those that are given."""
        left = iter(arrays)
        return [next(left) if is_given else absent for is_given in self.given]


@functools.cache
def _function(form: _Form) -> Callable[..., jax.Array]:
    """The product as a function of the arrays that are given, with its rules for vmap and grad."""
    product = one_by_one(lambda *arrays: _product(*arrays, form=form))
    differentiable = jax.custom_vjp(lambda *arrays: product(*arrays))
    differentiable.defvjp(
        # The function itself, which can be differentiated once more.
        lambda *arrays: (differentiable(*arrays), arrays),
        lambda arrays, d_out: _gradients(form, arrays, d_out),
    )
    differentiable.__name__ = _NAME  # type: ignore[attr-defined]  # in XLA's metadata and in profiles
    return jax.jit(differentiable, inline=True)


@functools.cache
def _scattering(form: _Form, count: int, slices: int) -> Callable[..., jax.Array]:
    """[count, n] f32 as a function of out_rows, weights and the arrays that are given, with its rules for vmap and grad."""

    def whole(owners: jax.Array, weights: jax.Array, *arrays: jax.Array) -> jax.Array:
        return weighted_sums_of_rows(_function(form)(*arrays), owners, weights, count)

    if slices <= 1:
        return whole
    run = one_by_one(functools.partial(_by_slices, form, count, slices))
    differentiable = jax.custom_vjp(lambda *arrays: run(*arrays))

    def gradients(arrays: Sequence[jax.Array], d_out: jax.Array) -> tuple[Any, ...]:
        # The gradient of a weight takes the products once more. XLA leaves them out where nobody asks for it.
        every = jax.vjp(whole, *arrays)[1](d_out)
        return tuple(
            d if jnp.issubdtype(a.dtype, jnp.floating) else None
            for d, a in zip(every, arrays, strict=True)
        )

    differentiable.defvjp(lambda *arrays: (differentiable(*arrays), arrays), gradients)
    return jax.jit(differentiable, inline=True)


def _by_slices(
    form: _Form,
    count: int,
    slices: int,
    owners: jax.Array,
    weights: jax.Array,
    *arrays: jax.Array,
) -> jax.Array:
    """The products of one slice of rows after the other, in a loop: no more of them exist at once."""
    x, w, sizes, offset, rows, bias = form.spread(arrays)
    m, n = owners.shape[0], w.shape[1 if form.transposed else 2]
    length = -(-m // slices // 256) * 256  # alike, and of whole tiles
    if rows is None:
        # By index: a slice of x would be copied, which is more than the products where k is large.
        rows = jnp.arange(m, dtype=jnp.int32)
    owners = jnp.where((owners >= 0) & (owners < count), owners, count)
    # Rows behind the last one are in no group, take no row of x and count nowhere.
    rows, owners, weights = (
        jnp.pad(a, (0, slices * length - m), constant_values=filler).reshape(slices, length)
        for a, filler in ((rows, -1), (owners, count), (weights, 0))
    )
    ends = _ends(sizes, m)
    of_slice = form._replace(given=(*form.given[:4], True, form.given[5]))

    def add(sums: jax.Array, part: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        start, rows, owners, weights = part
        # No group begins in a slice but at its first row or where another ends, so sizes say where each of them is.
        sizes = jnp.diff(jnp.clip(ends - start, 0, length))
        given = (a for a in (x, w, sizes, offset, rows, bias) if a is not None)
        return add_weighted_rows(sums, _product(*given, form=of_slice), owners, weights), None

    starts = jnp.arange(slices, dtype=ends.dtype) * length
    none = jnp.zeros((count, n), jnp.float32)
    none, starts, rows, _ = (a for a in vary_alike((none, starts, rows, x)) if a is not None)
    return lax.scan(add, none, (starts, rows, owners, weights))[0]


# ------------------------------------------------------------------------------------------- the op, and XLA's version


def _by_op(*arrays: jax.Array, form: _Form) -> jax.Array:
    return call(_NAME, form.spread(arrays), **form.attributes)[0]


def _by_xla(*arrays: jax.Array, form: _Form) -> jax.Array:
    x, w, sizes, offset, rows, bias = form.spread(arrays)
    exists = True
    if rows is not None:
        exists = ((rows >= 0) & (rows < x.shape[0]))[:, None]
        x = jnp.where(exists, _taken(x, rows), 0)
    starts = _starts(sizes, offset, w.shape[0], x.shape[0])
    out = lax.ragged_dot(
        jnp.roll(x, -starts[0], 0),
        w.swapaxes(1, 2) if form.transposed else w,
        jnp.diff(starts),
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32
        if bias is not None or form.out_dtype == "f32"
        else x.dtype,
    )
    out = jnp.roll(out, starts[0], 0)
    if bias is not None:
        group = _groups_of_rows(starts, x.shape[0])
        of_row = jnp.append(bias, jnp.zeros((1, bias.shape[1]), bias.dtype), 0)[group].astype(
            jnp.float32
        )
        out = out + jnp.where(exists, of_row, 0)
    return out if form.out_dtype == "f32" else out.astype(x.dtype)


_product = with_fallback(_NAME, _by_op, _by_xla)


def _taken(x: jax.Array, rows: jax.Array) -> jax.Array:
    """x[rows]; zeros or any row where there is none."""
    return jnp.append(x, jnp.zeros((1, x.shape[1]), x.dtype), 0)[jnp.clip(rows, 0, x.shape[0])]


def _starts(sizes: jax.Array, offset: jax.Array | None, groups: int, m: int) -> jax.Array:
    """Where the groups at hand begin, and where the last one ends: [groups + 1], as `src/matmul/groups.h` says."""
    ends = _ends(sizes, m)
    first = 0 if offset is None else jnp.clip(offset[0], -groups, sizes.shape[0])
    return ends[jnp.clip(first + jnp.arange(groups + 1), 0, sizes.shape[0])]


def _ends(sizes: jax.Array, m: int) -> jax.Array:
    """Where each of all groups ends, behind a 0: [e + 1]."""
    # Not by a sum: it would overflow.
    ends = lax.associative_scan(lambda a, b: jnp.minimum(a + b, m), jnp.clip(sizes, 0, m))
    return jnp.append(jnp.zeros(1, ends.dtype), ends)


def _groups_of_rows(starts: jax.Array, m: int) -> jax.Array:
    """The group of each of m rows; one more than there are for a row of no group."""
    groups = starts.shape[0] - 1
    row = jnp.arange(m, dtype=starts.dtype)
    group = jnp.searchsorted(starts, row, side="right") - 1
    return jnp.where((group < 0) | (row >= starts[-1]), groups, group)


# --------------------------------------------------------------------------------------------------------- the gradient


def _gradients(form: _Form, arrays: Sequence[jax.Array], d_out: jax.Array) -> tuple[Any, ...]:
    x, w, sizes, offset, rows, bias = form.spread(arrays)
    d_out = d_out.astype(x.dtype)
    taken = x
    if rows is not None:
        exists = ((rows >= 0) & (rows < x.shape[0]))[:, None]
        # A row that takes none of x has no bias, either.
        d_out = jnp.where(exists, d_out, 0)
        taken = jnp.where(exists, _taken(x, rows), 0)
    d_taken = grouped_matmul(
        d_out,
        w,
        sizes,
        None,
        None if rows is None else jnp.float32,
        offset,
        transposed=not form.transposed,
    )
    d_x = d_taken
    if rows is not None:
        d_x = sums_of_rows(d_taken, rows, x.shape[0]).astype(x.dtype)
    left, right = (d_out, taken) if form.transposed else (taken, d_out)
    d_w = _weight_gradient(left, right, sizes, offset, w.shape[0])
    d_bias = None
    if bias is not None:
        d_bias = sums_of_groups(d_out, sizes, offset, w.shape[0]).astype(bias.dtype)
    every = (d_x, d_w, None, None, None, d_bias)
    return tuple(d for d, is_given in zip(every, form.given, strict=True) if is_given)


def _weight_gradient(
    x: jax.Array, d_out: jax.Array, sizes: jax.Array, offset: jax.Array | None, groups: int
) -> jax.Array:
    product = one_by_one(functools.partial(_weight_product, groups=groups))
    differentiable = jax.custom_vjp(lambda *arrays: product(*arrays))

    def gradients(arrays: Sequence[jax.Array], d_w: jax.Array) -> tuple[Any, ...]:
        x, d_out, sizes, *offset = arrays
        of_groups = functools.partial(
            grouped_matmul, group_sizes=sizes, group_offset=offset[0] if offset else None
        )
        return of_groups(d_out, d_w, transposed=True), of_groups(x, d_w), *[None] * len(arrays[2:])

    differentiable.defvjp(lambda *arrays: (differentiable(*arrays), arrays), gradients)
    arrays = (x, d_out, sizes) if offset is None else (x, d_out, sizes, offset)
    return differentiable(*arrays)


def sums_of_groups(
    rows: jax.Array, sizes: jax.Array, offset: jax.Array | None, groups: int
) -> jax.Array:
    """[groups, n] T from rows [m, n] T: each group's rows added, in an order that no schedule changes."""
    # The product with ones. Eight columns of them are 16 bytes and more, which kernels load at once.
    ones = jnp.ones((rows.shape[0], 8), rows.dtype)
    ones, rows = (a for a in vary_alike((ones, rows)) if a is not None)
    return _weight_gradient(ones, rows, sizes, offset, groups)[:, 0]


def _weights_by_op(*arrays: jax.Array, groups: int) -> jax.Array:
    if groups == 0:
        x, d_out = arrays[:2]
        return jnp.zeros((0, x.shape[1], d_out.shape[1]), x.dtype)
    return call(_GRADIENT, arrays, num_groups=groups)[0]


def _weights_by_xla(
    x: jax.Array,
    d_out: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None = None,
    *,
    groups: int,
) -> jax.Array:
    starts = _starts(sizes, offset, groups, x.shape[0])
    return lax.ragged_dot_general(
        jnp.roll(x, -starts[0], 0),
        jnp.roll(d_out, -starts[0], 0),
        jnp.diff(starts),
        lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(([0], [0]), ([], [])),
            lhs_ragged_dimensions=[0],
            rhs_group_dimensions=[],
        ),
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=x.dtype,
    )


_weight_product = with_fallback(_GRADIENT, _weights_by_op, _weights_by_xla)
