"""Attention in jax.numpy, as a user without this library would write it: what benchmarks compare with."""

import jax.numpy as jnp
from intarsia_src.core import cache_layout
from jax import lax


def gather_pages(key_cache, value_cache, block_table, layout, layer=None, kv_cache_dtype="auto"):
    """K and V of all sequences as [b, m * s, hk, d] in jax.numpy, and which keys' pages exist."""
    arrays = key_cache, key_cache if value_cache is None else value_cache
    layer = None if layer is None else layer.reshape(())
    k, v = (cache_layout.pages_of(array, layout, i, layer) for i, array in enumerate(arrays))
    if k.dtype == jnp.uint8:
        k, v = (
            lax.bitcast_convert_type(x, cache_layout.FP8_CACHES[kv_cache_dtype]) for x in (k, v)
        )
    p, s, hk, d = k.shape
    b, m = block_table.shape
    exists = jnp.repeat((block_table >= 0) & (block_table < p), s, axis=1)
    page = jnp.clip(block_table, 0, p - 1)
    return *(x[page].reshape(b, m * s, hk, d) for x in (k, v)), exists


def by_head(x, b, hk):
    """[b, hk, 1, 1, 1] of x [1], [hk] or [b, hk]; 1 if None."""
    return 1.0 if x is None else jnp.broadcast_to(x, (b, hk))[:, :, None, None, None]


def attend(
    q, k, v, used, exists, cu_seqlens_q, *, num_seqs=None, scale, left=-1, right=-1, softcap=0.0,
    alibi_slopes=None, sinks=None, leftpad_k=None, q_scale=None, k_scale=None, v_scale=None,
    dtype=None, chunk=0, max_len_q,
):  # fmt: skip
    """K and V already gathered to [b, n, hk, d], `used` of the n taken: scores, mask, softmax, sum.

    `dtype`: of the result and the products, where q's does not do.
    """
    dtype = dtype or q.dtype
    t, h, d = q.shape
    b, n, hk, _ = k.shape
    begin, len_q = cu_seqlens_q[:-1], jnp.diff(cu_seqlens_q)
    row = begin[:, None] + jnp.arange(max_len_q)
    padded = q[jnp.minimum(row, t - 1)].reshape(b, max_len_q, hk, h // hk, d).astype(dtype)
    scores = jnp.einsum(
        "bihgd,bjhd->bhgij", padded, k.astype(dtype), preferred_element_type=jnp.float32
    )
    scores *= scale * by_head(q_scale, b, hk) * by_head(k_scale, b, hk)
    if softcap > 0:
        scores = softcap * jnp.tanh(scores / softcap)
    pad = jnp.zeros_like(used) if leftpad_k is None else jnp.minimum(leftpad_k, used)
    key, len_k = jnp.arange(n) - pad[:, None], used - pad
    is_key = exists & (key >= 0) & (key < len_k[:, None])
    distance = (jnp.arange(max_len_q) + (len_k - len_q)[:, None])[:, :, None] - key[:, None]
    if alibi_slopes is not None:
        slopes = jnp.broadcast_to(alibi_slopes, (b, h)).reshape(b, hk, h // hk, 1, 1)
        scores -= slopes * jnp.abs(distance)[:, None, None]
    seen = jnp.broadcast_to(is_key[:, None], (b, max_len_q, n))
    if left >= 0:
        seen &= distance <= left
    if right >= 0:
        seen &= distance >= -right
    if chunk > 0:
        position = jnp.arange(max_len_q) + (len_k - len_q)[:, None]
        seen &= key[:, None] // chunk == (position // chunk)[:, :, None]
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    top = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    sink = -jnp.inf if sinks is None else sinks.reshape(hk, h // hk, 1, 1)
    top = jnp.maximum(top, sink)
    shift = jnp.where(jnp.isfinite(top), top, 0)
    weights = jnp.exp(scores - shift)
    total = weights.sum(axis=-1, keepdims=True) + jnp.exp(sink - shift)
    # Zero times NaN is NaN: what lies beyond a sequence must be blanked, too.
    v = jnp.where(is_key[..., None, None], v.astype(dtype), 0)
    probabilities = weights / jnp.where(total > 0, total, 1) * by_head(v_scale, b, hk)
    padded_out = jnp.einsum("bhgij,bjhd->bihgd", probabilities.astype(dtype), v)
    padded_out = padded_out.reshape(b, max_len_q, h, v.shape[-1])
    padded_lse = (jnp.log(total) + top)[..., 0].reshape(b, h, max_len_q)

    token = jnp.arange(t)
    sequence = jnp.clip(jnp.searchsorted(cu_seqlens_q, token, side="right") - 1, 0, b - 1)
    count = b if num_seqs is None else num_seqs.reshape(())
    real = (token >= cu_seqlens_q[0]) & (token < cu_seqlens_q[-1]) & (sequence < count)
    i = jnp.clip(token - begin[sequence], 0, max_len_q - 1)
    out = jnp.where(real[:, None, None], padded_out[sequence, i], 0)
    return out, jnp.where(real[:, None], padded_lse[sequence, :, i], -jnp.inf).T
