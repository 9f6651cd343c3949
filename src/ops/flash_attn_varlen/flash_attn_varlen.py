"""flash_attn_varlen: its cases, and what it computes in the terms of attention/reference.py."""

import ml_dtypes
import numpy as np
from intarsia_src.attention import operands as attention
from intarsia_src.attention import reference as f64
from intarsia_src.core import cache_layout
from intarsia_src.core.operands import random_array, random_scale

TOLERANCE = f64.TOLERANCE

_LLAMA = dict(h=32, hk=8, d=128, is_causal=True)
_SMOLLM2 = dict(h=9, hk=3, d=64)
_E4M3, _E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
_MIXED = ((1, 33), (5, 5), (0, 0), (1, 1), (7, 40), (3, 0), (0, 9), (9, 4), (1, 16), (130, 70))

# fmt: off
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
    "bloom_alibi": dict(
        tags="ci", lens=_MIXED, h=8, hk=8, d=64, alibi="head", is_causal=True, return_lse=True
    ),
    "alibi_both_ways": dict(tags="ci", lens=_MIXED, h=6, hk=3, d=64, alibi="head", return_lse=True),
    "alibi_of_sequences_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, alibi="sequence", page=16, is_causal=True
    ),
    "alibi_softcap_window": dict(
        tags="ci", lens=((40, 70), (1, 300)), h=8, hk=2, d=128, alibi="head", softcap=10.0,
        window_left=33, window_right=4,
    ),
    "gpt_oss_sinks": dict(
        tags="ci", lens=_MIXED, h=16, hk=2, d=64, sinks=True, is_causal=True, window_left=8,
        return_lse=True,
    ),
    "sinks_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, sinks=True, page=16, padding=4, return_lse=True
    ),
    "sinks_split": dict(
        tags="ci", lens=((1, 5000), (2, 700)), h=8, hk=1, d=64, sinks=True, return_lse=True
    ),
    "leftpad": dict(tags="ci", lens=_MIXED, **_SMOLLM2, leftpad=True, return_lse=True),
    "leftpad_used_causal": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, leftpad=True, used=True, is_causal=True
    ),
    "leftpad_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, leftpad=True, page=16, is_causal=True, return_lse=True
    ),
    "leftpad_paged_window_alibi": dict(
        tags="ci", lens=((40, 70), (1, 300)), **_SMOLLM2, leftpad=True, page=8, alibi="head",
        window_left=30, window_right=3, index=np.int64,
    ),
    "deepseek_192_128": dict(
        tags="ci", lens=((70, 80), (1, 300), (0, 4), (5, 0)), h=4, hk=4, d=192, dv=128,
        is_causal=True, return_lse=True,
    ),
    "deepseek_prefill_2x1024": dict(
        tags="bench", lens=((1024, 1024),) * 2, h=16, hk=16, d=192, dv=128, is_causal=True
    ),
    "192_128_gqa_all_variants": dict(
        tags="ci", lens=_MIXED, h=6, hk=2, d=192, dv=128, alibi="sequence", sinks=True,
        leftpad=True, used=True, softcap=15.0, window_left=40, window_right=9, return_lse=True,
    ),
    "e4m3_kv": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, scales="head", is_causal=True,
        return_lse=True,
    ),
    "e5m2_kv_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E5M2, scales="sequence", page=16, is_causal=True,
        return_lse=True,
    ),
    "e4m3_kv_paged_layers": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, scales="tensor", page=16, layers=2,
        layout="combined",
    ),
    "uint8_as_e4m3": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv_cache_dtype="fp8", scales="head", page=16
    ),
    "uint8_as_e5m2": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv_cache_dtype="fp8_e5m2", page=16, is_causal=True
    ),
    "e4m3_kv_192_128": dict(
        tags="ci", lens=((70, 80), (1, 300)), h=4, hk=2, d=192, dv=128, kv=_E4M3, scales="head",
        is_causal=True,
    ),
    "fp8_e4m3": dict(
        tags="ci", lens=_MIXED, h=8, hk=2, d=128, kv=_E4M3, fp8_q=True, scales="head",
        is_causal=True, return_lse=True,
    ),
    "fp8_e4m3_unscaled": dict(tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, fp8_q=True),
    "fp8_e5m2_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E5M2, fp8_q=True, scales="sequence", page=16,
        return_lse=True,
    ),
    "fp8_all_variants_paged": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, kv=_E4M3, fp8_q=True, scales="tensor", page=16,
        alibi="head", sinks=True, leftpad=True, softcap=15.0, is_causal=True, window_left=40,
        padding=3, return_lse=True,
    ),
    "llama3_8b_prefill_4x4096_fp8": dict(
        tags="bench", lens=((4096, 4096),) * 4, **_LLAMA, kv=_E4M3, fp8_q=True, scales="tensor"
    ),
    "llama3_8b_prefill_1x2048_paged_fp8_kv": dict(
        tags="bench", lens=((2048, 2048),), **_LLAMA, page=16, kv=_E4M3, scales="tensor"
    ),
    "multi_query_softcap_window": dict(
        tags="ci", lens=((40, 70), (90, 90), (1, 200)), h=16, hk=1, d=128, softcap=30.0,
        window_left=20, window_right=7, return_lse=True,
    ),
    "llama4_chunks": dict(
        tags="ci", lens=((1, 700), *_MIXED, (70, 200)), h=8, hk=2, d=64, is_causal=True,
        attention_chunk=32, return_lse=True,
    ),
    "chunks_both_ways": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, attention_chunk=24, padding=3, return_lse=True
    ),
    "chunks_and_window": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, leftpad=True, used=True, alibi="head", sinks=True,
        attention_chunk=24, window_left=10, window_right=5, return_lse=True,
    ),
    "chunks_paged_split": dict(
        tags="ci", lens=((1, 5000), (2, 4098), (5, 1026)), h=8, hk=2, d=128, page=16, kv=_E4M3,
        scales="head", attention_chunk=1024, return_lse=True,
    ),
    **{
        f"{layout}_{kind}": dict(
            tags="ci", lens=_MIXED, **_SMOLLM2, page=16, layout=layout, layers=layers,
            is_causal=layers is None,
        )
        for layout in cache_layout.layout_names()
        for kind, layers in (("paged", None), ("layers", 2))
    },
    "flashinfer_nhd": dict(tags="ci", lens=_MIXED, **_SMOLLM2, page=16, layout="p 2 s hk d"),
    "layers_behind_pages": dict(
        tags="ci", lens=_MIXED, **_SMOLLM2, page=16, layers=2, layout="p l s hk d"
    ),
    **{
        f"head_dim_{d}": dict(tags="ci", lens=((70, 80), (1, 9)), h=4, hk=2, d=d, is_causal=True)
        for d in (40, 80, 112, 160, 248)
    },
    **{
        f"head_dim_{d}_e4m3_kv": dict(
            tags="ci", lens=((70, 80), (1, 9)), h=4, hk=2, d=d, kv=_E4M3, scales="head", page=16
        )
        for d in (8, 40, 112, 248)
    },
}
# fmt: on


