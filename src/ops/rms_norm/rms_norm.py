"""rms_norm: what it computes, in NumPy f64; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.norm import reference as norms

# "ci": run by every test run; "bench": timed; "wire": the example of docs/ops.
CASES = norms.CASES | {
    "example": dict(tags="ci wire", t=2, n=8),
    "hugging_face": dict(tags="ci", t=7, n=576, rounding="before_weight"),
    "no_weight": dict(tags="ci", t=3, n=128, weight=None),
    "qk_norm": dict(tags="ci bench", t=64 * 32, n=128),
}


def arguments(rng, dtype, *, t, n, weight="T", rounding="once"):
    """Random operands in spec order, and attributes."""
    x = rng.standard_normal((t, n)).astype(dtype)
    w_dtype = np.float32 if weight == "f32" else dtype
    w = None if weight is None else norms.random_weight(rng, n, w_dtype)
    return [x, w], dict(eps=1e-5, rounding=rounding)


def reference(x, weight=None, *, eps=1e-6, rounding="once"):
    """The results in spec order. Operands are f64; `rounding` differs below what f64 can see."""
    del rounding
    return [norms.normed(x, weight, eps)]


def floor(dtype_bytes, *, t, n, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 2 * t * n * dtype_bytes, 0


def plain_xla(x, weight=None, *, eps=1e-6, rounding="once"):
    """The same in jax.numpy, as a user without this library would write it."""
    return [norms.xla_normed(x, weight, eps, rounding)[0]]
