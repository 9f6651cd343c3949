"""What the norms compute, in NumPy f64 and in jax.numpy; `rounding` differs below what f64 can see."""

import numpy as np

# Of every norm, named after the models whose shapes they are.
CASES = {
    "example": dict(tags="ci wire", t=2, n=64),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, n=4096),
    "llama3_8b_prefill": dict(tags="bench", t=16384, n=4096),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, n=4096),
    "smollm2_decode": dict(tags="ci bench bench_cpu", t=1, n=576),
    "gemma3_f32_weight": dict(tags="ci", t=5, n=640, weight="f32"),
    "long_row": dict(tags="ci", t=2, n=40000),
    "odd": dict(tags="ci", t=3, n=77),
    "one_column": dict(tags="ci", t=4, n=1),
    "empty": dict(tags="ci", t=0, n=64),
}


def normed(x, weight, eps):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in f64."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def rounded(x, weight, eps, rounding, residual=None):
    """The norm in x's dtype with the roundings of the contract, its arithmetic otherwise exact."""
    total = x.astype(np.float64)
    if residual is not None:
        total = total + residual.astype(np.float64)
        if rounding == "once":
            total = rounded_sum(x, residual).astype(np.float64)
    y = normed(total, None, eps)
    if rounding == "before_weight":
        y = y.astype(np.float32).astype(x.dtype).astype(np.float64)
    if weight is not None:
        y = y * weight.astype(np.float64)
    return y.astype(np.float32).astype(x.dtype)


def rounded_sum(x, residual):
    """x + residual in their dtype, to the bit."""
    return (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)


def random_weight(rng, n, dtype):
    """Numbers around 1."""
    return (1 + 0.2 * rng.standard_normal(n)).astype(dtype)


def xla_normed(x, weight, eps, rounding, residual=None):
    """jax.numpy, as a user without this library would write it: (the norm in x's dtype, x + residual)."""
    import jax.numpy as jnp
    from jax import lax

    f32 = x.astype(jnp.float32)
    rounded = None
    if residual is not None:
        f32 = f32 + residual.astype(jnp.float32)
        rounded = f32.astype(x.dtype)
        if rounding == "once":
            f32 = rounded.astype(jnp.float32)
    y = f32 * lax.rsqrt(jnp.mean(f32 * f32, axis=-1, keepdims=True) + eps)
    if rounding == "before_weight":
        y = y.astype(x.dtype)
    return (y if weight is None else y * weight).astype(x.dtype), rounded
