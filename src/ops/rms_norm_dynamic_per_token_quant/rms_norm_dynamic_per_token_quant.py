"""rms_norm_dynamic_per_token_quant: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import reference as norms
from intarsia_src.quant import reference as quant

# A scale is a number of T, the largest of its row, over 448 or 127.
TOLERANCE = {"f32": 4e-3, "f16": 4e-4, "bf16": 4e-3}
CASES = norms.CASES | {
    "fused_decode": dict(tags="ci bench", t=16, n=4096, residual=True),
    "fused_prefill": dict(tags="bench", t=16384, n=4096, residual=True),
    "fused_odd": dict(tags="ci", t=5, n=77, residual=True),
    "int8": dict(tags="ci bench", t=16, n=4096, quant_dtype="i8"),
    "int8_fused": dict(tags="ci", t=7, n=576, quant_dtype="i8", residual=True),
    "bounded": dict(tags="ci", t=7, n=576, upper=1.5),
    "bounded_int8_fused": dict(tags="ci", t=7, n=576, upper=1.5, quant_dtype="i8", residual=True),
    "gemma3_rounding": dict(tags="ci", t=5, n=640, weight="f32", rounding="once"),
    "gemma3_rounding_fused": dict(
        tags="ci", t=5, n=640, weight="f32", rounding="once", residual=True
    ),
    "long_row_fused": dict(tags="ci", t=2, n=40000, residual=True),
}
_RULES = {"f8e4m3fn": quant.TOKEN_F8, "i8": quant.NORM_I8}


def arguments(rng, dtype, *, t, n, weight="T", residual=False, upper=None, **attributes):
    """Random operands in spec order, and attributes."""
    x, added = (quant.numbers(rng, dtype, t, n) for _ in range(2))
    w = norms.random_weight(rng, n, np.float32 if weight == "f32" else dtype)
    bound = None if upper is None else np.array([upper], np.float32)
    return [x, w, bound, added if residual else None], dict(eps=1e-5, **attributes)


def reference(
    x,
    weight,
    scale_ub=None,
    residual=None,
    *,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """The results in spec order, codes not yet rounded. Operands are f64."""
    del rounding
    total = x if residual is None else x + residual
    results = [*_RULES[quant_dtype](norms.normed(total, weight, eps), scale_ub)]
    return results if residual is None else [*results, total]


def rounded(
    x,
    weight,
    scale_ub=None,
    residual=None,
    *,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """As reference, with the roundings to T; None: no different."""
    y = norms.rounded(x, weight, eps, rounding, residual)
    results = [*_RULES[quant_dtype](y.astype(np.float64), scale_ub)]
    return results if residual is None else [*results, None]


def exact(
    x,
    weight,
    scale_ub=None,
    residual=None,
    *,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """What the contract fixes to the bit (None: nothing): the new residual is the rounded sum."""
    del weight, scale_ub, eps, quant_dtype, rounding
    return [None, None] if residual is None else [None, None, norms.rounded_sum(x, residual)]


def floor(dtype_bytes, *, t, n, residual=False, **_):
    """The least a call must do: (bytes moved, flops)."""
    return t * n * ((3 if residual else 1) * dtype_bytes + 1), 0


def plain_xla(
    x,
    weight,
    scale_ub=None,
    residual=None,
    *,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """The same in jax.numpy, as a user without this library would write it."""
    y, rounded = norms.xla_normed(x, weight, eps, rounding, residual)
    results = quant.xla_rows(y, _RULES[quant_dtype], scale_ub)
    return results if residual is None else [*results, rounded]
