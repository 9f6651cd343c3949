"""A layer of experts composed of products of groups of rows."""

import jax
import jax.numpy as jnp

import intarsia.jax as ij


def fused_experts(
    x: jax.Array,
    w1: jax.Array,
    w2: jax.Array,
    weights: jax.Array,
    ids: jax.Array,
    *,
    activation: str = "silu",
    w1_bias: jax.Array | None = None,
    w2_bias: jax.Array | None = None,
    limit: float = 7.0,
    alpha: float = 1.702,
    expert_map: jax.Array | None = None,
    apply_router_weight_on_input: bool = False,
) -> jax.Array:
    """For each row the weighted sum of what its experts make of it.

        out[t] = sum over j of weights[t, j] * (act(x[t] @ w1[e]^T + w1_bias[e]) @ w2[e]^T + w2_bias[e]),  e = ids[t, j]

    Sums are f32. An id that is no expert, or that `expert_map` takes to none, adds nothing.

    Args:
        x: [t, n] T; rows.
        w1: [E, 2i, n] T; gate and up of each expert, one after the other, or row by row in turn for swigluoai.
        w2: [E, n, i] T; down.
        weights: [t, k] f32; of each row's experts.
        ids: [t, k] i32; which experts these are.
        activation: silu, gelu_tanh or swigluoai.
        w1_bias: [E, 2i] T.
        w2_bias: [E, n] T.
        limit: The most that swigluoai takes a gate for.
        alpha: What swigluoai's logistic curve is steeper by.
        expert_map: i32; the place in w1 and w2 of each expert that ids name, negative for one that is elsewhere.
        apply_router_weight_on_input: Whether rows are weighted on their way in, and not on their way out.

    Returns:
        [t, n] T.
    """
    (t, k), e = ids.shape, w1.shape[0]
    places = ids if expert_map is None else _mapped(ids, expert_map)
    places = jnp.where((places >= 0) & (places < e), places, e).reshape(-1)
    order = jnp.argsort(places, stable=True)  # rows of one expert after those of another
    sizes = (places[:, None] == jnp.arange(e)).sum(axis=0, dtype=jnp.int32)
    rows = (order // k).astype(jnp.int32)
    if apply_router_weight_on_input:
        x = (x[:, None] * weights[..., None]).astype(x.dtype).reshape(t * k, -1)
        rows, weights = order.astype(jnp.int32), jnp.ones_like(weights)
    hidden = ij.grouped_matmul(x, w1, sizes, rows=rows, bias=w1_bias, transposed=True)
    if activation == "swigluoai":
        hidden = ij.swigluoai_and_mul(hidden, alpha=alpha, limit=limit)
    else:
        hidden = getattr(ij, f"{activation}_and_mul")(hidden)
    out = ij.grouped_matmul(
        hidden, w2, sizes, preferred_element_type=jnp.float32, bias=w2_bias, transposed=True
    )
    of_rows = out[jnp.argsort(order)].reshape(t, k, -1)
    return (of_rows * weights[..., None]).sum(axis=1).astype(x.dtype)


def _mapped(ids: jax.Array, expert_map: jax.Array) -> jax.Array:
    exists = (ids >= 0) & (ids < expert_map.shape[0])
    return jnp.where(exists, expert_map[jnp.where(exists, ids, 0)], -1)
