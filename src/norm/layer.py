"""What the layer norms compute, in NumPy f64 and in jax.numpy; their cases and operands."""

import numpy as np
from intarsia_src.norm import reference as norms

# Named after the models whose shapes they are.
CASES = {
    "example": dict(tags="ci wire", t=2, n=64),
    "gpt2_decode": dict(tags="ci bench bench_cpu", t=16, n=768),
    "bert_prefill": dict(tags="bench", t=16384, n=1024),
    "bert_prefill_short": dict(tags="bench_cpu", t=512, n=1024),
    "f32_weight": dict(tags="ci", t=5, n=640, weight="f32", bias="f32"),
    "no_bias": dict(tags="ci", t=3, n=128, bias=None),
    "far_from_zero": dict(tags="ci", t=4, n=576, offset=4.0),
    "long_row": dict(tags="ci", t=2, n=40000),
    "odd": dict(tags="ci", t=3, n=77),
    "one_column": dict(tags="ci", t=4, n=1),
    "empty": dict(tags="ci", t=0, n=64),
}


def arguments(rng, dtype, *, t, n, weight="T", bias="T", offset=0.0):
    """Random operands in spec order, and attributes."""
    x = (rng.standard_normal((t, n)) + offset).astype(dtype)
    dtypes = {"T": dtype, "f32": np.float32}
    w = None if weight is None else norms.random_weight(rng, n, dtypes[weight])
    b = None if bias is None else rng.standard_normal(n).astype(dtypes[bias])
    return [x, w, b], dict(eps=1e-5)


def normed(x, weight, bias, eps):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, in f64."""
    centered = x - np.mean(x, axis=-1, keepdims=True)
    y = centered / np.sqrt(np.mean(centered * centered, axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rounded(x, weight, bias, eps):
    """The same rounded to x's dtype, its arithmetic otherwise exact; in f64."""
    wide = [None if y is None else y.astype(np.float64) for y in (x, weight, bias)]
    return normed(*wide, eps).astype(np.float32).astype(x.dtype).astype(np.float64)


def xla_normed(x, weight, bias, eps):
    """jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp
    from jax import lax

    f32 = x.astype(jnp.float32)
    centered = f32 - jnp.mean(f32, axis=-1, keepdims=True)
    y = centered * lax.rsqrt(jnp.mean(centered * centered, axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(x.dtype)
