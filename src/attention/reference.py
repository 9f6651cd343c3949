"""What the attention ops compute, in NumPy f64; ragged batches to try them on; plain XLA's way.

For query i of a sequence with len_q queries and len_k keys, at position i + len_k - len_q:

    s_ij  = scale * q_i . k_j, and with softcap: softcap * tanh(s_ij / softcap)
    key j is seen if position - left <= j <= position + right (negative: open) and 0 <= j < len_k
    out_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij);  lse_i = ln sum_j exp(s_ij)

A row that sees nothing, or belongs to no sequence, gives out = 0 and lse = -inf.
"""

from dataclasses import dataclass

import numpy as np

# Random numbers are drawn up to here and then repeated: a prime, so that no two pages are alike.
_DRAWN = 1048583


def random_array(rng, shape, dtype):
    """Normal numbers; fast also for the gigabytes of a benchmark's cache."""
    size = int(np.prod(shape))
    return np.resize(rng.standard_normal(min(size, _DRAWN), np.float32).astype(dtype), shape)


# ---------------------------------------------------------------------------- paged caches


def cache_shapes(layout, pages, page_size, hk, d, layers=None):
    """The shapes of key_cache and value_cache; the latter None where one array holds both."""
    lead = () if layers is None else (layers,)
    if layout == "combined":
        return (*lead, pages, page_size, 2 * hk, d), None
    return ((*lead, pages, page_size, hk, d),) * 2


def cache_pages(key_cache, value_cache, layout, layer=None):
    """Views [p, s, hk, d] of one layer's K and V; (None, None) if there is no such layer."""
    if layer is not None:
        if not 0 <= int(layer) < len(key_cache):
            return None, None
        key_cache, value_cache = (
            None if c is None else c[int(layer)] for c in (key_cache, value_cache)
        )
    if layout == "combined":
        return key_cache[:, :, ::2], key_cache[:, :, 1::2]
    return key_cache, value_cache


@dataclass(frozen=True)
class PagedCache:
    """A cache that holds sequences, as the operands of an op."""

    key_cache: np.ndarray
    value_cache: np.ndarray | None
    block_table: np.ndarray
    seqused_k: np.ndarray
    layer: np.ndarray | None


