"""The functions of flash-attn3-jax and flash-attn-jax over our attention op, so that code written for them runs here with
another import.
"""

from typing import Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from intarsia.jax import wire
from intarsia.jax._attention import flash_attn_varlen
from intarsia.jax._cache import reshape_and_cache_flash, slots_of
from intarsia.jax._call import as_array, as_indices, narrowed, two_sides
from intarsia.jax._dense import attend_rows, check_built, in_one_row, pad_head_dim, starts_of


def flash_mha(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> jax.Array:
    """`flash_mha` of flash-attn3-jax and flash-attn-jax: attention of a dense batch.

    Causal and windows are aligned at the bottom right, as in `flash_attn_varlen`: the last query stands at the last key.

    Args:
      q: [b, l, h, d], f32, f16 or bf16; d up to 256, h a multiple of hk.
      k, v: [b, lk, hk, d], of q's dtype.
      softmax_scale: of the scores; default d ** -0.5.
      is_causal: a query sees no later key.
      window_size: keys seen to the left and to the right of the query's own; -1: all.

    Returns:
      [b, l, h, d]; it can be differentiated in q, k and v.

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim or a dtype is not built. An array that is
        sharded over several devices is refused: no ring attention here; call it within `jax.shard_map`.

    Source: `flash_attn3_jax.flash_mha`.

    Example:
      >>> out = flash_mha(q, k, v, is_causal=True)
    """
    q, k, v = _arrays("flash_mha", {"q": q, "k": k, "v": v}, "[b, l, h, d]", 4)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_built(f"flash_mha: {name}", x)
    _check_shape("flash_mha: k", k, q.shape[0], "lk", "hk", q.shape[3])
    _check_shape("flash_mha: v", v, *k.shape)
    out, _ = attend_rows(
        q,
        k,
        v,
        first=0,
        count=q.shape[1],
        used=k.shape[1],
        window=_window("flash_mha", window_size, is_causal),
        scale=_scale(softmax_scale, q),
    )
    return out


def flash_mha_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    max_seqlen_q: int = -1,
    max_seqlen_k: int = -1,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    zero_tensors: bool = False,
    deterministic: bool = False,
) -> jax.Array:
    """`flash_mha_varlen` of flash-attn3-jax, and by position that of flash-attn-jax: attention of a ragged batch.

    The same as `flash_attn_varlen`, but for names and the order of arguments.

    Args:
      q: [t, h, d], sequence after sequence; f32, f16 or bf16; d up to 256, h a multiple of hk.
      k, v: [tk, hk, d], of q's dtype.
      cu_seqlens_q: int32 [b + 1], where each sequence starts in q.
      cu_seqlens_k: [b + 1], the same for k; default: cu_seqlens_q.
      seqused_k: int32 [b], keys of each sequence that count; default all.
      max_seqlen_q, max_seqlen_k: ignored; bounds come from shapes.
      softmax_scale, is_causal, window_size: as in `flash_mha`.
      zero_tensors: ignored; every element of the result is written.
      deterministic: the gradient has the same bits at every run, on a GPU at some cost.

    Returns:
      [t, h, d]; it can be differentiated in q, k and v. Rows of no sequence are 0.

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim or a dtype is not built.

    Source: `flash_attn3_jax.flash_mha_varlen`.

    Example:
      >>> out = flash_mha_varlen(q, k, v, cu_seqlens, is_causal=True)
    """
    del max_seqlen_q, max_seqlen_k, zero_tensors
    q, k, v = _arrays("flash_mha_varlen", {"q": q, "k": k, "v": v}, "[t, h, d]", 3)
    _check_shape("flash_mha_varlen: k", k, "tk", "hk", q.shape[2])
    out = flash_attn_varlen(
        pad_head_dim(q),
        pad_head_dim(k),
        pad_head_dim(v),
        cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k,
        seqused_k=seqused_k,
        scale=_scale(softmax_scale, q),
        window=_window("flash_mha_varlen", window_size, is_causal),
        deterministic=deterministic,
    )
    return out[..., : v.shape[-1]]


@overload
def flash_mha_with_kvcache(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    cache_seqlens: int | ArrayLike | None = None,
    cache_batch_idx: ArrayLike | None = None,
    cache_leftpad: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    rotary_cos: ArrayLike | None = None,
    rotary_sin: ArrayLike | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    num_splits: int = 1,
    return_softmax_lse: Literal[False] = False,
) -> jax.Array: ...


