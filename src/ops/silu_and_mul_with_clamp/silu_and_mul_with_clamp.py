"""silu_and_mul_with_clamp: what it computes, in NumPy f64; its cases; plain XLA's way."""

import math

import numpy as np
from intarsia_src.activation import gated
from intarsia_src.activation.gated import floor, halves

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]

CASES = gated.CASES | {
    "clamped": dict(tags="ci bench", t=16, n=2048, limit=7.0, spread=4.0),
    "clamped_apart": dict(tags="ci", t=3, n=77, limit=0.75, spread=4.0, apart=True),
    "steeper_and_shifted": dict(tags="ci", t=7, n=576, limit=2.0, alpha=1.702, beta=1.0),
    "steeper": dict(tags="ci", t=7, n=100, alpha=1.702),
}


def arguments(rng, dtype, *, limit=None, alpha=1.0, beta=0.0, **sizes):
    """Random operands in spec order, and attributes."""
    operands, _ = gated.arguments(rng, dtype, **sizes)
    return operands, dict(limit=limit, alpha=alpha, beta=beta)


def reference(x, up=None, *, limit=None, alpha=1.0, beta=0.0):
    """The results in spec order. Operands are f64; the activation is rounded to T before the
    product, which differs below what f64 can see."""
    gate, up = halves(x, up)
    limit = math.inf if limit is None else limit
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return [gate * np.exp(-np.logaddexp(0, -alpha * gate)) * (up + beta)]


def plain_xla(x, up=None, *, limit=None, alpha=1.0, beta=0.0):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = halves(x, up)
    limit = math.inf if limit is None else limit
    gate = jnp.minimum(gate, limit).astype(jnp.float32)
    activated = (gate * jax.nn.sigmoid(alpha * gate)).astype(x.dtype).astype(jnp.float32)
    return [(activated * (jnp.clip(up, -limit, limit) + beta)).astype(x.dtype)]
