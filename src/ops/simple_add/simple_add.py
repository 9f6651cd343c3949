"""simple_add: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import math

import numpy as np

CASES = {
    "example": dict(tags="ci wire", shape=(2, 64)),
    "residual_decode": dict(tags="ci bench bench_cpu", shape=(16, 4096)),
    "residual_prefill": dict(tags="bench", shape=(16384, 4096)),
    "residual_prefill_short": dict(tags="bench_cpu", shape=(512, 4096)),
    "scalar": dict(tags="ci", shape=()),
    "odd": dict(tags="ci", shape=(3, 5, 7)),
    "two_tiles_and_one": dict(tags="ci", shape=(2 * 16384 + 1,)),
    "many_axes": dict(tags="ci", shape=(2, 1, 3, 1, 2, 1, 5, 2)),
    "empty": dict(tags="ci", shape=(4, 0, 3)),
}


def arguments(rng, dtype, *, shape):
    """Random operands in spec order, and attributes."""
    return [rng.standard_normal(shape).astype(dtype) for _ in range(2)], {}


def reference(a, b):
    """The results in spec order. Operands are f64."""
    return [a + b]


def exact(a, b):
    """The results to the bit, from operands of the call's dtype: one rounding of the f32 sum."""
    return [(a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)]


def floor(dtype_bytes, *, shape):
    """The least a call must do: (bytes moved, flops)."""
    return 3 * math.prod(shape) * dtype_bytes, 0


def plain_xla(a, b):
    """The same in jax.numpy, as a user without this library would write it."""
    return [a + b]
