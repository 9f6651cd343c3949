"""What the gated activations share: cases, operands, costs, and the product around the activation."""

import numpy as np
from intarsia_src.core.operands import random_array

# Named after the models whose MLPs they are; n is the width of the product.
CASES = {
    "example": dict(tags="ci wire", t=2, n=64),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, n=14336),
    "llama3_8b_prefill": dict(tags="bench", t=4096, n=14336),
    "llama3_8b_prefill_long": dict(tags="bench", t=16384, n=14336),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=128, n=14336),
    "smollm2_decode": dict(tags="ci bench bench_cpu", t=1, n=1536),
    "gemma3_270m": dict(tags="ci", t=5, n=2048),
    "gate_and_up_apart": dict(tags="ci bench", t=16, n=14336, apart=True),
    "odd": dict(tags="ci", t=3, n=77),
    "odd_apart": dict(tags="ci", t=3, n=77, apart=True),
    "one_column": dict(tags="ci", t=4, n=1),
    "saturated": dict(tags="ci", t=4, n=100, spread=60.0),
    "empty": dict(tags="ci", t=0, n=64),
    "no_columns": dict(tags="ci", t=3, n=0),
}


def arguments(rng, dtype, *, t, n, apart=False, spread=None):
    """Random operands in spec order, and attributes."""
    gate, up = random_array(rng, (t, n), dtype), random_array(rng, (t, n), dtype)
    if spread is not None:
        gate = (spread * gate.astype(np.float32)).astype(dtype)
    return [gate, up] if apart else [np.concatenate([gate, up], axis=-1), None], {}


def halves(x, up):
    """Gate and up, whether they come as one array or as two."""
    if up is not None:
        return x, up
    n = x.shape[-1] // 2
    return x[..., :n], x[..., n:]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 3 * t * n * dtype_bytes, 0
