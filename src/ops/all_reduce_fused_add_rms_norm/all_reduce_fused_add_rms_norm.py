"""all_reduce_fused_add_rms_norm: a call of a single GPU, whose sum is x itself, and what it computes, in NumPy.

An array drawn by a test holds no address of a GPU's memory, so these operands are for programs that are written and read,
not run. tests/test_exchange.py runs the op, through exchanges.
"""

import numpy as np
from intarsia_src.norm import reference as norms

CASES = {"example": dict(tags="wire", t=4, n=64, max_rows=8)}
_PACK_BYTES = 16


def arguments(rng, dtype, *, t, n, max_rows):
    """Random operands in spec order, the addresses null and the inbox as at first, and attributes."""
    x, residual = (rng.standard_normal((t, n)).astype(dtype) for _ in range(2))
    weight = norms.random_weight(rng, n, dtype)
    packs = n * np.dtype(dtype).itemsize // _PACK_BYTES
    inbox = np.full((3, max_rows, packs, 4), -1, np.int32)
    return [x, residual, weight, np.zeros((2, 2), np.int32), inbox], dict(eps=1e-5)


def reference(x, residual, weight=None, addresses=None, inbox=None, *, eps=1e-6, rounding="once"):
    """The results in spec order. Operands are f64; `rounding` differs below what f64 can see."""
    del addresses, inbox, rounding
    return [norms.normed(x + residual, weight, eps), x + residual]
