"""The ops as plain functions, operand by operand as they go over the wire.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from typing import Literal, TypeAlias, overload

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all

__all__ = [
    "all_reduce_fused_add_rms_norm",
    "convert_fp8",
    "copy_blocks",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_azp_quant",
    "dynamic_scaled_int8_quant",
    "fatrelu_and_mul",
    "flash_attn_varlen",
    "flash_attn_varlen_backward",
    "fused_add_rms_norm",
    "fused_add_rms_norm_static_fp8_quant",
    "fused_experts",
    "fused_qk_norm_rope",
    "gather_cache",
    "gelu_and_mul",
    "gelu_fast",
    "gelu_new",
    "gelu_quick",
    "gelu_tanh_and_mul",
    "grouped_matmul",
    "grouped_matmul_weight_gradient",
    "layer_norm",
    "layer_norm_dynamic_per_token_quant",
    "layer_norm_static_fp8_quant",
    "linear",
    "linear_quantized",
    "merge_attn_states",
    "mul_and_silu",
    "paged_attention",
    "per_token_group_fp8_quant",
    "per_token_group_quant_int8",
    "reshape_and_cache_flash",
    "rms_norm",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "rotary_embedding_and_cache",
    "silu_and_mul",
    "silu_and_mul_quant",
    "silu_and_mul_with_clamp",
    "simple_add",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "swap_blocks",
    "swigluoai_and_mul",
    "topk_router",
]

Activation: TypeAlias = Literal["silu", "gelu_tanh", "swigluoai"]
Axis: TypeAlias = Literal["0", "1", "2"]
ConvertFp8OutDtype: TypeAlias = Literal["f8e4m3fn", "f8e5m2", "u8", "f32", "f16", "bf16"]
FlashAttnVarlenOutDtype: TypeAlias = Literal["auto", "f16", "bf16"]
Format: TypeAlias = Literal["u4", "u4b8", "e2m1", "u5", "u5b16", "u6b32", "i8", "e4m3"]
GroupedMatmulOutDtype: TypeAlias = Literal["auto", "f32"]
GroupedMatmulWeightGradientOutDtype: TypeAlias = Literal["auto", "f32"]
KvCacheDtype: TypeAlias = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]
LinearOutDtype: TypeAlias = Literal["auto", "f32"]
LinearQuantizedOutDtype: TypeAlias = Literal["auto", "f32"]
QuantDtype: TypeAlias = Literal["f8e4m3fn", "i8"]
Rounding: TypeAlias = Literal["once", "before_weight"]
Scoring: TypeAlias = Literal["softmax", "sigmoid", "softplus_sqrt"]
ZerosAre: TypeAlias = Literal["points", "minimums"]


def all_reduce_fused_add_rms_norm(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike | None,
    addresses: ArrayLike,
    inbox: ArrayLike,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """Sums over GPUs, adds the residual stream, then root-mean-square normalisation.

    Runs on CUDA alone; `intarsia.jax.all_reduce_fused_add_rms_norm` is XLA's version on other platforms.

    Args:
      x: [..., n], T: this GPU's part of the sum.
      residual: [..., n], T: the residual stream, the same on all.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      addresses: [ranks+1, 2], i32: 64-bit addresses: of this GPU's inbox, then of all GPUs' in
        the order of their ranks.
      inbox: [2*ranks+1, max_rows, packs, 4], i32: what other GPUs write to: a plane whose rows
        begin with the number of their calls, less one, then two planes for each rank; at first
        all ones.
      eps: added to the mean square.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight; one
        of once, before_weight.

    Returns:
      out: [..., n], T: normalised rows.
      residual: [..., n], T: sum + residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's pass fuse_allreduce_rms. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "all_reduce_fused_add_rms_norm",
            (x, residual, weight, addresses, inbox),
            eps=eps,
            rounding=rounding,
        )
    )


