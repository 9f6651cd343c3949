"""Ragged paged attention as tpu-inference's kernel v3 for a head dim of 64 takes it, with sinks.

    from intarsia.jax.rpa_v3_hd64 import ragged_paged_attention_hd64
    # was: from tpu_inference.kernels.ragged_paged_attention.v3.kernel_hd64 import ragged_paged_attention_hd64

Its cache has no padding: a head's K and V share 128 numbers. `intarsia.jax.rpa_v3` has the kernel for other head dims.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from intarsia.jax._call import as_array
from intarsia.jax._rpa_step import heads_in_word, step

_OP = "ragged_paged_attention_hd64"


def ragged_paged_attention_hd64(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    kv_cache: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    distribution: ArrayLike,
    attention_sink: ArrayLike | None = None,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    chunk_prefill_size: int | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
    debug_mode: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Writes a step's keys and values into the cache, and attends causally to all that it holds.

    Args:
      queries, keys, values: as in `intarsia.jax.rpa_v3.ragged_paged_attention`, d = 64.
      kv_cache: [p, s, c, packing, 128] with c * packing >= hk heads, the V of each behind its K.
      kv_lens, page_indices, cu_q_lens, distribution, sm_scale, sliding_window, soft_cap, q_scale, k_scale, v_scale: as there.
      attention_sink: f32 [h], a logit of each head that counts in the denominator and has no value.
      mask_value, chunk_prefill_size, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes, debug_mode: ignored:
        they tune the TPU's kernel.

    Returns:
      out [t, h, 64], rows of no real sequence 0, and the cache.

    Raises:
      ValueError: shapes or dtypes do not fit.
    """
    del mask_value, chunk_prefill_size, num_kv_pages_per_block, num_queries_per_block
    del vmem_limit_bytes, debug_mode
    q, cache = as_array(f"{_OP}: queries", queries), as_array(f"{_OP}: kv_cache", kv_cache)
    if cache.ndim != 5 or cache.shape[4] != 128 or q.shape[-1] != 64:
        shapes = f"queries {list(q.shape)} and kv_cache {list(cache.shape)}"
        raise ValueError(f"{_OP}: {shapes}, expected [t, h, 64] and [p, s, c, packing, 128]")
    heads, room = jnp.shape(keys)[1:2], cache.shape[2] * cache.shape[3]
    if heads and room < heads[0]:
        raise ValueError(
            f"{_OP}: kv_cache has {room} heads, expected at least the {heads[0]} of keys"
        )
    # K and V side by side lie as heads of K and V in turn do.
    in_turn = cache.reshape(*cache.shape[:2], -1, 2, 64)
    out, in_turn = step(
        _OP,
        *(q, keys, values, in_turn, kv_lens, page_indices, cu_q_lens, distribution),
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        sinks=None if attention_sink is None else jnp.asarray(attention_sink, jnp.float32),
    )
    return out, in_turn.reshape(cache.shape)


def get_kv_cache_shape(
    total_num_pages: int,
    page_size: int,
    actual_num_kv_heads: int,
    actual_head_dim: int,
    kv_dtype: DTypeLike,
) -> tuple[int, int, int, int, int]:
    """The shape of `kv_cache`, of words of 32 bits, as on a TPU."""
    if actual_head_dim != 64:
        raise ValueError(f"{_OP}: actual_head_dim is {actual_head_dim}, expected 64")
    packing = heads_in_word(kv_dtype)
    return total_num_pages, page_size, -(-actual_num_kv_heads // packing), packing, 128
