"""The two ends of a model: tokens become rows, and rows become scores of tokens."""

import jax
import jax.numpy as jnp
from jax import lax

from intarsia.models.config import ModelConfig
from intarsia.models.linear import PackedMatrix, product_of
from intarsia.models.sampling import argmax
from intarsia.models.weights import Params


def embed(config: ModelConfig, params: Params, tokens: jax.Array) -> jax.Array:
    """Looks tokens [t] up: [t, n]. A device that has a share of the table finds its own tokens."""
    table = params["embed"]
    if isinstance(table, PackedMatrix):
        return table.take(tokens)
    if config.mesh_axis is None:
        return table[tokens]
    row = tokens - lax.axis_index(config.mesh_axis) * len(table)
    here = (row >= 0) & (row < len(table))
    found = jnp.where(here[:, None], table[jnp.where(here, row, 0)], 0)
    return lax.psum(found, config.mesh_axis)


def logits(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Projects final hidden rows [b, n] to f32 logits [b, vocab]."""
    share = _share_of_logits(params, hidden)
    if config.mesh_axis is None:
        return share
    return lax.all_gather(share, config.mesh_axis, axis=1, tiled=True)[:, : config.vocab]


def likeliest(config: ModelConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """The tokens, int32 [b], with the largest of the `logits`, which no device needs to have all of; -1 where there is NaN."""
    share = _share_of_logits(params, hidden)
    if config.mesh_axis is None:
        return argmax(share)
    device = lax.axis_index(config.mesh_axis)
    first = device * share.shape[1]
    tokens = first + lax.broadcasted_iota(jnp.int32, share.shape, 1)
    # The table's last rows may be padding, which is not to be found, not among -inf either.
    share = jnp.where(tokens < config.vocab, share, -jnp.inf)
    own = jnp.minimum(first + argmax(share), config.vocab - 1)
    # Gathered by a sum, for which XLA has a kernel that `compile_step` keeps in the CUDA graph; it has none for
    # this gather. f32 is exact for token ids below 2**24.
    pair = jnp.stack([share.max(axis=1), own.astype(jnp.float32)])[:, None]
    here = jnp.arange(lax.axis_size(config.mesh_axis)) == device
    # [N, b] both
    largest, likely = lax.psum(jnp.where(here[:, None], pair, 0), config.mesh_axis)
    best = argmax(largest.T)  # a device's number
    found = jnp.take_along_axis(likely, best[None], axis=0)[0].astype(jnp.int32)
    return jnp.where(best < 0, -1, found)


def _share_of_logits(params: Params, hidden: jax.Array) -> jax.Array:
    table = params["lm_head"] if "lm_head" in params else params["embed"]
    return product_of(hidden, table, "f32")
