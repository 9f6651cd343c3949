"""gelu_quick: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.activation.elementwise import CASES, arguments, floor

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]


def reference(x):
    """The results in spec order. x is f64."""
    return [x * np.exp(-np.logaddexp(0, -1.702 * x))]


def plain_xla(x):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    f32 = x.astype(jnp.float32)
    return [(f32 * jax.nn.sigmoid(1.702 * f32)).astype(x.dtype)]
