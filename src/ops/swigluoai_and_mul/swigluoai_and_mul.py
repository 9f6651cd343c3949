"""swigluoai_and_mul: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.activation import gated
from intarsia_src.activation.gated import floor

__all__ = ["CASES", "arguments", "floor", "plain_xla", "reference"]

CASES = gated.CASES | {
    "gpt_oss_decode": dict(tags="ci bench bench_cpu", t=16, n=2880),
    "gpt_oss_prefill": dict(tags="bench", t=4096, n=2880),
    "clamped": dict(tags="ci", t=7, n=100, limit=0.5, spread=4.0),
    "steeper": dict(tags="ci", t=3, n=576, alpha=2.5, apart=True),
}


def arguments(rng, dtype, *, alpha=1.702, limit=7.0, **sizes):
    """Random operands in spec order, and attributes."""
    operands, _ = gated.arguments(rng, dtype, **sizes)
    return operands, dict(alpha=alpha, limit=limit)


def _parts(x, up):
    return (x, up) if up is not None else (x[..., ::2], x[..., 1::2])


def reference(x, up=None, *, alpha=1.702, limit=7.0):
    """The results in spec order. Operands are f64."""
    gate, up = _parts(x, up)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return [gate * np.exp(-np.logaddexp(0, -alpha * gate)) * (up + 1)]


def plain_xla(x, up=None, *, alpha=1.702, limit=7.0):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = (y.astype(jnp.float32) for y in _parts(x, up))
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return [(gate * jax.nn.sigmoid(alpha * gate) * (up + 1)).astype(x.dtype)]
