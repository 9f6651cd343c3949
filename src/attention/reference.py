"""What the attention ops compute, in NumPy f64.

For query i of a sequence with len_q queries and len_k keys, at position i + len_k - len_q:

    s_ij  = scale * q_scale * k_scale * q_i . k_j, and with softcap: softcap * tanh(s_ij / softcap)
    key j is seen if position - left <= j <= position + right (negative: open) and 0 <= j < len_k
    and, with chunks of c keys, floor(position / c) == floor(j / c)
    alibi: s_ij -= slope * |position - j|
    z_i   = sum_j exp(s_ij) + exp(sink)
    out_i = v_scale * sum_j exp(s_ij) v_j / z_i;  lse_i = ln z_i

len_k is what remains behind leftpad_k keys. A row that sees nothing gives out = 0 and lse = the
sink, or -inf if there is none; a row that belongs to no sequence gives out = 0 and lse = -inf.
Operands come as they are stored: fp8 not yet multiplied by its scale, uint8 as bits.
"""

import numpy as np
from intarsia_src.attention import operands
from intarsia_src.core import cache_layout

# Relative Frobenius error against f64, by the result's dtype (docs/design.md, "Accuracy").
TOLERANCE = {"f32": 1e-5, "f16": 1e-3, "bf16": 6e-3}


def stored_values(x, kv_cache_dtype="auto"):
    """f64: what the elements of an array are, uint8 ones by `kv_cache_dtype`."""
    if x is not None and x.dtype == np.uint8:
        x = x.view(cache_layout.FP8_CACHES[kv_cache_dtype])
    return None if x is None else x.astype(np.float64)


def by_head(x, i, heads):
    """Of sequence i, a number for each head, where x is [1], [heads] or [b, heads]; 1 if None."""
    if x is None:
        return np.ones(heads)
    return np.broadcast_to(x[i] if x.ndim == 2 else x, heads)


def paged_keys(cache: operands.PagedCache, layout, kv_cache_dtype="auto"):
    """The keys of the i-th sequence: (K [n, hk, d], V, which of them exist)."""
    k, v = (stored_values(x, kv_cache_dtype) for x in (cache.key_cache, cache.value_cache))
    k_pages, v_pages = cache_layout.cache_pages(k, v, layout, cache.layer)
    layer_exists = k_pages is not None
    if not layer_exists:
        k_pages, v_pages = cache_layout.cache_pages(k, v, layout, 0)
    num_pages, page_size = k_pages.shape[:2]

    def keys(i):
        end = int(np.clip(cache.seqused_k[i], 0, cache.block_table.shape[1] * page_size))
        begin = 0 if cache.leftpad_k is None else int(np.clip(cache.leftpad_k[i], 0, end))
        slot = np.arange(begin, end)
        page = cache.block_table[i][slot // page_size]
        exists = (page >= 0) & (page < num_pages) & layer_exists
        at = np.where(exists, page, 0), slot % page_size
        return k_pages[at], v_pages[at], exists

    return keys


def starts_within(cu_seqlens, rows):
    """Starts as the kernels count them: each the largest so far, and none beyond the rows."""
    return np.maximum.accumulate(np.clip(cu_seqlens, 0, rows))


def dense_keys(k, v, cu_seqlens_k, seqused_k=None, leftpad_k=None):
    """The keys of the i-th sequence: (K [n, hk, d], V, which of them exist)."""
    starts = starts_within(cu_seqlens_k, len(k))

    def keys(i):
        begin, end = int(starts[i]), int(starts[i + 1])
        if seqused_k is not None:
            end = begin + int(np.clip(seqused_k[i], 0, max(end - begin, 0)))
        if leftpad_k is not None:
            begin += int(np.clip(leftpad_k[i], 0, end - begin))
        return k[begin:end], v[begin:end], np.ones(max(end - begin, 0), bool)

    return keys


def masked_scores(q, k, exists, *, scale, left=-1, right=-1, softcap=0.0, slopes=None, chunk=0):
    """One sequence, k by query head: s [h, i, j], -inf where key j is not seen; ds / d(scale * q . k)."""
    len_q, len_k = len(q), len(k)
    scores = scale * (q.transpose(1, 0, 2) @ k.transpose(1, 2, 0))
    derivative = np.ones(scores.shape)
    if softcap > 0:
        derivative = np.cosh(np.clip(scores / softcap, -300, 300)) ** -2
        scores = softcap * np.tanh(scores / softcap)
    position = np.arange(len_q)[:, None] + len_k - len_q
    key = np.arange(len_k)
    seen = np.broadcast_to(exists, (len_q, len_k))
    if left >= 0:
        seen = seen & (key >= position - left)
    if right >= 0:
        seen = seen & (key <= position + right)
    if chunk > 0:
        seen = seen & (key // chunk == position // chunk)
    if slopes is not None:
        scores = scores - slopes[:, None, None] * np.abs(position - key)
    return np.where(seen, scores, -np.inf), derivative


def attend(q, k, v, exists, *, sinks=None, **options):
    """One sequence: q [n, h, d], K [m, hk, d], V [m, hk, dv] give out [n, h, dv] and lse [h, n]."""
    # NaN on a page that does not exist must not reach the sums.
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.where(exists[:, None, None], x, 0), group, axis=1) for x in (k, v))
    scores, _ = masked_scores(q, k, exists, **options)
    sink = -np.inf if sinks is None else sinks[:, None, None]
    top = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    shift = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - shift)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - shift)
    out = (weights / np.where(total > 0, total, 1)) @ v.transpose(1, 0, 2)
    with np.errstate(divide="ignore"):
        return out.transpose(1, 0, 2), (np.log(total) + top)[..., 0]