def convert_fp8(
    x: ArrayLike,
    *,
    scale: float = 1,
    out_dtype: ConvertFp8OutDtype = "f8e4m3fn",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array:
    """Converts a cache to fp8 or from it.

    Args:
      x: [...], f32, f16, bf16, f8e4m3fn, f8e5m2, u8: numbers, or fp8 codes.
      scale: what the codes are to be multiplied by.
      out_dtype: of the result; one of f8e4m3fn, f8e5m2, u8, f32, f16, bf16.
      kv_cache_dtype: what an array of dtype u8 holds; one of auto, fp8, fp8_e4m3, fp8_e5m2.

    Returns:
      out: [...], out_dtype: codes, or numbers.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::convert_fp8. T is f32, f16 or bf16.
    """
    return one_or_all(
        call("convert_fp8", (x,), scale=scale, out_dtype=out_dtype, kv_cache_dtype=kv_cache_dtype)
    )


def copy_blocks(blocks: ArrayLike, block_mapping: ArrayLike, *, axis: Axis = "0") -> jax.Array:
    """Copies blocks of a paged cache over others of the same cache.

    Args:
      blocks: [p, n] with axis=0 or [p, m, n] with axis=0 or [p, k, m, n] with axis=0 or [p, i,
        k, m, n] with axis=0 or [o, p, n] with axis=1 or [o, p, m, n] with axis=1 or [o, p, k,
        m, n] with axis=1 or [o, p, i, k, m, n] with axis=1 or [l, o, p, n] with axis=2 or [l,
        o, p, m, n] with axis=2 or [l, o, p, k, m, n] with axis=2 or [l, o, p, i, k, m, n] with
        axis=2, T, f8e4m3fn, f8e5m2, u8, i8: a cache of p blocks.
      block_mapping: [pairs, 2], i32, i64: from which block, to which one; negative: skip.
      axis: that of the blocks; one of 0, 1, 2.

    Returns:
      blocks: as blocks, blocks: the same blocks; shares the buffer of blocks.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::copy_blocks. T is f32, f16 or bf16.
    """
    return one_or_all(call("copy_blocks", (blocks, block_mapping), axis=axis))


def dynamic_per_token_scaled_fp8_quant(
    x: ArrayLike, scale_ub: ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Quantises each row to fp8 by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.
      scale_ub: [1], f32: counts as a row's largest number where that is larger; optional.

    Returns:
      q: [..., n], f8e4m3fn: codes.
      scale: [..., 1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_per_token_scaled_fp8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(call("dynamic_per_token_scaled_fp8_quant", (x, scale_ub)))


def dynamic_scaled_fp8_quant(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Quantises to fp8 by one scale that x itself gives.

    Args:
      x: [...], T: numbers.

    Returns:
      q: [...], f8e4m3fn: codes.
      scale: [1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_scaled_fp8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(call("dynamic_scaled_fp8_quant", (x,)))


def dynamic_scaled_int8_azp_quant(x: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quantises each row to int8 by a scale and a zero point of its own.

    Args:
      x: [..., n], T: rows of numbers.

    Returns:
      q: [..., n], i8: codes.
      scale: [..., 1], f32: what a step of 1 in the codes stands for.
      azp: [..., 1], i32: the code that stands for 0.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_scaled_int8_quant, asymmetric. T is f32, f16 or bf16.
    """
    return one_or_all(call("dynamic_scaled_int8_azp_quant", (x,)))


def dynamic_scaled_int8_quant(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Quantises each row to int8 by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.

    Returns:
      q: [..., n], i8: codes.
      scale: [..., 1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::dynamic_scaled_int8_quant, symmetric. T is f32, f16 or bf16.
    """
    return one_or_all(call("dynamic_scaled_int8_quant", (x,)))


def fatrelu_and_mul(
    x: ArrayLike, up: ArrayLike | None = None, *, threshold: float = 0
) -> jax.Array:
    """The gated activation with a ReLU whose threshold is given.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.
      threshold: what a gate must exceed to pass.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Kurtz et al. 2020, ICML (FATReLU); vLLM's _C::fatrelu_and_mul. T is f32, f16 or
        bf16.
    """
    return one_or_all(call("fatrelu_and_mul", (x, up), threshold=threshold))


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[False] = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
) -> jax.Array: ...


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[True],
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool,
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def flash_attn_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    q_scale: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    out_dtype: FlashAttnVarlenOutDtype = "auto",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention over a ragged batch, its keys and values dense or in a paged cache.

    Args:
      q: [tq, h, d], T, f8e4m3fn, f8e5m2: queries, sequence after sequence.
      k: cache pages, by layout or [@key_cache] with block_table or [tk, hk, d] with
        !block_table, T, f8e4m3fn, f8e5m2, u8: keys; paged: the cache.
      v: cache pages, by layout or [@value_cache] with block_table or [tk, hk, dv] with
        !block_table, k: values; absent if the cache holds both; optional.
      cu_seqlens_q: [b+1], i32, i64: where each sequence starts in q.
      cu_seqlens_k: [any_length] with block_table or [b+1] with !block_table, i32, i64: where
        each sequence starts in k; ignored when paged; optional.
      seqused_k: [b], i32, i64: keys of each sequence; optional.
      block_table: [b, m], i32, i64: pages of each sequence; optional.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      alibi_slopes: [h] or [b, h], f32: what a score loses for each key between the query's own
        and the one it meets; optional.
      sinks: [h], f32: a logit of each head in the denominator, without a value; optional.
      leftpad_k: [b], i32, i64: keys at the start of each sequence that count as not there;
        optional.
      q_scale: [1] or [hk] or [b, hk], f32: what fp8 queries are to be multiplied by; default 1;
        optional.
      k_scale: [1] or [hk] or [b, hk], f32: what fp8 keys are to be multiplied by; default 1;
        optional.
      v_scale: [1] or [hk] or [b, hk], f32: the same for values; optional.
      scale: of the scores; default d ** -0.5.
      is_causal: a query sees no later key.
      window_left: keys seen before the query's own; -1: all.
      window_right: keys seen after the query's own; -1: all.
      softcap: softcap * tanh(score / softcap); 0: none.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      return_lse: also return lse.
      kv_cache_dtype: how a cache of dtype u8 is to be read; one of auto, fp8, fp8_e4m3,
        fp8_e5m2.
      out_dtype: of out if q is fp8; "auto" is bf16; one of auto, f16, bf16.

    Returns:
      out: [tq, h, d] with block_table or [tq, h, dv] with !block_table, out_dtype: weighted
        values.
      lse: [h, tq], f32: natural log of the sum of exponentials; only with return_lse.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Dao 2023, arXiv:2307.08691; flash_attn_varlen_func of FlashAttention. T is f32,
        f16 or bf16.
    """
    return one_or_all(
        call(
            "flash_attn_varlen",
            (
                q,
                k,
                v,
                cu_seqlens_q,
                cu_seqlens_k,
                seqused_k,
                block_table,
                layer,
                alibi_slopes,
                sinks,
                leftpad_k,
                q_scale,
                k_scale,
                v_scale,
            ),
            scale=scale,
            is_causal=is_causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            layout=layout,
            return_lse=return_lse,
            kv_cache_dtype=kv_cache_dtype,
            out_dtype=out_dtype,
        )
    )


@overload
def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: None = None,
    dlse: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None,
    alibi_slopes: ArrayLike | None,
    sinks: ArrayLike,
    dlse: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]: ...


@overload
def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    sinks: ArrayLike,
    dlse: ArrayLike | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]: ...


def flash_attn_varlen_backward(
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    seqused_k: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    dlse: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The gradient of flash_attn_varlen with dense keys and values.

    Args:
      dout: [tq, h, d], T: the gradient of out.
      q: [tq, h, d], T: queries, sequence after sequence.
      k: [tk, hk, d], T: keys.
      v: [tk, hk, d], T: values.
      out: [tq, h, d], T: what flash_attn_varlen gave.
      lse: [h, tq], f32: what flash_attn_varlen gave.
      cu_seqlens_q: [b+1], i32, i64: where each sequence starts in q.
      cu_seqlens_k: [b+1], i32, i64: where each sequence starts in k.
      seqused_k: [b], i32, i64: keys of each sequence, no more than cu_seqlens_k leaves it;
        optional.
      alibi_slopes: [h] or [b, h], f32: what a score loses for each key between the query's own
        and the one it meets; optional.
      sinks: [h], f32: a logit of each head in the denominator, without a value; optional.
      dlse: [h, tq], f32: the gradient of lse; optional.
      scale: of the scores; default d ** -0.5.
      is_causal: a query sees no later key.
      window_left: keys seen before the query's own; -1: all.
      window_right: keys seen after the query's own; -1: all.
      softcap: softcap * tanh(score / softcap); 0: none.
      deterministic: the same bits at every run, on a GPU too.

    Returns:
      dq: [tq, h, d], T: the gradient of q.
      dk: [tk, hk, d], T: the gradient of k.
      dv: [tk, hk, d], T: the gradient of v.
      dsinks: [h], f32: the gradient of sinks; only with sinks.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Dao 2023, arXiv:2307.08691, algorithm 2. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "flash_attn_varlen_backward",
            (
                dout,
                q,
                k,
                v,
                out,
                lse,
                cu_seqlens_q,
                cu_seqlens_k,
                seqused_k,
                alibi_slopes,
                sinks,
                dlse,
            ),
            scale=scale,
            is_causal=is_causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            deterministic=deterministic,
        )
    )


def fused_add_rms_norm(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """Adds the residual stream, then root-mean-square normalisation.

    Args:
      x: [..., n], T: what a block of the network adds.
      residual: [..., n], T: the residual stream.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      eps: added to the mean square.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight; one
        of once, before_weight.

    Returns:
      out: [..., n], T: normalised rows.
      residual: [..., n], T: x + residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::fused_add_rms_norm. T is f32, f16 or bf16.
    """
    return one_or_all(call("fused_add_rms_norm", (x, residual, weight), eps=eps, rounding=rounding))


def fused_add_rms_norm_static_fp8_quant(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike,
    scale: ArrayLike,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """Adds the residual stream, then root-mean-square normalisation, quantised by a given scale.

    Args:
      x: [..., n], T: what a block of the network adds.
      residual: [..., n], T: the residual stream.
      weight: [n], T, f32: scale of each column.
      scale: [1], f32: what a code of 1 stands for.
      eps: added to the mean square.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight, too;
        one of once, before_weight.

    Returns:
      q: [..., n], f8e4m3fn: codes of the normalised rows.
      residual: [..., n], T: x + residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::fused_add_rms_norm_static_fp8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "fused_add_rms_norm_static_fp8_quant",
            (x, residual, weight, scale),
            eps=eps,
            rounding=rounding,
        )
    )


def fused_experts(
    x: ArrayLike,
    w1: ArrayLike,
    w2: ArrayLike,
    weights: ArrayLike,
    ids: ArrayLike,
    w1_bias: ArrayLike | None = None,
    w2_bias: ArrayLike | None = None,
    expert_map: ArrayLike | None = None,
    *,
    activation: Activation = "silu",
    limit: float = 7,
    alpha: float = 1.702,
    apply_router_weight_on_input: bool = False,
) -> jax.Array:
    """The gated MLPs of each token's experts, weighted and summed.

    Args:
      x: [..., n], T: tokens.
      w1: [e, 2*i, n], T: gate and up of each expert, a row for each result, as checkpoints have
        it.
      w2: [e, n, i], T: the way back of each expert, in the same order.
      weights: [..., k], f32, T: of each token's experts.
      ids: [..., k], i32, i64: which experts these are; one that is not there adds nothing.
      w1_bias: [e, 2*i], T: added to the first product; optional.
      w2_bias: [e, n], T: added to the second product; optional.
      expert_map: [g], i32, i64: the expert of each id, negative where it is elsewhere; default:
        the id itself; optional.
      activation: gate and up side by side; swigluoai: in turn, as gpt-oss has them; one of
        silu, gelu_tanh, swigluoai.
      limit: swigluoai: the most that a gate counts as, and the most size of up.
      alpha: swigluoai: what its logistic curve is steeper by.
      apply_router_weight_on_input: weights multiply x, not the results.

    Returns:
      out: [..., n], T: the weighted sums.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Shazeer et al. 2017, arXiv:1701.06538; vLLM's fused_experts. T is f32, f16 or
        bf16.
    """
    return one_or_all(
        call(
            "fused_experts",
            (x, w1, w2, weights, ids, w1_bias, w2_bias, expert_map),
            activation=activation,
            limit=limit,
            alpha=alpha,
            apply_router_weight_on_input=apply_router_weight_on_input,
        )
    )


def fused_qk_norm_rope(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    q_weight: ArrayLike,
    k_weight: ArrayLike,
    *,
    num_heads_q: int | None = None,
    num_heads_k: int | None = None,
    eps: float = 1e-06,
    is_neox: bool = True,
) -> jax.Array:
    """Root-mean-square normalisation of each head of Q and K, then rotary position embedding.

    Args:
      positions: [t], i32, i64: position of each token.
      qkv: [t, heads, d], T: num_heads_q query heads, num_heads_k key heads, and value heads.
      cos_sin_cache: [max_pos, r], f32, f16, bf16: cosines, then sines, of r/2 angles a
        position.
      q_weight: [d], T, f32: scale of a query head's columns.
      k_weight: [d], T, f32: scale of a key head's columns.
      num_heads_q: how many heads are queries; needed.
      num_heads_k: how many heads are keys; needed.
      eps: added to the mean square.
      is_neox: pairs (i, i + r/2); false: pairs (2i, 2i + 1).

    Returns:
      qkv: as qkv, T: normed and turned query and key, and value.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::fused_qk_norm_rope; Qwen3. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "fused_qk_norm_rope",
            (positions, qkv, cos_sin_cache, q_weight, k_weight),
            num_heads_q=num_heads_q,
            num_heads_k=num_heads_k,
            eps=eps,
            is_neox=is_neox,
        )
    )


def gather_cache(
    cache: ArrayLike,
    dst: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens: ArrayLike,
    seq_starts: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    *,
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array:
    """Gathers the keys or values of sequences from a paged cache.

    Args:
      cache: [p, s, n], f32, f16, bf16, u8, f8e5m2, f8e4m3fn: pages of s slots, each of n
        elements.
      dst: [rows, n], f32, f16, f8e4m3fn, f8e5m2, u8, bf16: what is written: the cache's dtype,
        or that to which its fp8 is converted.
      block_table: [seqs, m], i32, i64: pages of each sequence.
      cu_seqlens: [seqs+1], i32, i64: where each sequence starts in dst; never falling.
      seq_starts: [seqs], i32, i64: each sequence's first slot that is gathered; default 0;
        optional.
      scale: [1], f32: what fp8 is to be multiplied by; default 1; optional.
      kv_cache_dtype: how a cache of dtype u8 is to be read; one of auto, fp8, fp8_e4m3,
        fp8_e5m2.

    Returns:
      dst: as dst, dst: the same rows; shares the buffer of dst.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::cp_gather_cache and gather_and_maybe_dequant_cache. T is f32,
        f16 or bf16.
    """
    return one_or_all(
        call(
            "gather_cache",
            (cache, dst, block_table, cu_seqlens, seq_starts, scale),
            kv_cache_dtype=kv_cache_dtype,
        )
    )


def gelu_and_mul(x: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation with the exact GELU.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Shazeer 2020, arXiv:2002.05202 (GEGLU); vLLM's _C::gelu_and_mul. T is f32, f16 or
        bf16.
    """
    return one_or_all(call("gelu_and_mul", (x, up)))


def gelu_fast(x: ArrayLike, *, round_steps: bool = False) -> jax.Array:
    """GELU in its tanh form, in other steps than gelu_new.

    Args:
      x: [...], T: numbers.
      round_steps: whether each operation is rounded to T, as in vLLM.

    Returns:
      out: [...], T: their activations.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_fast. T is f32, f16
        or bf16.
    """
    return one_or_all(call("gelu_fast", (x,), round_steps=round_steps))


def gelu_new(x: ArrayLike, *, round_steps: bool = False) -> jax.Array:
    """GELU in its tanh form, as GPT-2 has it.

    Args:
      x: [...], T: numbers.
      round_steps: whether each operation is rounded to T, as in vLLM.

    Returns:
      out: [...], T: their activations.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_new. T is f32, f16 or
        bf16.
    """
    return one_or_all(call("gelu_new", (x,), round_steps=round_steps))


def gelu_quick(x: ArrayLike) -> jax.Array:
    """GELU by a logistic curve, as CLIP has it.

    Args:
      x: [...], T: numbers.

    Returns:
      out: [...], T: their activations.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_quick. T is f32, f16
        or bf16.
    """
    return one_or_all(call("gelu_quick", (x,)))


def gelu_tanh_and_mul(x: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Gemma's MLP: GELU in its tanh form.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_tanh_and_mul. T is
        f32, f16 or bf16.
    """
    return one_or_all(call("gelu_tanh_and_mul", (x, up)))


def grouped_matmul(
    x: ArrayLike,
    w: ArrayLike,
    group_sizes: ArrayLike,
    group_offset: ArrayLike | None = None,
    rows: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    transposed: bool = False,
    out_dtype: GroupedMatmulOutDtype = "auto",
) -> jax.Array:
    """Products of groups of rows, each with a matrix of its own.

    Args:
      x: [mx, k] with rows or [m, k] with !rows, T: rows, group after group; with `rows`, in any
        order.
      w: [g, n, k] with transposed or [g, k, n] with !transposed, T: a matrix for each group.
      group_sizes: [e] with group_offset or [g] with !group_offset, i32, i64: rows of each
        group; a negative size counts as 0, and groups end at row m.
      group_offset: [1], i32, i64: which of all e groups w begins with; rows of the others give
        0; optional.
      rows: [m], i32, i64: which row of x each row takes; one without gives 0; optional.
      bias: [g, n], T: added to the sums before they are rounded; optional.
      transposed: w has a row for each result, as checkpoints have it.
      out_dtype: dtype of the result; auto: that of x; one of auto, f32.

    Returns:
      out: [m, n], out_dtype: products; 0 in rows behind the last group.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: jax.lax.ragged_dot; MegaBlocks (Gale et al. 2022, arXiv:2211.15841). T is f32, f16
        or bf16.
    """
    return one_or_all(
        call(
            "grouped_matmul",
            (x, w, group_sizes, group_offset, rows, bias),
            transposed=transposed,
            out_dtype=out_dtype,
        )
    )


def grouped_matmul_weight_gradient(
    x: ArrayLike,
    d_out: ArrayLike,
    group_sizes: ArrayLike,
    group_offset: ArrayLike | None = None,
    *,
    num_groups: int | None = None,
    out_dtype: GroupedMatmulWeightGradientOutDtype = "auto",
) -> jax.Array:
    """For each group the product of its rows of x, transposed, and of d_out.

    Args:
      x: [m, k], T: rows, group after group.
      d_out: [m, n], T: rows that belong to those of x.
      group_sizes: [e], i32, i64: rows of each group; a negative size counts as 0, and groups
        end at row m.
      group_offset: [1], i32, i64: which of all e groups the result begins with; optional.
      num_groups: groups of the result; default: all.
      out_dtype: dtype of the result; auto: that of x; one of auto, f32.

    Returns:
      out: [num_groups, k, n] with num_groups or [e, k, n] with !num_groups, out_dtype:
        products; 0 for a group without rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: jax.lax.ragged_dot_general with a ragged contraction. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "grouped_matmul_weight_gradient",
            (x, d_out, group_sizes, group_offset),
            num_groups=num_groups,
            out_dtype=out_dtype,
        )
    )


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-05,
) -> jax.Array:
    """Layer normalisation over the last axis.

    Args:
      x: [..., n], T: rows to normalise.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      bias: [n], T, f32: added to each column; 0 if absent; optional.
      eps: added to the variance.

    Returns:
      out: [..., n], T: normalised rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; torch's layer_norm. T is f32, f16 or
        bf16.
    """
    return one_or_all(call("layer_norm", (x, weight, bias), eps=eps))


def layer_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    scale_ub: ArrayLike | None = None,
    *,
    eps: float = 1e-05,
    quant_dtype: QuantDtype = "f8e4m3fn",
) -> tuple[jax.Array, jax.Array]:
    """Layer normalisation, each row quantised by a scale of its own.

    Args:
      x: [..., n], T: rows to normalise.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      bias: [n], T, f32: added to each column; 0 if absent; optional.
      scale_ub: [1], f32: counts as a row's largest number where that is larger; optional.
      eps: added to the variance.
      quant_dtype: dtype of the codes; one of f8e4m3fn, i8.

    Returns:
      q: [..., n], quant_dtype: codes of the normalised rows.
      scale: [..., 1], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: layer_norm, then vLLM's _C::dynamic_per_token_scaled_fp8_quant or its like in
        int8. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "layer_norm_dynamic_per_token_quant",
            (x, weight, bias, scale_ub),
            eps=eps,
            quant_dtype=quant_dtype,
        )
    )


def layer_norm_static_fp8_quant(
    x: ArrayLike,
    scale: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-05,
) -> jax.Array:
    """Layer normalisation, quantised by a given scale.

    Args:
      x: [..., n], T: rows to normalise.
      scale: [1], f32: what a code of 1 stands for.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      bias: [n], T, f32: added to each column; 0 if absent; optional.
      eps: added to the variance.

    Returns:
      q: [..., n], f8e4m3fn: codes of the normalised rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: layer_norm and static_scaled_fp8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(call("layer_norm_static_fp8_quant", (x, scale, weight, bias), eps=eps))


