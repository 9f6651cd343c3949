"""gelu_tanh_and_mul: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.activation.gated import CASES, arguments, floor, halves

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]


def reference(x, up=None):
    """The results in spec order. Operands are f64; the activation is rounded to T before the
    product, which differs below what f64 can see."""
    gate, up = halves(x, up)
    u = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    # (1 + tanh u) / 2 = 1 / (1 + e^-2u), without the cancellation and without overflow.
    return [gate * np.exp(-np.logaddexp(0, -2 * u)) * up]


def plain_xla(x, up=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = halves(x, up)
    gelu = jax.nn.gelu(gate.astype(jnp.float32), approximate=True)
    return [gelu.astype(x.dtype) * up]
