"""Linear layers with weights in 8 bits or less: our product on CPUs and NVIDIA GPUs, XLA's with decoded weights elsewhere."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from intarsia import _native
from intarsia._packing import ARRAYS, E2M1, FORMATS, PackedWeight, by_rows, row_codes
from intarsia.jax import _decoding, wire
from intarsia.jax._call import abstract, as_array, call
from intarsia.jax._grad import functions_with_gradient
from intarsia.jax._linear import linear, product_by_xla
from intarsia.jax._platforms import with_fallback
from intarsia.jax._types import refuse_sharded, vary_alike

_NAME = "linear_quantized"
_OPERANDS = ("x", *ARRAYS, "bias")
functions_with_gradient.add(_NAME)

jax.tree_util.register_dataclass(
    PackedWeight,
    data_fields=[*ARRAYS],
    meta_fields=["rows", "columns", "format", "group", "zeros_are"],
)


def linear_quantized(
    x: ArrayLike,
    packed: ArrayLike,
    scales: ArrayLike,
    zeros: ArrayLike | None = None,
    outer_scales: ArrayLike | None = None,
    outer_zeros: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    format: wire.Format = "u4",
    group: int = 0,
    zeros_are: wire.ZerosAre = "points",
    out_dtype: wire.LinearQuantizedOutDtype = "auto",
) -> jax.Array:
    """A linear layer with weights in 8 bits or less: x w^T, plus a bias.

    `w = scales * (q - zeros)`, or `scales * q + zeros` where zeros are minimums; q is what a code stands for. `intarsia.repack` makes
    the operands from the formats of checkpoints, and says how they lie. Sums are f32 and rounded once. In a program for a CPU or an
    NVIDIA GPU it is one custom call, in which codes become numbers in registers. On any other platform it is XLA's product with weights
    decoded to f32. It takes part in vmap, grad, shard_map and export.

    With many rows of bf16, or of f16 with scales in f16, a GPU decodes the weights to T first, and the product is XLA's: from 512 rows on.
    Hopper does so from 1024 on for mxfp4, nvfp4, and 4 bits in groups of 128. Other GPUs do so from 128 on for 5 and 6 bits, groups of
    16, and outer scales.

    Args:
      x: [..., k] T; rows.
      packed: [c, r, w, 16, 4] u8; codes of c tiles of 16 results, r = ceil(k / 32), and w is a code's bits.
      scales: [c, kg, 16] f32, f16, bf16, u8, i8, float8_e4m3fn or float8_e8m0fnu; of each group.
      zeros: [c, kg, 16] f32, f16, bf16, u8 or i8.
      outer_scales: [1], or [c, ko, 16] of kg / ko groups each; f32, f16 or bf16. What scales are multiplied by.
      outer_zeros: the same for minimums.
      bias: [16 * c] T.
      format: what a code stands for: u4, u5 itself; u4b8, u5b16, u6b32 itself less 8, 16, 32; i8, e4m3, e2m1 a number.
      group: columns that share a scale, 16 or a multiple of 32; 0: all k of them.
      zeros_are: "points" or "minimums".
      out_dtype: "auto": the result is T. "f32": it is the sums as they are.

    T is one of f32, f16 and bf16.

    Returns:
      [..., 16 * c].

    Raises:
      ValueError: shapes or dtypes do not fit; the text names the operand, what was got and expected.

    Example:
      >>> packed = jnp.full((1, 2, 4, 16, 4), 0x11, jnp.uint8)  # 16 rows of 64 codes, each 1
      >>> scales = jnp.full((1, 1, 16), 0.5)
      >>> out = linear_quantized(jnp.ones((2, 64)), packed, scales)
      >>> print(out.shape, out[0, 0])
      (2, 16) 32.0
    """
    given = dict(
        zip(_OPERANDS, (x, packed, scales, zeros, outer_scales, outer_zeros, bias), strict=True)
    )
    arrays = [None if a is None else as_array(f"{_NAME}: {n}", a) for n, a in given.items()]
    # None is no choice, and so the default.
    choices = (format or "u4", group or 0, zeros_are or "points", out_dtype or "auto")
    form = _Form(tuple(a is not None for a in arrays), *choices)
    types = [abstract(a) for a in arrays]
    _native.main_library().infer(_NAME, types, form.attributes)  # or it raises
    for name, array in zip(_OPERANDS, arrays, strict=True):
        if array is not None:
            refuse_sharded(f"{_NAME}: {name}", array)
    return _function(form)(*(a for a in vary_alike(arrays) if a is not None))


def linear_packed(
    x: ArrayLike,
    weight: PackedWeight,
    bias: ArrayLike | None = None,
    *,
    out_dtype: wire.LinearQuantizedOutDtype = "auto",
) -> jax.Array:
    """`linear_quantized` with a `PackedWeight`.

    Its result has as many columns as the weight has rows; `bias` is for whole tiles of 16.
    """
    packed, scales, zeros, outer_scales, outer_zeros = weight.arrays
    operands = (packed, scales, zeros, outer_scales, outer_zeros, bias)
    out = linear_quantized(x, *operands, **weight.attributes, out_dtype=out_dtype)
    return out if out.shape[-1] == weight.rows else out[..., : weight.rows]


class _Form(NamedTuple):
    """What a call is besides its arrays: which operands it has, and its attributes."""

    given: tuple[bool, ...]
    format: str
    group: int
    zeros_are: str
    out_dtype: Any

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "group": self.group,
            "zeros_are": self.zeros_are,
            "out_dtype": self.out_dtype,
        }

    def spread(self, arrays: Sequence[Any]) -> list[Any]:
        """The operands in spec order from those that are given."""
        left = iter(arrays)
        return [next(left) if is_given else None for is_given in self.given]


# ------------------------------------------------------------------------------------------- decoding


def numbers(codes: jax.Array, format: str) -> jax.Array:
    """What codes, u8, stand for, f32."""
    form = FORMATS[format]
    if format == "e2m1":
        return jnp.asarray(E2M1)[codes]
    if form.element:
        return lax.bitcast_convert_type(codes, jnp.dtype(form.element)).astype(jnp.float32)
    return codes.astype(jnp.float32) - form.bias


def _affine(
    codes: jax.Array, scales: Any, zeros: Any, outers: Sequence[Any], attributes: dict[str, Any]
) -> jax.Array:
    """Weights f32 [..., columns] from codes and the factors [..., g] of the same rows."""
    columns = codes.shape[-1]

    def times(factor: jax.Array, outer: jax.Array | None) -> jax.Array:
        factor = factor.astype(jnp.float32)
        if outer is not None:
            outer = outer.astype(jnp.float32)
            if outer.ndim > 1:
                outer = jnp.repeat(outer, factor.shape[-1] // outer.shape[-1], axis=-1)
            factor = factor * outer
        return jnp.repeat(factor, attributes["group"] or columns, axis=-1)[..., :columns]

    number, scale = numbers(codes, attributes["format"]), times(scales, outers[0])
    if zeros is None:
        return number * scale
    zero = times(zeros, outers[1])
    is_minimum = attributes["zeros_are"] == "minimums"
    return number * scale + zero if is_minimum else (number - zero) * scale


def take_packed(weight: PackedWeight, rows: jax.Array) -> jax.Array:
    """Decodes some rows of a weight: f32 [*rows.shape, columns]. A row beyond the weight is its last one."""
    rows = jnp.clip(as_array("take_packed: rows", rows), 0, weight.rows - 1)
    tile, lane = rows // 16, rows % 16

    def factor(array: jax.Array | None) -> jax.Array | None:
        return array if array is None or array.ndim == 1 else array[tile, :, lane]

    # Those of `repack` are NumPy's, which no traced index picks from.
    _, scales, zeros, *outers = (None if a is None else jnp.asarray(a) for a in weight.arrays)
    codes = row_codes(jnp, jnp.asarray(weight.packed)[tile, :, :, lane])[..., : weight.columns]
    return _affine(
        codes, factor(scales), factor(zeros), [factor(a) for a in outers], weight.attributes
    )


def _decoded(columns: int, arrays: Sequence[Any], attributes: dict[str, Any]) -> jax.Array:
    """All weights, f32 [16 * c, columns]."""

    def factor(array: jax.Array | None) -> jax.Array | None:
        if array is None or array.ndim == 1:
            return array
        return array.swapaxes(1, 2).reshape(-1, array.shape[1])

    packed, scales, zeros, *outers = arrays
    codes = row_codes(jnp, by_rows(packed))[:, :columns]
    return _affine(codes, factor(scales), factor(zeros), [factor(a) for a in outers], attributes)


def decoded_stack(columns: int, arrays: Sequence[jax.Array | None], **attributes: Any) -> jax.Array:
    """The weights of stacked matrices, f32 [g, 16 * c, columns]; arrays: codes and factors as in `PackedWeight`."""
    whole = {"group": 0, "zeros_are": "points"} | attributes
    # One outer factor for each matrix: [1] for that matrix.
    stacked = [a if a is None or a.ndim > 1 else a[:, None] for a in arrays]
    return jax.vmap(lambda *of_one: _decoded(columns, of_one, whole))(*stacked)


# ------------------------------------------------------------------------------------------- the op, and XLA's version


def by_xla(x: jax.Array, *arrays: Any, out_dtype: str = "auto", **attributes: Any) -> jax.Array:
    """The same in plain JAX."""
    given: list[Any] = [*arrays, *[None] * (6 - len(arrays))]
    *factors, bias = given
    w = _decoded(x.shape[-1], factors, {"group": 0, "zeros_are": "points"} | attributes)
    out = product_by_xla(x.astype(jnp.float32), w, ((x.ndim - 1,), (1,)), jnp.float32)
    out = out if bias is None else out + bias.astype(jnp.float32)
    return out if out_dtype == "f32" else out.astype(x.dtype)


def _by_op(*arrays: jax.Array, form: _Form) -> jax.Array:
    def in_registers(*arrays: jax.Array) -> jax.Array:
        return call(_NAME, form.spread(arrays), **form.attributes)[0]

    x, _, scales, zeros, outer_scales, outer_zeros, _ = form.spread(arrays)

    in_stages = x.shape[-1] % 128 == 0

    def are_multiplied() -> bool:
        return in_stages and _decoding.decode_late(
            x, scales, zeros, outer_scales, **form.attributes
        )

    def are_slow() -> bool:
        is_rare = _decoding.are_rare(form.format, form.group, outer_scales)
        return is_rare and not (in_stages and _decoding.is_hopper())

    factors = [scales, outer_scales], [zeros, outer_zeros]
    if not _decoding.pays(x, *factors, _decoding.LINEAR, are_multiplied, are_slow):
        return in_registers(*arrays)
    decode = functools.partial(_by_decoding, form=form)
    return lax.platform_dependent(*arrays, cuda=decode, default=in_registers)


def _by_decoding(*arrays: jax.Array, form: _Form) -> jax.Array:
    x, *factors, bias = form.spread(arrays)
    w = _decoded(x.shape[-1], factors, form.attributes).astype(x.dtype)
    # Without the barrier XLA may put the decoding into the product, where each tile of rows would repeat it.
    return linear(x, lax.optimization_barrier(w), bias, out_dtype=form.out_dtype)


def _by_xla(*arrays: jax.Array, form: _Form) -> jax.Array:
    return by_xla(*form.spread(arrays), **form.attributes)


_product = with_fallback(_NAME, _by_op, _by_xla)


@functools.cache
def _function(form: _Form) -> Callable[..., jax.Array]:
    """The layer as a function of the arrays that are given, with its rules for vmap and grad."""

    @jax.custom_batching.custom_vmap
    def run(*arrays: jax.Array) -> jax.Array:
        return _product(*arrays, form=form)

    @run.def_vmap
    def batched(size: int, is_batched: Sequence[bool], *arrays: jax.Array):
        if not any(is_batched[1:]):
            return run(*arrays), True  # a batch of x is one more axis of rows
        axes = [0 if b else None for b in is_batched]
        return jax.vmap(functools.partial(_by_xla, form=form), axes, axis_size=size)(*arrays), True

    differentiable = jax.custom_vjp(lambda *arrays: run(*arrays))
    differentiable.defvjp(
        # The function itself, which can be differentiated once more.
        lambda *arrays: (differentiable(*arrays), arrays),
        functools.partial(_gradients, form),
    )
    differentiable.__name__ = _NAME  # type: ignore[attr-defined]  # in XLA's metadata and in profiles
    return jax.jit(differentiable, inline=True)


def _gradients(form: _Form, arrays: Sequence[jax.Array], d_out: jax.Array) -> tuple[Any, ...]:
    return jax.vjp(functools.partial(_by_xla, form=form), *arrays)[1](d_out)
