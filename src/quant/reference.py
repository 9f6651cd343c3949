"""What the quantizing ops compute, in NumPy: in f64, or to the bit where all is f32.

All functions keep the precision of x. What they return as numbers is not yet rounded to codes.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from intarsia_src.core.operands import random_array

CODES = {"f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn), "i8": np.dtype(np.int8)}
LARGEST = {"f8e4m3fn": 448.0, "i8": 127.0}


def saturated(x, dtype):
    """Numbers as codes: to nearest even, never beyond the largest; NaN stays NaN, or 0 in integers."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return np.clip(np.rint(np.nan_to_num(x, nan=0.0)), limits.min, limits.max).astype(dtype)
    largest = float(ml_dtypes.finfo(dtype).max)
    codes = np.clip(x, -largest, largest).astype(dtype)
    codes.view(np.uint8)[np.isnan(x)] = 0x7F  # whatever the NaN's sign
    return codes


# What an integer that is added to a zero point counts as at most.
LARGEST_TERM = 1 << 29


def shifted(scaled, azp):
    """Numbers as int8 around a zero point; NaN counts as 0."""
    rounded = np.clip(
        np.rint(np.nan_to_num(scaled, nan=0.0, posinf=1e30, neginf=-1e30)),
        -LARGEST_TERM,
        LARGEST_TERM,
    )
    terms = rounded.astype(np.int64) + np.clip(azp, -LARGEST_TERM, LARGEST_TERM)
    return np.clip(terms, -128, 127).astype(np.int8)


def reciprocal(scale):
    """1 / scale, but no infinity."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.minimum(1 / scale, np.finfo(np.float32).max.astype(scale.dtype))


def given_scale(x, scale, dtype):
    """x by scales that are given: [1], [n], [..., 1] or [..., g]."""
    if scale.ndim > 1:
        scale = np.repeat(scale, x.shape[-1] // max(scale.shape[-1], 1), axis=-1)
    with np.errstate(all="ignore"):
        return x / scale if dtype == "i8" else x * reciprocal(scale)


def power_of_two_from(x):
    """2^ceil(log2 x), the logarithm rounded to f32."""
    exponent = np.ceil(np.log2(x.astype(np.float64)).astype(np.float32))
    return np.exp2(exponent.astype(np.float64)).astype(x.dtype)


def groups(x, group_size):
    """Rows as groups of neighbors: [..., n / group_size, group_size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)


def of_groups(x, codes, scale):
    """The results of a rule for the groups of x, as of its rows."""
    return [codes.reshape(x.shape), scale[..., 0]]


@dataclass(frozen=True)
class RowRule:
    """How a row's own scale comes about: RowRule of scaling.h."""

    dtype: str = "f8e4m3fn"
    apply: str = "divide"
    least_absmax: float = 0.0
    least_scale: float = 0.0
    power_of_two: bool = False
    truncate: bool = False  # toward zero, instead of to the nearest

    def __call__(self, x, upper=None):
        """(x by the scales of its rows, the scales [..., 1])"""
        a = np.fmax.reduce(np.abs(x), axis=-1, keepdims=True, initial=self.least_absmax)
        a = a.astype(x.dtype) if upper is None else np.fmin(a, upper).astype(x.dtype)
        scale = np.maximum(a / LARGEST[self.dtype], x.dtype.type(self.least_scale))
        if self.power_of_two:
            scale = power_of_two_from(scale)
        with np.errstate(all="ignore"):
            if self.truncate:
                return np.trunc(x / scale), scale
            if self.apply == "divide":
                return x / scale, scale
            if self.apply == "reciprocal":
                return x * reciprocal(scale), scale
            return x * np.where(a == 0, 0, LARGEST[self.dtype] / a).astype(x.dtype), scale

    def exact(self, x, upper=None):
        """The op's results for operands as they are, to the bit."""
        scaled, scale = self(x.astype(np.float32), upper)
        return [saturated(scaled, CODES[self.dtype]), scale]


TOKEN_F8 = RowRule(least_scale=1 / (448 * 512))
TOKEN_I8 = RowRule("i8", "largest")
NORM_I8 = RowRule("i8", "reciprocal", least_scale=float(np.finfo(np.float32).eps))


# ---------------------------------------------------------------------------- operands and benchmarks

# Rows of models' activations; n is what is quantized at once.
CASES = {
    "example": dict(tags="ci wire", t=2, n=64),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, n=4096),
    "llama3_8b_prefill": dict(tags="bench", t=16384, n=4096),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, n=4096),
    "smollm2_decode": dict(tags="ci bench bench_cpu", t=1, n=576),
    "gemma3_270m": dict(tags="ci", t=5, n=640),
    "long_row": dict(tags="ci", t=2, n=40000),
    "odd": dict(tags="ci", t=3, n=77),
    "one_column": dict(tags="ci", t=4, n=1),
    "with_zeros": dict(tags="ci", t=6, n=128, zeros=True),
    "small": dict(tags="ci", t=4, n=200, spread=1e-5),
    "large": dict(tags="ci", t=4, n=200, spread=3e4),
    "empty": dict(tags="ci", t=0, n=64),
    "no_columns": dict(tags="ci", t=3, n=0),
}


def numbers(rng, dtype, t, n, *, zeros=False, spread=1.0):
    """Rows of normal numbers, every second one all zeros if so wanted."""
    x = random_array(rng, (t, n), np.float32) * np.float32(spread)
    if zeros:
        x[::2] = 0
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -largest, largest).astype(dtype)


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops). Scales are not counted."""
    return t * n * (dtype_bytes + 1), 0


# ---------------------------------------------------------------------------- plain XLA


def xla_codes(scaled, dtype):
    """jax.numpy: numbers as codes."""
    import jax.numpy as jnp

    largest = LARGEST[dtype]
    if dtype == "i8":
        scaled = jnp.rint(scaled)
    return jnp.clip(scaled, -largest - (dtype == "i8"), largest).astype(CODES[dtype])


def xla_rows(x, rule, upper=None):
    """jax.numpy: a RowRule's results, as a user without this library would write them."""
    import jax.numpy as jnp

    f32 = x.astype(jnp.float32)
    a = jnp.max(jnp.abs(f32), axis=-1, keepdims=True, initial=rule.least_absmax)
    a = a if upper is None else jnp.minimum(a, upper)
    scale = jnp.maximum(a / LARGEST[rule.dtype], rule.least_scale)
    if rule.power_of_two:
        scale = jnp.exp2(jnp.ceil(jnp.log2(scale)))
    scaled = f32 / jnp.where(scale == 0, 1, scale)
    return [xla_codes(jnp.trunc(scaled) if rule.truncate else scaled, rule.dtype), scale]