@overload
def flash_mha_with_kvcache(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    cache_seqlens: int | ArrayLike | None = None,
    cache_batch_idx: ArrayLike | None = None,
    cache_leftpad: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    rotary_cos: ArrayLike | None = None,
    rotary_sin: ArrayLike | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    num_splits: int = 1,
    *,
    return_softmax_lse: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...


@overload
def flash_mha_with_kvcache(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    cache_seqlens: int | ArrayLike | None = None,
    cache_batch_idx: ArrayLike | None = None,
    cache_leftpad: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    rotary_cos: ArrayLike | None = None,
    rotary_sin: ArrayLike | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    num_splits: int = 1,
    return_softmax_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def flash_mha_with_kvcache(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    cache_seqlens: int | ArrayLike | None = None,
    cache_batch_idx: ArrayLike | None = None,
    cache_leftpad: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    rotary_cos: ArrayLike | None = None,
    rotary_sin: ArrayLike | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    num_splits: int = 1,
    return_softmax_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`flash_mha_with_kvcache` of flash-attn3-jax: attention of new queries to a KV cache, contiguous or paged.

    The cache is not changed: k and v are put behind cache_seqlens in a copy of it. A model that keeps its cache calls
    `reshape_and_cache_flash`, and then this function without k and v.

    Args:
      q: [b, l, h, d], f32, f16 or bf16; d up to 256, h a multiple of hk.
      k_cache, v_cache: [rows, s, hk, d], a row for each sequence, or with page_table [p, s, hk, d]; of q's dtype. A head
        dim that is no multiple of 8 copies them at each call.
      k, v: [b, n, hk, d], keys and values behind those of the cache; they need cache_seqlens.
      cache_seqlens: int32 [b] or one number: keys of each sequence in the cache; default: as many as it has room for.
      cache_batch_idx: int32 [b], the row of each sequence; default: sequence i has row i. Not with page_table.
      cache_leftpad: int32 [b], keys at the start of each sequence that count as not there.
      page_table: int32 [b, m], the pages of each sequence.
      rotary_cos, rotary_sin: [positions, r / 2], angles by which k and q are turned, in pairs (2i, 2i + 1); they need k.
        Key i is turned to position cache_seqlens + i. So is query i if is_causal or a window is given;
        otherwise all queries are turned to position cache_seqlens.
      softmax_scale, is_causal, window_size: as in `flash_mha`.
      num_splits: ignored; the op splits keys where that is faster.
      return_softmax_lse: also return the log of the sum of exponentials, f32 [b, h, l].

    Returns:
      [b, l, h, d], or (out, lse). There is no gradient.

    Raises:
      ValueError: shapes, dtypes or arguments do not go together. NotImplementedError: a head dim or a dtype is not built.

    Source: `flash_attn3_jax.flash_mha_with_kvcache`.

    Example:
      >>> out = flash_mha_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, is_causal=True)
    """
    del num_splits
    name = "flash_mha_with_kvcache"
    arrays = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    q, k_cache, v_cache = _arrays(name, arrays, "[b, l, h, d]", 4)
    _check_given(k, v, cache_seqlens, cache_batch_idx, page_table, rotary_cos, rotary_sin)
    b, rows, h, d = q.shape
    _check_shape(f"{name}: k_cache", k_cache, "rows", "s", "hk", d)
    _check_shape(f"{name}: v_cache", v_cache, *k_cache.shape)
    if page_table is None:
        page_table = _own_rows(b, k_cache, cache_batch_idx)
    page_table = _indices("page_table", page_table, b, "m")
    held = page_table.shape[1] * k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    held = as_array(f"{name}: cache_seqlens", held)
    held = jnp.broadcast_to(held, b) if held.shape in ((), (1,)) else held
    lengths = _indices("cache_seqlens", held, b)
    if cache_leftpad is not None:
        cache_leftpad = _indices("cache_leftpad", cache_leftpad, b)
    window = _window(name, window_size, is_causal)
    k_cache, v_cache = pad_head_dim(k_cache), pad_head_dim(v_cache)
    if k is not None and v is not None:
        k, v = _arrays(name, {"k": k, "v": v}, "[b, n, hk, d]", 4)
        _check_shape(f"{name}: k", k, b, "n", k_cache.shape[2], d)
        _check_shape(f"{name}: v", v, *k.shape)
        if rotary_cos is not None and rotary_sin is not None:
            table = _angles(rotary_cos, rotary_sin)
            q = _turn(q, lengths, table, each=window != (-1, -1))
            k = _turn(k, lengths, table, each=True)
        slots = _slots(lengths, k.shape[1], page_table, k_cache)
        k_cache, v_cache = reshape_and_cache_flash(
            in_one_row(pad_head_dim(k)),
            in_one_row(pad_head_dim(v)),
            (k_cache, v_cache),
            slots,
            layout="NHD",
        )
        lengths = lengths + k.shape[1]
    out, lse = flash_attn_varlen(
        in_one_row(pad_head_dim(q)),
        k_cache,
        v_cache,
        starts_of(np.full(b, rows)),
        seqused_k=lengths,
        block_table=page_table,
        leftpad_k=cache_leftpad,
        scale=_scale(softmax_scale, q),
        window=window,
        layout="NHD",
        return_lse=True,
    )
    out = out[..., :d].reshape(b, rows, h, d)
    if not return_softmax_lse:
        return out
    return out, jnp.swapaxes(lse.reshape(h, b, rows), 0, 1)


def _arrays(
    function: str, given: dict[str, ArrayLike], form: str, rank: int
) -> tuple[jax.Array, ...]:
    arrays = tuple(as_array(f"{function}: {name}", x) for name, x in given.items())
    for name, x in zip(given, arrays, strict=True):
        if x.ndim != rank:
            raise ValueError(f"{function}: {name} has shape {list(x.shape)}, expected {form}")
    return arrays


def _check_shape(what: str, x: jax.Array, *expected: int | str) -> None:
    """Raises unless x has these sizes; one with a name may be any."""
    sizes = zip(x.shape, expected, strict=False)
    if x.ndim != len(expected) or any(isinstance(n, int) and n != got for got, n in sizes):
        form = ", ".join(map(str, expected))
        raise ValueError(f"{what} has shape {list(x.shape)}, expected [{form}]")


def _indices(name: str, given: ArrayLike, *expected: int | str) -> jax.Array:
    """An operand of `flash_mha_with_kvcache`, as int32."""
    what = f"flash_mha_with_kvcache: {name}"
    x = as_indices(what, given)
    _check_shape(what, x, *expected)
    return narrowed(x, "i32")


def _own_rows(b: int, k_cache: jax.Array, cache_batch_idx: ArrayLike | None) -> jax.Array:
    """[b, 1]: a table of pages for a cache in which each sequence has a row."""
    if cache_batch_idx is not None:
        return _indices("cache_batch_idx", cache_batch_idx, b)[:, None]
    if b > k_cache.shape[0]:
        got = f"k_cache has shape {list(k_cache.shape)}"
        raise ValueError(f"flash_mha_with_kvcache: {got}, expected a row for each of {b} sequences")
    return jnp.arange(b, dtype=jnp.int32)[:, None]


def _angles(rotary_cos: ArrayLike, rotary_sin: ArrayLike) -> jax.Array:
    """The table of `rotary_embedding`: [positions, r]."""
    cos, sin = (
        as_array(f"flash_mha_with_kvcache: {name}", x)
        for name, x in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin))
    )
    _check_shape("flash_mha_with_kvcache: rotary_cos", cos, "positions", "r / 2")
    _check_shape("flash_mha_with_kvcache: rotary_sin", sin, *cos.shape)
    return jnp.concatenate([cos, sin], axis=-1)


def _window(function: str, size: tuple[int, int], is_causal: bool) -> tuple[int, int]:
    left, right = two_sides(f"{function}: window_size", size)
    return left, 0 if is_causal else right


def _scale(given: float | None, q: jax.Array) -> float:
    """Of the head dim before it is padded."""
    return max(q.shape[-1], 1) ** -0.5 if given is None else given


def _check_given(
    k: ArrayLike | None,
    v: ArrayLike | None,
    cache_seqlens: int | ArrayLike | None,
    cache_batch_idx: ArrayLike | None,
    page_table: ArrayLike | None,
    rotary_cos: ArrayLike | None,
    rotary_sin: ArrayLike | None,
) -> None:
    """Raises if one argument needs or excludes another."""
    wrong = {
        "k is given without v": k is not None and v is None,
        "v is given without k": v is not None and k is None,
        "rotary_cos is given without rotary_sin": rotary_cos is not None and rotary_sin is None,
        "rotary_sin is given without rotary_cos": rotary_sin is not None and rotary_cos is None,
        "rotary_cos is given without k": rotary_cos is not None and k is None,
        "k is given without cache_seqlens, behind which it goes": k is not None
        and cache_seqlens is None,
        "cache_batch_idx is given with page_table, which says where a sequence is": cache_batch_idx
        is not None
        and page_table is not None,
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"flash_mha_with_kvcache: {text}")


def _turn(x: jax.Array, lengths: jax.Array, table: jax.Array, *, each: bool) -> jax.Array:
    """Heads [b, n, h, d] turned to positions from lengths on, or all to lengths."""
    steps = jnp.arange(x.shape[1], dtype=jnp.int32) * int(each)
    return wire.rotary_embedding(lengths[:, None] + steps, x, table, is_neox=False)


def _slots(lengths: jax.Array, count: int, page_table: jax.Array, cache: jax.Array) -> jax.Array:
    """int32 [b * count]: the slots behind `lengths` keys; -1 beyond the table's room."""
    places = lengths[:, None] + jnp.arange(count, dtype=jnp.int32)
    rows = jnp.arange(page_table.shape[0])[:, None]
    return slots_of(page_table, rows, places, cache).reshape(-1)