def linear(
    x: ArrayLike, w: ArrayLike, bias: ArrayLike | None = None, *, out_dtype: LinearOutDtype = "auto"
) -> jax.Array:
    """A linear layer: x w^T, plus a bias.

    Runs on CPU alone; `intarsia.jax.linear` is XLA's version on other platforms.

    Args:
      x: [..., k], T: rows.
      w: [n, k], T: weights, a row for each result.
      bias: [n], T: added to the sums before they are rounded; optional.
      out_dtype: dtype of the result; auto: that of x; one of auto, f32.

    Returns:
      out: [..., n], out_dtype: x w^T + bias.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: torch.nn.functional.linear. T is f32, f16 or bf16.
    """
    return one_or_all(call("linear", (x, w, bias), out_dtype=out_dtype))


def linear_quantized(
    x: ArrayLike,
    packed: ArrayLike,
    scales: ArrayLike,
    zeros: ArrayLike | None = None,
    outer_scales: ArrayLike | None = None,
    outer_zeros: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    format: Format = "u4",
    group: int = 0,
    zeros_are: ZerosAre = "points",
    out_dtype: LinearQuantizedOutDtype = "auto",
) -> jax.Array:
    """A linear layer with weights in 8 bits or less.

    Runs on CPU alone; `intarsia.jax.linear_quantized` is XLA's version on other platforms.

    Args:
      x: [..., k], T: rows.
      packed: [c, r, w, 16, 4], u8: codes, tile by tile: 16 results, and r blocks of 32 of the k
        columns, which take w lines, as many as a code has bits.
      scales: [c, g, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes are multiplied
        by.
      zeros: [c, g, 16], f32, f16, bf16, u8, i8: what is subtracted from codes, or added to
        their products with scales; optional.
      outer_scales: [1] or [c, o, 16], f32, f16, bf16: what scales are multiplied by; optional.
      outer_zeros: [1] or [c, o, 16], f32, f16, bf16: what minimums are multiplied by; optional.
      bias: [16*c], T: added to the sums before they are rounded; optional.
      format: what a code stands for; one of u4, u4b8, e2m1, u5, u5b16, u6b32, i8, e4m3.
      group: columns that share a scale: 16 or a multiple of 32; 0: all k of them.
      zeros_are: points are subtracted from codes, minimums added to their products with scales;
        one of points, minimums.
      out_dtype: dtype of the result; auto: that of x; one of auto, f32.

    Returns:
      out: [..., 16*c], out_dtype: x w^T + bias.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: torch.nn.functional.linear of dequantized weights; ggml's and vLLM's formats. T is
        f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "linear_quantized",
            (x, packed, scales, zeros, outer_scales, outer_zeros, bias),
            format=format,
            group=group,
            zeros_are=zeros_are,
            out_dtype=out_dtype,
        )
    )


def merge_attn_states(
    prefix_out: ArrayLike, prefix_lse: ArrayLike, suffix_out: ArrayLike, suffix_lse: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Attention over two sets of keys, from the results over each.

    Args:
      prefix_out: [t, h, d], T: attention over the one set.
      prefix_lse: [h, t], f32: its natural log of the sum of exponentials; -inf or +inf: no key.
      suffix_out: [t, h, d], T: attention over the other set.
      suffix_lse: [h, t], f32: as prefix_lse.

    Returns:
      out: [t, h, d], T: attention over both.
      lse: [h, t], f32: of both; -inf where neither has a key.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: FlashInfer, arXiv:2501.01005, section 2.2; vLLM's _C::merge_attn_states. T is f32,
        f16 or bf16.
    """
    return one_or_all(call("merge_attn_states", (prefix_out, prefix_lse, suffix_out, suffix_lse)))


