"""paged_attention: its cases, and what it computes in the terms of attention/reference.py."""

import numpy as np

from attention import reference as attention

_LLAMA = dict(h=32, hk=8, d=128, page=16)
_SMOLLM2 = dict(h=9, hk=3, d=64, page=16)
_MIXED = ((1, 33), (5, 5), (0, 0), (1, 1), (7, 40), (0, 9), (1, 16), (3, 17))

# Named after the models whose heads they are. `lens` has (queries, keys) of each sequence.
CASES = {
    "example": dict(tags="ci wire", lens=((1, 7), (2, 2)), h=4, hk=2, d=64, page=4),
    "llama3_8b_decode_64x4096": dict(tags="bench", lens=((1, 4096),) * 64, **_LLAMA),
    "llama3_8b_decode_8x4096": dict(tags="bench bench_cpu", lens=((1, 4096),) * 8, **_LLAMA),
    "llama3_8b_decode_1x4096": dict(tags="bench bench_cpu", lens=((1, 4096),), **_LLAMA),
    "llama3_8b_decode_1x32768": dict(tags="bench", lens=((1, 32768),), **_LLAMA),
    "llama3_8b_decode_64x4096_combined": dict(
        tags="bench", lens=((1, 4096),) * 64, layout="combined", **_LLAMA
    ),
    "smollm2_decode_16x256": dict(tags="ci bench_cpu", lens=((1, 256),) * 16, **_SMOLLM2),
    "smollm2_prefill_128": dict(tags="ci bench_cpu", lens=((128, 128),), **_SMOLLM2),
    "smollm2_chunk": dict(tags="ci", lens=((32, 300), (32, 64)), **_SMOLLM2),
    "mixed": dict(tags="ci", lens=_MIXED, **_SMOLLM2, return_lse=True),
    "mixed_int64": dict(tags="ci", lens=_MIXED, **_SMOLLM2, index=np.int64),
    "mixed_combined": dict(tags="ci", lens=_MIXED, **_SMOLLM2, layout="combined", return_lse=True),
    "mixed_layers": dict(tags="ci", lens=_MIXED, **_SMOLLM2, layers=3),
    "mixed_layers_combined": dict(tags="ci", lens=_MIXED, **_SMOLLM2, layers=2, layout="combined"),
    "no_such_layer": dict(
        tags="ci beyond_plain", lens=_MIXED, **_SMOLLM2, layers=2, layer=-1, return_lse=True
    ),
    "padded_batch": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, num_seqs=5, padding=6, return_lse=True
    ),
    "no_sequences": dict(tags="ci", lens=_MIXED, **_SMOLLM2, num_seqs=0, return_lse=True),
    "gemma3_window": dict(
        tags="ci", lens=((1, 700), (20, 40), (1, 3)), h=4, hk=1, d=256, page=16, sliding_window=32
    ),
    "gemma2_softcap": dict(
        tags="ci", lens=((1, 90), (9, 30)), h=8, hk=4, d=256, page=16, softcap=50.0, scale=0.0625
    ),
    "softcap_bends": dict(
        tags="ci", lens=((1, 90), (9, 30)), h=4, hk=4, d=32, page=8, softcap=0.5, scale=1.0
    ),
    "head_dim_8": dict(tags="ci", lens=((1, 50), (4, 9)), h=3, hk=1, d=8, page=4),
    "head_dim_120": dict(tags="ci", lens=((1, 50), (4, 9)), h=5, hk=5, d=120, page=7),
    "many_query_heads": dict(tags="ci", lens=((1, 600), (2, 2)), h=71, hk=1, d=64, page=16),
    "split_decode": dict(tags="ci", lens=((1, 5000), (1, 31)), **_SMOLLM2, return_lse=True),
    "no_tokens": dict(tags="ci beyond_plain", lens=((0, 5), (0, 0)), **_SMOLLM2),
}


def arguments(
    rng, dtype, *, lens, h, hk, d, page, layout="NHD", layers=None, layer=1, num_seqs=None,
    padding=0, index=np.int32, **attributes,
):  # fmt: skip
    """Random operands in spec order, and attributes. `padding`: rows beyond the sequences."""
    lens_q, lens_k = [n for n, _ in lens], [n for _, n in lens]
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
    query = attention.random_array(rng, (sum(lens_q) + padding, h, d), dtype)
    count = None if num_seqs is None else np.array([num_seqs], index)
    return [
        query, cache.key_cache, cache.value_cache, cache.seqused_k, cache.block_table,
        attention.starts(lens_q, index), count, cache.layer,
    ], attributes | dict(layout=layout)  # fmt: skip


def _options(scale, sliding_window, softcap):
    return dict(
        scale=scale,
        left=-1 if sliding_window is None else sliding_window - 1,
        right=0,
        softcap=softcap,
    )


def reference(
    query, key_cache, value_cache, seqused_k, block_table, cu_seqlens_q, num_seqs=None, layer=None,
    *, scale=None, sliding_window=None, softcap=0.0, layout="NHD", return_lse=False,
):  # fmt: skip
    """The results in spec order. Operands are f64, indices integers."""
    cache = attention.PagedCache(key_cache, value_cache, block_table, seqused_k, layer)
    results = attention.attend_ragged(
        query,
        cu_seqlens_q,
        attention.paged_keys(cache, layout),
        num_seqs=None if num_seqs is None else num_seqs[0],
        **_options(scale, sliding_window, softcap),
    )
    return list(results if return_lse else results[:1])


def floor(dtype_bytes, *, lens, h, hk, d, sliding_window=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    left = -1 if sliding_window is None else sliding_window - 1
    return attention.floor(dtype_bytes, lens, h=h, hk=hk, d=d, causal=True, left=left)


def plain_xla_hints(*, lens, **_):
    """What plain XLA must be told at compile time, and our op need not."""
    return dict(max_seqlen_q=max(len_q for len_q, _ in lens))


def plain_xla(
    query, key_cache, value_cache, seqused_k, block_table, cu_seqlens_q, num_seqs=None, layer=None,
    *, scale=None, sliding_window=None, softcap=0.0, layout="NHD", return_lse=False,
    max_seqlen_q=None,
):  # fmt: skip
    """The same in jax.numpy, as a user without this library would write it: gather, then attend."""
    k, v, exists = attention.gather_pages(key_cache, value_cache, block_table, layout, layer)
    options = _options(query.shape[-1] ** -0.5 if scale is None else scale, sliding_window, softcap)
    max_len_q = max_seqlen_q or query.shape[0]
    results = attention.attend_xla(
        query,
        k,
        v,
        seqused_k,
        exists,
        cu_seqlens_q,
        num_seqs=num_seqs,
        max_len_q=max_len_q,
        **options,
    )
    return list(results if return_lse else results[:1])
