"""The ops' gradients. The forward pass is the op, with its roundings; the backward pass is plain jax.numpy in f32,
which XLA fuses, except where an op of ours is its own inverse.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from intarsia.jax import wire
from intarsia.jax._grad import Arrays, Attributes, gradient


def _f32(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


@gradient("intarsia.simple_add", keep=lambda operands, results, attributes: None)
def _simple_add(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    (g,) = cotangents
    return g, g


def _norm_backward(
    x: jax.Array, weight: jax.Array | None, g: jax.Array, eps: float = 1e-6, **_: Any
) -> tuple[jax.Array, jax.Array | None]:
    """Cotangents of x and weight for y = u w, u = x r, r = (mean(x^2) + eps)^-1/2.

    dx = r (w g - u mean(u w g)), dw = sum over rows of u g.
    """
    x, g = _f32(x), _f32(g)
    r = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    u = x * r
    scaled = g if weight is None else g * _f32(weight)
    dx = r * (scaled - u * jnp.mean(u * scaled, axis=-1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    return dx, None if weight is None else jnp.sum(u * g, axis=rows)


@gradient("intarsia.rms_norm", keep=lambda operands, results, attributes: operands)
def _rms_norm(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    return _norm_backward(*kept, *cotangents, **attributes)


@gradient(
    "intarsia.fused_add_rms_norm",
    keep=lambda operands, results, attributes: (results[1], operands[2]),
)
def _fused_add_rms_norm(
    kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes
) -> Arrays:
    g, g_residual = cotangents
    total, weight = kept
    d_total, d_weight = _norm_backward(total, weight, g, **attributes)
    d_total = d_total + _f32(g_residual)
    return d_total, d_total, d_weight


@gradient("intarsia.layer_norm", keep=lambda operands, results, attributes: operands)
def _layer_norm(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    """For y = u w + b, u = (x - mean) r, r = (variance + eps)^-1/2:

    dx = r (w g - mean(w g) - u mean(u w g)), dw = sum over rows of u g, db = sum over rows of g.
    """
    x, weight, bias = kept
    x, g = _f32(x), _f32(cotangents[0])
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    r = lax.rsqrt(variance + attributes.get("eps", 1e-5))
    u = centered * r
    scaled = g if weight is None else g * _f32(weight)
    means = [jnp.mean(y, axis=-1, keepdims=True) for y in (scaled, u * scaled)]
    rows = tuple(range(x.ndim - 1))
    d_weight = None if weight is None else jnp.sum(u * g, axis=rows)
    d_bias = None if bias is None else jnp.sum(g, axis=rows)
    return r * (scaled - means[0] - u * means[1]), d_weight, d_bias


def _sides(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    first, second = jnp.split(x, 2, axis=-1)
    return first, second


def _turns(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x[..., ::2], x[..., 1::2]


def _silu_clamped(
    gate: jax.Array,
    up: jax.Array,
    limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> jax.Array:
    if limit is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * (up + beta)


# Each product of the two operands, or of the two parts of the first as the function beside it finds them.
_PRODUCTS: dict[str, tuple[Callable[..., jax.Array], Callable[..., Any]]] = {
    "silu_and_mul": (lambda gate, up: jax.nn.silu(gate) * up, _sides),
    "gelu_and_mul": (lambda gate, up: jax.nn.gelu(gate, approximate=False) * up, _sides),
    "gelu_tanh_and_mul": (lambda gate, up: jax.nn.gelu(gate, approximate=True) * up, _sides),
    "mul_and_silu": (lambda up, gate: up * jax.nn.silu(gate), _sides),
    "fatrelu_and_mul": (
        lambda gate, up, threshold=0.0: jnp.where(gate <= threshold, 0, gate) * up,
        _sides,
    ),
    "silu_and_mul_with_clamp": (_silu_clamped, _sides),
    "swigluoai_and_mul": (
        lambda gate, up, alpha=1.702, limit=7.0: _silu_clamped(gate, up, limit, alpha, 1.0),
        _turns,
    ),
}


def gated_product(name: str, x: jax.Array, **attributes: Any) -> jax.Array:
    """The op of that name in jax.numpy, of an array with both parts."""
    function, parts = _PRODUCTS[name]
    return function(*parts(x), **attributes)


def _product_backward(
    name: str, kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes
) -> Arrays:
    """Cotangents of the parts, apart or in one array as they came."""
    function, parts = _PRODUCTS[name]
    x, other = kept
    (g,) = map(_f32, cotangents)

    def product(x: jax.Array, *other: jax.Array) -> jax.Array:
        return function(*((x, *other) if other else parts(x)), **attributes)

    given = [_f32(y) for y in (x, other) if y is not None]
    return (*jax.vjp(product, *given)[1](g), None)[:2]


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_fast": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
}


def _activation_backward(
    name: str, kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes
) -> Arrays:
    """`round_steps` is nothing to a gradient."""
    (x,), (g,) = kept, map(_f32, cotangents)
    return tuple(jax.vjp(_ACTIVATIONS[name], _f32(x))[1](g))


for _names, _backward in ((_PRODUCTS, _product_backward), (_ACTIVATIONS, _activation_backward)):
    for _name in _names:
        gradient(f"intarsia.{_name}", keep=lambda operands, results, attributes: operands)(
            functools.partial(_backward, _name)
        )


@gradient("intarsia.rotary_embedding", keep=lambda operands, results, attributes: operands)
def _rotary_embedding(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    """A rotation's transpose is its inverse; the table's cotangent is gathered from every pair."""
    positions, query, table, key, pair_axes = kept
    back = attributes | {"inverse": not attributes.get("inverse", False)}
    d_key = None if key is None else cotangents[1]
    turned: Any = wire.rotary_embedding(positions, cotangents[0], table, d_key, pair_axes, **back)
    d_query, d_key = turned if key is not None else (turned, None)
    d_table = _table_cotangent(
        positions, pair_axes, table, (query, key)[: len(cotangents)], cotangents, **attributes
    )
    return None, d_query, d_table, d_key, None


def _table_cotangent(
    positions: jax.Array,
    pair_axes: jax.Array | None,
    table: jax.Array,
    heads: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    *,
    head_size: Any = None,  # an int where heads have no axis
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array:
    """For y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin: d cos = x1 g1 + x2 g2, d sin = x1 g2 - x2 g1."""
    r = table.shape[1]
    tokens = positions.shape if pair_axes is None else positions.shape[:-1]

    def pairs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        d = x.shape[-1] if x.ndim == len(tokens) + 2 else head_size
        count = math.prod(x.shape[len(tokens) :]) // d
        part = _f32(x.reshape(*tokens, count, d))[..., rope_dim_offset : rope_dim_offset + r]
        if not is_neox:
            return part[..., ::2], part[..., 1::2]
        first, second = jnp.split(part, 2, axis=-1)
        return first, second

    d_angles = jnp.zeros((*tokens, r), jnp.float32)
    for x, g in zip(heads, cotangents, strict=True):
        (x1, x2), (g1, g2) = pairs(x), pairs(g)
        d_cos, d_sin = x1 * g1 + x2 * g2, x1 * g2 - x2 * g1
        both = jnp.concatenate([d_cos, -d_sin if inverse else d_sin], axis=-1)
        d_angles = d_angles + both.sum(axis=-2)
    # A position outside the table turned nothing. A negative one would count from the back, and JAX
    # narrows an int64 one to int32 before it looks.
    inside = (positions >= 0) & (positions < table.shape[0])
    row = jnp.where(inside, positions, table.shape[0])
    d_table = jnp.zeros(table.shape, jnp.float32)
    if pair_axes is None:
        return d_table.at[row].add(d_angles, mode="drop")
    axes = positions.shape[-1]
    exists = (pair_axes >= 0) & (pair_axes < axes)
    row = jnp.where(exists, row[..., jnp.where(exists, pair_axes, 0)], table.shape[0])
    return d_table.at[jnp.concatenate([row, row], axis=-1), jnp.arange(r)].add(
        d_angles, mode="drop"
    )


@gradient("intarsia.merge_attn_states", keep=lambda operands, results, attributes: operands)
def _merge_attn_states(
    kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes
) -> Arrays:
    """For out = a x + b y, lse = ln(e^p + e^s), where a = e^(p - lse) and b = e^(s - lse):

    dx = a g, dy = b g, dp = a g_lse + c, ds = b g_lse - c, c = a b g (x - y).
    """
    x, p, y, s = map(_f32, kept)
    g, g_lse = map(_f32, cotangents)
    p, s = (jnp.where(jnp.isposinf(lse), -jnp.inf, lse) for lse in (p, s))
    larger = jnp.maximum(p, s)
    neither = jnp.isneginf(larger)  # the op gives x then, and no lse
    weights = [jnp.exp(lse - jnp.where(neither, 0, larger)) for lse in (p, s)]
    a, b = (w / jnp.where(neither, 1, sum(weights)) for w in weights)
    # What a set without keys holds for its out, NaN maybe, counts for nothing.
    difference = jnp.where((a * b > 0).T[..., None], x - y, 0)
    c = a * b * jnp.sum(g * difference, axis=-1).T
    dx, dy = (w.T[..., None] * g for w in (jnp.where(neither, 1, a), b))
    return dx, a * g_lse + c, dy, b * g_lse - c


def _softplus_sqrt(x: jax.Array) -> jax.Array:
    """Its derivative is 0 where softplus is 0 in f32, not 0 times infinity."""
    soft = jax.nn.softplus(x)
    return jnp.where(soft == 0, 0.0, jnp.sqrt(jnp.where(soft == 0, 1.0, soft)))


@gradient(
    "intarsia.topk_router", keep=lambda operands, results, attributes: (*operands, results[1])
)
def _topk_router(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    """Of the weights, for the experts that were chosen."""
    logits, _, ids = kept
    score = {
        "softmax": jax.nn.softmax,
        "sigmoid": jax.nn.sigmoid,
        "softplus_sqrt": _softplus_sqrt,
    }[attributes.get("scoring", "softmax")]

    def weights(x: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(score(x), ids, -1)
        if attributes.get("renormalize", False):
            total = chosen.sum(-1, keepdims=True)
            chosen = chosen / jnp.where(total == 0, 1.0, total)
        return attributes.get("scale", 1.0) * chosen

    _, pull = jax.vjp(weights, _f32(logits))
    return *pull(cotangents[0]), None
