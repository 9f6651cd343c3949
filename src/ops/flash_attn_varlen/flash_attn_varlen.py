"""flash_attn_varlen: its cases, and what it computes in the terms of attention/reference.py."""

import numpy as np

from attention import reference as attention

_LLAMA = dict(h=32, hk=8, d=128, is_causal=True)
_SMOLLM2 = dict(h=9, hk=3, d=64)
_MIXED = ((1, 33), (5, 5), (0, 0), (1, 1), (7, 40), (3, 0), (0, 9), (9, 4), (1, 16), (130, 70))

# Named after the models whose heads they are. `lens` has (queries, keys) of each sequence; with
# `page` the keys lie in a paged cache.
CASES = {
    "example": dict(tags="ci wire", lens=((3, 3), (2, 6)), h=4, hk=2, d=64, is_causal=True),
    "llama3_8b_prefill_4x4096": dict(tags="bench", lens=((4096, 4096),) * 4, **_LLAMA),
    "llama3_8b_prefill_4x4096_paged": dict(
        tags="bench", lens=((4096, 4096),) * 4, **_LLAMA, page=16
    ),
    "llama3_8b_prefill_1x2048": dict(tags="bench", lens=((2048, 2048),), **_LLAMA),
    "llama3_8b_prefill_1x2048_paged": dict(tags="bench", lens=((2048, 2048),), **_LLAMA, page=16),
    "llama3_8b_prefill_1x512": dict(tags="bench_cpu", lens=((512, 512),), **_LLAMA),
    "smollm2_prefill_4x128": dict(
        tags="ci bench_cpu", lens=((128, 128),) * 4, **_SMOLLM2, is_causal=True
    ),
    "smollm2_prefill_4x128_paged": dict(
        tags="ci", lens=((128, 128),) * 4, **_SMOLLM2, is_causal=True, page=16
    ),
    "bidirectional": dict(tags="ci", lens=_MIXED, **_SMOLLM2, return_lse=True),
    "causal": dict(tags="ci", lens=_MIXED, **_SMOLLM2, is_causal=True, return_lse=True),
    "causal_int64": dict(tags="ci", lens=_MIXED, **_SMOLLM2, is_causal=True, index=np.int64),
    "causal_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, is_causal=True, page=16, return_lse=True
    ),
    "paged_combined": dict(tags="ci", lens=_MIXED, **_SMOLLM2, page=16, layout="combined"),
    "paged_layers": dict(tags="ci", lens=_MIXED, **_SMOLLM2, page=16, layers=2),
    "no_such_layer": dict(
        tags="ci beyond_plain", lens=_MIXED, **_SMOLLM2, page=16, layers=2, layer=2, return_lse=True
    ),
    "used_keys": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, used=True, is_causal=True, return_lse=True
    ),
    "padded": dict(tags="ci", lens=_MIXED, **_SMOLLM2, padding=9, return_lse=True),
    "window_both": dict(
        tags="ci", lens=((40, 70), (90, 90)), **_SMOLLM2, window_left=16, window_right=5
    ),
    "window_left_causal": dict(
        tags="ci", lens=((40, 70), (90, 90)), **_SMOLLM2, window_left=0, is_causal=True
    ),
    "window_right": dict(
        tags="ci", lens=((40, 70), (90, 9)), **_SMOLLM2, window_right=3, return_lse=True
    ),
    "gemma2_softcap": dict(
        tags="ci",
        lens=((30, 30), (2, 70)),
        h=8,
        hk=4,
        d=256,
        softcap=50.0,
        scale=0.0625,
        is_causal=True,
    ),
    "softcap_bends": dict(
        tags="ci", lens=((30, 30), (2, 70)), h=4, hk=4, d=32, softcap=0.5, scale=1.0
    ),
    "head_dim_8": dict(tags="ci", lens=((20, 50), (4, 9)), h=3, hk=1, d=8),
    "head_dim_120": dict(tags="ci", lens=((70, 80),), h=5, hk=5, d=120, is_causal=True),
    "head_dim_192": dict(tags="ci", lens=((70, 80),), h=4, hk=2, d=192, is_causal=True),
    "many_query_heads": dict(tags="ci", lens=((3, 70),), h=71, hk=1, d=64, is_causal=True),
    "no_tokens": dict(tags="ci beyond_plain", lens=((0, 5), (0, 0)), **_SMOLLM2),
}


