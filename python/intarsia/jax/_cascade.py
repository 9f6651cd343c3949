"""Attention of a batch whose sequences share their beginning: the shared part is computed once."""

from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from intarsia._cache_form import split
from intarsia.jax import _attention, _grad, wire
from intarsia.jax._cache import KvCacheLike
from intarsia.jax._call import as_indices, as_num_seqs


@overload
def cascade_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    prefix_block_table: ArrayLike,
    prefix_len: ArrayLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: Literal[False] = False,
) -> jax.Array: ...


@overload
def cascade_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    prefix_block_table: ArrayLike,
    prefix_len: ArrayLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...


@overload
def cascade_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    prefix_block_table: ArrayLike,
    prefix_len: ArrayLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: bool,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def cascade_attention(
    query: ArrayLike,
    kv_cache: KvCacheLike,
    prefix_block_table: ArrayLike,
    prefix_len: ArrayLike,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
    return_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Causal attention of a batch's newest queries, where all sequences begin with the same keys.

    The result is that of `paged_attention` for sequences of the prefix's pages followed by their own. But
    the prefix (a system prompt, a document that all questions are about) is read once for the whole
    batch, not once for each sequence. All queries attend to it as one long sequence without a mask, then
    each sequence's queries to its own keys, and `merge_attn_states` joins the results. When that pays is
    measured in docs/notebook/decode.md. There is no sliding window and no ALiBi: the prefix's part of
    them would differ from sequence to sequence.

    Args:
      query: [t, h, d], f32, f16 or bf16; d a multiple of 8 up to 256, on CPUs up to 512; h a multiple of hk.
      kv_cache: as in `reshape_and_cache_flash`; holds the prefix and all sequences.
      prefix_block_table: int32 or int64 [m'], the pages of the prefix, in any number.
      prefix_len: keys of the prefix, an int or an array of one; the last page need not be full. With
        an array, one compiled program serves any prefix up to m' pages.
      seqused_k: int32 or int64 [b], keys of each sequence behind the prefix, this step's tokens
        included.
      block_table: [b, m], the pages of each sequence behind the prefix. Keys on a page outside the
        cache are masked.
      cu_seqlens_q: [b + 1], where each sequence starts in query.
      num_seqs: how many sequences are real, an int or an array of shape [1]; default all. Rows of the
        others give 0 and lse -inf.
      scale: of the scores; default d ** -0.5.
      softcap: scores become softcap * tanh(score / softcap); 0: none.
      sinks: [h], a logit of each head that counts in the denominator and has no value.
      k_scale, v_scale: what fp8 K and V are to be multiplied by: a number, [1] or [hk] in f32;
        default 1. Not one of each sequence: the prefix belongs to all.
      kv_cache_dtype: how a uint8 cache is to be read: "fp8_e4m3" or "fp8_e5m2"; "auto": as its dtype says.
      layout, layer: as in `reshape_and_cache_flash`.
      return_lse: also return the natural log of the sum of exponentials, f32 [h, t].

    Returns:
      out [t, h, d], or (out, lse).

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim that is not built; a gradient.

    Source: vLLM's `cascade_attention`; Hydragen, arXiv:2402.05099.

    Example:
      >>> out = cascade_attention(query, caches, prefix_pages, 1024, seqused_k, block_table, cu_seqlens_q)
    """
    name = "cascade_attention"
    prefix_block_table = as_indices(f"{name}: prefix_block_table", prefix_block_table)
    prefix_len = as_indices(f"{name}: prefix_len", prefix_len)
    cu_seqlens_q = as_indices(f"{name}: cu_seqlens_q", cu_seqlens_q)
    _check_shapes(prefix_block_table, prefix_len, cu_seqlens_q, k_scale=k_scale, v_scale=v_scale)
    num_seqs = as_num_seqs(name, num_seqs, cu_seqlens_q)
    options: dict[str, Any] = dict(
        scale=scale,
        softcap=softcap,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_cache_dtype=kv_cache_dtype,
        layout=layout,
        layer=layer,
        return_lse=True,
    )
    # Rows in front of the first sequence are padding, as those behind the last one.
    first = cu_seqlens_q[:1]
    last = len(cu_seqlens_q) - 1
    end = cu_seqlens_q[last if num_seqs is None else jnp.clip(num_seqs, 0, last)]
    prefix = _attention.flash_attn_varlen(
        query,
        *split(name, kv_cache),
        jnp.concatenate([first, jnp.maximum(first, end)]),
        seqused_k=prefix_len.reshape(1),
        block_table=prefix_block_table[None],
        sinks=sinks,  # counts once, so in one of the two
        **options,
    )
    suffix = _attention.paged_attention(
        query, kv_cache, seqused_k, block_table, cu_seqlens_q, num_seqs, **options
    )
    out, lse = _undifferentiated(wire.merge_attn_states(*prefix, *suffix))
    return (out, lse) if return_lse else out


# Outside of jit, shard_map takes no rule with symbolic zeros, as this one is.
_undifferentiated = jax.jit(
    _grad.refusing(
        lambda results: results,
        lambda: (
            "cascade_attention: has no gradient, since its keys lie in a paged cache; over dense keys, join "
            "flash_attn_varlen(..., return_lse=True) of each part by merge_attn_states, which have gradients"
        ),
    ),
    inline=True,
)


def _check_shapes(
    prefix_block_table: jax.Array,
    prefix_len: jax.Array,
    cu_seqlens_q: jax.Array,
    **scales: ArrayLike | None,
) -> None:
    """What the ops themselves would tell of operands that the caller does not know."""
    if prefix_block_table.ndim != 1:
        raise ValueError(
            f"cascade_attention: prefix_block_table has shape {prefix_block_table.shape}, expected [m]"
        )
    if prefix_len.size != 1:
        raise ValueError(
            f"cascade_attention: prefix_len has shape {prefix_len.shape}, expected one number"
        )
    if cu_seqlens_q.ndim != 1 or cu_seqlens_q.size == 0:
        raise ValueError(
            f"cascade_attention: cu_seqlens_q has shape {cu_seqlens_q.shape}, expected [b + 1]"
        )
    for name, scale in scales.items():
        if scale is not None and jnp.ndim(scale) > 1:
            raise ValueError(
                f"cascade_attention: {name} has shape {jnp.shape(scale)}, expected [1] or [hk]: "
                "the prefix belongs to all sequences"
            )
