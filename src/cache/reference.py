"""Writing to paged caches: random operands, what it computes in NumPy, plain XLA's way."""

import ml_dtypes
import numpy as np
from intarsia_src.core.cache_layout import FP8_CACHES, cache_axes, cache_pages, cache_shapes
from intarsia_src.core.operands import random_array, random_scale


def arguments(
    rng, dtype, *, t, hk, d, page, layout="NHD", layers=None, layer=1, slots=None, skip=False,
    kv=None, kv_cache_dtype="auto", scales=None, spread=1, index=np.int32,
):  # fmt: skip
    """Random operands in spec order, and attributes.

    `kv`: the dtype of the cache, if not the keys'; `kv_cache_dtype`: what it holds as uint8.
    `scales`: their form, as in random_scale. `spread`: the keys' standard deviation.
    """
    pages = 2 * -(-t // page) + 1
    stored = FP8_CACHES.get(kv_cache_dtype, kv or dtype)
    caches = [
        None if shape is None else random_array(rng, shape, stored)
        for shape in cache_shapes(layout, pages, page, hk, d, layers)
    ]
    if kv_cache_dtype != "auto":
        caches = [None if cache is None else cache.view(np.uint8) for cache in caches]
    slot_mapping = rng.permutation(pages * page)[: t if slots is None else slots].astype(index)
    if skip:
        slot_mapping[:4] = [-1, pages * page, np.iinfo(index).max, np.iinfo(index).min]
    with np.errstate(over="ignore"):  # infinities are numbers, too
        key, value = (
            random_array(rng, (t, hk, d), dtype) * np.asarray(spread, dtype) for _ in range(2)
        )
    layer = None if layers is None else np.array(layer, np.int32)
    return [
        key, value, *caches, slot_mapping, layer,
        *(random_scale(rng, scales, (), hk) for _ in range(2)),
    ], dict(layout=layout, kv_cache_dtype=kv_cache_dtype)  # fmt: skip


def to_fp8(x, scale, dtype):
    """x [t, hk, d] over scale [1] or [hk], to nearest even; saturating, infinities too; NaN is 0x7f."""
    with np.errstate(all="ignore"):
        x = x.astype(np.float32)
        if scale is not None:
            x = x / scale.astype(np.float32)[:, None]
        largest = np.float32(ml_dtypes.finfo(dtype).max)
        bits = np.clip(x, -largest, largest).astype(dtype).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), bits).view(dtype)


def _write(key, value, caches, views, slot_mapping, layout, layer):
    """`caches` with the tokens in their slots of `views`, which share memory with them."""
    k_pages, v_pages = cache_pages(*views, layout, layer)
    if k_pages is not None:  # None: there is no such layer
        num_pages, page_size = k_pages.shape[:2]
        for token, slot in enumerate(slot_mapping.tolist()):
            if 0 <= slot < num_pages * page_size:
                k_pages[slot // page_size, slot % page_size] = key[token]
                v_pages[slot // page_size, slot % page_size] = value[token]
    return [cache for cache in caches if cache is not None]


def exact(
    key, value, key_cache, value_cache, slot_mapping, layer=None, k_scale=None, v_scale=None,
    *, layout="NHD", kv_cache_dtype="auto",
):  # fmt: skip
    """The results in spec order, to the bit."""
    caches = [None if cache is None else cache.copy() for cache in (key_cache, value_cache)]
    stored = np.dtype(FP8_CACHES.get(kv_cache_dtype, key_cache.dtype))
    if stored.itemsize == 1:
        key, value = (to_fp8(x, s, stored) for x, s in ((key, k_scale), (value, v_scale)))
    views = [None if cache is None else cache.view(stored) for cache in caches]
    return _write(key, value, caches, views, slot_mapping, layout, layer)


def reference(
    key, value, key_cache, value_cache, slot_mapping, layer=None, k_scale=None, v_scale=None,
    *, layout="NHD", kv_cache_dtype="auto",
):  # fmt: skip
    """The results in spec order, before they are rounded. Operands are f64, uint8 or indices."""
    if key_cache.dtype == np.uint8:  # codes, not numbers
        return exact(
            key, value, key_cache, value_cache, slot_mapping, layer, k_scale, v_scale,
            layout=layout, kv_cache_dtype=kv_cache_dtype,
        )  # fmt: skip
    caches = [None if cache is None else cache.copy() for cache in (key_cache, value_cache)]
    key, value = (x if s is None else x / s[:, None] for x, s in ((key, k_scale), (value, v_scale)))
    return _write(key, value, caches, caches, slot_mapping, layout, layer)


def plain_xla(
    key, value, key_cache, value_cache, slot_mapping, layer=None, k_scale=None, v_scale=None,
    *, layout="NHD", kv_cache_dtype="auto",
):  # fmt: skip
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp
    from jax import lax

    axes = cache_axes(layout, layer is not None)
    page_size = key_cache.shape[axes.index("s")]
    # A negative index would count from the back; one that is too large is dropped.
    slot = jnp.where(slot_mapping < 0, jnp.iinfo(slot_mapping.dtype).max, slot_mapping)
    at = {"l": layer, "p": slot // page_size, "s": slot % page_size}

    def stored(x, scale):
        dtype = FP8_CACHES.get(kv_cache_dtype, key_cache.dtype)
        x = x[: slot.shape[0]]
        if jnp.dtype(dtype).itemsize == 1:
            x = x.astype(jnp.float32) / (1.0 if scale is None else scale[:, None])
            largest = float(jnp.finfo(dtype).max)
            x = jnp.clip(x, -largest, largest).astype(dtype)
        return x if key_cache.dtype == x.dtype else lax.bitcast_convert_type(x, jnp.uint8)

    def write(cache, x, which=0):
        places = tuple(which if axis == "2" else at.get(axis, slice(None)) for axis in axes)
        return cache.at[places].set(x, mode="drop")

    k, v = stored(key, k_scale), stored(value, v_scale)
    if "2*hk" in axes:
        return [write(key_cache, jnp.stack([k, v], axis=2).reshape(len(k), -1, k.shape[-1]))]
    if "2*d" in axes:
        return [write(key_cache, jnp.concatenate([k, v], axis=-1))]
    if "2" in axes:
        return [write(write(key_cache, k), v, 1)]
    return [write(key_cache, k), write(value_cache, v)]
