"""Intarsia's ops as plain functions for JAX: under jit they are custom calls inside the XLA program.

Shape letters in all docstrings: b sequences, t tokens, h query heads, hk KV heads, d head dim, n hidden
size, p pages, s page size, m pages per sequence, r rotary dim, l layers.
"""

from intarsia.jax._attention import flash_attn_varlen, paged_attention
from intarsia.jax._cache import reshape_and_cache_flash
from intarsia.jax._call import call, register
from intarsia.jax._ops import (
    fused_add_rms_norm,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
    simple_add,
)

__all__ = [
    "call",
    "flash_attn_varlen",
    "fused_add_rms_norm",
    "paged_attention",
    "register",
    "reshape_and_cache_flash",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "simple_add",
]
