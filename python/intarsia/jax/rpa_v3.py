"""Ragged paged attention as tpu-inference's kernel v3 takes it, so that code written for TPUs runs here with another import.

    from intarsia.jax.rpa_v3 import ragged_paged_attention
    # was: from tpu_inference.kernels.ragged_paged_attention.v3.kernel import ragged_paged_attention

`intarsia.jax.rpa_v3_hd64` is its kernel_hd64, which tpu-inference calls where a head has 64 numbers.
`intarsia.jax.ragged_paged_attention` is v2, of `jax.experimental.pallas.ops.tpu`: there the step's keys are in the cache already.
"""

import jax
from jax.typing import ArrayLike, DTypeLike

from intarsia.jax._rpa_step import heads_in_word, step


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
    """Writes a step's keys and values into the cache, and attends to all that it holds.

    The cache is written in place where the enclosing jit donates it; this function, unlike the TPU's, donates nothing itself.

    Args:
      queries: [t, h, d], f32, f16 or bf16; h a multiple of hk.
      keys, values: [t, hk, d], of the cache's dtype (quantized by the caller), or as `queries`.
      kv_cache: [p, s, c, packing, D] with c * packing >= 2 * hk heads, K and V in turn, and D >= d, padded.
      kv_lens: int32 [b], keys of each sequence, this step's tokens included.
      page_indices: int32 [b * m], the pages of each sequence.
      cu_q_lens: int32 [b + 1], where each sequence starts in queries.
      distribution: int32 [3]; the last number says how many sequences are real.
      use_causal_mask: False where queries see all keys of their sequence, later ones included.
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
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim that is not built.
    """
    del skip_kv_mask, mask_value, chunk_prefill_size, d_block_sizes, p_block_sizes, m_block_sizes
    del vmem_limit_bytes, debug_mode, disable_bounds_checks, disable_semaphore_checks
    return step(
        "ragged_paged_attention",
        *(queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution),
        use_causal_mask=use_causal_mask,
        update_kv_cache=update_kv_cache,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        out_dtype=out_dtype,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def get_kv_cache_shape(
    total_num_pages: int,
    page_size: int,
    actual_num_kv_heads: int,
    actual_head_dim: int,
    kv_dtype: DTypeLike,
) -> tuple[int, int, int, int, int]:
    """The shape of `kv_cache`, of words of 32 bits and head dims padded to 128, as on a TPU."""
    packing = heads_in_word(kv_dtype)
    words = -(-2 * actual_num_kv_heads // packing)
    return total_num_pages, page_size, words, packing, -(-actual_head_dim // 128) * 128
