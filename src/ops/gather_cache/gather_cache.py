"""gather_cache: its cases, and what it computes."""

import ml_dtypes
import numpy as np
from intarsia_src.core.cache_layout import FP8_CACHES
from intarsia_src.core.operands import random_array

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

_E4M3, _E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
_LENS = (5, 0, 17, 1, 8)
_DEEPSEEK = dict(page=64, n=576)  # latent and rotated part of a key

# fmt: off
# `lens`: tokens of each sequence; `padding`: rows behind them. `kv`: the dtype of the cache, if it is converted.
CASES = {
    "example": dict(tags="ci wire", lens=(3, 2), page=4, n=64),
    "deepseek_context": dict(tags="bench", lens=(4096,) * 4, **_DEEPSEEK),
    "deepseek_context_fp8": dict(tags="bench", lens=(4096,) * 4, **_DEEPSEEK, kv=_E4M3, scale=True),
    "deepseek_context_short": dict(tags="ci bench_cpu", lens=(100, 60), **_DEEPSEEK),
    "starts": dict(tags="ci", lens=_LENS, page=4, n=40, starts=(0, 3, 9, 4, 1), padding=3),
    "int64": dict(tags="ci", lens=_LENS, page=3, n=24, starts=(1, 0, 2, 5, 0), index=np.int64),
    "odd": dict(tags="ci", lens=_LENS, page=3, n=7, padding=2),
    "one_slot_pages": dict(tags="ci", lens=(4, 2), page=1, n=16),
    "spoilt": dict(tags="ci", lens=_LENS, page=4, n=24, spoil=True, padding=1, starts=(0, 3, 9, 4, 1)),
    "e4m3_as_stored": dict(tags="ci", lens=_LENS, page=4, n=24, same=_E4M3),
    "uint8_as_stored": dict(tags="ci", lens=_LENS, page=4, n=33, same=np.uint8),
    "e4m3": dict(tags="ci", lens=_LENS, page=4, n=48, kv=_E4M3, scale=True, padding=2),
    "e5m2": dict(tags="ci", lens=_LENS, page=4, n=7, kv=_E5M2, scale=True),
    "e4m3_without_scale": dict(tags="ci", lens=_LENS, page=4, n=16, kv=_E4M3),
    "uint8_as_e4m3": dict(tags="ci", lens=_LENS, page=4, n=24, kv_cache_dtype="fp8", scale=True),
    "uint8_as_e5m2": dict(tags="ci", lens=_LENS, page=4, n=24, kv_cache_dtype="fp8_e5m2"),
    "no_sequences": dict(tags="ci beyond_plain", lens=(), page=4, n=16, padding=3),
    "empty": dict(tags="ci beyond_plain", lens=(0, 0), page=4, n=16),
}
# fmt: on


