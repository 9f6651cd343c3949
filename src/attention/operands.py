"""Random operands of the ops that know KV caches: ragged batches, scales, caches in every layout."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from intarsia import _native

# Random numbers are drawn up to here and then repeated: a prime, so that no two pages are alike.
_DRAWN = 1048583

# What uint8 caches hold, by `kv_cache_dtype`.
FP8_CACHES = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def random_array(rng, shape, dtype):
    """Normal numbers; fast also for the gigabytes of a benchmark's cache."""
    size = int(np.prod(shape))
    return np.resize(rng.standard_normal(min(size, _DRAWN), np.float32).astype(dtype), shape)


def random_scale(rng, form, lens, heads):
    """f32 numbers between 1/2 and 2, by `form`: one for all, by head, by sequence and head; or none."""
    shape = {None: None, "tensor": (1,), "head": (heads,), "sequence": (len(lens), heads)}[form]
    return None if shape is None else rng.uniform(0.5, 2, shape).astype(np.float32)


def starts(lengths, index=np.int32):
    """Where each sequence starts, and where the last one ends."""
    return np.cumsum([0, *lengths]).astype(index)


# ---------------------------------------------------------------------------- paged caches


def layout_names():
    """The layouts that have a name."""
    return [row["name"] for row in _native.main_library().manifest["layouts"]]


def cache_axes(layout, layers):
    """The axes of a cache array; `layers`: it has some."""
    return _native.main_library().cache_axes(layout, layers)


def has_value_cache(layout):
    """Whether V lies in an array of its own."""
    return not any(axis.startswith("2") for axis in cache_axes(layout, False))


def cache_shapes(layout, pages, page_size, hk, d, layers=None):
    """The shapes of key_cache and value_cache; the latter None where one array holds both."""
    sizes = {"l": layers, "p": pages, "s": page_size, "hk": hk, "d": d, "2": 2}
    sizes |= {"2*hk": 2 * hk, "2*d": 2 * d}
    shape = tuple(sizes[axis] for axis in cache_axes(layout, layers is not None))
    return shape, shape if has_value_cache(layout) else None


def pages_of(array, layout, which, layer=None):
    """A view [p, s, hk, d] of one layer's K (`which` 0) or V (1), from the array that holds it."""
    axes = cache_axes(layout, layer is not None)
    half = array.shape[-1] // 2
    parts = {
        "l": layer,
        "2": which,
        "2*hk": slice(which, None, 2),
        "2*d": slice(which * half, (which + 1) * half),
    }
    view = array[tuple(parts.get(axis, slice(None)) for axis in axes)]
    rest = [axis.removeprefix("2*") for axis in axes if axis not in ("l", "2")]
    return view.transpose([rest.index(axis) for axis in ("p", "s", "hk", "d")])


def cache_pages(key_cache, value_cache, layout, layer=None):
    """Views [p, s, hk, d] of one layer's K and V; (None, None) if there is no such layer."""
    if layer is not None:
        layer = int(layer)
        if not 0 <= layer < key_cache.shape[cache_axes(layout, True).index("l")]:
            return None, None
    v_array = key_cache if value_cache is None else value_cache
    return pages_of(key_cache, layout, 0, layer), pages_of(v_array, layout, 1, layer)


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
    dtype = FP8_CACHES.get(kv_cache_dtype, dtype)
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
        for shape in cache_shapes(layout, num_pages, page, hk, d, layers)
    ]
    if poison:
        for i in [None] if layers is None else range(layers):
            for view in cache_pages(*caches, layout, i):
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
