"""Blocks of paged caches copied whole, and sequences gathered from them."""

import math
import numbers
from typing import Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from intarsia.jax import wire
from intarsia.jax._cache import KvCache, KvCacheLike, in_form_of
from intarsia.jax._cache import scale as _scale
from intarsia.jax._call import as_array, as_count


@overload
def copy_blocks(kv_cache: ArrayLike, block_mapping: ArrayLike, *, axis: int = 0) -> jax.Array: ...


@overload
def copy_blocks(
    kv_cache: tuple[ArrayLike, ArrayLike], block_mapping: ArrayLike, *, axis: int = 0
) -> tuple[jax.Array, jax.Array]: ...


def copy_blocks(kv_cache: KvCacheLike, block_mapping: ArrayLike, *, axis: int = 0) -> KvCache:
    """Copies pages of a KV cache over others of the same cache, as a fork of a sequence wants it.

    In place if the cache is donated to the enclosing jit; without donation XLA copies it first.

    Args:
      kv_cache: one array, or a pair, with one to four axes behind that of pages; f32, f16, bf16, fp8, uint8 or int8.
      block_mapping: int32 or int64 [pairs, 2]: from which page, to which one. A pair with a page that is not there is
        skipped; INTARSIA_CHECK=1 in the environment makes a page beyond the cache an error. A page must not be
        written twice, nor be read and written.
      axis: the axis of pages: 0 of layouts "NHD", "HND", "combined" and "packed", 1 of "stacked", and one
        more with an axis of layers in front, all of which are copied.

    Returns:
      The cache, in the form in which it came.

    Raises:
      ValueError: shapes or dtypes do not fit.

    Source: vLLM's `_C_cache_ops::copy_blocks`.

    Example:
      >>> cache = jnp.zeros((8, 16, 2, 64)).at[3].set(1)  # [pages, slots, hk, d]
      >>> fork = jax.jit(copy_blocks, donate_argnums=0)
      >>> cache = fork(cache, jnp.array([[3, 7]]))  # page 3 over page 7
      >>> print(cache[7].min())
      1.0
    """
    if isinstance(kv_cache, tuple | list):
        return in_form_of(kv_cache, [copy_blocks(x, block_mapping, axis=axis) for x in kv_cache])
    blocks = as_array("copy_blocks: kv_cache", kv_cache)
    return wire.copy_blocks(blocks, block_mapping, axis=_word("copy_blocks", axis))


@overload
def swap_blocks(
    source: ArrayLike, kv_cache: ArrayLike, block_mapping: ArrayLike, *, axis: int = 0
) -> jax.Array: ...


@overload
def swap_blocks(
    source: tuple[ArrayLike, ArrayLike],
    kv_cache: tuple[ArrayLike, ArrayLike],
    block_mapping: ArrayLike,
    *,
    axis: int = 0,
) -> tuple[jax.Array, jax.Array]: ...


def swap_blocks(
    source: KvCacheLike, kv_cache: KvCacheLike, block_mapping: ArrayLike, *, axis: int = 0
) -> KvCache:
    """Copies pages of one KV cache to pages of another one on the same device.

    In place if `kv_cache` is donated to the enclosing jit; without donation XLA copies it first.

    Args:
      source: what is copied from: one array, or a pair.
      kv_cache: what is written: the same but for the number of pages.
      block_mapping: int32 or int64 [pairs, 2]: from which page of source, to which one of kv_cache. A pair with a page that
        is not there is skipped; INTARSIA_CHECK=1 in the environment makes a page beyond the cache an error. A page
        must not be written twice.
      axis: the axis of pages, as in `copy_blocks`.

    Returns:
      kv_cache, in the form in which it came.

    Raises:
      ValueError: shapes or dtypes do not fit.

    Source: vLLM's `_C_cache_ops::swap_blocks`.

    Example:
      >>> source, cache = jnp.ones((4, 16, 2, 64)), jnp.zeros((8, 16, 2, 64))
      >>> swap = jax.jit(swap_blocks, donate_argnums=1)
      >>> cache = swap(source, cache, jnp.array([[0, 7]]))
      >>> print(cache[7].min(), cache[6].max())
      1.0 0.0
    """
    if isinstance(kv_cache, tuple | list):
        if not isinstance(source, tuple | list) or len(source) != len(kv_cache):
            raise ValueError("swap_blocks: kv_cache is a pair, expected source to be one, too")
        pairs = zip(source, kv_cache, strict=True)
        written = [swap_blocks(x, y, block_mapping, axis=axis) for x, y in pairs]
        return in_form_of(kv_cache, written)
    if isinstance(source, tuple | list):
        raise ValueError("swap_blocks: source is a pair, expected kv_cache to be one, too")
    mapping = as_array("swap_blocks: block_mapping", block_mapping)
    if mapping.ndim != 2 or mapping.shape[1] != 2:
        raise ValueError(
            f"swap_blocks: block_mapping has shape {list(mapping.shape)}, expected [pairs, 2]"
        )
    word = _word("swap_blocks", axis)
    old, new = as_array("swap_blocks: source", source), as_array("swap_blocks: kv_cache", kv_cache)
    if old.dtype != new.dtype or _of_one_page(old, axis) != _of_one_page(new, axis):
        raise ValueError(
            f"swap_blocks: source is {old.dtype} {list(old.shape)} and kv_cache is {new.dtype} {list(new.shape)}, "
            f"expected the same but for pages, axis {axis}"
        )
    return wire.swap_blocks(old, new, mapping[:, 0], mapping[:, 1], axis=word)


