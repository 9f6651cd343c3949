"""Linear layers in 8 bits: x becomes codes by our ops, and codes are multiplied by codes."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from intarsia import _dtypes
from intarsia.jax import wire
from intarsia.jax._call import as_array, narrowed

_NAME = "linear_w8a8"
_OUT_DTYPES: dict[str, wire.ScaledMatmulOutDtype] = {"f32": "f32", "f16": "f16", "bf16": "bf16"}
_GROUP = 128  # columns that share a scale, where not all of a row do


def linear_w8a8(
    x: ArrayLike,
    w: ArrayLike,
    w_scales: ArrayLike,
    *,
    x_scales: ArrayLike | None = None,
    group: Literal[0, 128] = 0,
    bias: ArrayLike | None = None,
) -> jax.Array:
    """A linear layer in 8 bits: x becomes codes of w's dtype, and `scaled_matmul` multiplies them.

    `out[.., j] = sum_i x'[.., i] w'[j, i] + bias[j]`, where x' and w' are codes times their scales. Sums are rounded once. x is
    rounded by scales of its own: those of `x_scales`, or else of the largest number of each row, or of each `group`. It takes
    part in vmap, shard_map and export. Codes have no gradient.

    Args:
      x: [..., k] T; rows.
      w: [n, k] f8e4m3fn or i8; codes of weights, a row for each result, as checkpoints have them.
      w_scales: [1], [n] or [ceil(n/128), ceil(k/128)] f32; what codes of w are multiplied by: of all, of rows, or of blocks of 128.
      x_scales: [1], [..., 1] or [..., k/128] f32; what codes of x are multiplied by. Numbers beyond the codes saturate.
      group: how many columns of x share a scale: 0: all of a row. Of 128, k must be a multiple.
      bias: [n], f32, f16 or bf16.

    T is one of f32, f16 and bf16.

    Returns:
      [..., n] T.

    Raises:
      ValueError: shapes or dtypes do not fit; the text names the operand, what was got and expected.

    Example:
      >>> w = jnp.full((32, 64), 2, jnp.int8)
      >>> out = linear_w8a8(jnp.ones((3, 64)), w, jnp.array([0.5]))
      >>> print(jax.typeof(out), out[0, 0])
      float32[3,32] 64.0
    """
    x, w = as_array(f"{_NAME}: x", x), as_array(f"{_NAME}: w", w)
    dtype, kind = _dtypes.name_of(x.dtype), _dtypes.name_of(w.dtype)
    if dtype not in _OUT_DTYPES:
        raise ValueError(f"{_NAME}: x has dtype {dtype}, expected f32, f16 or bf16")
    if kind not in ("f8e4m3fn", "i8"):
        raise ValueError(f"{_NAME}: w has dtype {kind}, expected f8e4m3fn or i8")
    if group not in (0, _GROUP):
        raise ValueError(f"{_NAME}: group is {group}, expected 0 or {_GROUP}")
    if group and x.ndim and x.shape[-1] % group:
        raise ValueError(
            f"{_NAME}: group is {group} where x has {x.shape[-1]} columns, expected a multiple"
        )
    # A row alone gets an axis of rows: without one, vmap would take its scale for one of all rows.
    alone = x.ndim == 1
    x = x[None] if alone else x
    if x_scales is None:
        codes, scales = _rounded(x, kind == "i8", group)
    elif group:
        raise ValueError(f"{_NAME}: group is {group}, expected 0 where x_scales is given")
    else:
        scales = narrowed(as_array(f"{_NAME}: x_scales", x_scales), "f32")
        if scales.dtype != jnp.float32:
            got = _dtypes.name_of(scales.dtype)
            raise ValueError(f"{_NAME}: x_scales has dtype {got}, expected f32")
        scales = scales.reshape(1) if scales.ndim == 0 else scales
        scales = scales[None] if alone and scales.ndim == 1 else scales
        if scales.ndim > 1 and scales.shape[-1] > 1 and x.shape[-1] % _GROUP:
            raise ValueError(
                f"{_NAME}: x_scales has shape {[*scales.shape]} where x has {x.shape[-1]} columns, "
                f"expected one scale a row, or a multiple of {_GROUP} columns"
            )
        of_rows = scales.shape[:-1] == x.shape[:-1] and scales.shape[-1] in (
            1,
            x.shape[-1] // _GROUP,
        )
        if scales.shape != (1,) and not of_rows:
            raise ValueError(
                f"{_NAME}: x_scales has shape {[*scales.shape]} where x has {[*x.shape]}, "
                f"expected [1], [..., 1] or [..., k/{_GROUP}]"
            )
        by_scales = wire.static_scaled_int8_quant if kind == "i8" else wire.static_scaled_fp8_quant
        codes = by_scales(x, scales)
    out = wire.scaled_matmul(codes, w, scales, w_scales, bias, out_dtype=_OUT_DTYPES[dtype])
    return out[0] if alone else out


def _rounded(x: jax.Array, integers: bool, group: int) -> tuple[jax.Array, jax.Array]:
    """Codes of x, and the scale of each row or group."""
    if group:
        of_groups = wire.per_token_group_quant_int8 if integers else wire.per_token_group_fp8_quant
        return of_groups(x, group_size=group)
    if integers:
        return wire.dynamic_scaled_int8_quant(x)
    return wire.dynamic_per_token_scaled_fp8_quant(x)
