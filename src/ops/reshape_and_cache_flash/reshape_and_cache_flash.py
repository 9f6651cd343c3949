"""reshape_and_cache_flash: what it computes, in NumPy; its cases; plain XLA's way."""

import numpy as np

from attention.operands import cache_pages, cache_shapes, random_array

# Named after the models whose heads they are.
CASES = {
    "example": dict(tags="ci wire", t=3, hk=2, d=64, page=4),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", t=16, hk=8, d=128, page=16),
    "llama3_8b_prefill": dict(tags="bench", t=4096, hk=8, d=128, page=16),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, hk=8, d=128, page=16),
    "combined_decode": dict(tags="ci bench", t=16, hk=8, d=128, page=16, layout="combined"),
    "combined_prefill": dict(tags="bench", t=4096, hk=8, d=128, page=16, layout="combined"),
    "smollm2_layers": dict(tags="ci", t=9, hk=3, d=64, page=16, layers=3),
    "smollm2_layers_combined": dict(
        tags="ci", t=9, hk=3, d=64, page=16, layers=3, layout="combined"
    ),
    "no_such_layer": dict(tags="ci", t=4, hk=2, d=64, page=8, layers=2, layer=2),
    "odd_heads": dict(tags="ci", t=7, hk=3, d=5, page=3, index=np.int64),
    "padded_graph": dict(tags="ci", t=8, hk=2, d=64, page=16, slots=5),
    "skipped_slots": dict(tags="ci", t=8, hk=2, d=64, page=16, skip=True),
    "one_slot_pages": dict(tags="ci", t=4, hk=1, d=16, page=1),
    "empty": dict(tags="ci", t=0, hk=2, d=64, page=16),
}


def arguments(
    rng,
    dtype,
    *,
    t,
    hk,
    d,
    page,
    layout="NHD",
    layers=None,
    layer=1,
    slots=None,
    skip=False,
    index=np.int32,
):
    """Random operands in spec order, and attributes."""
    pages = 2 * -(-t // page) + 1
    key_cache, value_cache = (
        None if shape is None else random_array(rng, shape, dtype)
        for shape in cache_shapes(layout, pages, page, hk, d, layers)
    )
    slot_mapping = rng.permutation(pages * page)[: t if slots is None else slots].astype(index)
    if skip:
        slot_mapping[:4] = [-1, pages * page, np.iinfo(index).max, np.iinfo(index).min]
    key, value = (random_array(rng, (t, hk, d), dtype) for _ in range(2))
    layer = None if layers is None else np.array(layer, np.int32)
    return [key, value, key_cache, value_cache, slot_mapping, layer], dict(layout=layout)


def reference(key, value, key_cache, value_cache, slot_mapping, layer=None, *, layout="NHD"):
    """The results in spec order."""
    caches = [None if cache is None else cache.copy() for cache in (key_cache, value_cache)]
    k_pages, v_pages = cache_pages(*caches, layout, layer)  # views
    if k_pages is not None:  # None: there is no such layer
        num_pages, page_size = k_pages.shape[:2]
        for token, slot in enumerate(slot_mapping.tolist()):
            if 0 <= slot < num_pages * page_size:
                k_pages[slot // page_size, slot % page_size] = key[token]
                v_pages[slot // page_size, slot % page_size] = value[token]
    return [cache for cache in caches if cache is not None]


exact = reference  # a copy


def floor(dtype_bytes, *, t, hk, d, **_):
    """The least a call must do: (bytes moved, flops)."""
    return 4 * t * hk * d * dtype_bytes, 0


def plain_xla(key, value, key_cache, value_cache, slot_mapping, layer=None, *, layout="NHD"):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    page_size = key_cache.shape[-3]
    # A negative index would count from the back; one that is too large is dropped.
    slot = jnp.where(slot_mapping < 0, jnp.iinfo(slot_mapping.dtype).max, slot_mapping)
    at = (
        (slot // page_size, slot % page_size)
        if layer is None
        else (layer, slot // page_size, slot % page_size)
    )
    new = [x[: slot.shape[0]] for x in (key, value)]
    if layout == "combined":
        both = jnp.stack(new, axis=2).reshape(slot.shape[0], *key_cache.shape[-2:])
        return [key_cache.at[at].set(both, mode="drop")]
    caches = zip((key_cache, value_cache), new, strict=True)
    return [cache.at[at].set(x, mode="drop") for cache, x in caches]
