"""paged_attention: its cases, and what it computes in the terms of attention/reference.py."""

import ml_dtypes
import numpy as np
from intarsia_src.attention import operands as attention
from intarsia_src.attention import reference as f64
from intarsia_src.core import cache_layout
from intarsia_src.core.operands import random_array, random_scale

TOLERANCE = f64.TOLERANCE

_LLAMA = dict(h=32, hk=8, d=128, page=16)
_SMOLLM2 = dict(h=9, hk=3, d=64, page=16)
_E4M3, _E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
_MIXED = ((1, 33), (5, 5), (0, 0), (1, 1), (7, 40), (0, 9), (1, 16), (3, 17))

# fmt: off
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
    "gpt_oss_sinks": dict(
        tags="ci", lens=_MIXED, h=16, hk=2, d=64, page=16, sinks=True, sliding_window=8,
        return_lse=True,
    ),
    "gpt_oss_sinks_split": dict(
        tags="ci", lens=((1, 5000), (2, 700)), h=16, hk=2, d=64, page=16, sinks=True,
        return_lse=True,
    ),
    "bloom_alibi": dict(tags="ci", lens=_MIXED, **_SMOLLM2, alibi="head", return_lse=True),
    "alibi_of_sequences_softcap": dict(
        tags="ci", lens=((1, 300), (20, 90)), h=4, hk=2, d=64, page=16, alibi="sequence",
        softcap=3.0, sliding_window=50,
    ),
    "llama4_chunks": dict(
        tags="ci", lens=((1, 700), (70, 200), (20, 40), (0, 3), (9, 4), (33, 64)), h=8, hk=2, d=64, page=16,
        attention_chunk=32, return_lse=True,
    ),
    "chunks_split_decode": dict(
        tags="ci", lens=((1, 5000), (2, 4098), (5, 1026)), h=8, hk=2, d=128, page=16, kv=_E4M3,
        scales="head", attention_chunk=1024, return_lse=True,
    ),
    "chunks_and_window": dict(
        tags="ci", lens=((1, 90), (40, 70)), h=4, hk=2, d=64, page=8, attention_chunk=24,
        sliding_window=10, alibi="head", sinks=True, return_lse=True,
    ),
    "llama3_8b_decode_64x4096_fp8": dict(
        tags="bench", lens=((1, 4096),) * 64, kv=_E4M3, scales="tensor", **_LLAMA
    ),
    "llama3_8b_decode_1x4096_fp8": dict(
        tags="bench bench_cpu", lens=((1, 4096),), kv=_E4M3, scales="tensor", **_LLAMA
    ),
    "e4m3": dict(tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, return_lse=True),
    "e4m3_scales_of_heads": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, scales="head", return_lse=True
    ),
    "e5m2_scales_of_sequences": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E5M2, scales="sequence", return_lse=True
    ),
    **{
        f"e4m3_{layout}_layers": dict(
            tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, scales="tensor", layout=layout, layers=2
        )
        for layout in cache_layout.layout_names()
    },
    "uint8_as_e4m3": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv_cache_dtype="fp8_e4m3", scales="head"
    ),
    "uint8_as_e5m2_combined": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv_cache_dtype="fp8_e5m2", layout="combined"
    ),
    "e4m3_split_decode": dict(
        tags="ci", lens=((1, 5000), (1, 31)), h=8, hk=2, d=128, page=16, kv=_E4M3, scales="head",
        return_lse=True,
    ),
    "e5m2_softcap_window_sinks": dict(
        tags="ci", lens=((1, 300), (20, 90)), h=4, hk=2, d=128, page=16, kv=_E5M2, scales="head",
        softcap=20.0, sliding_window=50, sinks=True, return_lse=True,
    ),
    "e4m3_multi_query": dict(
        tags="ci", lens=((1, 600), (2, 2)), h=24, hk=1, d=80, page=16, kv=_E4M3, scales="tensor"
    ),
    **{
        f"{layout}_{kind}": dict(
            tags="ci", lens=_MIXED, **_SMOLLM2, layout=layout, layers=layers, return_lse=True
        )
        for layout in cache_layout.layout_names()
        for kind, layers in (("mixed", None), ("layers", 3))
    },
    "flashinfer_hnd": dict(tags="ci", lens=_MIXED, **_SMOLLM2, layout="p 2 hk s d"),
    "heads_in_front": dict(tags="ci", lens=_MIXED, **_SMOLLM2, layout="hk p s d"),
    "layers_behind_pages": dict(tags="ci", lens=_MIXED, **_SMOLLM2, layers=3, layout="p l hk s 2*d"),
    **{
        f"head_dim_{d}": dict(tags="ci", lens=((1, 50), (4, 9)), h=4, hk=2, d=d, page=16)
        for d in (40, 80, 112, 160, 248)
    },
    **{
        f"head_dim_{d}_e4m3": dict(
            tags="ci", lens=((1, 50), (4, 9)), h=4, hk=2, d=d, page=16, kv=_E4M3, scales="head"
        )
        for d in (8, 40, 112, 248)
    },
}
# fmt: on


