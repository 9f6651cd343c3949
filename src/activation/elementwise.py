"""What the elementwise activations share: cases, operands, costs."""

import math

import numpy as np
from intarsia_src.core.operands import random_array

# Named after the models whose MLPs they are.
CASES = {
    "example": dict(tags="ci wire", shape=(2, 64)),
    "gpt2_decode": dict(tags="ci bench bench_cpu", shape=(16, 3072)),
    "gpt2_prefill": dict(tags="bench", shape=(4096, 3072)),
    "clip_vision": dict(tags="bench bench_cpu", shape=(577, 4096)),
    "scalar": dict(tags="ci", shape=()),
    "odd": dict(tags="ci", shape=(3, 5, 7)),
    "saturated": dict(tags="ci", shape=(4, 100), spread=60.0),
    "two_tiles_and_one": dict(tags="ci", shape=(2 * 16384 + 1,)),
    "empty": dict(tags="ci", shape=(4, 0, 3)),
}
# An op that also knows vLLM's roundings, and what these cost.
STEPS = {
    "steps": dict(tags="ci", shape=(16, 576), round_steps=True),
    "steps_odd": dict(tags="ci", shape=(3, 5, 7), round_steps=True),
}
STEPS_TOLERANCE = {"f32": 4e-6, "f16": 1.5e-3, "bf16": 1.2e-2}


def arguments(rng, dtype, *, shape, spread=1.0, **attributes):
    """Random operands in spec order, and attributes."""
    x = spread * random_array(rng, shape, np.float32)
    return [np.asarray(x, dtype)], attributes


def gelu_tanh(x):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 in f64, without the cancellation."""
    u = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * np.exp(-np.logaddexp(0, -u))


# As kernels have them, in f32.
SCALE, CUBIC = np.float32(0.79788456), np.float32(0.044715)


def rounding_to(dtype):
    """A function that rounds f32 to a dtype and back."""
    return lambda x: x.astype(dtype).astype(np.float32)


def floor(dtype_bytes, *, shape, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 2 * math.prod(shape) * dtype_bytes, 0
