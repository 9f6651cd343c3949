"""Ops of the family norm, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from typing import overload

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all
from intarsia.jax.wire._words import QuantDtype, Rounding


def all_reduce_fused_add_rms_norm(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike | None,
    addresses: ArrayLike,
    inbox: ArrayLike,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """Sums over GPUs, adds the residual stream, then root-mean-square normalization.

    Runs on CUDA alone; `intarsia.jax.all_reduce_fused_add_rms_norm` is XLA's version on other platforms.

    Args:
      x: [..., n], T: this GPU's part of the sum.
      residual: [..., n], T: the residual stream, the same on all.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      addresses: [ranks+1, 2], i32: 64-bit addresses: of this GPU's inbox, then of all GPUs' in
        the order of their ranks.
      inbox: [2*ranks+1, max_rows, packs, 4], i32: what other GPUs write to: a plane whose rows
        begin with the number of their calls, less one, then two planes for each rank; at first
        all ones.
      eps: added to the mean square.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight; one
        of once, before_weight.

    Returns:
      out: [..., n], T: normalized rows.
      residual: [..., n], T: sum + residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's pass fuse_allreduce_rms. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "all_reduce_fused_add_rms_norm",
            (x, residual, weight, addresses, inbox),
            eps=eps,
            rounding=rounding,
        )
    )


def fused_add_rms_norm(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """Adds the residual stream, then root-mean-square normalization.

    Args:
      x: [..., n], T: what a block of the network adds.
      residual: [..., n], T: the residual stream.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      eps: added to the mean square.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight; one
        of once, before_weight.

    Returns:
      out: [..., n], T: normalized rows.
      residual: [..., n], T: x + residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::fused_add_rms_norm. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> residual = jnp.ones((2, 64))
      >>> weight = jnp.ones((64,))
      >>> out, residual = fused_add_rms_norm(x, residual, weight, eps=1e-05)
      >>> print(jax.typeof(out), jax.typeof(residual))
      float32[2,64] float32[2,64]
    """
    return one_or_all(call("fused_add_rms_norm", (x, residual, weight), eps=eps, rounding=rounding))


def fused_add_rms_norm_static_fp8_quant(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike,
    scale: ArrayLike,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """Adds the residual stream, then root-mean-square normalization, quantized by a given scale.

    Args:
      x: [..., n], T: what a block of the network adds.
      residual: [..., n], T: the residual stream.
      weight: [n], T, f32: scale of each column.
      scale: [1], f32: what a code of 1 stands for.
      eps: added to the mean square.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight, too;
        one of once, before_weight.

    Returns:
      q: [..., n], f8e4m3fn: codes of the normalized rows.
      residual: [..., n], T: x + residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::fused_add_rms_norm_static_fp8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> residual = jnp.ones((2, 64))
      >>> weight = jnp.ones((64,))
      >>> scale = jnp.ones((1,))
      >>> q, residual = fused_add_rms_norm_static_fp8_quant(x, residual, weight, scale, eps=1e-05)
      >>> print(jax.typeof(q), jax.typeof(residual))
      float8_e4m3fn[2,64] float32[2,64]
    """
    return one_or_all(
        call(
            "fused_add_rms_norm_static_fp8_quant",
            (x, residual, weight, scale),
            eps=eps,
            rounding=rounding,
        )
    )


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-05,
) -> jax.Array:
    """Layer normalization over the last axis.

    Args:
      x: [..., n], T: rows to normalize.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      bias: [n], T, f32: added to each column; 0 if absent; optional.
      eps: added to the variance.

    Returns:
      out: [..., n], T: normalized rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; torch's layer_norm. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((2, 8))
      >>> weight = jnp.ones((8,))
      >>> bias = jnp.ones((8,))
      >>> out = layer_norm(x, weight, bias)
      >>> print(jax.typeof(out))
      float32[2,8]
    """
    return one_or_all(call("layer_norm", (x, weight, bias), eps=eps))


def layer_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale_ub: ArrayLike | None = None,
    *,
    eps: float = 1e-05,
    quant_dtype: QuantDtype = "f8e4m3fn",
) -> tuple[jax.Array, jax.Array]:
    """Layer normalization, each row quantized by a scale of its own.

    Args:
      x: [..., n], T: rows to normalize.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      bias: [n], T, f32: added to each column; 0 if absent; optional.
      scale_ub: [1], f32: counts as a row's largest number where that is larger; optional.
      eps: added to the variance.
      quant_dtype: dtype of the codes; one of f8e4m3fn, i8.

    Returns:
      q: [..., n], quant_dtype: codes of the normalized rows.
      scale: [..., 1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: layer_norm, then vLLM's _C::dynamic_per_token_scaled_fp8_quant or its like in
        int8. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> weight = jnp.ones((64,))
      >>> bias = jnp.ones((64,))
      >>> q, scale = layer_norm_dynamic_per_token_quant(x, weight, bias)
      >>> print(jax.typeof(q), jax.typeof(scale))
      float8_e4m3fn[2,64] float32[2,1]
    """
    return one_or_all(
        call(
            "layer_norm_dynamic_per_token_quant",
            (x, weight, bias, scale_ub),
            eps=eps,
            quant_dtype=quant_dtype,
        )
    )


