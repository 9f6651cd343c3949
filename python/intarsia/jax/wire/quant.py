"""Ops of the family quant, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all


def dynamic_per_token_scaled_fp8_quant(
    x: ArrayLike, scale_ub: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Quantizes each row to fp8 by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.
      scale_ub: [1], f32: counts as a row's largest number where that is larger; optional.

    Returns:
      q: [..., n], f8e4m3fn: codes.
      scale: [..., 1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_per_token_scaled_fp8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> q, scale = dynamic_per_token_scaled_fp8_quant(x)
      >>> print(jax.typeof(q), jax.typeof(scale))
      float8_e4m3fn[2,64] float32[2,1]
    """
    return one_or_all(call("dynamic_per_token_scaled_fp8_quant", (x, scale_ub)))


def dynamic_scaled_fp8_quant(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Quantizes to fp8 by one scale that x itself gives.

    Args:
      x: [...], T: numbers.

    Returns:
      q: [...], f8e4m3fn: codes.
      scale: [1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_scaled_fp8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> q, scale = dynamic_scaled_fp8_quant(x)
      >>> print(jax.typeof(q), jax.typeof(scale))
      float8_e4m3fn[2,64] float32[1]
    """
    return one_or_all(call("dynamic_scaled_fp8_quant", (x,)))


def dynamic_scaled_int8_azp_quant(x: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quantizes each row to int8 by a scale and a zero point of its own.

    Args:
      x: [..., n], T: rows of numbers.

    Returns:
      q: [..., n], i8: codes.
      scale: [..., 1], f32: what a step of 1 in the codes stands for; 0 for a row of equal
        numbers, which is lost.
      azp: [..., 1], i32: the code that stands for 0.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_scaled_int8_quant, asymmetric. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> q, scale, azp = dynamic_scaled_int8_azp_quant(x)
      >>> print(jax.typeof(q), jax.typeof(scale), jax.typeof(azp))
      int8[2,64] float32[2,1] int32[2,1]
    """
    return one_or_all(call("dynamic_scaled_int8_azp_quant", (x,)))


def dynamic_scaled_int8_quant(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Quantizes each row to int8 by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.

    Returns:
      q: [..., n], i8: codes.
      scale: [..., 1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_scaled_int8_quant, symmetric. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> q, scale = dynamic_scaled_int8_quant(x)
      >>> print(jax.typeof(q), jax.typeof(scale))
      int8[2,64] float32[2,1]
    """
    return one_or_all(call("dynamic_scaled_int8_quant", (x,)))


def per_token_group_fp8_quant(
    x: ArrayLike, *, group_size: int = 128, eps: float = 1e-10, scale_ue8m0: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Quantizes groups of a row's neighbors to fp8, each by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.
      group_size: how many neighbors share a scale.
      eps: counts as a group's largest number where that is smaller.
      scale_ue8m0: whether scales are rounded up to powers of two, as E8M0 holds them.

    Returns:
      q: [..., n], f8e4m3fn: codes.
      scale: [..., n/group_size], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::per_token_group_fp8_quant; DeepSeek-AI 2024, arXiv:2412.19437, section
        3.3. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> q, scale = per_token_group_fp8_quant(x, group_size=16)
      >>> print(jax.typeof(q), jax.typeof(scale))
      float8_e4m3fn[2,64] float32[2,4]
    """
    return one_or_all(
        call(
            "per_token_group_fp8_quant",
            (x,),
            group_size=group_size,
            eps=eps,
            scale_ue8m0=scale_ue8m0,
        )
    )


def per_token_group_quant_int8(
    x: ArrayLike, *, group_size: int = 128, eps: float = 1e-10
) -> tuple[jax.Array, jax.Array]:
    """Quantizes groups of a row's neighbors to int8, each by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.
      group_size: how many neighbors share a scale.
      eps: counts as a group's largest number where that is smaller.

    Returns:
      q: [..., n], i8: codes, rounded toward zero.
      scale: [..., n/group_size], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::per_token_group_quant_int8. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> q, scale = per_token_group_quant_int8(x, group_size=16)
      >>> print(jax.typeof(q), jax.typeof(scale))
      int8[2,64] float32[2,4]
    """
    return one_or_all(call("per_token_group_quant_int8", (x,), group_size=group_size, eps=eps))


def static_scaled_fp8_quant(x: ArrayLike, scale: ArrayLike) -> jax.Array:
    """Quantizes to fp8 by scales that are given.

    Args:
      x: [..., n], T: numbers.
      scale: [1] or [n] or [..., 1] or [..., g], f32: what a code of 1 stands for: in all of x,
        in each column, in each row, or in each of g equal groups of a row's columns.

    Returns:
      q: [..., n], f8e4m3fn: codes.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::static_scaled_fp8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> scale = jnp.ones((1,))
      >>> q = static_scaled_fp8_quant(x, scale)
      >>> print(jax.typeof(q))
      float8_e4m3fn[2,64]
    """
    return one_or_all(call("static_scaled_fp8_quant", (x, scale)))


def static_scaled_int8_quant(
    x: ArrayLike, scale: ArrayLike, azp: ArrayLike | None = None
) -> jax.Array:
    """Quantizes to int8 by scales that are given.

    Args:
      x: [..., n], T: numbers.
      scale: [1] or [n] or [..., 1] or [..., g], f32: what a code of 1 stands for: in all of x,
        in each column, in each row, or in each of g equal groups of a row's columns.
      azp: [1], i32: the code that stands for 0; 0 if absent; optional.

    Returns:
      q: [..., n], i8: codes.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::static_scaled_int8_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> scale = jnp.ones((1,))
      >>> q = static_scaled_int8_quant(x, scale)
      >>> print(jax.typeof(q))
      int8[2,64]
    """
    return one_or_all(call("static_scaled_int8_quant", (x, scale, azp)))
