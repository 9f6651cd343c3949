"""dynamic_per_token_scaled_fp8_quant: what it computes, in NumPy; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.quant import reference as quant

CASES = quant.CASES | {
    "bounded": dict(tags="ci", t=7, n=576, upper=1.5),
    "bounded_from_afar": dict(tags="ci", t=7, n=576, upper=1e6),
}
_RULE = quant.TOKEN_F8


def arguments(rng, dtype, *, t, n, upper=None, zeros=False, spread=1.0):
    """Random operands in spec order, and attributes."""
    x = quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)
    return [x, None if upper is None else np.array([upper], np.float32)], {}


def reference(x, scale_ub=None):
    """The results in spec order, not yet rounded to codes. Operands are f64."""
    return list(_RULE(x, scale_ub))


def exact(x, scale_ub=None):
    """The results, to the bit."""
    return _RULE.exact(x, scale_ub)


floor = quant.floor


def plain_xla(x, scale_ub=None):
    """The same in jax.numpy, as a user without this library would write it."""
    return quant.xla_rows(x, _RULE, scale_ub)
