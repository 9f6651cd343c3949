"""fatrelu_and_mul: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.activation import gated
from intarsia_src.activation.gated import floor, halves

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

CASES = gated.CASES | {
    "threshold": dict(tags="ci", t=7, n=576, threshold=0.25),
    "threshold_below_zero": dict(tags="ci", t=3, n=77, threshold=-0.5),
}


def arguments(rng, dtype, *, threshold=0.0, **sizes):
    """Random operands in spec order, and attributes. None lies at the threshold, where there is no slope."""
    (x, up), _ = gated.arguments(rng, dtype, **sizes)
    near = np.abs(x.astype(np.float32) - threshold) < 1e-3
    return [np.where(near, 1, x).astype(dtype), up], dict(threshold=threshold)


def reference(x, up=None, *, threshold=0.0):
    """The results in spec order. Operands are f64."""
    gate, up = halves(x, up)
    return [np.where(gate <= threshold, 0, gate) * up]


def exact(x, up=None, *, threshold=0.0):
    """The results to the bit, from operands of the call's dtype: one rounding of the f32 product."""
    gate, other = (y.astype(np.float32) for y in halves(x, up))
    return [(np.where(gate <= np.float32(threshold), 0, gate) * other).astype(x.dtype)]


def plain_xla(x, up=None, *, threshold=0.0):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    gate, up = halves(x, up)
    return [jnp.where(gate <= threshold, 0, gate).astype(x.dtype) * up]