def attend_ragged(
    q, cu_seqlens_q, keys, *, num_seqs=None, scale=None, q_scale=None, k_scale=None, v_scale=None,
    alibi_slopes=None, dv=None, **options,
):  # fmt: skip
    """A batch: `keys` is paged_keys(...) or dense_keys(...). Gives out [t, h, dv] and lse [h, t]."""
    t, h, d = q.shape
    dv = d if dv is None else dv
    out, lse = np.zeros((t, h, dv)), np.full((h, t), -np.inf)
    count = (
        len(cu_seqlens_q) - 1
        if num_seqs is None
        else int(np.clip(num_seqs, 0, len(cu_seqlens_q) - 1))
    )
    scale = d**-0.5 if scale is None else scale
    for i in range(count):
        rows = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        k, v, exists = keys(i)
        hk = k.shape[1]
        k, v = (x * by_head(s, i, hk)[:, None] for x, s in ((k, k_scale), (v, v_scale)))
        queries = q[rows] * np.repeat(by_head(q_scale, i, hk), h // hk)[:, None]
        slopes = None if alibi_slopes is None else by_head(alibi_slopes, i, h)
        out[rows], lse[:, rows] = attend(
            queries, k, v, exists, scale=scale, slopes=slopes, **options
        )
    return out, lse


def floor(dtype_bytes, lens, *, h, hk, d, causal, left=-1, dv=None, q_bytes=None, kv_bytes=None):
    """The least a call must do: (bytes moved, flops). dtype_bytes: of results, and what is not said."""
    move = pairs = 0
    dv = dv or d
    q_bytes, kv_bytes = q_bytes or dtype_bytes, kv_bytes or dtype_bytes
    for len_q, len_k in lens:
        position = np.arange(len_q) + len_k - len_q
        end = np.minimum(len_k, position + 1) if causal else np.full(len_q, len_k)
        begin = np.maximum(position - left, 0) if left >= 0 else np.zeros(len_q, int)
        pairs += int(np.maximum(end - begin, 0).sum())
        # Each key that some query sees is read once, each query once; each result is written once.
        keys = int(end.max(initial=0) - begin.min(initial=len_k)) if len_q else 0
        move += (d + dv) * hk * max(keys, 0) * kv_bytes
        move += h * len_q * (d * q_bytes + dv * dtype_bytes)
    return move, 2 * h * (d + dv) * pairs