def arguments(
    rng, dtype, *, lens, h, hk, d, dv=None, page=None, layout="NHD", layers=None, layer=1,
    used=False, padding=0, kv=None, fp8_q=False, scales=None, alibi=None, sinks=False,
    leftpad=False, index=np.int32, **attributes,
):  # fmt: skip
    """Random operands in spec order, and attributes.

    `used`: seqused_k says that each sequence has a few keys fewer than its room. `padding`: rows of
    q beyond the sequences. `kv`: the dtype of K and V, if not `dtype`; `fp8_q`: also q's, and
    `dtype` is out's. `scales`, `alibi`: their form, as in random_scale. `leftpad`: slots that are
    not there before the keys.
    """
    lens_q, lens_k = [n for n, _ in lens], [n for _, n in lens]
    if fp8_q and dtype != np.float32:
        attributes["out_dtype"] = {np.dtype(np.float16): "f16"}.get(np.dtype(dtype), "bf16")
    kv = kv or dtype
    leftpad_k = rng.integers(0, 20, len(lens)).astype(index) if leftpad else None
    q = random_array(rng, (sum(lens_q) + padding, h, d), kv if fp8_q else dtype)
    cu_seqlens_q, cu_seqlens_k = attention.starts(lens_q, index), None
    if page is not None:
        cache = attention.paged_cache(
            rng,
            kv,
            lens_k,
            hk=hk,
            d=d,
            page=page,
            layout=layout,
            layers=layers,
            layer=layer,
            leftpad_k=leftpad_k,
            kv_cache_dtype=attributes.get("kv_cache_dtype", "auto"),
            index=index,
        )
        k, v, seqused_k = cache.key_cache, cache.value_cache, cache.seqused_k
        block_table, layer = cache.block_table, cache.layer
        attributes["layout"] = layout
    else:
        slots = lens_k if leftpad_k is None else np.array(lens_k, int) + leftpad_k
        cu_seqlens_k = attention.starts(slots, index)
        k, v = (random_array(rng, (sum(slots), hk, n), kv) for n in (d, dv or d))
        seqused_k = block_table = layer = None
        if used:
            seqused_k = np.maximum(slots - rng.integers(0, 4, len(slots)), 0).astype(index)
        for i, pad in enumerate([] if leftpad_k is None else leftpad_k):
            k[cu_seqlens_k[i] :][:pad] = v[cu_seqlens_k[i] :][:pad] = np.nan
    q_scale, k_scale, v_scale = (random_scale(rng, scales, lens, hk) for _ in range(3))
    return [
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, layer,
        None if alibi is None else 0.1 * random_scale(rng, alibi, lens, h),
        random_array(rng, (h,), np.float32) if sinks else None,
        leftpad_k, q_scale if fp8_q else None, k_scale, v_scale,
    ], attributes  # fmt: skip


