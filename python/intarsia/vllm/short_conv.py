"""Gated short convolutions (LFM2's) as part of an XLA program, their states in the pages of the KV cache.

A layer's output is C * conv(B * x), with a causal convolution of a few taps over a request's tokens. Its state, the last inputs of the
convolution, is a page of the request's own: `keys`, then `values`, as one row.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.short_conv import ShortConv
from vllm.model_executor.models import config as models
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionBackend

from intarsia.vllm.attention import TracedMetadata, XlaGpuMetadataBuilder
from intarsia.vllm.batch import Group
from intarsia.vllm.caches import KvCache
from intarsia.vllm.replacing import replace

logger = init_logger("vllm.intarsia.short_conv")


class XlaShortConvBackend(ShortConvAttentionBackend):
    """What a step's metadata are is as for attention."""

    @staticmethod
    def get_builder_cls() -> type[XlaGpuMetadataBuilder]:
        return XlaGpuMetadataBuilder


@ShortConv.register_oot
class XlaShortConv(ShortConv):
    """One layer. Its tensors are those of a program that is being traced."""

    def forward(self, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        from torchax import interop

        metadata: TracedMetadata = get_forward_context().attn_metadata[self.prefix]
        gates, _ = self.in_proj(hidden_states)
        before, behind, x = jnp.split(interop.jax_view(gates), 3, axis=-1)
        weight = interop.jax_view(self.conv.weight)[:, 0]
        bias = None if self.conv.bias is None else interop.jax_view(self.conv.bias)
        caches, group = metadata.caches, metadata.group
        pages = caches.read(self.prefix)
        shape = (weight.shape[1] - 1, weight.shape[0])
        found = read_states(pages, group, shape, x.dtype)
        mixed, states = convolve(before * x, weight, bias, found, group.cu_seqlens_q)
        caches.write(self.prefix, write_states(pages, group, states))
        rows, _ = self.out_proj(interop.torch_view(behind * mixed))
        output.copy_(rows)


def convolve(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """y[i] = bias + sum over j of weight[:, j] * x[i - (taps - 1) + j], where x goes on to the left with a request's state.

    Args:
      x: [t, n], tokens of one request after those of another.
      weight: [n, taps].
      bias: [n], or None.
      states: [requests, taps - 1, n], each request's last inputs before these, the newest last.
      starts: [requests + 1] i32, where each request's tokens begin.

    Returns:
      y [t, n] of x's dtype, summed in f32, and the states behind these tokens.
    """
    taps = weight.shape[1]
    requests = len(states)
    tokens = jnp.arange(len(x), dtype=jnp.int32)
    request = jnp.searchsorted(starts[1:], tokens, side="right").clip(0, requests - 1)
    place = tokens - starts[request]
    y = jnp.zeros(x.shape, jnp.float32) if bias is None else bias.astype(jnp.float32)[None]
    for back in range(taps):
        here = x
        if back:
            from_state = states[request, (taps - 1 - back + place).clip(0, taps - 2)]
            here = jnp.where((place >= back)[:, None], jnp.roll(x, back, axis=0), from_state)
        y = y + here.astype(jnp.float32) * weight[:, taps - 1 - back].astype(jnp.float32)
    # Of what is in the state and then in x, the last taps - 1.
    lengths = (starts[1:] - starts[:-1])[:, None]
    source = lengths - (taps - 1) + jnp.arange(taps - 1, dtype=jnp.int32)
    new = x[(starts[:-1, None] + source).clip(0, len(x) - 1)]
    old = jnp.take_along_axis(states, (taps - 1 + source).clip(0, taps - 2)[..., None], axis=1)
    return y.astype(x.dtype), jnp.where((source >= 0)[..., None], new, old)


def read_states(pages: KvCache, group: Group, shape: tuple[int, int], dtype: Any) -> jax.Array:
    """Each request's state [requests, *shape]; zeros for one whose tokens begin in this step."""
    count, own = math.prod(shape), group.block_table[:, 0]
    rows = jnp.concatenate([page[own] for page in pages], axis=-1)[:, :count]
    lengths = group.cu_seqlens_q[1:] - group.cu_seqlens_q[:-1]
    goes_on = group.seqused_k > lengths
    states = jnp.where(goes_on[:, None], rows, 0).reshape(-1, *shape)
    return states.astype(dtype)


def write_states(pages: KvCache, group: Group, states: jax.Array) -> KvCache:
    """The pages with the states of requests that have tokens in this step."""
    keys, values = pages
    rows = states.reshape(len(states), -1).astype(keys.dtype)
    has_tokens = group.cu_seqlens_q[1:] > group.cu_seqlens_q[:-1]
    own = jnp.where(has_tokens, group.block_table[:, 0], len(keys))
    width = keys.shape[1]
    keys = keys.at[own, : min(width, rows.shape[1])].set(rows[:, :width], mode="drop")
    if rows.shape[1] > width:
        values = values.at[own, : rows.shape[1] - width].set(rows[:, width:], mode="drop")
    return keys, values


def _without_prefix_caching(cls: type, vllm_config: Any) -> None:
    """vLLM would keep states of prefixes, and copy them among its own tensors, of which there are none."""
    cache = vllm_config.cache_config
    if cache.enable_prefix_caching:
        logger.info_once("intarsia-vllm: no prefix caching of models with recurrent states")
    cache.enable_prefix_caching, cache.mamba_cache_mode = False, "none"
    cache.mamba_block_size = vllm_config.model_config.max_model_len


replace(models.MambaModelConfig, "verify_and_update_config", classmethod(_without_prefix_caching))
