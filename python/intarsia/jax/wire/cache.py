"""Ops of the family cache, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from typing import overload

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all
from intarsia.jax.wire._words import Axis, ConvertFp8OutDtype, KvCacheDtype


def convert_fp8(
    x: ArrayLike,
    *,
    scale: float = 1,
    out_dtype: ConvertFp8OutDtype = "f8e4m3fn",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array:
    """Converts a cache to fp8 or from it.

    Args:
      x: [...], f32, f16, bf16, f8e4m3fn, f8e5m2, u8: numbers, or fp8 codes.
      scale: what the codes are to be multiplied by.
      out_dtype: of the result; one of f8e4m3fn, f8e5m2, u8, f32, f16, bf16.
      kv_cache_dtype: what an array of dtype u8 holds; one of auto, fp8, fp8_e4m3, fp8_e5m2.

    Returns:
      out: [...], out_dtype: codes, or numbers.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::convert_fp8. T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> out = convert_fp8(x)
      >>> print(jax.typeof(out))
      float8_e4m3fn[2,64]
    """
    return one_or_all(
        call("convert_fp8", (x,), scale=scale, out_dtype=out_dtype, kv_cache_dtype=kv_cache_dtype)
    )


def copy_blocks(blocks: ArrayLike, block_mapping: ArrayLike, *, axis: Axis = "0") -> jax.Array:
    """Copies blocks of a paged cache over others of the same cache.

    Args:
      blocks: [p, n] with axis=0 or [p, m, n] with axis=0 or [p, k, m, n] with axis=0 or [p, i,
        k, m, n] with axis=0 or [o, p, n] with axis=1 or [o, p, m, n] with axis=1 or [o, p, k,
        m, n] with axis=1 or [o, p, i, k, m, n] with axis=1 or [l, o, p, n] with axis=2 or [l,
        o, p, m, n] with axis=2 or [l, o, p, k, m, n] with axis=2 or [l, o, p, i, k, m, n] with
        axis=2, T, f8e4m3fn, f8e5m2, u8, i8: a cache of p blocks.
      block_mapping: [pairs, 2], i32, i64: from which block, to which one; negative: skip.
      axis: that of the blocks; one of 0, 1, 2.

    Returns:
      blocks: as blocks, blocks: the same blocks; shares the buffer of blocks.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    block_mapping (below p).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::copy_blocks. T is f32, f16 or bf16.

    Example:
      >>> blocks = jnp.ones((6, 4, 2, 8))
      >>> block_mapping = jnp.array([[5, 3], [5, 2]], jnp.int32)
      >>> blocks = wire.copy_blocks(blocks, block_mapping)
      >>> print(jax.typeof(blocks))
      float32[6,4,2,8]
    """
    return one_or_all(call("copy_blocks", (blocks, block_mapping), axis=axis))


def gather_cache(
    cache: ArrayLike,
    dst: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens: ArrayLike,
    seq_starts: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    *,
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array:
    """Gathers the keys or values of sequences from a paged cache.

    Args:
      cache: [p, s, n], f32, f16, bf16, u8, f8e5m2, f8e4m3fn: pages of s slots, each of n
        elements.
      dst: [rows, n], f32, f16, f8e4m3fn, f8e5m2, u8, bf16: what is written: the cache's dtype,
        or that to which its fp8 is converted.
      block_table: [seqs, m], i32, i64: pages of each sequence.
      cu_seqlens: [seqs+1], i32, i64: where each sequence starts in dst; never falling.
      seq_starts: [seqs], i32, i64: each sequence's first slot that is gathered; default 0;
        optional.
      scale: [1], f32: what fp8 is to be multiplied by; default 1; optional.
      kv_cache_dtype: how a cache of dtype u8 is to be read; one of auto, fp8, fp8_e4m3,
        fp8_e5m2.

    Returns:
      dst: as dst, dst: the same rows; shares the buffer of dst.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    block_table (below p).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::cp_gather_cache and gather_and_maybe_dequant_cache. T is f32,
        f16 or bf16.

    Example:
      >>> cache = jnp.zeros((4, 4, 64))
      >>> dst = jnp.ones((5, 64))
      >>> block_table = jnp.array([[ 2, -1], [ 0, -1]], jnp.int32)
      >>> cu_seqlens = jnp.array([0, 3, 5], jnp.int32)
      >>> dst = wire.gather_cache(cache, dst, block_table, cu_seqlens)
      >>> print(jax.typeof(dst))
      float32[5,64]
    """
    return one_or_all(
        call(
            "gather_cache",
            (cache, dst, block_table, cu_seqlens, seq_starts, scale),
            kv_cache_dtype=kv_cache_dtype,
        )
    )


@overload
def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    key_cache: ArrayLike,
    value_cache: None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array: ...


@overload
def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array]: ...


def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Writes new keys and values into their slots of a paged KV cache.

    Args:
      key: [t, hk, d], T: new keys.
      value: [t, hk, d], T: new values.
      key_cache: cache pages, by layout or [@key_cache], T, f8e4m3fn, f8e5m2, u8: pages of keys,
        or of both.
      value_cache: cache pages, by layout or [@value_cache], key_cache: pages of values;
        optional.
      slot_mapping: [slots], i32, i64: page * s + offset of each of the first tokens; negative:
        skip.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      k_scale: [1] or [hk], f32: what keys are divided by before they are stored in fp8; default
        1; optional.
      v_scale: [1] or [hk], f32: the same for values; optional.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      kv_cache_dtype: what a cache of dtype u8 holds; one of auto, fp8, fp8_e4m3, fp8_e5m2.

    Returns:
      key_cache: as key_cache, key_cache: the same pages; shares the buffer of key_cache.
      value_cache: as value_cache, value_cache: the same pages; shares the buffer of
        value_cache; only with value_cache.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    slot_mapping (below p*s), layer (from 0, below l).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::reshape_and_cache_flash. T is f32, f16 or bf16.

    Example:
      >>> key = jnp.ones((3, 2, 64))
      >>> value = jnp.ones((3, 2, 64))
      >>> key_cache = jnp.zeros((3, 4, 2, 64))
      >>> value_cache = jnp.zeros((3, 4, 2, 64))
      >>> slot_mapping = jnp.array([ 2, 11, 7], jnp.int32)
      >>> key_cache, value_cache = wire.reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping)
      >>> print(jax.typeof(key_cache), jax.typeof(value_cache))
      float32[3,4,2,64] float32[3,4,2,64]
    """
    return one_or_all(
        call(
            "reshape_and_cache_flash",
            (key, value, key_cache, value_cache, slot_mapping, layer, k_scale, v_scale),
            layout=layout,
            kv_cache_dtype=kv_cache_dtype,
        )
    )


