"""Ops of the family attention, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from typing import Literal, overload

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all
from intarsia.jax.wire._words import FlashAttnVarlenOutDtype, KvCacheDtype


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[False] = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array: ...


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[True],
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
    attention_chunk: int = 0,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool,
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention over a ragged batch, its keys and values dense or in a paged cache.

    Args:
      q: [tq, h, d], T, f8e4m3fn, f8e5m2: queries, sequence after sequence.
      k: cache pages, by layout or [@key_cache] with block_table or [tk, hk, d] with
        !block_table, T, f8e4m3fn, f8e5m2, u8: keys; paged: the cache.
      v: cache pages, by layout or [@value_cache] with block_table or [tk, hk, dv] with
        !block_table, k: values; absent if the cache holds both; optional.
      cu_seqlens_q: [b+1], i32, i64: where each sequence starts in q.
      cu_seqlens_k: [any_length] with block_table or [b+1] with !block_table, i32, i64: where
        each sequence starts in k; ignored when paged; optional.
      seqused_k: [b], i32, i64: keys of each sequence; optional.
      block_table: [b, m], i32, i64: pages of each sequence; optional.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      alibi_slopes: [h] or [b, h], f32: what a score loses for each key between the query's own
        and the one it meets; optional.
      sinks: [h], f32: a logit of each head in the denominator, without a value; optional.
      leftpad_k: [b], i32, i64: keys at the start of each sequence that count as not there;
        optional.
      q_scale: [1] or [hk] or [b, hk], f32: what fp8 queries are to be multiplied by; default 1;
        optional.
      k_scale: [1] or [hk] or [b, hk], f32: what fp8 keys are to be multiplied by; default 1;
        optional.
      v_scale: [1] or [hk] or [b, hk], f32: the same for values; optional.
      scale: of the scores; default d ** -0.5.
      is_causal: a query sees no later key.
      window_left: keys seen before the query's own; -1: all.
      window_right: keys seen after the query's own; -1: all.
      softcap: softcap * tanh(score / softcap); 0: none.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      return_lse: also return lse.
      kv_cache_dtype: how a cache of dtype u8 is to be read; one of auto, fp8, fp8_e4m3,
        fp8_e5m2.
      out_dtype: of out if q is fp8; "auto" is bf16; one of auto, f16, bf16.
      attention_chunk: keys of a chunk: a query sees those of its own alone; 0: all.

    Returns:
      out: [tq, h, d] with block_table or [tq, h, dv] with !block_table, out_dtype: weighted
        values.
      lse: [h, tq], f32: natural log of the sum of exponentials; only with return_lse.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    block_table (below p), layer (from 0, below l).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Dao 2023, arXiv:2307.08691; flash_attn_varlen_func of FlashAttention. T is f32,
        f16 or bf16.

    Example:
      >>> q = jnp.ones((5, 4, 64))
      >>> k = jnp.ones((9, 2, 64))
      >>> v = jnp.ones((9, 2, 64))
      >>> cu_seqlens_q = jnp.array([0, 3, 5], jnp.int32)
      >>> cu_seqlens_k = jnp.array([0, 3, 9], jnp.int32)
      >>> out = wire.flash_attn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal=True)
      >>> print(jax.typeof(out))
      float32[5,4,64]
    """
    return one_or_all(
        call(
            "flash_attn_varlen",
            (
                q,
                k,
                v,
                cu_seqlens_q,
                cu_seqlens_k,
                seqused_k,
                block_table,
                layer,
                alibi_slopes,
                sinks,
                leftpad_k,
                q_scale,
                k_scale,
                v_scale,
            ),
            scale=scale,
            is_causal=is_causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            layout=layout,
            return_lse=return_lse,
            kv_cache_dtype=kv_cache_dtype,
            out_dtype=out_dtype,
            attention_chunk=attention_chunk,
        )
    )


@overload
def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: None = None,
    dlse: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None,
    alibi_slopes: ArrayLike | None,
    sinks: ArrayLike,
    dlse: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    sinks: ArrayLike,
    dlse: ArrayLike | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]: ...


