"""rms_norm_per_block_quant: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import reference as norms
from intarsia_src.quant import reference as quant

# A scale is a number of T, the largest of its group, over 448 or 127.
TOLERANCE = {"f32": 4e-3, "f16": 4e-4, "bf16": 4e-3}
CASES = {
    "example": dict(tags="ci wire", t=2, n=64, group_size=16),
    "deepseek_v3_decode": dict(tags="ci bench bench_cpu", t=16, n=7168),
    "deepseek_v3_prefill": dict(tags="bench", t=4096, n=7168),
    "fused_decode": dict(tags="ci bench", t=16, n=7168, residual=True),
    "groups_of_64": dict(tags="ci", t=5, n=576, group_size=64, residual=True),
    "int8": dict(tags="ci bench", t=16, n=4096, quant_dtype="i8"),
    "int8_fused": dict(tags="ci", t=7, n=512, quant_dtype="i8", residual=True),
    "bounded": dict(tags="ci", t=7, n=512, upper=1.5),
    "gemma3_rounding_fused": dict(
        tags="ci", t=5, n=640, weight="f32", rounding="once", residual=True
    ),
    "long_row_fused": dict(tags="ci", t=2, n=40000, group_size=400, residual=True),
    "odd": dict(tags="ci", t=3, n=77, group_size=11),
    "odd_fused": dict(tags="ci", t=5, n=77, group_size=7, residual=True),
    "single": dict(tags="ci", t=3, n=5, group_size=1),
    "a_group_is_a_row": dict(tags="ci", t=5, n=640, group_size=640),
    "empty": dict(tags="ci", t=0, n=128),
}
_RULES = {"f8e4m3fn": quant.TOKEN_F8, "i8": quant.NORM_I8}


def arguments(rng, dtype, *, t, n, weight="T", residual=False, upper=None, **attributes):
    """Random operands in spec order, and attributes."""
    x, added = (quant.numbers(rng, dtype, t, n) for _ in range(2))
    w = norms.random_weight(rng, n, np.float32 if weight == "f32" else dtype)
    bound = None if upper is None else np.array([upper], np.float32)
    return [x, w, bound, added if residual else None], dict(eps=1e-5, **attributes)


def _quantized(y, scale_ub, group_size, quant_dtype):
    codes, scale = _RULES[quant_dtype](quant.groups(y, group_size), scale_ub)
    return quant.of_groups(y, codes, scale)


def reference(
    x,
    weight,
    scale_ub=None,
    residual=None,
    *,
    group_size=128,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """The results in spec order, codes not yet rounded. Operands are f64."""
    del rounding
    total = x if residual is None else x + residual
    results = _quantized(norms.normed(total, weight, eps), scale_ub, group_size, quant_dtype)
    return results if residual is None else [*results, total]


def rounded(
    x,
    weight,
    scale_ub=None,
    residual=None,
    *,
    group_size=128,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """As reference, with the roundings to T; None: no different."""
    y = norms.rounded(x, weight, eps, rounding, residual).astype(np.float64)
    results = _quantized(y, scale_ub, group_size, quant_dtype)
    return results if residual is None else [*results, None]


def exact(x, weight, scale_ub=None, residual=None, **attributes):
    """What the contract fixes to the bit (None: nothing): the new residual is the rounded sum."""
    del weight, scale_ub, attributes
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
    group_size=128,
    eps=1e-6,
    quant_dtype="f8e4m3fn",
    rounding="before_weight",
):
    """The same in jax.numpy, as a user without this library would write it."""
    y, rounded = norms.xla_normed(x, weight, eps, rounding, residual)
    codes, scale = quant.xla_rows(quant.groups(y, group_size), _RULES[quant_dtype], scale_ub)
    results = quant.of_groups(y, codes, scale)
    return results if residual is None else [*results, rounded]