def swap_blocks(
    source: ArrayLike,
    blocks: ArrayLike,
    from_blocks: ArrayLike,
    to_blocks: ArrayLike,
    *,
    axis: Axis = "0",
) -> jax.Array:
    """Copies blocks of a paged cache to blocks of another one.

    Args:
      source: [ps, n] with axis=0 or [ps, m, n] with axis=0 or [ps, k, m, n] with axis=0 or [ps,
        i, k, m, n] with axis=0 or [o, ps, n] with axis=1 or [o, ps, m, n] with axis=1 or [o,
        ps, k, m, n] with axis=1 or [o, ps, i, k, m, n] with axis=1 or [l, o, ps, n] with axis=2
        or [l, o, ps, m, n] with axis=2 or [l, o, ps, k, m, n] with axis=2 or [l, o, ps, i, k,
        m, n] with axis=2, T, f8e4m3fn, f8e5m2, u8, i8: a cache of ps blocks.
      blocks: [p, n] with axis=0 or [p, m, n] with axis=0 or [p, k, m, n] with axis=0 or [p, i,
        k, m, n] with axis=0 or [o, p, n] with axis=1 or [o, p, m, n] with axis=1 or [o, p, k,
        m, n] with axis=1 or [o, p, i, k, m, n] with axis=1 or [l, o, p, n] with axis=2 or [l,
        o, p, m, n] with axis=2 or [l, o, p, k, m, n] with axis=2 or [l, o, p, i, k, m, n] with
        axis=2, source: that of p blocks that is written.
      from_blocks: [pairs], i32, i64: from which block of source; negative: skip.
      to_blocks: [pairs], i32, i64: to which block of blocks; negative: skip.
      axis: that of the blocks; one of 0, 1, 2.

    Returns:
      blocks: as blocks, blocks: the same blocks; shares the buffer of blocks.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    from_blocks (below ps), to_blocks (below p).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::swap_blocks. T is f32, f16 or bf16.

    Example:
      >>> source = jnp.ones((4, 4, 2, 8))
      >>> blocks = jnp.ones((6, 4, 2, 8))
      >>> from_blocks = jnp.array([0, 0], jnp.int32)
      >>> to_blocks = jnp.array([3, 2], jnp.int32)
      >>> blocks = wire.swap_blocks(source, blocks, from_blocks, to_blocks)
      >>> print(jax.typeof(blocks))
      float32[6,4,2,8]
    """
    return one_or_all(call("swap_blocks", (source, blocks, from_blocks, to_blocks), axis=axis))
