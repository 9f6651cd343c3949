"""layer_norm_dynamic_per_token_quant: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import layer
from intarsia_src.quant import reference as quant

# A scale is a number of T, the largest of its row, over 448 or 127.
TOLERANCE = {"f32": 4e-3, "f16": 4e-4, "bf16": 4e-3}
CASES = layer.CASES | {
    "int8": dict(tags="ci bench", t=16, n=4096, quant_dtype="i8"),
    "int8_odd": dict(tags="ci", t=5, n=77, quant_dtype="i8"),
    "bounded": dict(tags="ci", t=7, n=576, upper=1.5),
    "bounded_int8": dict(tags="ci", t=7, n=576, upper=1.5, quant_dtype="i8"),
}
_RULES = {"f8e4m3fn": quant.TOKEN_F8, "i8": quant.NORM_I8}


def arguments(rng, dtype, *, upper=None, quant_dtype="f8e4m3fn", **sizes):
    """Random operands in spec order, and attributes."""
    operands, attributes = layer.arguments(rng, dtype, **sizes)
    bound = None if upper is None else np.array([upper], np.float32)
    return [*operands, bound], dict(attributes, quant_dtype=quant_dtype)


def reference(x, weight=None, bias=None, scale_ub=None, *, eps=1e-5, quant_dtype="f8e4m3fn"):
    """The results in spec order, codes not yet rounded. Operands are f64."""
    return [*_RULES[quant_dtype](layer.normed(x, weight, bias, eps), scale_ub)]


def rounded(x, weight=None, bias=None, scale_ub=None, *, eps=1e-5, quant_dtype="f8e4m3fn"):
    """As reference, with the roundings to T."""
    return [*_RULES[quant_dtype](layer.rounded(x, weight, bias, eps), scale_ub)]


floor = quant.floor


def plain_xla(x, weight=None, bias=None, scale_ub=None, *, eps=1e-5, quant_dtype="f8e4m3fn"):
    """The same in jax.numpy, as a user without this library would write it."""
    return quant.xla_rows(layer.xla_normed(x, weight, bias, eps), _RULES[quant_dtype], scale_ub)
