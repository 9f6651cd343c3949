"""static_scaled_int8_quant: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.quant import given_scale
from intarsia_src.quant import reference as quant
from intarsia_src.quant.reference import floor

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

CASES = given_scale.CASES | {
    "zero_point": dict(tags="ci bench", t=16, n=4096, azp=-37),
    "zero_point_per_token": dict(tags="ci", t=37, n=576, scales="token", azp=100),
    "zero_point_per_channel_odd": dict(tags="ci", t=3, n=77, scales="channel", azp=-128),
}
_OP = given_scale.GivenScale("i8")


def arguments(rng, dtype, *, azp=None, **sizes):
    """Random operands in spec order, and attributes."""
    operands, attributes = _OP.arguments(rng, dtype, **sizes)
    return [*operands, None if azp is None else np.array([azp], np.int32)], attributes


def reference(x, scale, azp=None):
    """The results in spec order, not yet rounded to codes. Operands are f64."""
    return [_OP.reference(x, scale)[0] + (0 if azp is None else azp)]


def exact(x, scale, azp=None):
    """The results, to the bit."""
    if azp is None:
        return _OP.exact(x, scale)
    return [quant.shifted(quant.given_scale(x.astype(np.float32), scale, "i8"), azp)]


def plain_xla(x, scale, azp=None):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    if azp is None:
        return _OP.plain_xla(x, scale)
    if scale.ndim > 1:
        scale = jnp.repeat(scale, x.shape[-1] // max(scale.shape[-1], 1), axis=-1)
    return [quant.xla_codes(jnp.rint(x.astype(jnp.float32) / scale) + azp, "i8")]
