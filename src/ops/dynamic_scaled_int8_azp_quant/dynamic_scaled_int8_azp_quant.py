"""dynamic_scaled_int8_azp_quant: what it computes, in NumPy; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.quant import reference as quant

CASES = quant.CASES | {
    "all_above_zero": dict(tags="ci", t=7, n=576, offset=10.0),
    "all_below_zero": dict(tags="ci", t=3, n=77, offset=-10.0),
    "all_equal": dict(tags="ci", t=3, n=77, offset=5.0, spread=0.0),
}


def arguments(rng, dtype, *, t, n, offset=0.0, zeros=False, spread=1.0):
    """Random operands in spec order, and attributes."""
    x = quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)
    return [(x.astype(np.float32) + np.float32(offset)).astype(dtype)], {}


def _scales(x):
    """(scale, azp) of each row, in x's precision."""
    least = np.fmin.reduce(x, axis=-1, keepdims=True, initial=np.inf)
    most = np.fmax.reduce(x, axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        scale = np.where(least < most, (most - least) / x.dtype.type(255), 0).astype(x.dtype)
        azp = np.rint(np.nan_to_num(-128 - least / scale, nan=0.0, posinf=1e30, neginf=-1e30))
    azp = np.clip(azp, -quant.LARGEST_TERM, quant.LARGEST_TERM)
    return scale, np.where(scale == 0, 0, azp).astype(np.int32)


def _scaled(x, scale):
    with np.errstate(all="ignore"):
        return np.where(scale == 0, 0, x / scale)


def reference(x):
    """The results in spec order, codes not yet rounded. x is f64."""
    scale, azp = _scales(x)
    return [_scaled(x, scale) + azp, scale, azp]


def exact(x):
    """The results, to the bit."""
    x = x.astype(np.float32)
    scale, azp = _scales(x)
    return [quant.shifted(_scaled(x, scale), azp), scale, azp]


floor = quant.floor


def plain_xla(x):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    x = x.astype(jnp.float32)
    least = jnp.min(x, axis=-1, keepdims=True, initial=jnp.inf)
    most = jnp.max(x, axis=-1, keepdims=True, initial=-jnp.inf)
    scale = jnp.where(least < most, (most - least) / 255, 0)
    divisor = jnp.where(scale == 0, 1, scale)
    azp = jnp.where(scale == 0, 0, jnp.rint(-128 - least / divisor))
    codes = jnp.rint(jnp.where(scale == 0, 0, x / divisor)) + azp
    return [quant.xla_codes(codes, "i8"), scale, azp.astype(jnp.int32)]
