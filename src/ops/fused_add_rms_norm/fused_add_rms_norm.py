"""fused_add_rms_norm: what it computes, in NumPy; its cases; plain XLA's way."""

import numpy as np

from norm import reference as norms

# Named after the models whose shapes they are.
CASES = {
    "example": dict(tags="ci wire", t=2, n=64),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, n=4096),
    "llama3_8b_prefill": dict(tags="bench", t=16384, n=4096),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, n=4096),
    "smollm2_decode": dict(tags="ci bench bench_cpu", t=1, n=576),
    "gemma3_f32_weight": dict(tags="ci", t=5, n=640, weight="f32"),
    "hugging_face": dict(tags="ci", t=7, n=576, rounding="before_weight"),
    "hugging_face_f32_weight": dict(tags="ci", t=3, n=576, weight="f32", rounding="before_weight"),
    "no_weight": dict(tags="ci", t=3, n=128, weight=None),
    "long_row": dict(tags="ci", t=2, n=40000),
    "odd": dict(tags="ci", t=3, n=77),
    "one_column": dict(tags="ci", t=4, n=1),
    "empty": dict(tags="ci", t=0, n=64),
}


def arguments(rng, dtype, *, t, n, weight="T", rounding="once"):
    """Random operands in spec order, and attributes."""
    x, residual = (rng.standard_normal((t, n)).astype(dtype) for _ in range(2))
    w_dtype = np.float32 if weight == "f32" else dtype
    w = None if weight is None else norms.random_weight(rng, n, w_dtype)
    return [x, residual, w], dict(eps=1e-5, rounding=rounding)


def reference(x, residual, weight=None, *, eps=1e-6, rounding="once"):
    """The results in spec order. Operands are f64; `rounding` differs below what f64 can see."""
    del rounding
    return [norms.normed(x + residual, weight, eps), x + residual]


def exact(x, residual, weight=None, *, eps=1e-6, rounding="once"):
    """What the contract fixes to the bit (None: nothing): the new residual is the rounded sum."""
    del weight, eps, rounding
    return [None, norms.rounded_sum(x, residual)]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 4 * t * n * dtype_bytes, 0


def plain_xla(x, residual, weight=None, *, eps=1e-6, rounding="once"):
    """The same in jax.numpy, as a user without this library would write it."""
    return list(norms.xla_normed(x, weight, eps, rounding, residual))