def _options(scale, is_causal, window_left, window_right, softcap, attention_chunk):
    if is_causal:
        window_right = 0
    return dict(
        scale=scale, left=window_left, right=window_right, softcap=softcap, chunk=attention_chunk
    )


def reference(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, seqused_k=None, block_table=None, layer=None,
    alibi_slopes=None, sinks=None, leftpad_k=None, q_scale=None, k_scale=None, v_scale=None,
    *, scale=None, is_causal=False, window_left=-1, window_right=-1, softcap=0.0, layout="NHD",
    kv_cache_dtype="auto", out_dtype="auto", return_lse=False, attention_chunk=0,
):  # fmt: skip
    """The results in spec order. Operands are f64 as stored, uint8 or indices."""
    del out_dtype
    if block_table is None:
        keys = f64.dense_keys(k, v, cu_seqlens_k, seqused_k, leftpad_k)
    else:
        cache = attention.PagedCache(k, v, block_table, seqused_k, layer, leftpad_k)
        keys = f64.paged_keys(cache, layout, kv_cache_dtype)
    results = f64.attend_ragged(
        q,
        cu_seqlens_q,
        keys,
        dv=v.shape[-1] if block_table is None else None,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        **_options(scale, is_causal, window_left, window_right, softcap, attention_chunk),
    )
    return list(results if return_lse else results[:1])


def floor(
    dtype_bytes, *, lens, h, hk, d, dv=None, is_causal=False, window_left=-1, kv=None, fp8_q=False,
    kv_cache_dtype="auto", **_,
):  # fmt: skip
    """The least a call must do: (bytes moved, flops)."""
    return f64.floor(
        dtype_bytes,
        lens,
        h=h,
        hk=hk,
        d=d,
        dv=dv,
        causal=is_causal,
        left=window_left,
        q_bytes=1 if fp8_q else None,
        kv_bytes=1 if kv or kv_cache_dtype != "auto" else None,
    )


def plain_xla_hints(*, lens, leftpad=False, **_):
    """What plain XLA must be told at compile time, and our op need not."""
    return dict(
        max_seqlen_q=max(len_q for len_q, _ in lens),
        max_seqlen_k=max(len_k for _, len_k in lens) + 20 * leftpad,
    )


def plain_xla(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, seqused_k=None, block_table=None, layer=None,
    alibi_slopes=None, sinks=None, leftpad_k=None, q_scale=None, k_scale=None, v_scale=None,
    *, scale=None, is_causal=False, window_left=-1, window_right=-1, softcap=0.0, layout="NHD",
    kv_cache_dtype="auto", out_dtype="auto", return_lse=False, attention_chunk=0,
    max_seqlen_q=None, max_seqlen_k=None,
):  # fmt: skip
    """The same in jax.numpy, as a user without this library would write it: gather and pad."""
    import jax.numpy as jnp
    from intarsia_src.attention import plain_xla

    if block_table is None:
        begin = cu_seqlens_k[:-1]
        row = begin[:, None] + jnp.arange(max_seqlen_k or k.shape[0])
        exists = row < k.shape[0]
        k, v = (x[jnp.minimum(row, x.shape[0] - 1)] for x in (k, v))
        seqused_k = jnp.diff(cu_seqlens_k) if seqused_k is None else seqused_k
    else:
        k, v, exists = plain_xla.gather_pages(k, v, block_table, layout, layer, kv_cache_dtype)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = None
    if q.dtype.itemsize == 1:
        dtype = jnp.float16 if out_dtype == "f16" else jnp.bfloat16
    results = plain_xla.attend(
        q,
        k,
        v,
        seqused_k,
        exists,
        cu_seqlens_q,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        leftpad_k=leftpad_k,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        dtype=dtype,
        max_len_q=max_seqlen_q or q.shape[0],
        **_options(scale, is_causal, window_left, window_right, softcap, attention_chunk),
    )
    return list(results if return_lse else results[:1])