def mul_and_silu(x: ArrayLike, gate: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Llama's MLP, the gate in the second half.

    Args:
      x: [..., n] with gate or [..., 2*n], T: up and gate side by side; up alone if gate is
        given.
      gate: [..., n], T: what is activated, when it is an array of its own, as a sharded last
        axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::mul_and_silu. T is f32, f16 or bf16.
    """
    return one_or_all(call("mul_and_silu", (x, gate)))


@overload
def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[False] = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array: ...


@overload
def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: Literal[True],
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool,
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def paged_attention(
    query: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    seqused_k: ArrayLike,
    block_table: ArrayLike,
    cu_seqlens_q: ArrayLike,
    num_seqs: ArrayLike | None = None,
    layer: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float = 0,
    layout: str = "NHD",
    return_lse: bool = False,
    kv_cache_dtype: KvCacheDtype = "auto",
    attention_chunk: int = 0,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Causal attention over a paged KV cache, for decode and mixed batches.

    Args:
      query: [t, h, d], T: queries, sequence after sequence.
      key_cache: cache pages, by layout or [@key_cache], T, f8e4m3fn, f8e5m2, u8: pages of keys,
        or of both.
      value_cache: cache pages, by layout or [@value_cache], key_cache: pages of values;
        optional.
      seqused_k: [b], i32, i64: keys of each sequence, this step's included.
      block_table: [b, m], i32, i64: pages of each sequence.
      cu_seqlens_q: [b+1], i32, i64: where each sequence starts in query.
      num_seqs: [1], i32, i64: how many sequences are real, clamped to 0 to b; default all;
        optional.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      sinks: [h], f32: a logit of each head in the denominator, without a value; optional.
      k_scale: [1] or [hk] or [b, hk], f32: what fp8 keys are to be multiplied by; default 1;
        optional.
      v_scale: [1] or [hk] or [b, hk], f32: the same for values; optional.
      alibi_slopes: [h] or [b, h], f32: what a score loses for each key between the query's own
        and the one it meets; optional.
      scale: of the scores; default d ** -0.5.
      sliding_window: keys that a query sees, its own included; default all.
      softcap: softcap * tanh(score / softcap); 0: none.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      return_lse: also return lse.
      kv_cache_dtype: how a cache of dtype u8 is to be read; one of auto, fp8, fp8_e4m3,
        fp8_e5m2.
      attention_chunk: keys of a chunk: a query sees those of its own alone; 0: all.

    Returns:
      out: [t, h, d], T: weighted values.
      lse: [h, t], f32: natural log of the sum of exponentials; only with return_lse.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Kwon et al. 2023, arXiv:2309.06180; torch_xla's ragged_paged_attention. T is f32,
        f16 or bf16.
    """
    return one_or_all(
        call(
            "paged_attention",
            (
                query,
                key_cache,
                value_cache,
                seqused_k,
                block_table,
                cu_seqlens_q,
                num_seqs,
                layer,
                sinks,
                k_scale,
                v_scale,
                alibi_slopes,
            ),
            scale=scale,
            sliding_window=sliding_window,
            softcap=softcap,
            layout=layout,
            return_lse=return_lse,
            kv_cache_dtype=kv_cache_dtype,
            attention_chunk=attention_chunk,
        )
    )


def per_token_group_fp8_quant(
    x: ArrayLike, *, group_size: int = 128, eps: float = 1e-10, scale_ue8m0: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Quantises groups of a row's neighbours to fp8, each by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.
      group_size: how many neighbours share a scale.
      eps: counts as a group's largest number where that is smaller.
      scale_ue8m0: whether scales are rounded up to powers of two, as E8M0 holds them.

    Returns:
      q: [..., n], f8e4m3fn: codes.
      scale: [..., n/group_size], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::per_token_group_fp8_quant; DeepSeek-AI 2024, arXiv:2412.19437, section
        3.3. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "per_token_group_fp8_quant",
            (x,),
            group_size=group_size,
            eps=eps,
            scale_ue8m0=scale_ue8m0,
        )
    )