def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    dlse: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The gradient of flash_attn_varlen with dense keys and values.

    Args:
      dout: [tq, h, d], T: the gradient of out.
      q: [tq, h, d], T: queries, sequence after sequence.
      k: [tk, hk, d], T: keys.
      v: [tk, hk, d], T: values.
      out: [tq, h, d], T: what flash_attn_varlen gave.
      lse: [h, tq], f32: what flash_attn_varlen gave.
      cu_seqlens_q: [b+1], i32, i64: where each sequence starts in q.
      cu_seqlens_k: [b+1], i32, i64: where each sequence starts in k.
      seqused_k: [b], i32, i64: keys of each sequence, no more than cu_seqlens_k leaves it;
        optional.
      alibi_slopes: [h] or [b, h], f32: what a score loses for each key between the query's own
        and the one it meets; optional.
      sinks: [h], f32: a logit of each head in the denominator, without a value; optional.
      dlse: [h, tq], f32: the gradient of lse; optional.
      scale: of the scores; default d ** -0.5.
      is_causal: a query sees no later key.
      window_left: keys seen before the query's own; -1: all.
      window_right: keys seen after the query's own; -1: all.
      softcap: softcap * tanh(score / softcap); 0: none.
      deterministic: the same bits at every run, on a GPU too.

    Returns:
      dq: [tq, h, d], T: the gradient of q.
      dk: [tk, hk, d], T: the gradient of k.
      dv: [tk, hk, d], T: the gradient of v.
      dsinks: [h], f32: the gradient of sinks; only with sinks.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Dao 2023, arXiv:2307.08691, algorithm 2. T is f32, f16 or bf16.

    Example:
      >>> dout = jnp.ones((5, 4, 64))
      >>> q = jnp.ones((5, 4, 64))
      >>> k = jnp.ones((9, 2, 64))
      >>> v = jnp.ones((9, 2, 64))
      >>> out = jnp.ones((5, 4, 64))
      >>> lse = jnp.ones((4, 5))
      >>> cu_seqlens_q = jnp.array([0, 3, 5], jnp.int32)
      >>> cu_seqlens_k = jnp.array([0, 3, 9], jnp.int32)
      >>> dq, dk, dv = flash_attn_varlen_backward(dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, is_causal=True)
      >>> print(jax.typeof(dq), jax.typeof(dk), jax.typeof(dv))
      float32[5,4,64] float32[9,2,64] float32[9,2,64]
    """
    return one_or_all(
        call(
            "flash_attn_varlen_backward",
            (
                dout,
                q,
                k,
                v,
                out,
                lse,
                cu_seqlens_q,
                cu_seqlens_k,
                seqused_k,
                alibi_slopes,
                sinks,
                dlse,
            ),
            scale=scale,
            is_causal=is_causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            deterministic=deterministic,
        )
    )


@overload
def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[False] = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array: ...


@overload
def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[True],
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool,
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Causal attention over a paged KV cache, for decode and mixed batches.

    Args:
      query: [t, h, d], T: queries, sequence after sequence.
      key_cache: cache pages, by layout or [@key_cache], T, f8e4m3fn, f8e5m2, u8: pages of keys,
        or of both.
      value_cache: cache pages, by layout or [@value_cache], key_cache: pages of values;
        optional.
      seqused_k: [b], i32, i64: keys of each sequence, this step's included.
      block_table: [b, m], i32, i64: pages of each sequence.
      cu_seqlens_q: [b+1], i32, i64: where each sequence starts in query.
      num_seqs: [1], i32, i64: how many sequences are real, clamped to 0 to b; default all;
        optional.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      sinks: [h], f32: a logit of each head in the denominator, without a value; optional.
      k_scale: [1] or [hk] or [b, hk], f32: what fp8 keys are to be multiplied by; default 1;
        optional.
      v_scale: [1] or [hk] or [b, hk], f32: the same for values; optional.
      alibi_slopes: [h] or [b, h], f32: what a score loses for each key between the query's own
        and the one it meets; optional.
      scale: of the scores; default d ** -0.5.
      sliding_window: keys that a query sees, its own included; default all.
      softcap: softcap * tanh(score / softcap); 0: none.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      return_lse: also return lse.
      kv_cache_dtype: how a cache of dtype u8 is to be read; one of auto, fp8, fp8_e4m3,
        fp8_e5m2.
      attention_chunk: keys of a chunk: a query sees those of its own alone; 0: all.

    Returns:
      out: [t, h, d], T: weighted values.
      lse: [h, t], f32: natural log of the sum of exponentials; only with return_lse.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    block_table (below p), layer (from 0, below l).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Kwon et al. 2023, arXiv:2309.06180; torch_xla's ragged_paged_attention. T is f32,
        f16 or bf16.

    Example:
      >>> query = jnp.ones((3, 4, 64))
      >>> key_cache = jnp.zeros((5, 4, 2, 64))
      >>> value_cache = jnp.zeros((5, 4, 2, 64))
      >>> seqused_k = jnp.array([7, 2], jnp.int32)
      >>> block_table = jnp.array([[ 4, 1, 4], [ 2, 0, -1]], jnp.int32)
      >>> cu_seqlens_q = jnp.array([0, 1, 3], jnp.int32)
      >>> out = wire.paged_attention(query, key_cache, value_cache, seqused_k, block_table, cu_seqlens_q)
      >>> print(jax.typeof(out))
      float32[3,4,64]
    """
    return one_or_all(
        call(
            "paged_attention",
            (
                query,
                key_cache,
                value_cache,
                seqused_k,
                block_table,
                cu_seqlens_q,
                num_seqs,
                layer,
                sinks,
                k_scale,
                v_scale,
                alibi_slopes,
            ),
            scale=scale,
            sliding_window=sliding_window,
            softcap=softcap,
            layout=layout,
            return_lse=return_lse,
            kv_cache_dtype=kv_cache_dtype,
            attention_chunk=attention_chunk,
        )
    )
