"""The feed-forward layer of a mixture of experts: a router, and the few experts that it chooses for each token."""

from types import ModuleType

import jax
import jax.numpy as jnp
from jax import lax

import intarsia.jax as ij
from intarsia._packing import PackedWeight
from intarsia.jax._coded_experts import arguments_of_experts
from intarsia.models.config import ModelConfig
from intarsia.models.weights import Params


def experts(
    ops: ModuleType, config: ModelConfig, weights: Params, hidden: jax.Array, is_token: jax.Array
) -> jax.Array:
    """Runs rows [t, n] through their experts, or through those that this device has of them.

    Args:
        ops: Where the kernels come from.
        config: The model's hyperparameters.
        weights: Of the layer, by role; an equal part of the experts where they are spread over devices.
        hidden: Normed rows.
        is_token: Which rows are tokens, [t]. Padding chooses no expert, whose weights would have to be read for it.
    """
    mixture = config.experts
    assert mixture is not None
    logits = ij.linear(hidden, weights["router"], out_dtype="f32")
    if mixture.biases:
        logits = logits + weights["router_bias"].astype(jnp.float32)
    shares, ids = ops.topk_router(logits, top_k=mixture.per_token, renormalize=mixture.renormalize)
    w1, w2 = weights["experts_gate_up"], weights["experts_down"]
    in_codes = isinstance(w1, PackedWeight)
    here = len(w1.packed if in_codes else w1)
    ids = jnp.where(is_token[:, None], ids, -1)
    settings = {
        "activation": config.activation,
        "w1_bias": weights.get("experts_gate_up_bias"),
        "w2_bias": weights.get("experts_down_bias"),
        "limit": mixture.limit,
        "expert_map": _places(config, mixture.count, here),
    }
    if not in_codes:
        return ops.fused_experts(hidden, w1, w2, shares, ids, **settings)
    # `expert_codes` refuses zeros of two kinds, for which there is one word.
    return ops.fused_experts_quantized(
        x=hidden, weights=shares, ids=ids, **arguments_of_experts(w1, w2), **settings
    )


def _places(config: ModelConfig, count: int, here: int) -> jax.Array | None:
    """Where each expert is on this device, -1 if elsewhere; None if all are here."""
    if here == count or config.mesh_axis is None:
        return None
    place = jnp.arange(count, dtype=jnp.int32) - lax.axis_index(config.mesh_axis) * here
    return jnp.where((place >= 0) & (place < here), place, -1)
