"""Paged KV caches: one array or a pair, in any layout of the library's table."""

from typing import TypeAlias

import jax
import jax.numpy as jnp

from intarsia._cache_form import infer_layout, split
from intarsia.jax import _ops

KvCache: TypeAlias = jax.Array | tuple[jax.Array, jax.Array]


def scale(value: jax.Array | float | None) -> jax.Array | None:
    """A scale as the ops take it: f32, of rank 1 or more."""
    return None if value is None else jnp.atleast_1d(jnp.asarray(value, jnp.float32))


def reshape_and_cache_flash(
    key: jax.Array,
    value: jax.Array,
    kv_cache: KvCache,
    slot_mapping: jax.Array,
    *,
    k_scale: jax.Array | float | None = None,
    v_scale: jax.Array | float | None = None,
    kv_cache_dtype: str = "auto",
    layout: str | None = None,
    layer: jax.Array | None = None,
) -> KvCache:
    """Writes new keys and values into their slots of a paged KV cache.

    In place if the cache is donated to the enclosing jit; without donation XLA copies it first.

    Args:
      key, value: [t, hk, d], f32, f16 or bf16.
      kv_cache: a pair (key_cache, value_cache), or one array that holds both; of the dtype of `key`,
        fp8, or uint8 with `kv_cache_dtype`. With `layer`, each has one more axis in front.
      slot_mapping: int32 or int64 [t'], t' <= t: page * s + offset of each of the first t' tokens. A
        negative slot, or one beyond the cache, is skipped.
      k_scale, v_scale: what fp8 K and V will have to be multiplied by: a number, [1] or [hk] in f32;
        default 1. What is stored is key / k_scale, to nearest even and saturating; NaN stays NaN.
      kv_cache_dtype: what a uint8 cache holds: "fp8_e4m3" or "fp8_e5m2"; "auto": as its dtype says.
      layout: default: by the form of `kv_cache`. Of a pair:
        "NHD": [p, s, hk, d]; the default
        "HND": [p, hk, s, d]
        of one array:
        "combined": [p, s, 2 * hk, d], K in even and V in odd heads; the default
        "packed": [p, s, hk, 2 * d], each head's V behind its K; the default if the last axis says so
        "stacked": [2, p, s, hk, d], K, then V; the default if there is such an axis
        or any other order of these axes, spelled as in "p hk s d" or "p 2 hk s d"; with `layer` it may
        say where the layers stand ("p l s hk d").
      layer: int32 scalar on the device: the layer of a cache with a layer axis.

    Returns:
      The cache, in the form in which it came.

    Raises:
      ValueError: shapes, dtypes or the layout do not fit; the text says which.

    Source: vLLM's `_C_cache_ops::reshape_and_cache_flash`.

    Example:
      >>> step = jax.jit(reshape_and_cache_flash, donate_argnums=2)
      >>> caches = step(key, value, caches, slot_mapping)
    """
    op = "reshape_and_cache_flash"
    key_cache, value_cache = split(op, kv_cache)
    written = _ops.reshape_and_cache_flash(
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        layer,
        scale(k_scale),
        scale(v_scale),
        layout=infer_layout(op, kv_cache, key.shape[-1], layout, layer),
        kv_cache_dtype=kv_cache_dtype,
    )
    return type(kv_cache)(written) if isinstance(kv_cache, tuple | list) else written