def per_token_group_quant_int8(
    x: ArrayLike, *, group_size: int = 128, eps: float = 1e-10
) -> tuple[jax.Array, jax.Array]:
    """Quantises groups of a row's neighbours to int8, each by a scale of its own.

    Args:
      x: [..., n], T: rows of numbers.
      group_size: how many neighbours share a scale.
      eps: counts as a group's largest number where that is smaller.

    Returns:
      q: [..., n], i8: codes, rounded toward zero.
      scale: [..., n/group_size], f32: what a code of 1 stands for.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::per_token_group_quant_int8. T is f32, f16 or bf16.
    """
    return one_or_all(call("per_token_group_quant_int8", (x,), group_size=group_size, eps=eps))


@overload
def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    key_cache: ArrayLike,
    value_cache: None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array: ...


@overload
def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array]: ...


def reshape_and_cache_flash(
    key: ArrayLike,
    value: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Writes new keys and values into their slots of a paged KV cache.

    Args:
      key: [t, hk, d], T: new keys.
      value: [t, hk, d], T: new values.
      key_cache: cache pages, by layout or [@key_cache], T, f8e4m3fn, f8e5m2, u8: pages of keys,
        or of both.
      value_cache: cache pages, by layout or [@value_cache], key_cache: pages of values;
        optional.
      slot_mapping: [slots], i32, i64: page * s + offset of each of the first tokens; negative:
        skip.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      k_scale: [1] or [hk], f32: what keys are divided by before they are stored in fp8; default
        1; optional.
      v_scale: [1] or [hk], f32: the same for values; optional.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      kv_cache_dtype: what a cache of dtype u8 holds; one of auto, fp8, fp8_e4m3, fp8_e5m2.

    Returns:
      key_cache: as key_cache, key_cache: the same pages; shares the buffer of key_cache.
      value_cache: as value_cache, value_cache: the same pages; shares the buffer of
        value_cache; only with value_cache.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::reshape_and_cache_flash. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "reshape_and_cache_flash",
            (key, value, key_cache, value_cache, slot_mapping, layer, k_scale, v_scale),
            layout=layout,
            kv_cache_dtype=kv_cache_dtype,
        )
    )


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> jax.Array:
    """Root-mean-square normalisation over the last axis.

    Args:
      x: [..., n], T: rows to normalise.
      weight: [n], T, f32: scale of each column; 1 if absent; optional.
      eps: added to the mean square.
      rounding: "before_weight" rounds to T before the weight, as Hugging Face's Llama does; one
        of once, before_weight.

    Returns:
      out: [..., n], T: normalised rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467; vLLM's _C::rms_norm. T is f32, f16 or
        bf16.
    """
    return one_or_all(call("rms_norm", (x, weight), eps=eps, rounding=rounding))


