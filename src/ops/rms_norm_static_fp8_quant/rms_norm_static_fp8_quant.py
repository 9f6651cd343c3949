"""rms_norm_static_fp8_quant: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import reference as norms
from intarsia_src.quant import reference as quant

CASES = norms.CASES | {
    "hugging_face": dict(tags="ci", t=7, n=576, rounding="before_weight"),
    "saturated": dict(tags="ci", t=7, n=576, scale=1e-3),
}


def arguments(rng, dtype, *, t, n, weight="T", rounding="once", scale=0.01):
    """Random operands in spec order, and attributes."""
    x = quant.numbers(rng, dtype, t, n)
    w = norms.random_weight(rng, n, np.float32 if weight == "f32" else dtype)
    return [x, w, np.array([scale], np.float32)], dict(eps=1e-5, rounding=rounding)


def reference(x, weight, scale, *, eps=1e-6, rounding="once"):
    """The results in spec order, not yet rounded to codes. Operands are f64."""
    del rounding
    return [norms.normed(x, weight, eps) / scale]


def rounded(x, weight, scale, *, eps=1e-6, rounding="once"):
    """As reference, with the roundings to T."""
    y = norms.rounded(x, weight, eps, rounding).astype(np.float64)
    return [y / scale]


floor = quant.floor


def plain_xla(x, weight, scale, *, eps=1e-6, rounding="once"):
    """The same in jax.numpy, as a user without this library would write it."""
    y, _ = norms.xla_normed(x, weight, eps, rounding)
    return [quant.xla_codes(y / scale, "f8e4m3fn")]
