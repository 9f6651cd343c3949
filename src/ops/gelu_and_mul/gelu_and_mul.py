"""gelu_and_mul: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

from intarsia_src.activation.gated import CASES, arguments, floor, halves
from scipy.special import ndtr

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]


def reference(x, up=None):
    """The results in spec order. Operands are f64; the activation is rounded to T before the
    product, which differs below what f64 can see."""
    gate, up = halves(x, up)
    # The normal distribution function is (1 + erf(g / sqrt 2)) / 2, without the cancellation.
    return [gate * ndtr(gate) * up]


def plain_xla(x, up=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = halves(x, up)
    gelu = jax.nn.gelu(gate.astype(jnp.float32), approximate=False)
    return [gelu.astype(x.dtype) * up]