def arguments(
    rng, dtype, *, lens, page, n, kv=None, same=None, kv_cache_dtype="auto", scale=False,
    starts=None, padding=0, spoil=False, index=np.int32,
):  # fmt: skip
    """Random operands in spec order, and attributes."""
    ends = np.array(lens, int) + (0 if starts is None else np.array(starts))
    used = -(-ends // page)
    num_pages = int(used.sum()) + 2
    table = np.full((len(lens), max([*used, 1]) + 1), -1)
    order = rng.permutation(num_pages)
    for i, (first, count) in enumerate(zip(np.cumsum([0, *used]), used, strict=False)):
        table[i, :count] = order[first : first + count]
    stored = FP8_CACHES.get(kv_cache_dtype, kv or same or dtype)
    cache = random_array(rng, (num_pages, page, n), _E4M3 if stored is np.uint8 else stored)
    dst = random_array(rng, (sum(lens) + padding, n), _E4M3 if same is np.uint8 else same or dtype)
    if same is np.uint8:
        dst = dst.view(np.uint8)
    if kv_cache_dtype != "auto" or same is np.uint8:
        cache = cache.view(np.uint8)
    cu_seqlens = np.cumsum([0, *lens]).astype(index)
    starts = None if starts is None else np.array(starts, index)
    table = table.astype(index)
    if spoil:
        table[0, 0], table[2, 1], table[4, 1] = num_pages, np.iinfo(index).max, np.iinfo(index).min
        starts[3] = np.iinfo(index).max
        cu_seqlens[-1] = np.iinfo(index).max  # beyond dst, and the last table's room
    scale = np.array([0.37], np.float32) if scale else None
    return [cache, dst, table, cu_seqlens, starts, scale], dict(kv_cache_dtype=kv_cache_dtype)


def _gather(cache, dst, block_table, cu_seqlens, seq_starts):
    """dst with the rows of the cache [p, s, n] that belong there."""
    dst, page = dst.copy(), cache.shape[1]
    for i, pages in enumerate(block_table.tolist()):
        first = 0 if seq_starts is None else int(seq_starts[i])
        begin = int(cu_seqlens[i])
        for row in range(begin, min(int(cu_seqlens[i + 1]), len(dst))):
            slot = first + row - begin
            at = pages[slot // page] if slot // page < len(pages) else -1
            if 0 <= at < len(cache):
                dst[row] = cache[at, slot % page]
    return dst


def exact(
    cache, dst, block_table, cu_seqlens, seq_starts=None, scale=None, *, kv_cache_dtype="auto"
):
    """The results in spec order, to the bit: one rounding of the f32 product."""
    if cache.dtype != dst.dtype:
        stored = cache.view(FP8_CACHES.get(kv_cache_dtype, cache.dtype))
        factor = np.float32(1) if scale is None else scale[0].astype(np.float32)
        cache = (stored.astype(np.float32) * factor).astype(dst.dtype)
    return [_gather(cache, dst, block_table, cu_seqlens, seq_starts)]


def reference(
    cache, dst, block_table, cu_seqlens, seq_starts=None, scale=None, *, kv_cache_dtype="auto"
):
    """The results in spec order, before they are rounded. Operands are f64, uint8 or indices."""
    if cache.dtype == np.uint8 != dst.dtype:
        cache = cache.view(FP8_CACHES[kv_cache_dtype]).astype(np.float64)
    if scale is not None:
        cache = cache * scale[0]
    return [_gather(cache, dst, block_table, cu_seqlens, seq_starts)]


def floor(dtype_bytes, *, lens, n, kv=None, same=None, kv_cache_dtype="auto", **_):
    """The least a call must do: (bytes moved, flops)."""
    result_bytes = np.dtype(same).itemsize if same else dtype_bytes
    stored_bytes = 1 if kv or kv_cache_dtype != "auto" else result_bytes
    return sum(lens) * n * (result_bytes + stored_bytes), 0


def plain_xla(
    cache, dst, block_table, cu_seqlens, seq_starts=None, scale=None, *, kv_cache_dtype="auto"
):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp
    from jax import lax

    p, s, _ = cache.shape
    row = jnp.arange(len(dst))
    sequence = jnp.searchsorted(cu_seqlens[1:], row, side="right")
    i = jnp.minimum(sequence, len(block_table) - 1)
    slot = row - cu_seqlens[i] + (0 if seq_starts is None else seq_starts[i])
    inside = (sequence < len(block_table)) & (slot >= 0) & (slot // s < block_table.shape[1])
    page = block_table[i, jnp.clip(slot // s, 0, block_table.shape[1] - 1)]
    inside &= (page >= 0) & (page < p)
    found = cache[jnp.clip(page, 0, p - 1), slot % s]
    if cache.dtype != dst.dtype:
        if cache.dtype == jnp.uint8:
            found = lax.bitcast_convert_type(found, FP8_CACHES[kv_cache_dtype])
        factor = 1.0 if scale is None else scale[0]
        found = (found.astype(jnp.float32) * factor).astype(dst.dtype)
    return [jnp.where(inside[:, None], found, dst)]