@overload
def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: None = None,
    *,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None,
    residual: ArrayLike,
    *,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


@overload
def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    *,
    residual: ArrayLike,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def rms_norm_dynamic_per_token_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array]:
    """Root-mean-square normalisation, each row quantised by a scale of its own.

    Args:
      x: [..., n], T: rows to normalise; with residual, what a block of the network adds.
      weight: [n], T, f32: scale of each column.
      scale_ub: [1], f32: counts as a row's largest number where that is larger; optional.
      residual: [..., n], T: the residual stream, added before the norm; optional.
      eps: added to the mean square.
      quant_dtype: dtype of the codes; one of f8e4m3fn, i8.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight, too;
        one of once, before_weight.

    Returns:
      q: [..., n], quant_dtype: codes of the normalised rows.
      scale: [..., 1], f32: what a code of 1 stands for.
      residual: [..., n], T: x + residual; only with residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::rms_norm_dynamic_per_token_quant. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "rms_norm_dynamic_per_token_quant",
            (x, weight, scale_ub, residual),
            eps=eps,
            quant_dtype=quant_dtype,
            rounding=rounding,
        )
    )


@overload
def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: None = None,
    *,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None,
    residual: ArrayLike,
    *,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


@overload
def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    *,
    residual: ArrayLike,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def rms_norm_per_block_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale_ub: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    group_size: int = 128,
    eps: float = 1e-06,
    quant_dtype: QuantDtype = "f8e4m3fn",
    rounding: Rounding = "before_weight",
) -> tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array]:
    """Root-mean-square normalisation, groups of a row quantised by scales of their own.

    Args:
      x: [..., n], T: rows to normalise; with residual, what a block of the network adds.
      weight: [n], T, f32: scale of each column.
      scale_ub: [1], f32: counts as a group's largest number where that is larger; optional.
      residual: [..., n], T: the residual stream, added before the norm; optional.
      group_size: how many neighbours share a scale.
      eps: added to the mean square.
      quant_dtype: dtype of the codes; one of f8e4m3fn, i8.
      rounding: "before_weight" norms the unrounded sum and rounds to T before the weight, too;
        one of once, before_weight.

    Returns:
      q: [..., n], quant_dtype: codes of the normalised rows.
      scale: [..., n/group_size], f32: what a code of 1 stands for.
      residual: [..., n], T: x + residual; only with residual.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::rms_norm_per_block_quant. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "rms_norm_per_block_quant",
            (x, weight, scale_ub, residual),
            group_size=group_size,
            eps=eps,
            quant_dtype=quant_dtype,
            rounding=rounding,
        )
    )


