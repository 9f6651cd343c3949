"""Ops of the family activation, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all


def fatrelu_and_mul(
    x: ArrayLike, up: ArrayLike | None = None, *, threshold: float = 0
) -> jax.Array:
    """The gated activation with a ReLU whose threshold is given.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.
      threshold: what a gate must exceed to pass.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Kurtz et al. 2020, ICML (FATReLU); vLLM's _C::fatrelu_and_mul. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = fatrelu_and_mul(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("fatrelu_and_mul", (x, up), threshold=threshold))


def gelu_and_mul(x: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation with the exact GELU.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Shazeer 2020, arXiv:2002.05202 (GEGLU); vLLM's _C::gelu_and_mul. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = gelu_and_mul(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("gelu_and_mul", (x, up)))


def gelu_fast(x: ArrayLike, *, round_steps: bool = False) -> jax.Array:
    """GELU in its tanh form, in other steps than gelu_new.

    Args:
      x: [...], T: numbers.
      round_steps: whether each operation is rounded to T, as in vLLM.

    Returns:
      out: [...], T: their activations.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_fast. T is f32, f16
        or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> out = gelu_fast(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("gelu_fast", (x,), round_steps=round_steps))


def gelu_new(x: ArrayLike, *, round_steps: bool = False) -> jax.Array:
    """GELU in its tanh form, as GPT-2 has it.

    Args:
      x: [...], T: numbers.
      round_steps: whether each operation is rounded to T, as in vLLM.

    Returns:
      out: [...], T: their activations.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_new. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> out = gelu_new(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("gelu_new", (x,), round_steps=round_steps))


def gelu_quick(x: ArrayLike) -> jax.Array:
    """GELU by a logistic curve, as CLIP has it.

    Args:
      x: [...], T: numbers.

    Returns:
      out: [...], T: their activations.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_quick. T is f32, f16
        or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> out = gelu_quick(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("gelu_quick", (x,)))


def gelu_tanh_and_mul(x: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Gemma's MLP: GELU in its tanh form.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_tanh_and_mul. T is
        f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = gelu_tanh_and_mul(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("gelu_tanh_and_mul", (x, up)))


def mul_and_silu(x: ArrayLike, gate: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Llama's MLP, the gate in the second half.

    Args:
      x: [..., n] with gate or [..., 2*n], T: up and gate side by side; up alone if gate is
        given.
      gate: [..., n], T: what is activated, when it is an array of its own, as a sharded last
        axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::mul_and_silu. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = mul_and_silu(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("mul_and_silu", (x, gate)))


def silu_and_mul(x: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Llama's MLP.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU); vLLM's _C::silu_and_mul. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = silu_and_mul(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("silu_and_mul", (x, up)))


def silu_and_mul_quant(x: ArrayLike, scale: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Llama's MLP, quantized by a given scale.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      scale: [1], f32: what a code of 1 stands for.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      q: [..., n], f8e4m3fn: codes of the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::silu_and_mul_quant. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> scale = jnp.ones((1,))
      >>> q = silu_and_mul_quant(x, scale)
      >>> print(jax.typeof(q))
      float8_e4m3fn[2,64]
    """
    return one_or_all(call("silu_and_mul_quant", (x, scale, up)))


def silu_and_mul_with_clamp(
    x: ArrayLike,
    up: ArrayLike | None = None,
    *,
    limit: float | None = None,
    alpha: float = 1,
    beta: float = 0,
) -> jax.Array:
    """The gated activation of a Llama's MLP, gate and up clamped before it.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.
      limit: the most that a gate counts as, and the most size of up; no limit if absent.
      alpha: what the gate's logistic curve is steeper by.
      beta: added to up.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::silu_and_mul_with_clamp. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = silu_and_mul_with_clamp(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("silu_and_mul_with_clamp", (x, up), limit=limit, alpha=alpha, beta=beta))


def swigluoai_and_mul(
    x: ArrayLike, up: ArrayLike | None = None, *, alpha: float = 1.702, limit: float = 7
) -> jax.Array:
    """The gated activation of gpt-oss: clamped, up plus 1, gate and up in turn.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up in turn, a pair for each column; the
        gate alone if up is given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own; optional.
      alpha: what the gate's logistic curve is steeper by.
      limit: the most that a gate counts as, and the most size of up.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: OpenAI 2025, gpt-oss model card, arXiv:2508.10925; vLLM's _C::swigluoai_and_mul. T
        is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 128))
      >>> out = swigluoai_and_mul(x)
      >>> print(jax.typeof(out))
      float32[2,64]
    """
    return one_or_all(call("swigluoai_and_mul", (x, up), alpha=alpha, limit=limit))
