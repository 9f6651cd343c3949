"""Ops of the family rotary, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from typing import overload

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all
from intarsia.jax.wire._words import KvCacheDtype


def fused_qk_norm_rope(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    q_weight: ArrayLike,
    k_weight: ArrayLike,
    *,
    num_heads_q: int | None = None,
    num_heads_k: int | None = None,
    eps: float = 1e-06,
    is_neox: bool = True,
) -> jax.Array:
    """Root-mean-square normalization of each head of Q and K, then rotary position embedding.

    Args:
      positions: [t], i32, i64: position of each token.
      qkv: [t, heads, d], T: num_heads_q query heads, num_heads_k key heads, and value heads.
      cos_sin_cache: [max_pos, r], f32, f16, bf16: cosines, then sines, of r/2 angles a
        position.
      q_weight: [d], T, f32: scale of a query head's columns.
      k_weight: [d], T, f32: scale of a key head's columns.
      num_heads_q: how many heads are queries; needed.
      num_heads_k: how many heads are keys; needed.
      eps: added to the mean square.
      is_neox: pairs (i, i + r/2); false: pairs (2i, 2i + 1).

    Returns:
      qkv: as qkv, T: normed and turned query and key, and value.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    positions (from 0, below max_pos).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::fused_qk_norm_rope; Qwen3. T is f32, f16 or bf16.

    Example:
      >>> positions = jnp.array([13, 10], jnp.int32)
      >>> qkv = jnp.ones((2, 8, 16))
      >>> cos_sin_cache = jnp.zeros((16, 16))
      >>> q_weight = jnp.ones((16,))
      >>> k_weight = jnp.ones((16,))
      >>> qkv = fused_qk_norm_rope(positions, qkv, cos_sin_cache, q_weight, k_weight, num_heads_q=4, num_heads_k=2, eps=1e-05)
      >>> print(jax.typeof(qkv))
      float32[2,8,16]
    """
    return one_or_all(
        call(
            "fused_qk_norm_rope",
            (positions, qkv, cos_sin_cache, q_weight, k_weight),
            num_heads_q=num_heads_q,
            num_heads_k=num_heads_k,
            eps=eps,
            is_neox=is_neox,
        )
    )


@overload
def rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: None = None,
    pair_axes: ArrayLike | None = None,
    *,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array: ...


@overload
def rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: ArrayLike,
    pair_axes: ArrayLike | None = None,
    *,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> tuple[jax.Array, jax.Array]: ...


def rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: ArrayLike | None = None,
    pair_axes: ArrayLike | None = None,
    *,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Rotary position embedding of query and key.

    Args:
      positions: [..., axes] with pair_axes or [...] with !pair_axes, i32, i64: position of each
        token, or several.
      query: [..., h, d] or [..., h*head_size] with head_size, T: query heads.
      cos_sin_cache: [max_pos, r], f32, f16, bf16: cosines, then sines, of r/2 angles a
        position.
      key: [..., hk, d] or [..., hk*head_size] with head_size, T: key heads; optional.
      pair_axes: [pairs], i32, i64: which of a token's positions each of the r/2 pairs takes
        (M-RoPE); optional.
      head_size: d, needed where heads are not an axis of their own.
      is_neox: pairs (i, i + r/2); false: pairs (2i, 2i + 1).
      rope_dim_offset: dimensions of a head before the first pair.
      inverse: turn back.

    Returns:
      query: as query, T: turned query.
      key: as key, T: turned key; only with key.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    positions (from 0, below max_pos), pair_axes (from 0, below axes).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Su et al. 2021, arXiv:2104.09864; vLLM's _C::rotary_embedding. T is f32, f16 or
        bf16.

    Example:
      >>> positions = jnp.array([13, 10], jnp.int32)
      >>> query = jnp.ones((2, 4, 64))
      >>> cos_sin_cache = jnp.zeros((16, 64))
      >>> key = jnp.ones((2, 2, 64))
      >>> query, key = rotary_embedding(positions, query, cos_sin_cache, key)
      >>> print(jax.typeof(query), jax.typeof(key))
      float32[2,4,64] float32[2,2,64]
    """
    return one_or_all(
        call(
            "rotary_embedding",
            (positions, query, cos_sin_cache, key, pair_axes),
            head_size=head_size,
            is_neox=is_neox,
            rope_dim_offset=rope_dim_offset,
            inverse=inverse,
        )
    )


@overload
def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    key_cache: ArrayLike,
    value_cache: None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    *,
    num_heads: int | None = None,
    eps: float = 1e-06,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    *,
    num_heads: int | None = None,
    eps: float = 1e-06,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    *,
    num_heads: int | None = None,
    eps: float = 1e-06,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array]:
    """Rotary position embedding of a product of Q, K and V, whose K and V go to a paged KV cache.

    Args:
      positions: [t], i32, i64: position of each token.
      qkv: [t, heads, d], T: num_heads query heads, hk key heads, hk value heads.
      cos_sin_cache: [max_pos, r], f32, f16, bf16: cosines, then sines, of r/2 angles a
        position.
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
      q_weight: [d], T, f32: scale of a query head's columns, where heads are normed before they
        are turned; optional.
      k_weight: [d], T, f32: the same for key heads; with q_weight; optional.
      num_heads: how many of the heads are queries; needed.
      eps: added to the mean square of a head, with q_weight.
      is_neox: pairs (i, i + r/2); false: pairs (2i, 2i + 1).
      rope_dim_offset: dimensions of a head before the first pair.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      kv_cache_dtype: what a cache of dtype u8 holds; one of auto, fp8, fp8_e4m3, fp8_e5m2.

    Returns:
      query: [t, num_heads, d], T: turned query heads.
      key_cache: as key_cache, key_cache: the same pages; shares the buffer of key_cache.
      value_cache: as value_cache, value_cache: the same pages; shares the buffer of
        value_cache; only with value_cache.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    positions (from 0, below max_pos), slot_mapping (below p*s), layer (from 0, below l).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: rotary_embedding and reshape_and_cache_flash in one, or fused_qk_norm_rope and
        that; AITER's fused_qk_rope_reshape_and_cache. T is f32, f16 or bf16.

    Example:
      >>> positions = jnp.array([13, 10, 8], jnp.int32)
      >>> qkv = jnp.ones((3, 8, 64))
      >>> cos_sin_cache = jnp.zeros((16, 64))
      >>> key_cache = jnp.zeros((3, 4, 2, 64))
      >>> value_cache = jnp.zeros((3, 4, 2, 64))
      >>> slot_mapping = jnp.array([ 1, 11, 0], jnp.int32)
      >>> query, key_cache, value_cache = wire.rotary_embedding_and_cache(positions, qkv, cos_sin_cache, key_cache, value_cache, slot_mapping, num_heads=4)
      >>> print(jax.typeof(query), jax.typeof(key_cache), jax.typeof(value_cache))
      float32[3,4,64] float32[3,4,2,64] float32[3,4,2,64]
    """
    return one_or_all(
        call(
            "rotary_embedding_and_cache",
            (
                positions,
                qkv,
                cos_sin_cache,
                key_cache,
                value_cache,
                slot_mapping,
                layer,
                k_scale,
                v_scale,
                q_weight,
                k_weight,
            ),
            num_heads=num_heads,
            eps=eps,
            is_neox=is_neox,
            rope_dim_offset=rope_dim_offset,
            layout=layout,
            kv_cache_dtype=kv_cache_dtype,
        )
    )