def arguments(
    rng, dtype, *, lens, h, hk, d, page, layout="NHD", layers=None, layer=1, num_seqs=None,
    padding=0, kv=None, scales=None, sinks=False, alibi=None, index=np.int32, **attributes,
):  # fmt: skip
    """Random operands in spec order, and attributes.

    `padding`: rows beyond the sequences. `kv`: the dtype of the cache, if not the query's; `scales`:
    the form of K's and V's, and `alibi` that of the slopes, as in random_scale.
    """
    lens_q, lens_k = [n for n, _ in lens], [n for _, n in lens]
    cache = attention.paged_cache(
        rng,
        kv or dtype,
        lens_k,
        hk=hk,
        d=d,
        page=page,
        layout=layout,
        layers=layers,
        layer=layer,
        kv_cache_dtype=attributes.get("kv_cache_dtype", "auto"),
        index=index,
    )
    query = random_array(rng, (sum(lens_q) + padding, h, d), dtype)
    count = None if num_seqs is None else np.array([num_seqs], index)
    return [
        query, cache.key_cache, cache.value_cache, cache.seqused_k, cache.block_table,
        attention.starts(lens_q, index), count, cache.layer,
        random_array(rng, (h,), np.float32) if sinks else None,
        *(random_scale(rng, scales, lens, hk) for _ in range(2)),
        None if alibi is None else 0.1 * random_scale(rng, alibi, lens, h),
    ], attributes | dict(layout=layout)  # fmt: skip


def _options(scale, sliding_window, softcap, attention_chunk):
    return dict(
        chunk=attention_chunk,
        scale=scale,
        left=-1 if sliding_window is None else sliding_window - 1,
        right=0,
        softcap=softcap,
    )


def reference(
    query, key_cache, value_cache, seqused_k, block_table, cu_seqlens_q, num_seqs=None, layer=None,
    sinks=None, k_scale=None, v_scale=None, alibi_slopes=None,
    *, scale=None, sliding_window=None, softcap=0.0, layout="NHD", kv_cache_dtype="auto",
    return_lse=False, attention_chunk=0,
):  # fmt: skip
    """The results in spec order. Operands are f64 as stored, uint8 or indices."""
    cache = attention.PagedCache(key_cache, value_cache, block_table, seqused_k, layer)
    results = f64.attend_ragged(
        query,
        cu_seqlens_q,
        f64.paged_keys(cache, layout, kv_cache_dtype),
        num_seqs=None if num_seqs is None else num_seqs[0],
        k_scale=k_scale,
        v_scale=v_scale,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        **_options(scale, sliding_window, softcap, attention_chunk),
    )
    return list(results if return_lse else results[:1])


def floor(dtype_bytes, *, lens, h, hk, d, sliding_window=None, kv=None, kv_cache_dtype="auto", **_):
    """The least a call must do: (bytes moved, flops)."""
    return f64.floor(
        dtype_bytes,
        lens,
        h=h,
        hk=hk,
        d=d,
        causal=True,
        left=-1 if sliding_window is None else sliding_window - 1,
        kv_bytes=1 if kv or kv_cache_dtype != "auto" else None,
    )


def plain_xla_hints(*, lens, **_):
    """What plain XLA must be told at compile time, and our op need not."""
    return dict(max_seqlen_q=max(len_q for len_q, _ in lens))


def plain_xla(
    query, key_cache, value_cache, seqused_k, block_table, cu_seqlens_q, num_seqs=None, layer=None,
    sinks=None, k_scale=None, v_scale=None, alibi_slopes=None,
    *, scale=None, sliding_window=None, softcap=0.0, layout="NHD", kv_cache_dtype="auto",
    return_lse=False, attention_chunk=0, max_seqlen_q=None,
):  # fmt: skip
    """The same in jax.numpy, as a user without this library would write it: gather, then attend."""
    from intarsia_src.attention import plain_xla

    k, v, exists = plain_xla.gather_pages(
        key_cache, value_cache, block_table, layout, layer, kv_cache_dtype
    )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    options = _options(scale, sliding_window, softcap, attention_chunk)
    results = plain_xla.attend(
        query,
        k,
        v,
        seqused_k,
        exists,
        cu_seqlens_q,
        num_seqs=num_seqs,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        alibi_slopes=alibi_slopes,
        max_len_q=max_seqlen_q or query.shape[0],
        **options,
    )
    return list(results if return_lse else results[:1])
