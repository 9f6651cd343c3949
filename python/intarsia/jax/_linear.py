"""Linear layers: our product on CPUs, XLA's elsewhere (docs/adr/0009-linear.md)."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from intarsia import _native
from intarsia.jax import wire
from intarsia.jax._call import abstract, as_array, call
from intarsia.jax._grad import gradient
from intarsia.jax._platforms import with_fallback
from intarsia.jax._types import refuse_sharded, vary_alike

_NAME = "linear"


def linear(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    out_dtype: wire.LinearOutDtype = "auto",
) -> jax.Array:
    """A linear layer: x w^T, plus a bias.

    `out[.., j] = sum_i x[.., i] w[j, i] + bias[j]`, summed in f32 and rounded once. In a program for a CPU it is one
    custom call, unless x is a single row in f32. That row, and any other platform, takes XLA's product, in full precision
    for f32. It takes part in vmap, grad (whose products are XLA's), shard_map and export.

    Args:
      x: [..., k] T; rows.
      w: [n, k] T; weights, a row for each result, as checkpoints and torch have them.
      bias: [n] T.
      out_dtype: "auto": the result is T. "f32": it is the sums as they are.

    T is one of f32, f16 and bf16.

    Returns:
      [..., n].

    Raises:
      ValueError: shapes or dtypes do not fit; the text names the operand, what was got and expected.

    Example:
      >>> x, w = jnp.ones((2, 64)), jnp.ones((32, 64))
      >>> print(jax.typeof(linear(x, w)))
      float32[2,32]
    """
    given = {"x": x, "w": w} | ({} if bias is None else {"bias": bias})
    arrays = [as_array(f"{_NAME}: {name}", value) for name, value in given.items()]
    types = [abstract(a) for a in arrays]
    _native.main_library().infer(_NAME, types, {"out_dtype": out_dtype})  # or it raises
    for name, array in zip(given, arrays, strict=True):
        refuse_sharded(f"{_NAME}: {name}", array)
    return _function(out_dtype)(*vary_alike(arrays))


def product_by_xla(
    a: jax.Array,
    b: jax.Array,
    sum_over: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: Any = None,
) -> jax.Array:
    """A product by XLA, whose sums are f32 for each T, and made of f32 in full precision on a GPU, too.

    Args:
      a, b: T; the result has the axes that are left of a, then those of b.
      sum_over: the contracted axes of a and of b, in the same order.
      dtype: of the result; None: as a's.
    """
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (sum_over, ((), ())), precision=precision, preferred_element_type=dtype
    )


def _by_xla(x: jax.Array, w: jax.Array, *bias: jax.Array, out_dtype: str) -> jax.Array:
    # Without a bias the product rounds, so that a GPU's is one kernel.
    sums = jnp.float32 if bias or out_dtype == "f32" else x.dtype
    out = product_by_xla(x, w, ((x.ndim - 1,), (1,)), sums)
    for b in bias:
        out = out + b.astype(sums)
    return out if out_dtype == "f32" else out.astype(x.dtype)


def _by_op(*arrays: jax.Array, out_dtype: str) -> jax.Array:
    x = arrays[0]
    if x.size == x.shape[-1] and x.dtype == jnp.float32:
        # XLA has a kernel of its own for one row, a little faster than ours (docs/notebook/cpu.md).
        return _by_xla(*arrays, out_dtype=out_dtype)
    return call(_NAME, arrays, out_dtype=out_dtype)[0]


_product = with_fallback(_NAME, _by_op, _by_xla)


@functools.cache
def _function(out_dtype: str) -> Callable[..., jax.Array]:
    """A linear layer as a function of its arrays, with its rules for vmap and grad."""

    @jax.custom_batching.custom_vmap
    def run(*arrays: jax.Array) -> jax.Array:
        return _product(*arrays, out_dtype=out_dtype)

    @run.def_vmap
    def batched(size: int, is_batched: Sequence[bool], *arrays: jax.Array):
        if not any(is_batched[1:]):
            return run(*arrays), True  # a batch of x is one more axis of rows
        axes = [0 if b else None for b in is_batched]
        by_xla = functools.partial(_by_xla, out_dtype=out_dtype)
        return jax.vmap(by_xla, axes, axis_size=size)(*arrays), True

    differentiable = jax.custom_vjp(lambda *arrays: run(*arrays))
    # The forward pass is the function itself, which can be differentiated once more.
    differentiable.defvjp(lambda *arrays: (differentiable(*arrays), arrays), _gradients)
    differentiable.__name__ = _NAME  # type: ignore[attr-defined]  # in XLA's metadata and in profiles
    return jax.jit(differentiable, inline=True)


def _gradients(arrays: tuple[jax.Array, ...], d_out: jax.Array) -> tuple[jax.Array, ...]:
    x, w, *bias = arrays
    rows = tuple(range(x.ndim - 1))
    d_x = product_by_xla(d_out.astype(x.dtype), w, ((x.ndim - 1,), (0,)), x.dtype)
    d_w = product_by_xla(d_out.astype(x.dtype), x, (rows, rows), x.dtype)
    d_bias = [d_out.astype(jnp.float32).sum(rows)] * len(bias)
    return tuple(d.astype(x.dtype) for d in (d_x, d_w, *d_bias))


@gradient(f"intarsia.{_NAME}", keep=lambda operands, results, attributes: operands)
def _of_the_bare_op(
    kept: Any, cotangents: Sequence[jax.Array], attributes: dict[str, Any]
) -> list[jax.Array | None]:
    x, w, bias = kept
    arrays = (x, w) if bias is None else (x, w, bias)
    return [*_gradients(arrays, cotangents[0]), *([None] if bias is None else [])]
