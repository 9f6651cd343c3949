"""The gradient of `fused_experts`: that of the same computation by grouped products, which are run again for it."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from intarsia.jax._experts import by_products, experts_of
from intarsia.jax._grad import Arrays, Attributes, gradient
from intarsia.jax._grad_rules import gated_product

_PRODUCTS = {
    "silu": "silu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
    "swigluoai": "swigluoai_and_mul",
}


@gradient("intarsia.fused_experts", keep=lambda operands, results, attributes: operands)
def _fused_experts(kept: Any, cotangents: Sequence[jax.Array], attributes: Attributes) -> Arrays:
    x, w1, w2, weights, ids, w1_bias, w2_bias, expert_map = kept
    t, k, n = math.prod(ids.shape[:-1]), ids.shape[-1], x.shape[-1]
    experts = experts_of(ids, w1.shape[0], expert_map).reshape(-1)
    activate, on_input = _activation(**attributes)
    given = [a for a in (w1_bias, w2_bias) if a is not None]

    def experts_again(x, w1, w2, weights, *biases):
        left = iter(biases)
        first, second = (next(left) if b is not None else None for b in (w1_bias, w2_bias))
        return by_products(x, w1, w2, weights, experts, first, second, activate, on_input)

    tokens, shares = x.reshape(t, n), weights.reshape(t, k)
    _, pull = jax.vjp(experts_again, tokens, w1, w2, shares, *given)
    d_x, d_w1, d_w2, d_weights, *d_biases = pull(cotangents[0].reshape(t, n).astype(jnp.float32))
    left = iter(d_biases)
    d_first, d_second = (next(left) if b is not None else None for b in (w1_bias, w2_bias))
    d_x, d_weights = d_x.reshape(x.shape), d_weights.reshape(weights.shape)
    return d_x, d_w1, d_w2, d_weights, None, d_first, d_second, None


def _activation(
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
    limit: float = 7.0,
    alpha: float = 1.702,
) -> tuple[Callable[[jax.Array], jax.Array], bool]:
    """The gate as a function, and where the weights go."""
    settings: Attributes = {"alpha": alpha, "limit": limit} if activation == "swigluoai" else {}
    product = functools.partial(gated_product, _PRODUCTS[activation], **settings)
    return product, apply_router_weight_on_input