def rms_norm_static_fp8_quant(
    x: ArrayLike,
    weight: ArrayLike,
    scale: ArrayLike,
    *,
    eps: float = 1e-06,
    rounding: Rounding = "once",
) -> jax.Array:
    """Root-mean-square normalisation, quantised by a given scale.

    Args:
      x: [..., n], T: rows to normalise.
      weight: [n], T, f32: scale of each column.
      scale: [1], f32: what a code of 1 stands for.
      eps: added to the mean square.
      rounding: "before_weight" rounds to T before the weight, too, as Hugging Face's Llama
        does; one of once, before_weight.

    Returns:
      q: [..., n], f8e4m3fn: codes of the normalised rows.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::rms_norm_static_fp8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(
        call("rms_norm_static_fp8_quant", (x, weight, scale), eps=eps, rounding=rounding)
    )


@overload
def rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: None = None,
    pair_axes: ArrayLike | None = None,
    *,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array: ...


@overload
def rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: ArrayLike,
    pair_axes: ArrayLike | None = None,
    *,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> tuple[jax.Array, jax.Array]: ...


def rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: ArrayLike | None = None,
    pair_axes: ArrayLike | None = None,
    *,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Rotary position embedding of query and key.

    Args:
      positions: [..., axes] with pair_axes or [...] with !pair_axes, i32, i64: position of each
        token, or several.
      query: [..., h, d] or [..., h*head_size] with head_size, T: query heads.
      cos_sin_cache: [max_pos, r], f32, f16, bf16: cosines, then sines, of r/2 angles a
        position.
      key: [..., hk, d] or [..., hk*head_size] with head_size, T: key heads; optional.
      pair_axes: [pairs], i32, i64: which of a token's positions each of the r/2 pairs takes
        (M-RoPE); optional.
      head_size: d, needed where heads are not an axis of their own.
      is_neox: pairs (i, i + r/2); false: pairs (2i, 2i + 1).
      rope_dim_offset: dimensions of a head before the first pair.
      inverse: turn back.

    Returns:
      query: as query, T: turned query.
      key: as key, T: turned key; only with key.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Su et al. 2021, arXiv:2104.09864; vLLM's _C::rotary_embedding. T is f32, f16 or
        bf16.
    """
    return one_or_all(
        call(
            "rotary_embedding",
            (positions, query, cos_sin_cache, key, pair_axes),
            head_size=head_size,
            is_neox=is_neox,
            rope_dim_offset=rope_dim_offset,
            inverse=inverse,
        )
    )


@overload
def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    key_cache: ArrayLike,
    value_cache: None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    num_heads: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array]: ...


@overload
def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    num_heads: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array, jax.Array]: ...


def rotary_embedding_and_cache(
    positions: ArrayLike,
    qkv: ArrayLike,
    cos_sin_cache: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike | None,
    slot_mapping: ArrayLike,
    layer: ArrayLike | None = None,
    k_scale: ArrayLike | None = None,
    v_scale: ArrayLike | None = None,
    *,
    num_heads: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    layout: str = "NHD",
    kv_cache_dtype: KvCacheDtype = "auto",
) -> tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, jax.Array]:
    """Rotary position embedding of a product of Q, K and V, whose K and V go to a paged KV cache.

    Args:
      positions: [t], i32, i64: position of each token.
      qkv: [t, heads, d], T: num_heads query heads, hk key heads, hk value heads.
      cos_sin_cache: [max_pos, r], f32, f16, bf16: cosines, then sines, of r/2 angles a
        position.
      key_cache: cache pages, by layout or [@key_cache], T, f8e4m3fn, f8e5m2, u8: pages of keys,
        or of both.
      value_cache: cache pages, by layout or [@value_cache], key_cache: pages of values;
        optional.
      slot_mapping: [slots], i32, i64: page * s + offset of each of the first tokens; negative:
        skip.
      layer: scalar, i32: which layer of a cache with a leading layer axis; optional.
      k_scale: [1] or [hk], f32: what keys are divided by before they are stored in fp8; default
        1; optional.
      v_scale: [1] or [hk], f32: the same for values; optional.
      num_heads: how many of the heads are queries; needed.
      is_neox: pairs (i, i + r/2); false: pairs (2i, 2i + 1).
      rope_dim_offset: dimensions of a head before the first pair.
      layout: order of the cache's axes; one of NHD, HND, combined, packed, stacked, or an order
        of axes.
      kv_cache_dtype: what a cache of dtype u8 holds; one of auto, fp8, fp8_e4m3, fp8_e5m2.

    Returns:
      query: [t, num_heads, d], T: turned query heads.
      key_cache: as key_cache, key_cache: the same pages; shares the buffer of key_cache.
      value_cache: as value_cache, value_cache: the same pages; shares the buffer of
        value_cache; only with value_cache.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: rotary_embedding and reshape_and_cache_flash in one; AITER's
        fused_qk_rope_reshape_and_cache. T is f32, f16 or bf16.
    """
    return one_or_all(
        call(
            "rotary_embedding_and_cache",
            (
                positions,
                qkv,
                cos_sin_cache,
                key_cache,
                value_cache,
                slot_mapping,
                layer,
                k_scale,
                v_scale,
            ),
            num_heads=num_heads,
            is_neox=is_neox,
            rope_dim_offset=rope_dim_offset,
            layout=layout,
            kv_cache_dtype=kv_cache_dtype,
        )
    )


