"""Attention over ragged batches, dense or paged."""

from typing import Any, Literal, overload

import jax
from jax.typing import ArrayLike

from intarsia._cache_form import dense_layout, infer_layout, split
from intarsia.jax import _attention_grad, _cache, wire
from intarsia.jax._cache import KvCacheLike
from intarsia.jax._call import as_array, as_f32, as_num_seqs, two_sides


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    *,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    out_dtype: wire.FlashAttnVarlenOutDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: Literal[False] = False,
    deterministic: bool = False,
    attention_chunk: int = 0,
) -> jax.Array: ...


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    *,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    out_dtype: wire.FlashAttnVarlenOutDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: Literal[True],
    deterministic: bool = False,
    attention_chunk: int = 0,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    *,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    out_dtype: wire.FlashAttnVarlenOutDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: bool,
    deterministic: bool = False,
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    *,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    out_dtype: wire.FlashAttnVarlenOutDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention of every query of a ragged batch to the keys of its sequence.

    Query i of a sequence is at position i + len_k - len_q (bottom-right alignment). It sees the keys from
    position - window[0] to position + window[1]; -1 leaves a side open, and causal closes the right one.
    len_k counts the keys behind leftpad_k. A row that sees nothing gives 0 and lse -inf (with sinks: the
    sink). A row before cu_seqlens_q[0], or from cu_seqlens_q[b] on, gives 0 and lse -inf.

    Args:
      q: [t, h, d], f32, f16, bf16, or fp8 with K and V of the same type. d is a multiple of 8 up to 256, on CPUs up to 512;
        h is a multiple of hk.
      k, v: dense [tk, hk, d] (or v [tk, hk, 128] where d is 192), of q's dtype or fp8. With `block_table`: the paged caches as in
        `reshape_and_cache_flash`. Pass v=None only where one array holds both: a pair's key cache without v is read as "combined".
      cu_seqlens_q: int32 or int64 [b + 1], where each sequence starts in q.
      cu_seqlens_k: [b + 1], the same for dense k; ignored when paged.
      seqused_k: [b], keys of each sequence; needed when paged.
      block_table: [b, m], the pages of each sequence. Keys on a page outside the cache are masked;
        INTARSIA_CHECK=1 in the environment makes such a page an error.
      max_seqlen_q, max_seqlen_k: ignored; bounds come from shapes, so that growing maxima do not
        change the program.
      scale: of the scores; default d ** -0.5.
      is_causal: a query sees no later key.
      window: keys seen to the left and to the right of the query's own.
      softcap: scores become softcap * tanh(score / softcap); 0: none.
      alibi_slopes: f32 [h] or [b, h]; a score, once capped, loses slope * |position - j|.
      sinks: [h], a logit of each head that counts in the denominator and has no value.
      leftpad_k: int32 or int64 [b], slots at the start of each sequence that count as not there.
      q_scale: what fp8 queries are to be multiplied by, as `k_scale`.
      k_scale, v_scale: what fp8 K and V are to be multiplied by: a number, [1], [hk] or [b, hk] in f32;
        default 1.
      kv_cache_dtype: how a uint8 cache is to be read: "fp8_e4m3" or "fp8_e5m2"; "auto": as its dtype says.
      out_dtype: of out where q is fp8: "bf16" ("auto") or "f16".
      layout, layer: of a paged cache, as in `reshape_and_cache_flash`.
      return_lse: also return the natural log of the sum of exponentials, f32 [h, t].
      deterministic: the gradient has the same bits at every run, on a GPU at some cost.
      attention_chunk: keys of a chunk (Llama 4); a query at position p sees only those from
        floor(p / attention_chunk) * attention_chunk to the next multiple. 0: no chunks. Not in the gradient.

    Returns:
      out [t, h, d] (with a dense v of another head dim [t, h, dv]), or (out, lse). With dense k and v,
        both can be differentiated in q, k, v and sinks.

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim, or a gradient, that is
        not built.

    Source: FlashAttention-2, arXiv:2307.08691.

    Example:
      >>> q, k = jnp.ones((7, 4, 64)), jnp.ones((7, 2, 64))  # sequences of 5 and 2 tokens
      >>> ends = jnp.array([0, 5, 7])
      >>> out = flash_attn_varlen(q, k, k, ends, cu_seqlens_k=ends, is_causal=True)
      >>> print(jax.typeof(out))
      float32[7,4,64]
    """
    del max_seqlen_q, max_seqlen_k
    q = as_array("flash_attn_varlen: q", q)
    paged = block_table is not None
    cache = k if v is None else (k, v)
    operands: dict[str, Any] = dict(
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=None if paged else cu_seqlens_k,
        seqused_k=seqused_k,
        block_table=block_table,
        layer=layer,
        alibi_slopes=alibi_slopes,
        sinks=as_f32("flash_attn_varlen: sinks", sinks),
        leftpad_k=leftpad_k,
        q_scale=_cache.scale("flash_attn_varlen: q_scale", q_scale),
        k_scale=_cache.scale("flash_attn_varlen: k_scale", k_scale),
        v_scale=_cache.scale("flash_attn_varlen: v_scale", v_scale),
    )
    left, right = two_sides("flash_attn_varlen: window", window)
    attributes: dict[str, Any] = dict(
        scale=scale,
        is_causal=is_causal,
        window_left=left,
        window_right=right,
        softcap=softcap,
        layout=infer_layout("flash_attn_varlen", cache, q.shape[-1], layout, layer)
        if paged
        else dense_layout("flash_attn_varlen", layout),
        kv_cache_dtype=kv_cache_dtype,
        out_dtype=out_dtype,
        return_lse=return_lse,
        attention_chunk=attention_chunk,
    )
    return _attention_grad.flash_attn_varlen(operands, attributes, deterministic=deterministic)


@overload
def paged_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: Literal[False] = False,
    alibi_slopes: ArrayLike | None = None,
    attention_chunk: int = 0,
) -> jax.Array: ...


@overload
def paged_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: Literal[True],
    alibi_slopes: ArrayLike | None = None,
    attention_chunk: int = 0,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def paged_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: bool,
    alibi_slopes: ArrayLike | None = None,
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def paged_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: bool = False,
    alibi_slopes: ArrayLike | None = None,
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Causal attention of a batch's newest queries to a paged KV cache that holds their keys already.

    Args:
      query: [t, h, d], f32, f16 or bf16; d a multiple of 8 up to 256, on CPUs up to 512; h a multiple of hk.
      kv_cache: as in `reshape_and_cache_flash`. One array holds K and V. Do not pass a pair's key cache alone: its
        shape [p, s, hk, d] is that of a "combined" cache, so half of its heads are read as values.
      seqused_k: int32 or int64 [b], keys of each sequence, this step's tokens included.
      block_table: [b, m], the pages of each sequence. Keys on a page outside the cache are masked;
        INTARSIA_CHECK=1 in the environment makes such a page an error.
      cu_seqlens_q: [b + 1], where each sequence starts in query.
      num_seqs: how many sequences are real, 0 to b: an int, or an array of shape [1], which counts as the nearest
        of these; default all. Rows of the others give 0 and lse -inf, so one compiled program serves any batch up to b.
      scale: of the scores; default d ** -0.5.
      sliding_window: keys that a query sees, its own included; default all.
      softcap: scores become softcap * tanh(score / softcap); 0: none.
      sinks: [h], a logit of each head that counts in the denominator and has no value.
      k_scale, v_scale: what fp8 K and V are to be multiplied by: a number, [1], [hk] or [b, hk] in f32;
        default 1.
      kv_cache_dtype: how a uint8 cache is to be read: "fp8_e4m3" or "fp8_e5m2"; "auto": as its dtype says.
      layout, layer: as in `reshape_and_cache_flash`.
      return_lse: also return the natural log of the sum of exponentials, f32 [h, t].
      alibi_slopes: f32 [h] or [b, h]; a score, once capped, loses slope * |position - j|.
      attention_chunk: keys of a chunk (Llama 4); a query at position p sees none before
        floor(p / attention_chunk) * attention_chunk. 0: no chunks.

    Returns:
      out [t, h, d], or (out, lse).

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim that is not built.

    Source: PagedAttention, arXiv:2309.06180; torch_xla's `ragged_paged_attention`.

    Example:
      >>> query = jnp.ones((2, 4, 64))  # one token of each of two sequences
      >>> caches = jnp.zeros((8, 16, 2, 64)), jnp.ones((8, 16, 2, 64))  # [pages, slots, hk, d]
      >>> lengths, table = jnp.array([5, 18]), jnp.array([[3, 0], [1, 6]])
      >>> out = paged_attention(query, caches, lengths, table, jnp.array([0, 1, 2]))
      >>> print(jax.typeof(out))
      float32[2,4,64]
    """
    query = as_array("paged_attention: query", query)
    key_cache, value_cache = split("paged_attention", kv_cache)
    return wire.paged_attention(
        query,
        key_cache,
        value_cache,
        seqused_k,
        block_table,
        cu_seqlens_q,
        as_num_seqs("paged_attention", num_seqs, cu_seqlens_q),
        layer,
        as_f32("paged_attention: sinks", sinks),
        _cache.scale("paged_attention: k_scale", k_scale),
        _cache.scale("paged_attention: v_scale", v_scale),
        alibi_slopes,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
        layout=infer_layout("paged_attention", kv_cache, query.shape[-1], layout, layer),
        kv_cache_dtype=kv_cache_dtype,
        return_lse=return_lse,
        attention_chunk=attention_chunk,
    )