def arguments(
    rng, dtype, *, lens, h, hk, d, page=None, layout="NHD", layers=None, layer=1, used=False,
    padding=0, index=np.int32, **attributes,
):  # fmt: skip
    """Random operands in spec order, and attributes.

    `used`: seqused_k says that each sequence has a few keys fewer than its room. `padding`: rows of
    q beyond the sequences.
    """
    lens_q, lens_k = [n for n, _ in lens], [n for _, n in lens]
    q = attention.random_array(rng, (sum(lens_q) + padding, h, d), dtype)
    cu_seqlens_q = attention.starts(lens_q, index)
    if page is not None:
        cache = attention.paged_cache(
            rng,
            dtype,
            lens_k,
            hk=hk,
            d=d,
            page=page,
            layout=layout,
            layers=layers,
            layer=layer,
            index=index,
        )
        return [
            q, cache.key_cache, cache.value_cache, cu_seqlens_q, None, cache.seqused_k,
            cache.block_table, cache.layer,
        ], attributes | dict(layout=layout)  # fmt: skip
    k, v = (attention.random_array(rng, (sum(lens_k), hk, d), dtype) for _ in range(2))
    seqused_k = (
        np.maximum(np.array(lens_k) - rng.integers(0, 4, len(lens_k)), 0).astype(index)
        if used
        else None
    )
    return [
        q,
        k,
        v,
        cu_seqlens_q,
        attention.starts(lens_k, index),
        seqused_k,
        None,
        None,
    ], attributes


def _options(scale, is_causal, window_left, window_right, softcap):
    if is_causal:
        window_right = 0
    return dict(scale=scale, left=window_left, right=window_right, softcap=softcap)


def reference(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, seqused_k=None, block_table=None, layer=None,
    *, scale=None, is_causal=False, window_left=-1, window_right=-1, softcap=0.0, layout="NHD",
    return_lse=False,
):  # fmt: skip
    """The results in spec order. Operands are f64, indices integers."""
    if block_table is None:
        keys = attention.dense_keys(k, v, cu_seqlens_k, seqused_k)
    else:
        keys = attention.paged_keys(
            attention.PagedCache(k, v, block_table, seqused_k, layer), layout
        )
    options = _options(scale, is_causal, window_left, window_right, softcap)
    results = attention.attend_ragged(q, cu_seqlens_q, keys, **options)
    return list(results if return_lse else results[:1])


def floor(dtype_bytes, *, lens, h, hk, d, is_causal=False, window_left=-1, **_):
    """The least a call must do: (bytes moved, flops)."""
    return attention.floor(dtype_bytes, lens, h=h, hk=hk, d=d, causal=is_causal, left=window_left)


def plain_xla_hints(*, lens, **_):
    """What plain XLA must be told at compile time, and our op need not."""
    return dict(
        max_seqlen_q=max(len_q for len_q, _ in lens), max_seqlen_k=max(len_k for _, len_k in lens)
    )


def plain_xla(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, seqused_k=None, block_table=None, layer=None,
    *, scale=None, is_causal=False, window_left=-1, window_right=-1, softcap=0.0, layout="NHD",
    return_lse=False, max_seqlen_q=None, max_seqlen_k=None,
):  # fmt: skip
    """The same in jax.numpy, as a user without this library would write it: gather and pad."""
    import jax.numpy as jnp

    if block_table is None:
        begin = cu_seqlens_k[:-1]
        row = begin[:, None] + jnp.arange(max_seqlen_k or k.shape[0])
        exists = row < k.shape[0]
        k, v = (x[jnp.minimum(row, x.shape[0] - 1)] for x in (k, v))
        seqused_k = jnp.diff(cu_seqlens_k) if seqused_k is None else seqused_k
    else:
        k, v, exists = attention.gather_pages(k, v, block_table, layout, layer)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    options = _options(scale, is_causal, window_left, window_right, softcap)
    results = attention.attend_xla(
        q, k, v, seqused_k, exists, cu_seqlens_q, max_len_q=max_seqlen_q or q.shape[0], **options
    )
    return list(results if return_lse else results[:1])
