"""dynamic_scaled_fp8_quant: what it computes, in NumPy; its cases; plain XLA's way."""

from intarsia_src.quant import reference as quant

CASES = quant.CASES
_RULE = quant.RowRule(apply="reciprocal")


def arguments(rng, dtype, *, t, n, zeros=False, spread=1.0):
    """Random operands in spec order, and attributes."""
    return [quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)], {}


def reference(x):
    """The results in spec order, not yet rounded to codes. x is f64."""
    scaled, scale = _RULE(x.reshape(-1))
    return [scaled.reshape(x.shape), scale]


def exact(x):
    """The results, to the bit."""
    codes, scale = _RULE.exact(x.reshape(-1))
    return [codes.reshape(x.shape), scale]


floor = quant.floor  # x is read twice; the second time it may come from a cache


def plain_xla(x):
    """The same in jax.numpy, as a user without this library would write it."""
    codes, scale = quant.xla_rows(x.reshape(-1), _RULE)
    return [codes.reshape(x.shape), scale]
