"""What the kernels of `rpa_v3` and `rpa_v3_hd64` do."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from intarsia.jax._attention import flash_attn_varlen, paged_attention
from intarsia.jax._cache import reshape_and_cache_flash, slots_of
from intarsia.jax._call import as_array, as_indices


def heads_in_word(dtype: DTypeLike) -> int:
    return 4 // jnp.dtype(dtype).itemsize


def step(
    op: str,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    kv_cache: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    distribution: ArrayLike,
    *,
    use_causal_mask: bool = True,
    update_kv_cache: bool = True,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    out_dtype: DTypeLike | None = None,
    q_scale: float | None,
    k_scale: float | None,
    v_scale: float | None,
    sinks: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """What both of tpu-inference's kernels do, for errors called `op`. sinks: [h], a logit of each head without a value."""
    if soft_cap == 0:
        raise ValueError(f"{op}: soft_cap is 0, expected None or a number above 0")
    named: dict[str, Any] = dict(queries=queries, keys=keys, values=values, kv_cache=kv_cache)
    q, k, v, cache = (as_array(f"{op}: {name}", x) for name, x in named.items())
    heads, dim, pairs = _sizes(op, q, k, v, cache)
    lens, table, starts, num_seqs = _sequences(op, kv_lens, page_indices, cu_q_lens, distribution)
    # Numbers behind those of real sequences may be any.
    starts = jnp.where(jnp.arange(starts.shape[0]) > num_seqs, starts[num_seqs], starts)
    flat = cache.reshape(*cache.shape[:2], 2 * pairs, cache.shape[-1])
    if update_kv_cache:
        slots = _slots(q.shape[0], flat, lens, table, starts, num_seqs[0])
        k_row, v_row = (_padded(x.astype(q.dtype), pairs, cache.shape[-1]) for x in (k, v))
        flat = reshape_and_cache_flash(k_row, v_row, flat, slots, layout="combined")
    scale = sm_scale * (1.0 if k_scale is None else k_scale)
    if q_scale is not None:
        limits = jnp.finfo(cache.dtype)
        rounded = jnp.clip(q / q_scale, float(limits.min), float(limits.max)).astype(cache.dtype)
        q, scale = rounded.astype(q.dtype), scale * q_scale
    all_heads = heads // k.shape[1] * pairs
    q = _padded(q, all_heads, cache.shape[-1])
    options: dict[str, Any] = dict(
        scale=scale,
        softcap=0.0 if soft_cap is None else soft_cap,
        sinks=None if sinks is None else jnp.pad(sinks, (0, all_heads - heads)),
        layout="combined",
    )
    if use_causal_mask:
        out = paged_attention(
            q, flat, lens, table, starts, num_seqs, sliding_window=sliding_window, **options
        )
    else:
        window = (-1 if sliding_window is None else sliding_window - 1, -1)
        out = flash_attn_varlen(
            q, flat, None, starts, seqused_k=lens, block_table=table, window=window, **options
        )
    out = out[:, :heads, :dim]
    out = out if v_scale is None else out * v_scale
    return out.astype(out_dtype or q.dtype), flat.reshape(cache.shape)


def _sizes(
    op: str, q: jax.Array, k: jax.Array, v: jax.Array, cache: jax.Array
) -> tuple[int, int, int]:
    """Query heads, head dim, and pairs of heads in the cache, those of padding included."""
    fits = q.ndim == k.ndim == 3 and q.shape[2] == k.shape[2] and v.shape == k.shape
    if cache.ndim != 5 or not fits:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v, cache))
        expected = "[t, h, d], [t, hk, d] twice and [p, s, c, packing, D]"
        raise ValueError(f"{op}: shapes are {shapes}, expected {expected}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{op}: queries has {q.shape[1]} heads, expected a multiple of the {k.shape[1]} of keys"
        )
    room = cache.shape[2] * cache.shape[3]
    if room % 2 or room < 2 * k.shape[1] or cache.shape[4] < k.shape[2]:
        raise ValueError(
            f"{op}: kv_cache has {room} heads of {cache.shape[4]}, expected an even number of at least "
            f"{2 * k.shape[1]} heads of at least {k.shape[2]}"
        )
    return q.shape[1], q.shape[2], room // 2


def _sequences(
    op: str,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    distribution: ArrayLike,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Lengths [b], pages [b, m], starts [b + 1] and how many sequences are real [1]."""
    lens = as_indices(f"{op}: kv_lens", kv_lens)
    pages = as_indices(f"{op}: page_indices", page_indices)
    starts = as_indices(f"{op}: cu_q_lens", cu_q_lens)
    counts = as_indices(f"{op}: distribution", distribution)
    b = lens.size
    for name, x, fits, expected in (
        ("kv_lens", lens, b > 0, "[b], b above 0"),
        ("page_indices", pages, b > 0 and pages.size % b == 0, f"[b * m], b={b}"),
        ("cu_q_lens", starts, starts.size == b + 1, f"[{b + 1}]"),
        ("distribution", counts, counts.size == 3, "[3]"),
    ):
        if x.ndim != 1 or not fits:
            raise ValueError(f"{op}: {name} has shape {list(x.shape)}, expected {expected}")
    return lens, pages.reshape(b, pages.size // b), starts, counts[-1:]


def _slots(
    tokens: int,
    cache: jax.Array,
    lens: jax.Array,
    table: jax.Array,
    starts: jax.Array,
    num_seqs: jax.Array,
) -> jax.Array:
    """The slot of each token, a sequence's last keys; -1 for those of no real sequence. [t]"""
    token = jnp.arange(tokens)
    row = jnp.searchsorted(starts[1:], token, side="right")
    last = jnp.minimum(row, lens.shape[0] - 1)
    place = lens[last] - starts[last + 1] + token
    real = (token >= starts[0]) & (row < num_seqs)
    return jnp.where(real, slots_of(table, last, place, cache), -1)


def _padded(x: jax.Array, heads: int, dim: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, dim - x.shape[2])))
