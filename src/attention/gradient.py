"""The gradient of attention in NumPy f64 (src/attention/backward.h has the formulas)."""

import numpy as np
from intarsia_src.attention import reference


def _sequences(starts_q, starts_k, seqused_k):
    """(index, rows of q, rows of k) of each sequence."""
    for i in range(len(starts_q) - 1):
        start, end = int(starts_k[i]), int(starts_k[i + 1])
        if seqused_k is not None:
            end = start + int(np.clip(seqused_k[i], 0, end - start))
        yield i, slice(int(starts_q[i]), int(starts_q[i + 1])), slice(start, end)


def _by_query_head(x, h):
    """[n, hk, d] as [h, n, d]."""
    return np.repeat(x, h // x.shape[1], axis=1).transpose(1, 0, 2)


def _by_kv_head(x, hk):
    """[h, n, d] as [n, hk, d], summed over the query heads of each."""
    return x.reshape(hk, len(x) // hk, *x.shape[1:]).sum(axis=1).transpose(1, 0, 2)


def backward(
    dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, seqused_k=None, alibi_slopes=None,
    sinks=None, dlse=None, *, scale, magnitudes=False, **options,
):  # fmt: skip
    """dq, dk, dv and dsinks.

    With `magnitudes`, each sum is of absolute values, before anything cancels: what rounding
    errors of dout . v and delta are to be measured by.
    """
    absolute = abs if magnitudes else (lambda x: x)
    h, hk = q.shape[1], k.shape[1]
    dq, dk, dv, dsinks = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), np.zeros(h)
    starts_q = reference.starts_within(cu_seqlens_q, len(q))
    starts_k = reference.starts_within(cu_seqlens_k, len(k))
    for i, rows, keys in _sequences(starts_q, starts_k, seqused_k):
        slopes = None if alibi_slopes is None else reference.by_head(alibi_slopes, i, h)
        s, derivative = reference.masked_scores(
            q[rows],
            np.repeat(k[keys], h // hk, axis=1),
            True,
            scale=scale,
            slopes=slopes,
            **options,
        )
        z = np.where(np.isneginf(lse[:, rows]), np.inf, lse[:, rows])[..., None]
        p = np.exp(s - z)
        q_i, dout_i = (x[rows].transpose(1, 0, 2) for x in (q, dout))
        k_j, v_j = (_by_query_head(x[keys], h) for x in (k, v))
        delta = absolute(dout_i * out[rows].transpose(1, 0, 2)).sum(axis=-1, keepdims=True)
        if dlse is not None:
            delta = delta - absolute(dlse[:, rows, None]) * (-1 if magnitudes else 1)
        dp = absolute(dout_i) @ absolute(v_j).transpose(0, 2, 1)
        ds = scale * p * derivative * (dp + delta if magnitudes else dp - delta)
        dq[rows] = (ds @ absolute(k_j)).transpose(1, 0, 2)
        dk[keys] = _by_kv_head(ds.transpose(0, 2, 1) @ absolute(q_i), hk)
        dv[keys] = _by_kv_head(p.transpose(0, 2, 1) @ absolute(dout_i), hk)
        if sinks is not None:
            dsinks -= (np.exp(sinks[:, None, None] - z) * delta).sum(axis=(1, 2))
    return [dq, dk, dv] if sinks is None else [dq, dk, dv, dsinks]