def paged_cache(
    rng,
    dtype,
    lens_k,
    *,
    hk,
    d,
    page,
    layout="NHD",
    layers=None,
    layer=1,
    index=np.int32,
    spare=2,
    poison=True,
):
    """A random cache in which the sequences' pages lie scattered.

    Every slot that holds no key is NaN (with `poison`), and every entry of the table that no
    sequence uses is a page of somebody else, or none.
    """
    used = [-(-n // page) for n in lens_k]
    num_pages = sum(used) + spare
    table = rng.choice(
        np.array([-1, 0, num_pages - 1, num_pages + 7]), (len(used), max([*used, 1]) + 1)
    )
    order = rng.permutation(num_pages)
    holds = np.zeros((num_pages, page), bool)
    for row, n, length, start in zip(table, used, lens_k, np.cumsum([0, *used]), strict=False):
        row[:n] = order[start : start + n]
        holds[row[:n]] = np.arange(n * page).reshape(n, page) < length

    caches = [
        None if shape is None else random_array(rng, shape, dtype)
        for shape in cache_shapes(layout, num_pages, page, hk, d, layers)
    ]
    if poison:
        for cache in caches:
            if cache is not None:
                cache[..., ~holds, :, :] = np.nan
    return PagedCache(
        *caches,
        block_table=table.astype(index),
        seqused_k=np.array(lens_k, index),
        layer=None if layers is None else np.array(layer, np.int32),
    )


def starts(lengths, index=np.int32):
    """Where each sequence starts, and where the last one ends."""
    return np.cumsum([0, *lengths]).astype(index)


# ---------------------------------------------------------------------------- f64


def paged_keys(cache: PagedCache, layout):
    """The keys of the i-th sequence: (K [n, hk, d], V, which of them exist)."""
    k_pages, v_pages = cache_pages(cache.key_cache, cache.value_cache, layout, cache.layer)
    num_pages, page_size = cache.key_cache.shape[-4:-2]

    def keys(i):
        length = int(np.clip(cache.seqused_k[i], 0, cache.block_table.shape[1] * page_size))
        position = np.arange(length if k_pages is not None else 0)
        page = cache.block_table[i][position // page_size]
        exists = (page >= 0) & (page < num_pages)
        at = np.where(exists, page, 0), position % page_size
        if k_pages is None:
            return *(np.zeros((0, 1, 1)),) * 2, exists
        return k_pages[at], v_pages[at], exists

    return keys


def dense_keys(k, v, cu_seqlens_k, seqused_k=None):
    """The keys of the i-th sequence: (K [n, hk, d], V, which of them exist)."""

    def keys(i):
        start, end = int(cu_seqlens_k[i]), int(cu_seqlens_k[i + 1])
        if seqused_k is not None:
            end = min(start + int(seqused_k[i]), len(k))
        return k[start:end], v[start:end], np.ones(max(end - start, 0), bool)

    return keys


def attend(q, k, v, exists, *, scale, left=-1, right=-1, softcap=0.0):
    """One sequence: q [n, h, d] and K, V [m, hk, d] give out [n, h, d] and lse [h, n]."""
    len_q, h, _ = q.shape
    len_k = len(k)
    if len_k == 0 or len_q == 0:
        return np.zeros(q.shape), np.full((h, len_q), -np.inf)
    group = h // k.shape[1]
    # NaN on a page that does not exist must not reach the sums.
    k, v = (np.repeat(np.where(exists[:, None, None], x, 0), group, axis=1) for x in (k, v))
    scores = scale * (q.transpose(1, 0, 2) @ k.transpose(1, 2, 0))  # [h, i, j]
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    position = np.arange(len_q)[:, None] + len_k - len_q
    key = np.arange(len_k)
    seen = np.broadcast_to(exists, (len_q, len_k))
    if left >= 0:
        seen = seen & (key >= position - left)
    if right >= 0:
        seen = seen & (key <= position + right)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    out = (weights / np.where(total > 0, total, 1)) @ v.transpose(1, 0, 2)
    with np.errstate(divide="ignore"):
        return out.transpose(1, 0, 2), (np.log(total) + top)[..., 0]


def attend_ragged(q, cu_seqlens_q, keys, *, num_seqs=None, scale=None, **options):
    """A batch: `keys` is paged_keys(...) or dense_keys(...). Gives out [t, h, d] and lse [h, t]."""
    t, h, d = q.shape
    out, lse = np.zeros(q.shape), np.full((h, t), -np.inf)
    count = (
        len(cu_seqlens_q) - 1
        if num_seqs is None
        else int(np.clip(num_seqs, 0, len(cu_seqlens_q) - 1))
    )
    scale = d**-0.5 if scale is None else scale
    for i in range(count):
        rows = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        out[rows], lse[:, rows] = attend(q[rows], *keys(i), scale=scale, **options)
    return out, lse


# ---------------------------------------------------------------------------- costs, plain XLA


def floor(dtype_bytes, lens, *, h, hk, d, causal, left=-1):
    """The least a call must do: (bytes moved, flops)."""
    move = pairs = 0
    for len_q, len_k in lens:
        position = np.arange(len_q) + len_k - len_q
        end = np.minimum(len_k, position + 1) if causal else np.full(len_q, len_k)
        begin = np.maximum(position - left, 0) if left >= 0 else np.zeros(len_q, int)
        pairs += int(np.maximum(end - begin, 0).sum())
        # Each key that some query sees is read once, each query once; each result is written once.
        keys = int(end.max(initial=0) - begin.min(initial=len_k)) if len_q else 0
        move += 2 * d * (hk * max(keys, 0) + h * len_q) * dtype_bytes
    return move, 4 * h * d * pairs


def attend_xla(
    q,
    k,
    v,
    len_k,
    exists,
    cu_seqlens_q,
    *,
    num_seqs=None,
    scale,
    left=-1,
    right=-1,
    softcap=0.0,
    max_len_q,
):
    """K and V already gathered to [b, n, hk, d]: scores, mask, softmax, sum in jax.numpy."""
    import jax.numpy as jnp
    from jax import lax

    t, h, d = q.shape
    b, n, hk, _ = k.shape
    begin, len_q = cu_seqlens_q[:-1], jnp.diff(cu_seqlens_q)
    row = begin[:, None] + jnp.arange(max_len_q)
    padded = q[jnp.minimum(row, t - 1)].reshape(b, max_len_q, hk, h // hk, d)
    scores = jnp.einsum("bihgd,bjhd->bhgij", padded, k, preferred_element_type=jnp.float32) * scale
    if softcap > 0:
        scores = softcap * jnp.tanh(scores / softcap)
    position = (jnp.arange(max_len_q) + (len_k - len_q)[:, None])[:, :, None]
    key = jnp.arange(n)
    seen = jnp.broadcast_to((exists & (key < len_k[:, None]))[:, None], (b, max_len_q, n))
    if left >= 0:
        seen &= key >= position - left
    if right >= 0:
        seen &= key <= position + right
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    top = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    # Zero times NaN is NaN: what lies beyond a sequence must be blanked, too.
    v = jnp.where((exists & (key < len_k[:, None]))[..., None, None], v, 0)
    probabilities = (weights / jnp.where(total > 0, total, 1)).astype(q.dtype)
    padded_out = jnp.einsum("bhgij,bjhd->bihgd", probabilities, v).reshape(b, max_len_q, h, d)
    padded_lse = (jnp.log(total) + top)[..., 0].reshape(b, h, max_len_q)

    token = jnp.arange(t)
    sequence = jnp.clip(jnp.searchsorted(cu_seqlens_q, token, side="right") - 1, 0, b - 1)
    count = b if num_seqs is None else num_seqs.reshape(())
    real = (token < cu_seqlens_q[-1]) & (sequence < count)
    i = jnp.clip(token - begin[sequence], 0, max_len_q - 1)
    out = jnp.where(real[:, None, None], padded_out[sequence, i], 0)
    return out, jnp.where(real[:, None], padded_lse[sequence, :, i], -jnp.inf).T


def gather_pages(key_cache, value_cache, block_table, layout, layer=None):
    """K and V of all sequences as [b, m * s, hk, d] in jax.numpy, and which keys' pages exist."""
    import jax.numpy as jnp
    from jax import lax

    if layer is not None:
        at = layer.reshape(())
        key_cache = lax.dynamic_index_in_dim(key_cache, at, keepdims=False)
        value_cache = (
            None
            if value_cache is None
            else lax.dynamic_index_in_dim(value_cache, at, keepdims=False)
        )
    if layout == "combined":
        key_cache, value_cache = key_cache[:, :, ::2], key_cache[:, :, 1::2]
    p, s, hk, d = key_cache.shape
    b, m = block_table.shape
    exists = jnp.repeat((block_table >= 0) & (block_table < p), s, axis=1)
    page = jnp.clip(block_table, 0, p - 1)
    return *(cache[page].reshape(b, m * s, hk, d) for cache in (key_cache, value_cache)), exists
