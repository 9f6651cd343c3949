"""The feed-forward layer of a mixture of experts: a router, and the few experts that it chooses for each token."""

from types import ModuleType

import jax
import jax.numpy as jnp
from jax import lax

import intarsia.jax as ij
from intarsia._packing import PackedWeight
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
    traits = config.experts
    assert traits is not None
    logits = ij.linear(hidden, weights["router"], out_dtype="f32")
    if traits.biases:
        logits = logits + weights["router_bias"].astype(jnp.float32)
    shares, ids = ops.topk_router(logits, top_k=traits.per_token, renormalize=traits.renormalize)
    w1, w2 = weights["experts_gate_up"], weights["experts_down"]
    in_codes = isinstance(w1, PackedWeight)
    here = len(w1.packed if in_codes else w1)
    routed = (shares, jnp.where(is_token[:, None], ids, -1))
    settings = {
        "activation": config.activation,
        "w1_bias": weights.get("experts_gate_up_bias"),
        "w2_bias": weights.get("experts_down_bias"),
        "limit": traits.limit,
        "expert_map": _places(config, traits.count, here),
    }
    if not in_codes:
        return ops.fused_experts(hidden, w1, w2, *routed, **settings)
    return ops.fused_experts_quantized(
        *(hidden, w1.packed, w1.scales, w2.packed, w2.scales, *routed),
        w1_zeros=w1.zeros,
        w2_zeros=w2.zeros,
        w1_outer_scales=w1.outer_scales,
        w1_outer_zeros=w1.outer_zeros,
        w2_outer_scales=w2.outer_scales,
        w2_outer_zeros=w2.outer_zeros,
        format=w1.format,
        w2_format="same" if w2.format == w1.format else w2.format,
        w1_group=w1.group,
        w2_group=w2.group,
        # One word for both: `expert_codes` refuses zeros of two kinds.
        zeros_are=(w2 if w1.zeros is None else w1).zeros_are,
        **settings,
    )


def _places(config: ModelConfig, count: int, here: int) -> jax.Array | None:
    """Where each expert is on this device, -1 if elsewhere; None if all are here."""
    if here == count or config.mesh_axis is None:
        return None
    place = jnp.arange(count, dtype=jnp.int32) - lax.axis_index(config.mesh_axis) * here
    return jnp.where((place >= 0) & (place < here), place, -1)
