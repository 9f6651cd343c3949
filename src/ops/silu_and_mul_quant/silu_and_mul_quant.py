"""silu_and_mul_quant: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.activation import gated
from intarsia_src.quant import reference as quant

CASES = gated.CASES


def arguments(rng, dtype, **sizes):
    """Random operands in spec order, and attributes."""
    (x, up), attributes = gated.arguments(rng, dtype, **sizes)
    return [x, np.array([0.005], np.float32), up], attributes


def reference(x, scale, up=None):
    """The results in spec order, not yet rounded to codes. Operands are f64."""
    gate, up = gated.halves(x, up)
    return [gate * np.exp(-np.logaddexp(0, -gate)) * up / scale]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return t * n * (2 * dtype_bytes + 1), 0


def plain_xla(x, scale, up=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = gated.halves(x, up)
    product = jax.nn.silu(gate.astype(jnp.float32)).astype(x.dtype) * up
    return [quant.xla_codes(product.astype(jnp.float32) / scale, "f8e4m3fn")]
