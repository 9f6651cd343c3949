"""Intarsia's ops as plain functions for JAX: under jit they are custom calls inside the XLA program.

Shape letters in all docstrings: b sequences, t tokens, h query heads, hk KV heads, d head dim, n hidden
size, p pages, s page size, m pages per sequence, r rotary dim, l layers.

Where things are: `_ops` has a function for each op, `_call` makes a custom call of it, `_vmap`, `_grad`, `_shard` and
`_export` are what JAX's transformations make of it. Functions that say more than the op does, or say it otherwise, have
modules of their own: `_attention`, `_cache`, `_cascade`, `_exchange`, `_linear`, `_ragged`.
"""

from intarsia import _native
from intarsia._packages import needed_by

with needed_by("intarsia.jax"):
    from intarsia.jax import _grad_rules, _ops  # noqa: F401  the rules declare themselves
from intarsia.jax._call import call, register
from intarsia.jax._ops import *  # noqa: F403  every op; the imports below replace some of them

# isort: split
# Ops whose natural call differs from what goes over the wire.
from intarsia.jax._attention import flash_attn_varlen, paged_attention
from intarsia.jax._cache import reshape_and_cache_flash, rotary_embedding_and_cache
from intarsia.jax._cascade import cascade_attention
from intarsia.jax._exchange import Exchange, all_reduce_fused_add_rms_norm, make_exchange
from intarsia.jax._export import export_exemptions
from intarsia.jax._linear import linear
from intarsia.jax._ragged import ragged_paged_attention
from intarsia.jax._shard import ShardedOps, kv_cache_sharding, kv_heads, shard

__all__ = [
    *_ops.__all__,
    "Exchange",
    "ShardedOps",
    "all_reduce_fused_add_rms_norm",
    "call",
    "cascade_attention",
    "export_exemptions",
    "flash_attn_varlen",
    "kv_cache_sharding",
    "kv_heads",
    "linear",
    "make_exchange",
    "paged_attention",
    "ragged_paged_attention",
    "register",
    "reshape_and_cache_flash",
    "rotary_embedding_and_cache",
    "shard",
]

# Now, and not at the first call: a program that was exported earlier finds its targets.
register(_native.main_library())
