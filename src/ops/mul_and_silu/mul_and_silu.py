"""mul_and_silu: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.activation.gated import CASES, arguments, floor, halves

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]


def reference(x, gate=None):
    """The results in spec order. Operands are f64; the activation is rounded to T before the
    product, which differs below what f64 can see."""
    up, gate = halves(x, gate)
    return [up * gate * np.exp(-np.logaddexp(0, -gate))]


def plain_xla(x, gate=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    up, gate = halves(x, gate)
    return [up * jax.nn.silu(gate.astype(jnp.float32)).astype(x.dtype)]
