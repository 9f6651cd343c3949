"""fused_experts_quantized: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import ml_dtypes
import numpy as np
from intarsia_src.matmul import quantized
from intarsia_src.ops.fused_experts import fused_experts as plain

TOLERANCE = plain.TOLERANCE

_MXFP4 = dict(format="e2m1", group=32, scale=ml_dtypes.float8_e8m0fnu)
_INT4 = dict(format="u4b8", group=32, scale=np.float16)
_AWQ = dict(format="u4", group=32, scale=np.float16, zero=np.uint8)
_WEIGHT = ("format", "group", "scale", "zero", "outer", "outer_dtype")
_INT8 = dict(format="i8", group=0, scale=np.float32)
# t tokens of 16 u numbers, of which each has k of e experts with 8 c columns; the rest as in fused_experts.
CASES = {
    "example": dict(tags="ci wire", t=3, u=2, c=4, e=4, k=2, **_INT4),
    "mxfp4": dict(tags="ci", t=3, u=2, c=4, e=4, k=2, **_MXFP4),
    "gpt_oss_like": dict(
        tags="ci beyond_plain", t=9, u=4, c=8, e=6, k=4, activation="swigluoai", biases=True, **_MXFP4
    ),
    "qwen3_like": dict(tags="ci", t=21, u=4, c=12, e=16, k=8, routing="zipf", **_INT4),
    "awq_of_one_token": dict(tags="ci", t=1, u=6, c=8, e=8, k=2, activation="gelu_tanh", **_AWQ),
    "mxfp4_of_one_token": dict(
        tags="ci beyond_plain", t=1, u=6, c=7, e=6, k=3, g=8, activation="swigluoai", biases=True, **_MXFP4
    ),
    "channels_of_some_experts": dict(
        tags="ci beyond_plain", t=14, u=3, c=5, e=3, k=2, g=8, biases=True, **_INT8
    ),
    "ids_of_nobody": dict(tags="ci beyond_plain", t=12, u=2, c=4, e=5, k=3, routing="hostile", **_INT4),
    "weights_on_input": dict(
        tags="ci beyond_plain", t=10, u=2, c=4, e=4, k=1, biases=True,
        apply_router_weight_on_input=True, **_MXFP4,
    ),
    "q4_k_m_like": dict(tags="ci beyond_plain", t=11, u=16, c=32, e=5, k=2, w2=quantized.Q6_K, **quantized.Q4_K),
    "q4_k_of_one_token": dict(tags="ci", t=1, u=16, c=32, e=6, k=3, **quantized.Q4_K),
    "nvfp4": dict(tags="ci", t=6, u=4, c=8, e=4, k=2, **quantized.NVFP4),
    "gpt_oss_20b_4": dict(
        tags="bench_cpu bench beyond_plain", t=4, u=180, c=360, e=32, k=4, activation="swigluoai", biases=True, **_MXFP4
    ),
}  # fmt: skip


def arguments(
    rng,
    dtype,
    *,
    t,
    u,
    c,
    e,
    k,
    g=None,
    routing="balanced",
    biases=False,
    w2=None,
    **others,
):
    """Random operands in spec order, and attributes; `w2`: how its codes are, if not like those of w1."""
    n, i = 16 * u, 8 * c
    w1 = {name: others.pop(name) for name in _WEIGHT if name in others}
    w2, attributes = w2 or w1, others
    operands, attributes = plain.arguments(
        rng, dtype, t=t, n=n, i=i, e=e, k=k, g=g, routing=routing, biases=biases, **attributes
    )
    x, _, _, weights, ids, *others = operands
    first = quantized.draw_matrices(rng, (e, c), n, **w1, size=n**-0.5)
    second = quantized.draw_matrices(rng, (e, u), i, **w2, size=i**-0.5)
    operands = [x, *first[:2], *second[:2], weights, ids, first[2], second[2], *others]
    operands += [*first[3:], *second[3:]]
    attributes |= {"format": w1["format"], "w1_group": w1["group"], "w2_group": w2["group"]}
    if w2["format"] != w1["format"]:
        attributes["w2_format"] = w2["format"]
    if "outer" in w1 and "zero" in w1:
        attributes["zeros_are"] = "minimums"
    return operands, attributes


def _decoded(operands, attributes):
    """The operands of `fused_experts`, and its attributes."""
    x, w1, s1, w2, s2, weights, ids, z1, z2, *others = operands
    others, outers = others[:3], [*others[3:], None, None, None, None]
    attributes = dict(attributes)
    format, second_format = attributes.pop("format", "u4"), attributes.pop("w2_format", "same")
    groups = attributes.pop("w1_group", 0), attributes.pop("w2_group", 0)
    zeros_are = attributes.pop("zeros_are", "points")
    n, i = x.shape[-1], 8 * w1.shape[1]
    formats = format, format if second_format == "same" else second_format
    first = quantized.matrices((w1, s1, z1, *outers[:2]), n, formats[0], groups[0], zeros_are)
    second = quantized.matrices((w2, s2, z2, *outers[2:4]), i, formats[1], groups[1], zeros_are)
    return (x, first, second, weights, ids, *others), attributes


def reference(*operands, **attributes):
    """The results in spec order. Operands are f64, but for integers."""
    plainly, attributes = _decoded(operands, attributes)
    return plain.reference(*plainly, **attributes)


def rounded(*operands, **attributes):
    """With the roundings between the steps: where terms cancel they are all that is left."""
    dtype = operands[0].dtype
    plainly, attributes = _decoded(operands, attributes)

    def to_t(x):
        return x.astype(np.float32).astype(dtype).astype(np.float64)

    is_float = [x is not None and not np.issubdtype(x.dtype, np.integer) for x in plainly]
    wide = [x.astype(np.float64) if has else x for x, has in zip(plainly, is_float, strict=True)]
    with np.errstate(over="ignore"):
        return plain.reference(*wide, **attributes, to_t=to_t)


def floor(dtype_bytes, *, t, u, c, e, k, g=None, routing="balanced", w2=None, **others):
    """The least a call must do: (bytes moved, flops)."""
    n, i = 16 * u, 8 * c
    ids = plain.route(np.random.default_rng(0), t, g or e, k, routing)
    here = ids[(ids >= 0) & (ids < e)]
    w1 = {name: others[name] for name in _WEIGHT[:4] if name in others}
    w2 = {name: w2[name] for name in _WEIGHT[:4] if name in w2} if w2 else w1
    of_expert = quantized.bytes_of(2 * i, n, **w1) + quantized.bytes_of(n, i, **w2)
    return len(np.unique(here)) * of_expert + dtype_bytes * 2 * t * n, 6 * here.size * n * i


def plain_xla(
    x, w1, s1, w2, s2, weights, ids, z1, z2, *others, format, w1_group, w2_group, zeros_are="points",
    w2_format="same", **attributes,
):  # fmt: skip
    """The same in jax.lax, with decoded weights."""
    from intarsia.jax._quantized import decoded_stack

    n, i = x.shape[-1], 8 * w1.shape[1]
    others, outers = others[:3], others[3:]
    first = decoded_stack(
        n, (w1, s1, z1, *outers[:2]), format=format, group=w1_group, zeros_are=zeros_are
    )
    second_format = format if w2_format == "same" else w2_format
    second = decoded_stack(
        i, (w2, s2, z2, *outers[2:]), format=second_format, group=w2_group, zeros_are=zeros_are
    )
    plainly = (x.astype("float32"), first, second, weights.astype("float32"), ids, *others)
    return [plain.plain_xla(*plainly, **attributes)[0].astype(x.dtype)]
