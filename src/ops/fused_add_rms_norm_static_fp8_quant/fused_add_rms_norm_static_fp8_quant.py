"""fused_add_rms_norm_static_fp8_quant: what it computes, in NumPy; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import reference as norms
from intarsia_src.quant import reference as quant

CASES = norms.CASES | {
    "hugging_face": dict(tags="ci", t=7, n=576, rounding="before_weight"),
    "saturated": dict(tags="ci", t=7, n=576, scale=1e-3),
}


def arguments(rng, dtype, *, t, n, weight="T", rounding="once", scale=0.01):
    """Random operands in spec order, and attributes."""
    x, residual = (quant.numbers(rng, dtype, t, n) for _ in range(2))
    w = norms.random_weight(rng, n, np.float32 if weight == "f32" else dtype)
    return [x, residual, w, np.array([scale], np.float32)], dict(eps=1e-5, rounding=rounding)


def reference(x, residual, weight, scale, *, eps=1e-6, rounding="once"):
    """The results in spec order, codes not yet rounded. Operands are f64."""
    del rounding
    return [norms.normed(x + residual, weight, eps) / scale, x + residual]


def rounded(x, residual, weight, scale, *, eps=1e-6, rounding="once"):
    """As reference, with the roundings to T; None: no different."""
    y = norms.rounded(x, weight, eps, rounding, residual).astype(np.float64)
    return [y / scale, None]


def exact(x, residual, weight, scale, *, eps=1e-6, rounding="once"):
    """What the contract fixes to the bit (None: nothing): the new residual is the rounded sum."""
    del weight, scale, eps, rounding
    return [None, norms.rounded_sum(x, residual)]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return t * n * (3 * dtype_bytes + 1), 0


def plain_xla(x, residual, weight, scale, *, eps=1e-6, rounding="once"):
    """The same in jax.numpy, as a user without this library would write it."""
    y, rounded = norms.xla_normed(x, weight, eps, rounding, residual)
    return [quant.xla_codes(y / scale, "f8e4m3fn"), rounded]