def silu_and_mul(x: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Llama's MLP.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU); vLLM's _C::silu_and_mul. T is f32, f16 or
        bf16.
    """
    return one_or_all(call("silu_and_mul", (x, up)))


def silu_and_mul_quant(x: ArrayLike, scale: ArrayLike, up: ArrayLike | None = None) -> jax.Array:
    """The gated activation of a Llama's MLP, quantised by a given scale.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      scale: [1], f32: what a code of 1 stands for.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.

    Returns:
      q: [..., n], f8e4m3fn: codes of the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::silu_and_mul_quant. T is f32, f16 or bf16.
    """
    return one_or_all(call("silu_and_mul_quant", (x, scale, up)))


def silu_and_mul_with_clamp(
    x: ArrayLike,
    up: ArrayLike | None = None,
    *,
    limit: float | None = None,
    alpha: float = 1,
    beta: float = 0,
) -> jax.Array:
    """The gated activation of a Llama's MLP, gate and up clamped before it.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up side by side; the gate alone if up is
        given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own, as a sharded
        last axis needs; optional.
      limit: the most that a gate counts as, and the most size of up; no limit if absent.
      alpha: what the gate's logistic curve is steeper by.
      beta: added to up.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::silu_and_mul_with_clamp. T is f32, f16 or bf16.
    """
    return one_or_all(call("silu_and_mul_with_clamp", (x, up), limit=limit, alpha=alpha, beta=beta))


def simple_add(a: ArrayLike, b: ArrayLike) -> jax.Array:
    """Elementwise sum of two arrays of one shape.

    Args:
      a: [...], T: one summand.
      b: [...], T: the other.

    Returns:
      out: [...], T: a + b.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: the smallest op there is. T is f32, f16 or bf16.
    """
    return one_or_all(call("simple_add", (a, b)))


def static_scaled_fp8_quant(x: ArrayLike, scale: ArrayLike) -> jax.Array:
    """Quantises to fp8 by scales that are given.

    Args:
      x: [..., n], T: numbers.
      scale: [1] or [n] or [..., 1] or [..., g], f32: what a code of 1 stands for: in all of x,
        in each column, in each row, or in each of g equal groups of a row's columns.

    Returns:
      q: [..., n], f8e4m3fn: codes.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::static_scaled_fp8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(call("static_scaled_fp8_quant", (x, scale)))


def static_scaled_int8_quant(
    x: ArrayLike, scale: ArrayLike, azp: ArrayLike | None = None
) -> jax.Array:
    """Quantises to int8 by scales that are given.

    Args:
      x: [..., n], T: numbers.
      scale: [1] or [n] or [..., 1] or [..., g], f32: what a code of 1 stands for: in all of x,
        in each column, in each row, or in each of g equal groups of a row's columns.
      azp: [1], i32: the code that stands for 0; 0 if absent; optional.

    Returns:
      q: [..., n], i8: codes.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C::static_scaled_int8_quant. T is f32, f16 or bf16.
    """
    return one_or_all(call("static_scaled_int8_quant", (x, scale, azp)))


def swap_blocks(
    source: ArrayLike,
    blocks: ArrayLike,
    from_blocks: ArrayLike,
    to_blocks: ArrayLike,
    *,
    axis: Axis = "0",
) -> jax.Array:
    """Copies blocks of a paged cache to blocks of another one.

    Args:
      source: [ps, n] with axis=0 or [ps, m, n] with axis=0 or [ps, k, m, n] with axis=0 or [ps,
        i, k, m, n] with axis=0 or [o, ps, n] with axis=1 or [o, ps, m, n] with axis=1 or [o,
        ps, k, m, n] with axis=1 or [o, ps, i, k, m, n] with axis=1 or [l, o, ps, n] with axis=2
        or [l, o, ps, m, n] with axis=2 or [l, o, ps, k, m, n] with axis=2 or [l, o, ps, i, k,
        m, n] with axis=2, T, f8e4m3fn, f8e5m2, u8, i8: a cache of ps blocks.
      blocks: [p, n] with axis=0 or [p, m, n] with axis=0 or [p, k, m, n] with axis=0 or [p, i,
        k, m, n] with axis=0 or [o, p, n] with axis=1 or [o, p, m, n] with axis=1 or [o, p, k,
        m, n] with axis=1 or [o, p, i, k, m, n] with axis=1 or [l, o, p, n] with axis=2 or [l,
        o, p, m, n] with axis=2 or [l, o, p, k, m, n] with axis=2 or [l, o, p, i, k, m, n] with
        axis=2, source: that of p blocks that is written.
      from_blocks: [pairs], i32, i64: from which block of source; negative: skip.
      to_blocks: [pairs], i32, i64: to which block of blocks; negative: skip.
      axis: that of the blocks; one of 0, 1, 2.

    Returns:
      blocks: as blocks, blocks: the same blocks; shares the buffer of blocks.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's _C_cache_ops::swap_blocks. T is f32, f16 or bf16.
    """
    return one_or_all(call("swap_blocks", (source, blocks, from_blocks, to_blocks), axis=axis))


def swigluoai_and_mul(
    x: ArrayLike, up: ArrayLike | None = None, *, alpha: float = 1.702, limit: float = 7
) -> jax.Array:
    """The gated activation of gpt-oss: clamped, up plus 1, gate and up in turn.

    Args:
      x: [..., n] with up or [..., 2*n], T: gate and up in turn, a pair for each column; the
        gate alone if up is given.
      up: [..., n], T: what the gate multiplies, when it is an array of its own; optional.
      alpha: what the gate's logistic curve is steeper by.
      limit: the most that a gate counts as, and the most size of up.

    Returns:
      out: [..., n], T: the product.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: OpenAI 2025, gpt-oss model card, arXiv:2508.10925; vLLM's _C::swigluoai_and_mul. T
        is f32, f16 or bf16.
    """
    return one_or_all(call("swigluoai_and_mul", (x, up), alpha=alpha, limit=limit))


def topk_router(
    logits: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    top_k: int = 1,
    scoring: Scoring = "softmax",
    renormalize: bool = False,
    num_groups: int = 1,
    topk_groups: int = 1,
    scale: float = 1,
) -> tuple[jax.Array, jax.Array]:
    """The experts of each token, and their weights.

    Args:
      logits: [..., e], T: what a token says to each expert.
      bias: [e], f32: added to the scores where experts are chosen; weights have none of it;
        optional.
      top_k: experts of a token.
      scoring: scores from logits; one of softmax, sigmoid, softplus_sqrt.
      renormalize: weights of a token sum to scale.
      num_groups: groups of neighbouring experts.
      topk_groups: groups that a token may choose from.
      scale: what weights are multiplied by.

    Returns:
      weights: [..., top_k], f32: weights, the largest score first.
      ids: [..., top_k], i32: which experts these are.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's topk_softmax, topk_sigmoid, topk_softplus_sqrt and grouped_topk. T is f32,
        f16 or bf16.
    """
    return one_or_all(
        call(
            "topk_router",
            (logits, bias),
            top_k=top_k,
            scoring=scoring,
            renormalize=renormalize,
            num_groups=num_groups,
            topk_groups=topk_groups,
            scale=scale,
        )
    )