def layer_norm_static_fp8_quant(
    x: ArrayLike,
    scale: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-05,
) -> jax.Array:
    """Layer normalization, quantized by a given scale.

    Args:
      x: [..., n], T: rows to normalize.
      scale: [1], f32: what a code of 1 stands for.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      bias: [n], T, f32: added to each column; 0 if absent; optional.
      eps: added to the variance.

    Returns:
      q: [..., n], f8e4m3fn: codes of the normalized rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: layer_norm and static_scaled_fp8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> scale = jnp.ones((1,))
      >>> weight = jnp.ones((64,))
      >>> bias = jnp.ones((64,))
      >>> q = layer_norm_static_fp8_quant(x, scale, weight, bias)
      >>> print(jax.typeof(q))
      float8_e4m3fn[2,64]
    """
    return one_or_all(call("layer_norm_static_fp8_quant", (x, scale, weight, bias), eps=eps))


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> jax.Array:
    """Root-mean-square normalization over the last axis.

    Args:
      x: [..., n], T: rows to normalize.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      eps: added to the mean square.
      rounding: "before_weight" rounds to T before the weight, as Hugging Face's Llama does; one
        of once, before_weight.

    Returns:
      out: [..., n], T: normalized rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM's _C::rms_norm. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((2, 8))
      >>> weight = jnp.ones((8,))
      >>> out = rms_norm(x, weight, eps=1e-05)
      >>> print(jax.typeof(out))
      float32[2,8]
    """
    return one_or_all(call("rms_norm", (x, weight), eps=eps, rounding=rounding))


@overload
def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: None = None,
    *,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None,
    residual: ArrayLike,
    *,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


@overload
def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    *,
    residual: ArrayLike,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array]:
    """Root-mean-square normalization, each row quantized by a scale of its own.

    Args:
      x: [..., n], T: rows to normalize; with residual, what a block of the network adds.
      weight: [n], T, f32: scale of each column.
      scale_ub: [1], f32: counts as a row's largest number where that is larger; optional.
      residual: [..., n], T: the residual stream, added before the norm; optional.
      eps: added to the mean square.
      quant_dtype: dtype of the codes; one of f8e4m3fn, i8.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight, too;
        one of once, before_weight.

    Returns:
      q: [..., n], quant_dtype: codes of the normalized rows.
      scale: [..., 1], f32: what a code of 1 stands for.
      residual: [..., n], T: x + residual; only with residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::rms_norm_dynamic_per_token_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> weight = jnp.ones((64,))
      >>> q, scale = rms_norm_dynamic_per_token_quant(x, weight, eps=1e-05)
      >>> print(jax.typeof(q), jax.typeof(scale))
      float8_e4m3fn[2,64] float32[2,1]
    """
    return one_or_all(
        call(
            "rms_norm_dynamic_per_token_quant",
            (x, weight, scale_ub, residual),
            eps=eps,
            quant_dtype=quant_dtype,
            rounding=rounding,
        )
    )


@overload
def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: None = None,
    *,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None,
    residual: ArrayLike,
    *,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


@overload
def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    *,
    residual: ArrayLike,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array]:
    """Root-mean-square normalization, groups of a row quantized by scales of their own.

    Args:
      x: [..., n], T: rows to normalize; with residual, what a block of the network adds.
      weight: [n], T, f32: scale of each column.
      scale_ub: [1], f32: counts as a group's largest number where that is larger; optional.
      residual: [..., n], T: the residual stream, added before the norm; optional.
      group_size: how many neighbors share a scale.
      eps: added to the mean square.
      quant_dtype: dtype of the codes; one of f8e4m3fn, i8.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight, too;
        one of once, before_weight.

    Returns:
      q: [..., n], quant_dtype: codes of the normalized rows.
      scale: [..., n/group_size], f32: what a code of 1 stands for.
      residual: [..., n], T: x + residual; only with residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::rms_norm_per_block_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> weight = jnp.ones((64,))
      >>> q, scale = rms_norm_per_block_quant(x, weight, eps=1e-05, group_size=16)
      >>> print(jax.typeof(q), jax.typeof(scale))
      float8_e4m3fn[2,64] float32[2,4]
    """
    return one_or_all(
        call(
            "rms_norm_per_block_quant",
            (x, weight, scale_ub, residual),
            group_size=group_size,
            eps=eps,
            quant_dtype=quant_dtype,
            rounding=rounding,
        )
    )


def rms_norm_static_fp8_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale: ArrayLike,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> jax.Array:
    """Root-mean-square normalization, quantized by a given scale.

    Args:
      x: [..., n], T: rows to normalize.
      weight: [n], T, f32: scale of each column.
      scale: [1], f32: what a code of 1 stands for.
      eps: added to the mean square.
      rounding: "before_weight" rounds to T before the weight, too, as Hugging Face's Llama
        does; one of once, before_weight.

    Returns:
      q: [..., n], f8e4m3fn: codes of the normalized rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::rms_norm_static_fp8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> weight = jnp.ones((64,))
      >>> scale = jnp.ones((1,))
      >>> q = rms_norm_static_fp8_quant(x, weight, scale, eps=1e-05)
      >>> print(jax.typeof(q))
      float8_e4m3fn[2,64]
    """
    return one_or_all(
        call("rms_norm_static_fp8_quant", (x, weight, scale), eps=eps, rounding=rounding)
    )
