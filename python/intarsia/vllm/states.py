"""States of recurrent layers, which are pages of the KV cache: a request's own, found by the first entry of its block table.

Keys and values of a page, as one row, hold the numbers of a layer's states one behind the other, those of another dtype bit for bit.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from vllm.config import ModelConfig
from vllm.model_executor.models import config as models
from vllm.v1.attention.backend import AttentionBackend

from intarsia.vllm.attention import XlaMetadataBuilder
from intarsia.vllm.batch import Group
from intarsia.vllm.caches import KvCache
from intarsia.vllm.replacing import replace


class Form(NamedTuple):
    """Of one state of a request."""

    shape: tuple[int, ...]
    dtype: Any


class XlaStatesBackend(AttentionBackend):
    """For layers with states: what a step's metadata are is as for attention."""

    @staticmethod
    def get_name() -> str:
        return "XLA_STATES"

    @staticmethod
    def get_builder_cls() -> type[XlaMetadataBuilder]:
        return XlaMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


def read_states(pages: KvCache, group: Group, forms: Sequence[Form]) -> list[jax.Array]:
    """Each request's states [requests, *shape]; zeros for one whose tokens begin in this step."""
    own = group.block_table[:, 0]
    rows = jnp.concatenate([page[own] for page in pages], axis=-1)
    lengths = group.cu_seqlens_q[1:] - group.cu_seqlens_q[:-1]
    rows = jnp.where((group.seqused_k > lengths)[:, None], rows, 0)
    states, start = [], 0
    for form in forms:
        count = math.prod(form.shape)
        size = count * jnp.dtype(form.dtype).itemsize // rows.dtype.itemsize
        states.append(_of_bits(rows[:, start : start + size], form).reshape(-1, *form.shape))
        start += size
    return states


def write_states(pages: KvCache, group: Group, states: Sequence[jax.Array]) -> KvCache:
    """The pages with the states of requests that have tokens in this step."""
    keys, values = pages
    rows = jnp.concatenate([_as_bits(x.reshape(len(x), -1), keys.dtype) for x in states], axis=1)
    has_tokens = group.cu_seqlens_q[1:] > group.cu_seqlens_q[:-1]
    own = jnp.where(has_tokens, group.block_table[:, 0], len(keys))
    width = keys.shape[1]
    keys = keys.at[own, : min(width, rows.shape[1])].set(rows[:, :width], mode="drop")
    if rows.shape[1] > width:
        values = values.at[own, : rows.shape[1] - width].set(rows[:, width:], mode="drop")
    return keys, values


def _of_bits(rows: jax.Array, form: Form) -> jax.Array:
    """Rows [r, n] of the pages' dtype as numbers of a state's."""
    parts = jnp.dtype(form.dtype).itemsize // rows.dtype.itemsize
    if parts > 1:
        rows = rows.reshape(len(rows), -1, parts)
    return jax.lax.bitcast_convert_type(rows, form.dtype)


def _as_bits(rows: jax.Array, dtype: Any) -> jax.Array:
    """Numbers of a state as rows of the pages' dtype."""
    return jax.lax.bitcast_convert_type(rows, dtype).reshape(len(rows), -1)


def _without_prefixes(cls: type, vllm_config: Any) -> None:
    """vLLM would keep states of prefixes, and copy them among its own tensors, of which there are none."""
    cache = vllm_config.cache_config
    cache.mamba_cache_mode = "none"
    cache.mamba_block_size = vllm_config.model_config.max_model_len


replace(models.MambaModelConfig, "verify_and_update_config", classmethod(_without_prefixes))


def _supports_prefixes(model: ModelConfig) -> bool:
    """vLLM's default: with it, who has prefix caching beside states has asked for it, and is refused."""
    return not (model.is_hybrid or model.has_inner_state) and _vllms_default.fget(model)


_vllms_default: Any = replace(
    ModelConfig, "is_prefix_caching_supported", property(_supports_prefixes)
)
