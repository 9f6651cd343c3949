"""The gated MLPs of each token's experts as grouped products: `fused_experts` for its gradient, and for other activations."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from intarsia.jax._grouped import grouped_matmul, sums_of_groups


def experts_by_products(
    x: jax.Array,
    w1: jax.Array,
    w2: jax.Array,
    weights: jax.Array,
    ids: jax.Array,
    w1_bias: jax.Array | None = None,
    w2_bias: jax.Array | None = None,
    expert_map: jax.Array | None = None,
    *,
    activate: Callable[[jax.Array], jax.Array],
    apply_router_weight_on_input: bool = False,
) -> jax.Array:
    """What `fused_experts` computes, f32 [t, n], with any activation between both products.

    Args:
      x: [t, n] T.
      w1: [e, j, n] T.
      w2: [e, n, i] T.
      weights, ids: [t, k].
      activate: from [m, j] to [m, i], both f32.
    """
    experts = experts_of(ids, w1.shape[0], expert_map).reshape(-1)
    return by_products(
        x, w1, w2, weights, experts, w1_bias, w2_bias, activate, apply_router_weight_on_input
    )


def experts_of(ids: jax.Array, experts: int, expert_map: jax.Array | None) -> jax.Array:
    """The expert of each id, the number of experts where there is none."""
    if expert_map is not None:
        size = expert_map.shape[0]
        found = jnp.append(expert_map, jnp.full(1, -1, expert_map.dtype))
        ids = found[jnp.where((ids >= 0) & (ids < size), ids, size)]
    return jnp.where((ids >= 0) & (ids < experts), ids, experts).astype(jnp.int32)


def by_products(
    x: jax.Array,
    w1: jax.Array,
    w2: jax.Array,
    weights: jax.Array,
    experts: jax.Array,
    w1_bias: jax.Array | None,
    w2_bias: jax.Array | None,
    activate: Callable[[jax.Array], jax.Array],
    apply_router_weight_on_input: bool = False,
) -> jax.Array:
    """[t, n] f32 from x [t, n], weights [t, k] and the pairs' experts [t * k]."""
    t, k = weights.shape
    order = jnp.argsort(experts, stable=True)
    places = jnp.zeros_like(order).at[order].set(jnp.arange(t * k, dtype=order.dtype))
    sizes = jnp.bincount(experts, length=w1.shape[0] + 1)[:-1].astype(jnp.int32)
    product = functools.partial(grouped_matmul, group_sizes=sizes, transposed=True)
    pairs = jnp.broadcast_to(x[:, None], (t, k, x.shape[1])).reshape(t * k, x.shape[1])
    rows = _permuted(pairs, order, places)
    shares = weights.astype(jnp.float32).reshape(-1, 1)
    if apply_router_weight_on_input:
        # In f32, where the op rounds to T; the bias comes behind.
        hidden = product(rows, w1, preferred_element_type=jnp.float32)
        hidden = hidden * _permuted(shares, order, places)
        if w1_bias is not None:
            hidden = hidden + _of_rows(w1_bias, experts[order], sizes)
        shares = jnp.ones_like(shares)
    else:
        hidden = product(rows, w1, bias=w1_bias).astype(jnp.float32)
    gated = activate(hidden).astype(x.dtype)
    down = _permuted(product(gated, w2, bias=w2_bias), places, order)
    terms = shares * down.astype(jnp.float32)
    return terms.reshape(t, k, w2.shape[1]).sum(1)


@jax.custom_vjp
def _of_rows(bias: jax.Array, experts: jax.Array, sizes: jax.Array) -> jax.Array:
    """f32 [m, j]: each row's bias, of experts in ascending order, 0 behind the last; `sizes` has each expert's rows."""
    del sizes
    none = jnp.zeros((1, bias.shape[1]), bias.dtype)
    return jnp.append(bias, none, 0)[experts].astype(jnp.float32)


def _d_bias(kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, None, None]:
    bias, sizes = kept
    return sums_of_groups(g.astype(bias.dtype), sizes, None, bias.shape[0]), None, None


_of_rows.defvjp(
    lambda bias, experts, sizes: (_of_rows(bias, experts, sizes), (bias, sizes)), _d_bias
)


@jax.custom_vjp
def _permuted(x: jax.Array, order: jax.Array, back: jax.Array) -> jax.Array:
    """x[order], whose gradient is a gather, too: `back` is the inverse of `order`."""
    del back
    return x[order]


_permuted.defvjp(
    lambda x, order, back: (x[order], back),
    lambda back, g: (g[back], None, None),
)
