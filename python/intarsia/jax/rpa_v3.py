"""Ragged paged attention as tpu-inference's kernel v3 takes it, so that code written for TPUs runs here with another import.

    from intarsia.jax.rpa_v3 import ragged_paged_attention
    # was: from tpu_inference.kernels.ragged_paged_attention.v3.kernel import ragged_paged_attention

`intarsia.jax.ragged_paged_attention` is v2, of `jax.experimental.pallas.ops.tpu`: there the step's keys are in the cache already.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from intarsia.jax._attention import paged_attention
from intarsia.jax._cache import reshape_and_cache_flash
from intarsia.jax._call import as_array

_OP = "ragged_paged_attention"


def ragged_paged_attention(
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
    skip_kv_mask: bool = False,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    out_dtype: DTypeLike | None = None,
    mask_value: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    chunk_prefill_size: int | None = None,
    d_block_sizes: tuple[int, int, int, int] | None = None,
    p_block_sizes: tuple[int, int, int, int] | None = None,
    m_block_sizes: tuple[int, int, int, int] | None = None,
    vmem_limit_bytes: int | None = None,
    debug_mode: bool = False,
    disable_bounds_checks: bool = True,
    disable_semaphore_checks: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Writes a step's keys and values into the cache, and attends causally to all that it holds.

    The cache is written in place where the enclosing jit donates it; this function, unlike the TPU's, donates nothing itself.

    Args:
      queries: [t, h, d], f32, f16 or bf16; h a multiple of hk.
      keys, values: [t, hk, d], of the cache's dtype (quantized by the caller), or as `queries`.
      kv_cache: [p, s, c, packing, D] with c * packing >= 2 * hk heads, K and V in turn, and D >= d, padded.
      kv_lens: int32 [b], keys of each sequence, this step's tokens included.
      page_indices: int32 [b * m], the pages of each sequence.
      cu_q_lens: int32 [b + 1], where each sequence starts in queries.
      distribution: int32 [3]; the last number says how many sequences are real.
      use_causal_mask: True alone is built.
      update_kv_cache: False where an earlier layer has written these keys.
      sm_scale: of the scores; 1 by default.
      sliding_window: keys that a query sees, its own included; default all.
      soft_cap: scores become soft_cap * tanh(score / soft_cap); default as they are.
      out_dtype: of the result; default that of `queries`.
      q_scale: queries are divided by it, rounded to the cache's dtype, and scores multiplied by it.
      k_scale, v_scale: what the cache's keys and values are to be multiplied by.
      skip_kv_mask, mask_value, chunk_prefill_size, d_block_sizes, p_block_sizes, m_block_sizes, vmem_limit_bytes, debug_mode,
        disable_bounds_checks, disable_semaphore_checks: ignored: they tune the TPU's kernel.

    Returns:
      out [t, h, d], rows of no real sequence 0, and the cache.

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: no causal mask, or a head dim that is not built.
    """
    del skip_kv_mask, mask_value, chunk_prefill_size, d_block_sizes, p_block_sizes, m_block_sizes
    del vmem_limit_bytes, debug_mode, disable_bounds_checks, disable_semaphore_checks
    if not use_causal_mask:
        raise NotImplementedError(f"{_OP}: use_causal_mask is False, only True is built")
    if soft_cap == 0:
        raise ValueError(f"{_OP}: soft_cap is 0, expected None or a number above 0")
    named: dict[str, Any] = dict(queries=queries, keys=keys, values=values, kv_cache=kv_cache)
    q, k, v, cache = (as_array(f"{_OP}: {name}", x) for name, x in named.items())
    lens, starts = jnp.asarray(kv_lens), jnp.asarray(cu_q_lens)
    heads, dim, pairs = _sizes(q, k, v, cache)
    table = jnp.asarray(page_indices).reshape(lens.shape[0], -1)
    num_seqs = jnp.asarray(distribution)[-1:]
    flat = cache.reshape(*cache.shape[:2], 2 * pairs, cache.shape[-1])
    if update_kv_cache:
        slots = _slots(q.shape[0], cache.shape[1], lens, table, starts, num_seqs[0])
        k_row, v_row = (_padded(x.astype(q.dtype), pairs, cache.shape[-1]) for x in (k, v))
        flat = reshape_and_cache_flash(k_row, v_row, flat, slots, layout="combined")
    scale = sm_scale * (1.0 if k_scale is None else k_scale)
    if q_scale is not None:
        limits = jnp.finfo(cache.dtype)
        rounded = jnp.clip(q / q_scale, float(limits.min), float(limits.max)).astype(cache.dtype)
        q, scale = rounded.astype(q.dtype), scale * q_scale
    out = paged_attention(
        _padded(q, heads // k.shape[1] * pairs, cache.shape[-1]),
        flat,
        lens,
        table,
        starts,
        num_seqs,
        scale=scale,
        sliding_window=sliding_window,
        softcap=0.0 if soft_cap is None else soft_cap,
        layout="combined",
    )[:, :heads, :dim]
    out = out if v_scale is None else out * v_scale
    return out.astype(out_dtype or q.dtype), flat.reshape(cache.shape)


def _sizes(q: jax.Array, k: jax.Array, v: jax.Array, cache: jax.Array) -> tuple[int, int, int]:
    """Query heads, head dim, and pairs of heads in the cache, those of padding included."""
    if cache.ndim != 5 or q.ndim != 3 or k.ndim != 3 or v.shape != k.shape:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v, cache))
        expected = "[t, h, d], [t, hk, d] twice and [p, s, c, packing, D]"
        raise ValueError(f"{_OP}: shapes are {shapes}, expected {expected}")
    room = cache.shape[2] * cache.shape[3]
    if room % 2 or room < 2 * k.shape[1] or cache.shape[4] < k.shape[2]:
        raise ValueError(
            f"{_OP}: kv_cache has {room} heads of {cache.shape[4]}, expected an even number of at least "
            f"{2 * k.shape[1]} heads of at least {k.shape[2]}"
        )
    return q.shape[1], q.shape[2], room // 2


def _slots(
    tokens: int,
    page_size: int,
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
    slot = table[last, place // page_size] * page_size + place % page_size
    return jnp.where((row < num_seqs) & (place >= 0), slot, -1)


def _padded(x: jax.Array, heads: int, dim: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, dim - x.shape[2])))
