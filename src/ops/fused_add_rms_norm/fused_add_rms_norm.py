"""fused_add_rms_norm: what it computes, in NumPy; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import reference as norms

CASES = norms.CASES | {
    "hugging_face": dict(tags="ci", t=7, n=576, rounding="before_weight"),
    "hugging_face_f32_weight": dict(tags="ci", t=3, n=576, weight="f32", rounding="before_weight"),
    "no_weight": dict(tags="ci", t=3, n=128, weight=None),
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
