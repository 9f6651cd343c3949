"""Paged KV caches: one array or a pair, in any layout of the library's table."""

from typing import Any, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from intarsia._cache_form import infer_layout, split
from intarsia.jax import wire
from intarsia.jax._call import as_array, as_f32

KvCache: TypeAlias = jax.Array | tuple[jax.Array, jax.Array]
KvCacheLike: TypeAlias = ArrayLike | tuple[ArrayLike, ArrayLike]


def scale(what: str, value: ArrayLike | None) -> jax.Array | None:
    """A scale as the ops take it: f32, of rank 1 or more."""
    array = as_f32(what, value)
    return None if array is None else jnp.atleast_1d(array)


@overload
def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    kv_cache: ArrayLike,
    slot_mapping: ArrayLike,
    *,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
) -> jax.Array: ...


@overload
def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    kv_cache: tuple[ArrayLike, ArrayLike],
    slot_mapping: ArrayLike,
    *,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]: ...


def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    kv_cache: KvCacheLike,
    slot_mapping: ArrayLike,
    *,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
) -> KvCache:
    """Writes new keys and values into their slots of a paged KV cache.

    In place if the cache is donated to the enclosing jit; without donation XLA copies it first.

    Args:
      key, value: [t, hk, d], f32, f16 or bf16.
      kv_cache: a pair (key_cache, value_cache), or one array that holds both; of the dtype of `key`,
        fp8, or uint8 with `kv_cache_dtype`. With `layer`, each has one more axis in front.
      slot_mapping: int32 or int64 [t'], t' <= t: page * s + offset of each of the first t' tokens. A
        negative slot, or one beyond the cache, is skipped; INTARSIA_CHECK=1 in the environment makes the
        latter an error.
      k_scale, v_scale: what fp8 K and V will have to be multiplied by: a number, [1] or [hk] in f32;
        default 1. What is stored is key / k_scale, to nearest even and saturating; NaN stays NaN.
      kv_cache_dtype: what a uint8 cache holds: "fp8_e4m3" or "fp8_e5m2"; "auto": as its dtype says.
      layout: the order of axes. The default depends on the form of `kv_cache`.
        A pair: "NHD", the default, is [p, s, hk, d]; "HND" is [p, hk, s, d].
        One array: "combined", the default, is [p, s, 2 * hk, d], K in even and V in odd heads.
        One array with rows of two heads: "packed" is [p, s, hk, 2 * d], each head's V behind its K.
        One array with an axis more, of size 2: "stacked" is [2, p, s, hk, d], K, then V.
        Any other order of these axes is spelled as in "p hk s d" or "p 2 hk s d". With `layer` it may
        say where the layers are ("p l s hk d").
      layer: a number, or an integer scalar on the device: the layer of a cache with a layer axis.

    Returns:
      The cache, in the form in which it came.

    Raises:
      ValueError: shapes, dtypes or the layout do not fit; the text says which.

    Source: vLLM's `_C_cache_ops::reshape_and_cache_flash`.

    Example:
      >>> key = value = jnp.ones((2, 2, 64))  # [t, hk, d]
      >>> caches = jnp.zeros((8, 16, 2, 64)), jnp.zeros((8, 16, 2, 64))
      >>> slots = jnp.array([3 * 16 + 4, -1])  # page * page size + place; a negative one is skipped
      >>> write = jax.jit(reshape_and_cache_flash, donate_argnums=2)
      >>> key_cache, value_cache = write(key, value, caches, slots)
      >>> print(key_cache[3, 4].min(), key_cache.sum())
      1.0 128.0
    """
    op = "reshape_and_cache_flash"
    key_cache, value_cache = split(op, kv_cache)
    key = as_array(f"{op}: key", key)
    written = wire.reshape_and_cache_flash(
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        layer,
        scale(f"{op}: k_scale", k_scale),
        scale(f"{op}: v_scale", v_scale),
        layout=infer_layout(op, kv_cache, key.shape[-1], layout, layer),
        kv_cache_dtype=kv_cache_dtype,
    )
    return in_form_of(kv_cache, written)


@overload
def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    kv_cache: ArrayLike,
    slot_mapping: ArrayLike,
    *,
    num_heads: int,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    kv_cache: tuple[ArrayLike, ArrayLike],
    slot_mapping: ArrayLike,
    *,
    num_heads: int,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]: ...


