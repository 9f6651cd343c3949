"""merge_attn_states: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.attention import reference as f64
from intarsia_src.core.operands import random_array

TOLERANCE = f64.TOLERANCE

CASES = {
    "example": dict(tags="ci wire", t=2, h=4, d=8),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=64, h=32, d=128),
    "llama3_8b_prefill": dict(tags="bench", t=16384, h=32, d=128),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, h=32, d=128),
    "smollm2": dict(tags="ci", t=37, h=9, d=64),
    "one_set_is_empty": dict(tags="ci beyond_autodiff", t=50, h=3, d=40, empty=0.7),
    "large_head": dict(tags="ci", t=3, h=2, d=2500),
    "odd": dict(tags="ci", t=5, h=3, d=7),
    "one": dict(tags="ci", t=1, h=1, d=1),
    "no_tokens": dict(tags="ci", t=0, h=4, d=64),
    "no_columns": dict(tags="ci", t=3, h=4, d=0),
}


def arguments(rng, dtype, *, t, h, d, empty=0.0):
    """Random operands in spec order, and attributes. `empty`: the share of rows of each set that
    have no key, their lse -inf or +inf, and NaN for out; but the prefix's if neither has a key."""
    outs = [random_array(rng, (t, h, d), dtype) for _ in range(2)]
    lses = [(3 * random_array(rng, (h, t), np.float32)).astype(np.float32) for _ in range(2)]
    if empty:
        none = [rng.random((h, t)) < empty for _ in range(2)]
        for out, lse, here, there in zip(outs, lses, none, none[::-1], strict=True):
            lse[here] = rng.choice(np.array([-np.inf, np.inf], np.float32), here.sum())
            out[(here & ~there).T] = np.nan
        outs[1][(none[0] & none[1]).T] = np.nan
    return [outs[0], lses[0], outs[1], lses[1]], {}


def reference(prefix_out, prefix_lse, suffix_out, suffix_lse):
    """The results in spec order. Operands are f64."""
    p, s = (np.where(np.isposinf(lse), -np.inf, lse) for lse in (prefix_lse, suffix_lse))
    lse = np.logaddexp(p, s)
    nothing = np.isneginf(lse)
    out = np.zeros(prefix_out.shape)
    for x, part in ((prefix_out, p), (suffix_out, s)):
        weight = np.exp(part - np.where(nothing, 0, lse)).T[..., None]
        out += np.where(weight > 0, weight * x, 0)
    return [np.where(nothing.T[..., None], prefix_out, out), lse]


def floor(dtype_bytes, *, t, h, d, **_):
    """The least a call must do: (bytes moved, flops). The lses are left out: 4 bytes a row."""
    return 3 * t * h * d * dtype_bytes, 0


def plain_xla(prefix_out, prefix_lse, suffix_out, suffix_lse):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    p, s = (jnp.where(jnp.isposinf(lse), -jnp.inf, lse) for lse in (prefix_lse, suffix_lse))
    lse = jnp.logaddexp(p, s)
    nothing = jnp.isneginf(lse)
    shift = jnp.where(nothing, 0, lse)
    weights = [jnp.exp(part - shift).T[..., None] for part in (p, s)]
    shares = [
        jnp.where(w > 0, w * x.astype(jnp.float32), 0)
        for w, x in zip(weights, (prefix_out, suffix_out), strict=True)
    ]
    out = jnp.where(nothing.T[..., None], prefix_out, sum(shares).astype(prefix_out.dtype))
    return [out, lse]
