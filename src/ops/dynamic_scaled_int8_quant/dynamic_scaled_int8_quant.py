"""dynamic_scaled_int8_quant: what it computes, in NumPy; its cases; plain XLA's way."""

from intarsia_src.quant import reference as quant

CASES = quant.CASES
_RULE = quant.TOKEN_I8


def arguments(rng, dtype, *, t, n, zeros=False, spread=1.0):
    """Random operands in spec order, and attributes."""
    return [quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)], {}


def reference(x):
    """The results in spec order, not yet rounded to codes. x is f64."""
    return list(_RULE(x))


def exact(x):
    """The results, to the bit."""
    return _RULE.exact(x)


floor = quant.floor


def plain_xla(x):
    """The same in jax.numpy, as a user without this library would write it."""
    return quant.xla_rows(x, _RULE)
