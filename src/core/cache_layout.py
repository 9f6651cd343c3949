"""KV caches in every layout: their shapes, dtypes and pages."""

import ml_dtypes
from intarsia import _native

# What uint8 caches hold, by `kv_cache_dtype`.
FP8_CACHES = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


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
