"""fused_linear_quantized: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np
from intarsia_src.ops.fused_experts import fused_experts
from intarsia_src.ops.linear_quantized import linear_quantized as linear

TOLERANCE = {"f32": 2e-6, "f16": 1e-3, "bf16": 6e-3}
"""Rows are rounded before the product, as gates and ups are behind it."""

_Q4_1 = dict(format="u4", group=32, scale=np.float16, zero=np.float16, zeros_are="minimums")
_INT4 = dict(format="u4b8", group=128, scale=np.float16)
_AWQ = dict(format="u4", group=128, scale=np.float16, zero=np.uint8)
# m rows, c tiles of 16 columns, k columns of x. `norm`: the dtype of its weights.
CASES = {
    "example": dict(tags="ci wire", m=2, c=2, k=64, norm="T", gating="silu", **_Q4_1),
    "norm": dict(tags="ci", m=1, c=3, k=256, norm="T", **_INT4),
    "norm_in_f32": dict(tags="ci", m=3, c=2, k=128, norm="f32", **_AWQ),
    "residual": dict(tags="ci", m=5, c=3, k=96, residual=True, bias=True, **_Q4_1),
    "norm_and_residual": dict(tags="ci", m=2, c=4, k=128, norm="T", residual=True, **_INT4),
    "gates": dict(tags="ci", m=9, c=6, k=160, gating="gelu_tanh", bias=True, **_Q4_1),
    "norm_gates_and_bias": dict(
        tags="ci", m=1, c=4, k=384, norm="T", gating="silu", bias=True, **_AWQ
    ),
    "nothing_but_the_product": dict(tags="ci", m=4, c=1, k=64, **_Q4_1),
    # Large enough for Hopper's kernel that ends with gates.
    "wide_norm_and_gates": dict(
        tags="ci", m=2, c=160, k=1280, norm="T", gating="silu", bias=True, **_INT4
    ),
    "wide_gates": dict(tags="ci", m=33, c=160, k=1280, norm="T", gating="gelu_tanh", **_AWQ),
    "wide_norm_and_residual": dict(
        tags="ci", m=16, c=160, k=1280, norm="T", residual=True, **_INT4
    ),
    "smollm2_gate_up_1": dict(
        tags="bench_cpu", m=1, c=192, k=576, norm="T", gating="silu", **_Q4_1
    ),
    "llama3_8b_gate_up_1": dict(
        tags="bench", m=1, c=1792, k=4096, norm="T", gating="silu", **_INT4
    ),
    "llama3_8b_down_4": dict(tags="bench", m=4, c=256, k=14336, residual=True, **_INT4),
}


def arguments(rng, dtype, *, m, c, norm=None, residual=False, gating="none", **sizes):
    """Random operands in spec order, and attributes."""
    (x, *others), attributes = linear.arguments(rng, dtype, m=m, c=c, **sizes)
    kind = np.float32 if norm == "f32" else dtype
    k = x.shape[-1]
    # With these the sums are about 1, where gates are neither 0 nor 1.
    weight = (rng.uniform(0.5, 1.5, k) / (4 * np.sqrt(k))).astype(kind) if norm else None
    added = rng.standard_normal((m, 16 * c)).astype(dtype) if residual else None
    return [x, *others, weight, added], attributes | {"eps": 1e-5, "gating": gating}


def _computed(x, others, norm_weight, residual, eps, gating, to_t, attributes, absolute=False):
    if norm_weight is not None:
        scale = np.abs(norm_weight) if absolute else norm_weight
        x = to_t(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale)
    (sums,) = linear.reference(x, *others, **attributes, absolute=absolute)
    if gating != "none":
        if attributes.get("out_dtype") == "f32":
            to_t = np.asarray
        return [fused_experts.activate(to_t(sums), gating, 0.0, 0.0, to_t)]
    return [sums if residual is None else sums + residual]


def reference(x, *others, eps=1e-6, gating="none", **attributes):
    """The results in spec order. Operands are f64, but for integers."""
    *others, norm_weight, residual = [*others, *[None] * (8 - len(others))]
    return _computed(x, others, norm_weight, residual, eps, gating, lambda t: t, attributes)


def rounded(*operands, eps=1e-6, gating="none", **attributes):
    """With the roundings between the steps."""
    dtype = operands[0].dtype

    def to_t(t):
        return t.astype(np.float32).astype(dtype).astype(np.float64)

    wide = [
        t if t is None or np.issubdtype(t.dtype, np.integer) else t.astype(np.float64)
        for t in operands
    ]
    x, *others, norm_weight, residual = [*wide, *[None] * (9 - len(wide))]
    return _computed(x, others, norm_weight, residual, eps, gating, to_t, attributes)


def floor(dtype_bytes, *, m, c, k, norm=None, residual=False, gating="none", **sizes):
    """The least a call must do: (bytes moved, flops)."""
    moved, flops = linear.floor(dtype_bytes, m=m, c=c, k=k, **sizes)
    columns = 16 * c * (residual - 0.5 * (gating != "none"))
    return moved + dtype_bytes * int(m * columns + k * (norm is not None)), flops


def plain_xla(x, *others, eps=1e-6, gating="none", **attributes):
    """The same in jax.numpy: a product with decoded weights."""
    import jax
    import jax.numpy as jnp
    from intarsia.jax._quantized import by_xla

    *others, norm_weight, residual = [*others, *[None] * (8 - len(others))]
    wide = x.astype(jnp.float32)
    if norm_weight is not None:
        rstd = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
        wide = wide * rstd * norm_weight.astype(jnp.float32)
    sums = by_xla(wide, *others, **attributes)
    if gating != "none":
        gate, up = jnp.split(sums, 2, axis=-1)
        act = jax.nn.silu if gating == "silu" else jax.nn.gelu
        return [(act(gate) * up).astype(x.dtype)]
    return [(sums if residual is None else sums + residual.astype(jnp.float32)).astype(x.dtype)]
