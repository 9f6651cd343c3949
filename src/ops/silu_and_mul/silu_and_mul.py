"""silu_and_mul: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np

# Named after the models whose MLPs they are; n is the width of the product.
CASES = {
    "example": dict(tags="ci wire", t=2, n=64),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, n=14336),
    "llama3_8b_prefill": dict(tags="bench", t=4096, n=14336),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=128, n=14336),
    "smollm2_decode": dict(tags="ci bench bench_cpu", t=1, n=1536),
    "gate_and_up_apart": dict(tags="ci bench", t=16, n=14336, apart=True),
    "odd": dict(tags="ci", t=3, n=77),
    "odd_apart": dict(tags="ci", t=3, n=77, apart=True),
    "one_column": dict(tags="ci", t=4, n=1),
    "saturated": dict(tags="ci", t=4, n=100, spread=60.0),
    "empty": dict(tags="ci", t=0, n=64),
}


def arguments(rng, dtype, *, t, n, apart=False, spread=1.0):
    """Random operands in spec order, and attributes."""
    gate = (spread * rng.standard_normal((t, n))).astype(dtype)
    up = rng.standard_normal((t, n)).astype(dtype)
    return [gate, up] if apart else [np.concatenate([gate, up], axis=-1), None], {}


def reference(x, up=None):
    """The results in spec order. Operands are f64; silu is rounded to T before the product, which
    differs below what f64 can see."""
    gate, up = np.split(x, 2, axis=-1) if up is None else (x, up)
    # g / (1 + e^-g), in the form that does not overflow for very negative g.
    return [gate * np.exp(-np.logaddexp(0, -gate)) * up]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 3 * t * n * dtype_bytes, 0


def plain_xla(x, up=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    gate, up = jnp.split(x, 2, axis=-1) if up is None else (x, up)
    return [jax.nn.silu(gate.astype(jnp.float32)).astype(x.dtype) * up]
