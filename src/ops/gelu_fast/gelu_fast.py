"""gelu_fast: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.activation import elementwise
from intarsia_src.activation.elementwise import arguments, floor

__all__ = ["CASES", "TOLERANCE", "arguments", "each_step", "floor", "plain_xla", "reference"]

CASES = elementwise.CASES | elementwise.STEPS
TOLERANCE = elementwise.STEPS_TOLERANCE


def reference(x, *, round_steps=False):
    """The results in spec order. x is f64; `round_steps` matters below what f64 can see."""
    del round_steps
    return [elementwise.gelu_tanh(x)]


def each_step(x):
    """The result with round_steps, but for a tanh on the other side of a tie."""
    r = elementwise.rounding_to(x.dtype)
    x = x.astype(np.float32)
    u = r(r(elementwise.SCALE * x) * r(np.float32(1) + r(r(elementwise.CUBIC * x) * x)))
    return r(r(np.float32(0.5) * x) * r(np.float32(1) + r(np.tanh(u))))


def plain_xla(x, *, round_steps=False):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    del round_steps
    return [jax.nn.gelu(x.astype(jnp.float32), approximate=True).astype(x.dtype)]
