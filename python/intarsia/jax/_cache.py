"""Paged KV caches: one array or a pair, in any layout of the library's table."""

from typing import TypeAlias

import jax
import jax.numpy as jnp

from intarsia import _native
from intarsia.jax import _ops

KvCache: TypeAlias = jax.Array | tuple[jax.Array, jax.Array]


def split(kv_cache: KvCache) -> tuple[jax.Array, jax.Array | None]:
    """(key_cache, value_cache), where value_cache is None if one array holds both."""
    if not isinstance(kv_cache, tuple | list):
        return kv_cache, None
    if len(kv_cache) != 2:
        raise ValueError(f"kv_cache has {len(kv_cache)} arrays, expected one or a pair")
    return tuple(kv_cache)


def scale(value: jax.Array | float | None) -> jax.Array | None:
    """A scale as the ops take it: f32, of rank 1 or more."""
    return None if value is None else jnp.atleast_1d(jnp.asarray(value, jnp.float32))


def infer_layout(kv_cache: KvCache, layout: str | None) -> str:
    """The layout's name: as given, or the only one of the table that fits the cache's form."""
    layouts = {
        row["name"]: row["value_cache"] for row in _native.main_library().manifest["layouts"]
    }
    if layout is not None:
        if layout not in layouts:
            raise ValueError(f"layout is {layout!r}, expected one of {', '.join(layouts)}")
        return layout
    is_pair = split(kv_cache)[1] is not None
    return next(name for name, has_value_cache in layouts.items() if has_value_cache == is_pair)


def reshape_and_cache_flash(
    key: jax.Array,
    value: jax.Array,
    kv_cache: KvCache,
    slot_mapping: jax.Array,
    *,
    layout: str | None = None,
    layer: jax.Array | None = None,
) -> KvCache:
    """Writes new keys and values into their slots of a paged KV cache.

    In place if the cache is donated to the enclosing jit; without donation XLA copies it first.

    Args:
      key, value: [t, hk, d], f32, f16 or bf16.
      kv_cache: a pair (key_cache, value_cache) of [p, s, hk, d] (layout "NHD"), or one array
        [p, s, 2 * hk, d] with K in even and V in odd heads ("combined"); of the dtype of `key`. With
        `layer`, each has one more axis in front.
      slot_mapping: int32 or int64 [t'], t' <= t: page * s + offset of each of the first t' tokens. A
        negative slot, or one beyond the cache, is skipped.
      layout: default: by the form of `kv_cache`.
      layer: int32 scalar on the device: the layer of a cache with a leading layer axis.

    Returns:
      The cache, in the form in which it came.

    Raises:
      ValueError: shapes, dtypes or the layout do not fit; the text says which.

    Source: vLLM's `_C_cache_ops::reshape_and_cache_flash`.

    Example:
      >>> step = jax.jit(reshape_and_cache_flash, donate_argnums=2)
      >>> caches = step(key, value, caches, slot_mapping)
    """
    key_cache, value_cache = split(kv_cache)
    written = _ops.reshape_and_cache_flash(
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        layer,
        layout=infer_layout(kv_cache, layout),
    )
    return type(kv_cache)(written) if isinstance(kv_cache, tuple | list) else written
