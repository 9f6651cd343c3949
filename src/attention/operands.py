"""Random operands of attention: ragged batches, and caches that hold them in every layout."""

from dataclasses import dataclass

import numpy as np
from intarsia_src.core import cache_layout
from intarsia_src.core.operands import random_array


def starts(lengths, index=np.int32):
    """Where each sequence starts, and where the last one ends."""
    return np.cumsum([0, *lengths]).astype(index)


@dataclass(frozen=True)
class PagedCache:
    """A cache that holds sequences, as the operands of an op."""

    key_cache: np.ndarray
    value_cache: np.ndarray | None
    block_table: np.ndarray
    seqused_k: np.ndarray
    layer: np.ndarray | None
    leftpad_k: np.ndarray | None = None


def paged_cache(
    rng,
    dtype,
    lens_k,
    *,
    hk,
    d,
    page,
    layout="NHD",
    layers=None,
    layer=1,
    leftpad_k=None,
    kv_cache_dtype="auto",
    index=np.int32,
    spare=2,
    poison=True,
):
    """A random cache in which the sequences' pages lie scattered; uint8 with a `kv_cache_dtype`.

    Every slot that holds no key is NaN (with `poison`), and every entry of the table that no
    sequence uses is a page of somebody else, or none.
    """
    dtype = cache_layout.FP8_CACHES.get(kv_cache_dtype, dtype)
    pads = np.zeros(len(lens_k), int) if leftpad_k is None else leftpad_k
    slots = np.array(lens_k, int) + pads
    used = [-(-n // page) for n in slots]
    num_pages = sum(used) + spare
    table = rng.choice(
        np.array([-1, 0, num_pages - 1, num_pages + 7]), (len(used), max([*used, 1]) + 1)
    )
    order = rng.permutation(num_pages)
    holds = np.zeros((num_pages, page), bool)
    for i, (n, start) in enumerate(zip(used, np.cumsum([0, *used]), strict=False)):
        table[i, :n] = order[start : start + n]
        slot = np.arange(n * page).reshape(n, page)
        holds[table[i, :n]] = (slot >= pads[i]) & (slot < slots[i])

    caches = [
        None if shape is None else random_array(rng, shape, dtype)
        for shape in cache_layout.cache_shapes(layout, num_pages, page, hk, d, layers)
    ]
    if poison:
        for i in [None] if layers is None else range(layers):
            for view in cache_layout.cache_pages(*caches, layout, i):
                view[~holds] = np.nan
    if kv_cache_dtype != "auto":
        caches = [None if cache is None else cache.view(np.uint8) for cache in caches]
    return PagedCache(
        *caches,
        block_table=table.astype(index),
        seqused_k=slots.astype(index),
        layer=None if layers is None else np.array(layer, np.int32),
        leftpad_k=None if leftpad_k is None else np.array(leftpad_k, index),
    )