def _of_one_page(cache: jax.Array, axis: int) -> tuple[int, ...]:
    return cache.shape[:axis] + cache.shape[axis + 1 :]


def gather_cache(
    cache: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens: ArrayLike,
    *,
    num_tokens: int,
    seq_starts: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """The keys or values of sequences out of a paged cache, one sequence after the other.

    Args:
      cache: [p, s, ...]: of a pair in layout "NHD" one array; or one that holds both, or latent keys.
      block_table: int32 or int64 [b, m], the pages of each sequence.
      cu_seqlens: [b + 1], where each sequence starts in the result; never falling.
      num_tokens: rows of the result.
      seq_starts: [b], each sequence's first slot that is gathered; default 0.
      scale: what fp8 is to be multiplied by: a number or [1] in f32; default 1.
      kv_cache_dtype: how a uint8 cache is to be read: "fp8_e4m3" or "fp8_e5m2".
      dtype: of the result; default: the cache's, whose elements are then copied as they are.

    Returns:
      [num_tokens, ...]. Rows that are of no sequence, or on a page outside the cache, are 0;
      INTARSIA_CHECK=1 in the environment makes a page beyond the cache an error.

    Raises:
      ValueError: shapes or dtypes do not fit.

    Source: vLLM's `_C_cache_ops::cp_gather_cache` and `gather_and_maybe_dequant_cache`.

    Example:
      >>> cache = jnp.zeros((8, 16, 2, 64)).at[4].set(1)  # [pages, slots, hk, d]
      >>> table, ends = jnp.array([[2, 4]]), jnp.array([0, 20])  # one sequence of 20 tokens
      >>> keys = gather_cache(cache, table, ends, num_tokens=20)
      >>> print(keys.shape, keys[15].max(), keys[16].max())
      (20, 2, 64) 0.0 1.0
    """
    cache = as_array("gather_cache: cache", cache)
    if cache.ndim < 3:
        raise ValueError(f"gather_cache: cache has shape {list(cache.shape)}, expected [p, s, ...]")
    count = as_count("gather_cache: num_tokens", num_tokens)
    p, s, *rest = cache.shape
    dst = jnp.zeros((count, math.prod(rest)), cache.dtype if dtype is None else dtype)
    gathered = wire.gather_cache(
        cache.reshape(p, s, math.prod(rest)),
        dst,
        block_table,
        cu_seqlens,
        seq_starts,
        _scale("gather_cache: scale", scale),
        kv_cache_dtype=kv_cache_dtype,
    )
    return gathered.reshape(count, *rest)


def _word(op: str, axis: int) -> Literal["0", "1", "2"]:
    """An axis as the ops' attribute has it."""
    if not isinstance(axis, numbers.Integral) or axis not in (0, 1, 2):
        raise ValueError(f"{op}: axis is {axis}, expected 0, 1 or 2")
    return ("0", "1", "2")[axis]
