"""The paged attention of JAX's TPU kernels, so that code written for them runs here with another import."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from intarsia.jax._attention import paged_attention
from intarsia.jax._call import as_array

_FP8 = (jnp.float8_e4m3fn, jnp.float8_e5m2)


def ragged_paged_attention(
    q: ArrayLike,
    kv_pages: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    num_seqs: ArrayLike,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> jax.Array:
    """`jax.experimental.pallas.ops.tpu.ragged_paged_attention`, argument by argument, on CPUs and GPUs.

    Causal attention of a ragged batch to a paged cache that holds this step's keys already. The same as
    `paged_attention` with layout "combined", but for names, the default scale and these differences.

    Args:
      q: [t, h, d], f32, f16 or bf16; d a multiple of 8 up to 256; h a multiple of hk.
      kv_pages: [p, s, 2 * hk, d], K in even and V in odd heads; of q's dtype or fp8.
      kv_lens: int32 [b], keys of each sequence, this step's tokens included.
      page_indices: int32 [b, m], the pages of each sequence.
      cu_q_lens: int32 [b + 1], where each sequence starts in q.
      num_seqs: int32 [1], how many sequences are real.
      sm_scale: of the scores; 1 by default, unlike `paged_attention`'s.
      sliding_window: keys that a query sees, its own included; default all.
      soft_cap: scores become soft_cap * tanh(score / soft_cap); default as they are.
      mask_value: ignored: what a query does not see has no weight at all.
      k_scale, v_scale: what K and V are to be multiplied by, also where they are not fp8.
      num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes: ignored: they tune the TPU's kernel.

    Returns:
      [t, h, d]. Rows of no real sequence are 0 (the TPU's kernel leaves them undefined).

    Raises:
      ValueError: shapes or dtypes do not fit. NotImplementedError: a head dim that is not built.

    Example:
      >>> out = ragged_paged_attention(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, sm_scale=d**-0.5)
    """
    del mask_value, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes
    if soft_cap == 0:
        raise ValueError("ragged_paged_attention: soft_cap is 0, expected None or a number above 0")
    q, kv_pages = (
        as_array(f"ragged_paged_attention: {name}", x)
        for name, x in (("q", q), ("kv_pages", kv_pages))
    )
    out_scale = None
    if kv_pages.dtype not in _FP8:
        # q (k_scale K) = k_scale (q K), and likewise outside of the sum over V.
        sm_scale, out_scale = sm_scale * (1.0 if k_scale is None else k_scale), v_scale
        k_scale = v_scale = None
    out = paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        scale=sm_scale,
        sliding_window=sliding_window,
        softcap=0.0 if soft_cap is None else soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
        layout="combined",
    )
    return out if out_scale is None else (out * out_scale).astype(q.dtype)
