"""layer_norm_static_fp8_quant: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import layer
from intarsia_src.quant import reference as quant

CASES = layer.CASES | {"saturated": dict(tags="ci", t=7, n=576, scale=1e-3)}


def arguments(rng, dtype, *, scale=0.01, **sizes):
    """Random operands in spec order, and attributes."""
    (x, *columns), attributes = layer.arguments(rng, dtype, **sizes)
    return [x, np.array([scale], np.float32), *columns], attributes


def reference(x, scale, weight=None, bias=None, *, eps=1e-5):
    """The results in spec order, not yet rounded to codes. Operands are f64."""
    return [layer.normed(x, weight, bias, eps) / scale]


def rounded(x, scale, weight=None, bias=None, *, eps=1e-5):
    """As reference, with the roundings to T."""
    return [layer.rounded(x, weight, bias, eps) / scale]


floor = quant.floor


def plain_xla(x, scale, weight=None, bias=None, *, eps=1e-5):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    y = layer.xla_normed(x, weight, bias, eps).astype(jnp.float32)
    return [quant.xla_codes(y / scale, "f8e4m3fn")]
