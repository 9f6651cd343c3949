"""The gradient of `fused_experts`: that of the same computation by grouped products, which are run again for it."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from intarsia.jax._grad import Arrays, Attributes, gradient
from intarsia.jax._grad_rules import gated_product
from intarsia.jax._grouped import grouped_matmul

_PRODUCTS = {
    "silu": "silu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
    "swigluoai": "swigluoai_and_mul",
}


@gradient("intarsia.fused_experts", keep=lambda operands, results, attributes: operands)
def _fused_experts(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    x, w1, w2, weights, ids, w1_bias, w2_bias, expert_map = kept
    k, n = ids.shape[-1], x.shape[-1]
    experts = _experts_of(ids, w1.shape[0], expert_map).reshape(-1)
    given = [a for a in (w1_bias, w2_bias) if a is not None]

    def experts_again(x, w1, w2, weights, *biases):
        left = iter(biases)
        first, second = (next(left) if b is not None else None for b in (w1_bias, w2_bias))
        return _by_products(x, w1, w2, weights, experts, first, second, **attributes)

    tokens, shares = x.reshape(-1, n), weights.reshape(-1, k)
    _, pull = jax.vjp(experts_again, tokens, w1, w2, shares, *given)
    d_x, d_w1, d_w2, d_weights, *d_biases = pull(cotangents[0].reshape(-1, n).astype(jnp.float32))
    left = iter(d_biases)
    d_first, d_second = (next(left) if b is not None else None for b in (w1_bias, w2_bias))
    d_x, d_weights = d_x.reshape(x.shape), d_weights.reshape(weights.shape)
    return d_x, d_w1, d_w2, d_weights, None, d_first, d_second, None


def _experts_of(ids: jax.Array, experts: int, expert_map: jax.Array | None) -> jax.Array:
    """The expert of each id, the number of experts where there is none."""
    if expert_map is not None:
        size = expert_map.shape[0]
        found = jnp.append(expert_map, jnp.full(1, -1, expert_map.dtype))
        ids = found[jnp.where((ids >= 0) & (ids < size), ids, size)]
    return jnp.where((ids >= 0) & (ids < experts), ids, experts).astype(jnp.int32)


def _by_products(
    x: jax.Array,
    w1: jax.Array,
    w2: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    w1_bias: jax.Array | None,
    w2_bias: jax.Array | None,
    *,
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
    limit: float = 7.0,
    alpha: float = 1.702,
) -> jax.Array:
    """[t, n] f32 from x [t, n], weights [t, k] and the pairs' experts [t * k]."""
    t, k = weights.shape
    order = jnp.argsort(experts, stable=True)
    places = jnp.zeros_like(order).at[order].set(jnp.arange(t * k, dtype=order.dtype))
    sizes = jnp.bincount(experts, length=w1.shape[0] + 1)[:-1].astype(jnp.int32)
    product = functools.partial(grouped_matmul, group_sizes=sizes, transposed=True)
    pairs = jnp.broadcast_to(x[:, None], (t, k, x.shape[1])).reshape(t * k, -1)
    rows = _permuted(pairs, order, places)
    shares = weights.astype(jnp.float32).reshape(-1, 1)
    if apply_router_weight_on_input:
        # In f32, as the op has it; the bias comes behind.
        hidden = product(rows, w1, preferred_element_type=jnp.float32)
        hidden = hidden * _permuted(shares, order, places)
        if w1_bias is not None:
            hidden = hidden + _of_rows(w1_bias, experts, order)
        shares = jnp.ones_like(shares)
    else:
        hidden = product(rows, w1, bias=w1_bias).astype(jnp.float32)
    settings = {"alpha": alpha, "limit": limit} if activation == "swigluoai" else {}
    gated = gated_product(_PRODUCTS[activation], hidden, **settings).astype(x.dtype)
    down = _permuted(product(gated, w2, bias=w2_bias), places, order)
    terms = shares * down.astype(jnp.float32)
    return terms.reshape(t, k, -1).sum(1)


def _of_rows(bias: jax.Array, experts: jax.Array, order: jax.Array) -> jax.Array:
    none = jnp.zeros((1, bias.shape[1]), bias.dtype)
    return jnp.append(bias, none, 0)[experts[order]].astype(jnp.float32)


@jax.custom_vjp
def _permuted(x: jax.Array, order: jax.Array, back: jax.Array) -> jax.Array:
    """x[order], whose gradient is a gather, too: `back` is the inverse of `order`."""
    del back
    return x[order]


_permuted.defvjp(
    lambda x, order, back: (x[order], back),
    lambda back, g: (g[back], None, None),
)
