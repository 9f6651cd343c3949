"""silu_and_mul: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.activation.gated import CASES, arguments, floor, halves

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]


def reference(x, up=None):
    """The results in spec order. Operands are f64; the activation is rounded to T before the
    product, which differs below what f64 can see."""
    gate, up = halves(x, up)
    # g / (1 + e^-g), in the form that does not overflow for very negative g.
    return [gate * np.exp(-np.logaddexp(0, -gate)) * up]


def plain_xla(x, up=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = halves(x, up)
    return [jax.nn.silu(gate.astype(jnp.float32)).astype(x.dtype) * up]
