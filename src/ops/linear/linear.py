"""linear: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np

# m rows, n results of k numbers each; named after the layers of models.
CASES = {
    "example": dict(tags="ci wire", m=2, n=16, k=64, bias=True),
    "no_bias": dict(tags="ci", m=9, n=40, k=96),
    "smollm2_gate_up_1": dict(tags="bench_cpu", m=1, n=3072, k=576),
    "smollm2_gate_up_8": dict(tags="bench_cpu", m=8, n=3072, k=576),
    "smollm2_gate_up_32": dict(tags="bench_cpu", m=32, n=3072, k=576),
    "smollm2_gate_up_512": dict(tags="bench_cpu", m=512, n=3072, k=576),
    "smollm2_down_8": dict(tags="bench_cpu", m=8, n=576, k=1536),
    "smollm2_part_of_logits_8": dict(tags="bench_cpu", m=8, n=8192, k=576),
    "llama3_8b_wo_512": dict(tags="bench_cpu", m=512, n=4096, k=4096),
}


def arguments(rng, dtype, *, m, n, k, bias=False):
    """Random operands in spec order, and attributes."""
    shapes = [(m, k), (n, k), (n,) if bias else None]
    return [None if s is None else rng.standard_normal(s).astype(dtype) for s in shapes], {}


def reference(x, w, bias=None, **_):
    """The results in spec order. Operands are f64."""
    out = x @ w.T
    return [out if bias is None else out + bias]


def magnitudes(x, w, bias=None, **_):
    """The sums of absolute values."""
    return reference(*(None if a is None else np.abs(a) for a in (x, w, bias)))


def floor(dtype_bytes, *, m, n, k, **_):
    """The least a call must do: (bytes moved, flops)."""
    return dtype_bytes * (m * k + n * k + m * n), 2 * m * n * k


def plain_xla(x, w, bias=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    out = jnp.einsum("mk,nk->mn", x, w, preferred_element_type=jnp.float32)
    return [(out if bias is None else out + bias.astype(jnp.float32)).astype(x.dtype)]