def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    kv_cache: KvCacheLike,
    slot_mapping: ArrayLike,
    *,
    num_heads: int,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    kv_cache_dtype: wire.KvCacheDtype = "auto",
    layout: str | None = None,
    layer: ArrayLike | None = None,
) -> tuple[jax.Array, KvCache]:
    """Turns the queries and keys of a product of Q, K and V, and writes its keys and values to a paged KV cache.

    What `rotary_embedding` and then `reshape_and_cache_flash` do, to the bit, without slices of the product; on a GPU in
    one pass, without turned keys in memory between. In place if the cache is donated to the enclosing jit. With q_weight
    and k_weight, heads are normed and turned as by `fused_qk_norm_rope`, as Qwen3 has them.

    Args:
      positions: int32 or int64 [t]; position of each token. One outside the table turns nothing;
        INTARSIA_CHECK=1 makes it an error.
      qkv: [t, num_heads + 2 * hk, d], f32, f16 or bf16: heads of queries, of keys, of values.
      cos_sin_cache: [max_pos, r]: cosines, then sines, of r/2 angles a position.
      kv_cache, slot_mapping, k_scale, v_scale, kv_cache_dtype, layout, layer: as in `reshape_and_cache_flash`.
      num_heads: query heads h.
      is_neox: pairs (i, i + r/2) of a head; False: pairs (2i, 2i + 1).
      rope_dim_offset: dimensions of a head before the first pair; 0 with q_weight.
      q_weight, k_weight: [d] of qkv's dtype or f32, both or neither: each query head and each key head is normed by the
        root of its mean square, and scaled by these.
      eps: added to that mean square.

    Returns:
      query [t, num_heads, d], and the cache in the form in which it came.

    Raises:
      ValueError: shapes, dtypes or the layout do not fit; the text says which.

    Source: `rotary_embedding` or `fused_qk_norm_rope`, and `reshape_and_cache_flash`; AITER's `fused_qk_rope_reshape_and_cache`.

    Example:
      >>> qkv = jnp.ones((2, 4 + 2 + 2, 64))  # two tokens: 4 query heads, then those of K and V
      >>> caches = jnp.zeros((8, 16, 2, 64)), jnp.zeros((8, 16, 2, 64))
      >>> angles = jnp.ones((32, 64))  # cos and sin of 32 positions
      >>> positions, slots = jnp.array([4, 17]), jnp.array([52, 97])
      >>> query, caches = rotary_embedding_and_cache(positions, qkv, angles, caches, slots, num_heads=4)
      >>> print(query.shape)
      (2, 4, 64)
    """
    op = "rotary_embedding_and_cache"
    key_cache, value_cache = split(op, kv_cache)
    qkv = as_array(f"{op}: qkv", qkv)
    query, *written = wire.rotary_embedding_and_cache(
        positions,
        qkv,
        cos_sin_cache,
        key_cache,
        value_cache,
        slot_mapping,
        layer,
        scale(f"{op}: k_scale", k_scale),
        scale(f"{op}: v_scale", v_scale),
        q_weight,
        k_weight,
        num_heads=num_heads,
        eps=eps,
        is_neox=is_neox,
        rope_dim_offset=rope_dim_offset,
        layout=infer_layout(op, kv_cache, qkv.shape[-1], layout, layer),
        kv_cache_dtype=kv_cache_dtype,
    )
    return query, in_form_of(kv_cache, written)


def rotary_embedding_then_cache(
    ops: Any,
    positions: jax.Array,
    qkv: jax.Array,
    cos_sin_cache: jax.Array,
    kv_cache: KvCache,
    slot_mapping: jax.Array,
    *,
    num_heads: int,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    **of_cache: Any,
) -> tuple[jax.Array, KvCache]:
    """`rotary_embedding_and_cache` by the ops of `ops`: those can be cut by heads, a product of Q, K and V cannot.

    Normed heads are rounded before they are turned, too.
    """
    kv_heads = (qkv.shape[1] - num_heads) // 2
    query, key, value = jnp.split(qkv, (num_heads, num_heads + kv_heads), axis=1)
    op = "rotary_embedding_and_cache"
    if (q_weight is None) != (k_weight is None):
        missing, given = ("q_weight", "k_weight") if q_weight is None else ("k_weight", "q_weight")
        raise ValueError(f"{op}: {missing} is missing beside {given}")
    if q_weight is not None:
        if rope_dim_offset:
            raise ValueError(
                f"{op}: rope_dim_offset is {rope_dim_offset}, expected 0 with q_weight"
            )
        query, key = ops.rms_norm(query, q_weight, eps=eps), ops.rms_norm(key, k_weight, eps=eps)
    of_rotation = {"is_neox": is_neox, "rope_dim_offset": rope_dim_offset}
    query, key = ops.rotary_embedding(positions, query, cos_sin_cache, key, **of_rotation)
    return query, ops.reshape_and_cache_flash(key, value, kv_cache, slot_mapping, **of_cache)


def in_form_of(kv_cache: Any, written: Any) -> Any:
    """The arrays that an op wrote, in the form in which a cache came: one array, a tuple, a list or a namedtuple."""
    arrays = written if isinstance(written, tuple | list) else [written]
    if not isinstance(kv_cache, tuple | list):
        return arrays[0]
    make = getattr(kv_cache, "_make", type(kv_cache))  # a namedtuple's class takes no sequence
    return make(arrays)


def slots_of(table: jax.Array, rows: jax.Array, places: jax.Array, cache: jax.Array) -> jax.Array:
    """int32: the slots of places in sequences, whose pages are rows of `table`; -1 beyond the table or the cache [p, s, ..]."""
    pages, size = cache.shape[0], max(cache.shape[1], 1)
    column = places // size
    inside = (places >= 0) & (column < table.shape[1])
    # A column more, for a table without any.
    page = jnp.pad(table, ((0, 0), (0, 1)))[rows, jnp.where(inside, column, -1)]
    inside &= (page >= 0) & (page < pages)
    # What is not there must not be multiplied: a product beyond int32 would be another page's slot.
    slot = jnp.where(inside, page, 0) * size + places % size
    return jnp.where(inside, slot, -1).astype(jnp.int32)
