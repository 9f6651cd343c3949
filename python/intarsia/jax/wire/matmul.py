"""Ops of the family matmul, operand by operand.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

import jax
from jax.typing import ArrayLike

from intarsia.jax._call import call, one_or_all
from intarsia.jax.wire._words import (
    Activation,
    Format,
    FusedLinearQuantizedOutDtype,
    Gating,
    GroupedMatmulOutDtype,
    GroupedMatmulQuantizedOutDtype,
    GroupedMatmulWeightGradientOutDtype,
    LinearOutDtype,
    LinearQuantizedInt8OutDtype,
    LinearQuantizedOutDtype,
    ScaledMatmulOutDtype,
    W2Format,
    ZerosAre,
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
      apply_router_weight_on_input: weights multiply the first product, before its bias, not the
        results.

    Returns:
      out: [..., n], T: the weighted sums.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: Shazeer et al. 2017, arXiv:1701.06538; vLLM's fused_experts. T is f32, f16 or
        bf16.

    Example:
      >>> x = jnp.ones((3, 16))
      >>> w1 = jnp.ones((4, 48, 16))
      >>> w2 = jnp.ones((4, 16, 24))
      >>> weights = jnp.ones((3, 2))
      >>> ids = jnp.array([[3, 2], [2, 3], [3, 0]], jnp.int32)
      >>> out = fused_experts(x, w1, w2, weights, ids)
      >>> print(jax.typeof(out))
      float32[3,16]
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


def fused_experts_quantized(
    x: ArrayLike,
    w1: ArrayLike,
    w1_scales: ArrayLike,
    w2: ArrayLike,
    w2_scales: ArrayLike,
    weights: ArrayLike,
    ids: ArrayLike,
    w1_zeros: ArrayLike | None = None,
    w2_zeros: ArrayLike | None = None,
    w1_bias: ArrayLike | None = None,
    w2_bias: ArrayLike | None = None,
    expert_map: ArrayLike | None = None,
    w1_outer_scales: ArrayLike | None = None,
    w1_outer_zeros: ArrayLike | None = None,
    w2_outer_scales: ArrayLike | None = None,
    w2_outer_zeros: ArrayLike | None = None,
    *,
    format: Format = "u4",
    w1_group: int = 0,
    w2_group: int = 0,
    zeros_are: ZerosAre = "points",
    activation: Activation = "silu",
    limit: float = 7,
    alpha: float = 1.702,
    apply_router_weight_on_input: bool = False,
    w2_format: W2Format = "same",
) -> jax.Array:
    """The gated MLPs of each token's experts, with weights in 8 bits or less.

    Args:
      x: [..., 16*u], T: tokens.
      w1: [e, c, nb, 4, 16, 4] with format=u4/u4b8/e2m1 or [e, c, nb, 5, 16, 4] with
        format=u5/u5b16 or [e, c, nb, 6, 16, 4] with format=u6b32 or [e, c, nb, 8, 16, 4] with
        format=i8/e4m3, u8: codes of gate and up of each expert, as in linear_quantized.
      w1_scales: [e, c, ng, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes of w1
        are multiplied by.
      w2: [e, u, ib, 4, 16, 4] with w2_format (format if same)=u4/u4b8/e2m1 or [e, u, ib, 5, 16,
        4] with w2_format (format if same)=u5/u5b16 or [e, u, ib, 6, 16, 4] with w2_format
        (format if same)=u6b32 or [e, u, ib, 8, 16, 4] with w2_format (format if same)=i8/e4m3,
        u8: codes of the way back of each expert, of 8*c columns.
      w2_scales: [e, u, ig, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes of w2
        are multiplied by.
      weights: [..., k], f32, T: of each token's experts.
      ids: [..., k], i32, i64: which experts these are; one that is not there adds nothing.
      w1_zeros: [e, c, ng, 16], f32, f16, bf16, u8, i8: what is subtracted from codes of w1, or
        added to their products with scales; optional.
      w2_zeros: [e, u, ig, 16], f32, f16, bf16, u8, i8: the same of w2; optional.
      w1_bias: [e, 16*c], T: added to the first product; optional.
      w2_bias: [e, 16*u], T: added to the second product; optional.
      expert_map: [g], i32, i64: the expert of each id, negative where it is elsewhere; default:
        the id itself; optional.
      w1_outer_scales: [e] or [e, c, no, 16], f32, f16, bf16: what scales of w1 are multiplied
        by; optional.
      w1_outer_zeros: [e] or [e, c, no, 16], f32, f16, bf16: what minimums of w1 are multiplied
        by; optional.
      w2_outer_scales: [e] or [e, u, io, 16], f32, f16, bf16: what scales of w2 are multiplied
        by; optional.
      w2_outer_zeros: [e] or [e, u, io, 16], f32, f16, bf16: what minimums of w2 are multiplied
        by; optional.
      format: what a code stands for; one of u4, u4b8, e2m1, u5, u5b16, u6b32, i8, e4m3.
      w1_group: columns of w1 that share a scale: 16 or a multiple of 32; 0: all of them.
      w2_group: the same of w2.
      zeros_are: points are subtracted from codes, minimums added to their products with scales;
        one of points, minimums.
      activation: gate and up side by side; swigluoai: in turn, as gpt-oss has them; one of
        silu, gelu_tanh, swigluoai.
      limit: swigluoai: the most that a gate counts as, and the most size of up.
      alpha: swigluoai: what its logistic curve is steeper by.
      apply_router_weight_on_input: weights multiply the first product, before its bias, not the
        results.
      w2_format: what a code of w2 stands for; same: as format says; one of same, u4, u4b8,
        e2m1, u5, u5b16, u6b32, i8, e4m3.

    Returns:
      out: [..., 16*u], T: the weighted sums.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: fused_experts of dequantized weights; ggml's, gpt-oss's and vLLM's formats. T is
        f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((3, 32))
      >>> w1 = jnp.zeros((4, 4, 1, 4, 16, 4), jnp.uint8)
      >>> w1_scales = jnp.ones((4, 4, 1, 16), jnp.float16)
      >>> w2 = jnp.zeros((4, 2, 1, 4, 16, 4), jnp.uint8)
      >>> w2_scales = jnp.ones((4, 2, 1, 16), jnp.float16)
      >>> weights = jnp.ones((3, 2))
      >>> ids = jnp.array([[3, 2], [2, 3], [3, 0]], jnp.int32)
      >>> out = wire.fused_experts_quantized(x, w1, w1_scales, w2, w2_scales, weights, ids, format='u4b8', w1_group=32, w2_group=32)
      >>> print(jax.typeof(out))
      float32[3,32]
    """
    return one_or_all(
        call(
            "fused_experts_quantized",
            (
                x,
                w1,
                w1_scales,
                w2,
                w2_scales,
                weights,
                ids,
                w1_zeros,
                w2_zeros,
                w1_bias,
                w2_bias,
                expert_map,
                w1_outer_scales,
                w1_outer_zeros,
                w2_outer_scales,
                w2_outer_zeros,
            ),
            format=format,
            w1_group=w1_group,
            w2_group=w2_group,
            zeros_are=zeros_are,
            activation=activation,
            limit=limit,
            alpha=alpha,
            apply_router_weight_on_input=apply_router_weight_on_input,
            w2_format=w2_format,
        )
    )


def fused_linear_quantized(
    x: ArrayLike,
    packed: ArrayLike,
    scales: ArrayLike,
    zeros: ArrayLike | None = None,
    outer_scales: ArrayLike | None = None,
    outer_zeros: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    norm_weight: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    format: Format = "u4",
    group: int = 0,
    zeros_are: ZerosAre = "points",
    out_dtype: FusedLinearQuantizedOutDtype = "auto",
    eps: float = 1e-06,
    gating: Gating = "none",
) -> jax.Array:
    """A linear layer with weights in 8 bits or less, the norm before it, and the gated activation or the residual behind it.

    Args:
      x: [..., k], T: rows.
      packed: [c, kb, 4, 16, 4] with format=u4/u4b8/e2m1 or [c, kb, 5, 16, 4] with
        format=u5/u5b16 or [c, kb, 6, 16, 4] with format=u6b32 or [c, kb, 8, 16, 4] with
        format=i8/e4m3, u8: codes, tile by tile: 16 results, and kb blocks of 32 of the k
        columns, which take a line for each bit of a code.
      scales: [c, kg, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes are
        multiplied by.
      zeros: [c, kg, 16], f32, f16, bf16, u8, i8: what is subtracted from codes, or added to
        their products with scales; optional.
      outer_scales: [1] or [c, ko, 16], f32, f16, bf16: what scales are multiplied by; optional.
      outer_zeros: [1] or [c, ko, 16], f32, f16, bf16: what minimums are multiplied by;
        optional.
      bias: [16*c], T: added to the sums before they are rounded; optional.
      norm_weight: [k], T, f32: scale of each column of the normed x; x is not normed if absent;
        optional.
      residual: [..., 16*c], T: added to the sums before they are rounded; optional.
      format: what a code stands for; one of u4, u4b8, e2m1, u5, u5b16, u6b32, i8, e4m3.
      group: columns that share a scale: 16 or a multiple of 32; 0: all k of them.
      zeros_are: points are subtracted from codes, minimums added to their products with scales;
        one of points, minimums.
      out_dtype: dtype of the result; auto: that of x; one of auto, f32.
      eps: added to the mean square.
      gating: activation of gates, the first half of the columns, each times its up in the
        second; one of none, silu, gelu_tanh.

    Returns:
      out: [..., 16*c] with gating=none or [..., 8*c], out_dtype: the layer's results.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: rms_norm, linear_quantized, silu_and_mul and a sum, one after the other. T is f32,
        f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> packed = jnp.zeros((2, 2, 4, 16, 4), jnp.uint8)
      >>> scales = jnp.ones((2, 2, 16), jnp.float16)
      >>> zeros = jnp.ones((2, 2, 16), jnp.float16)
      >>> norm_weight = jnp.ones((64,))
      >>> out = fused_linear_quantized(x, packed, scales, zeros, None, None, None, norm_weight, group=32, zeros_are='minimums', eps=1e-05, gating='silu')
      >>> print(jax.typeof(out))
      float32[2,16]
    """
    return one_or_all(
        call(
            "fused_linear_quantized",
            (x, packed, scales, zeros, outer_scales, outer_zeros, bias, norm_weight, residual),
            format=format,
            group=group,
            zeros_are=zeros_are,
            out_dtype=out_dtype,
            eps=eps,
            gating=gating,
        )
    )


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

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    rows (below mx).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: jax.lax.ragged_dot; MegaBlocks (Gale et al. 2022, arXiv:2211.15841). T is f32, f16
        or bf16.

    Example:
      >>> x = jnp.ones((8, 32))
      >>> w = jnp.ones((3, 32, 16))
      >>> group_sizes = jnp.array([3, 0, 5], jnp.int32)
      >>> out = wire.grouped_matmul(x, w, group_sizes)
      >>> print(jax.typeof(out))
      float32[8,16]
    """
    return one_or_all(
        call(
            "grouped_matmul",
            (x, w, group_sizes, group_offset, rows, bias),
            transposed=transposed,
            out_dtype=out_dtype,
        )
    )


def grouped_matmul_quantized(
    x: ArrayLike,
    packed: ArrayLike,
    scales: ArrayLike,
    group_sizes: ArrayLike,
    zeros: ArrayLike | None = None,
    group_offset: ArrayLike | None = None,
    rows: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    outer_scales: ArrayLike | None = None,
    outer_zeros: ArrayLike | None = None,
    *,
    format: Format = "u4",
    group: int = 0,
    zeros_are: ZerosAre = "points",
    out_dtype: GroupedMatmulQuantizedOutDtype = "auto",
) -> jax.Array:
    """Products of groups of rows, each with a matrix of its own in 8 bits or less.

    Args:
      x: [mx, k] with rows or [m, k] with !rows, T: rows, group after group; with `rows`, in any
        order.
      packed: [g, c, kb, 4, 16, 4] with format=u4/u4b8/e2m1 or [g, c, kb, 5, 16, 4] with
        format=u5/u5b16 or [g, c, kb, 6, 16, 4] with format=u6b32 or [g, c, kb, 8, 16, 4] with
        format=i8/e4m3, u8: codes of a matrix for each group, as in linear_quantized.
      scales: [g, c, kg, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes are
        multiplied by.
      group_sizes: [e] with group_offset or [g] with !group_offset, i32, i64: rows of each
        group; a negative size counts as 0, and groups end at row m.
      zeros: [g, c, kg, 16], f32, f16, bf16, u8, i8: what is subtracted from codes, or added to
        their products with scales; optional.
      group_offset: [1], i32, i64: which of all e groups the matrices begin with; rows of the
        others give 0; optional.
      rows: [m], i32, i64: which row of x each row takes; one without gives 0; optional.
      bias: [g, 16*c], T: added to the sums before they are rounded; optional.
      outer_scales: [g] or [g, c, ko, 16], f32, f16, bf16: what scales are multiplied by;
        optional.
      outer_zeros: [g] or [g, c, ko, 16], f32, f16, bf16: what minimums are multiplied by;
        optional.
      format: what a code stands for; one of u4, u4b8, e2m1, u5, u5b16, u6b32, i8, e4m3.
      group: columns that share a scale: 16 or a multiple of 32; 0: all k of them.
      zeros_are: points are subtracted from codes, minimums added to their products with scales;
        one of points, minimums.
      out_dtype: dtype of the result; auto: that of x; one of auto, f32.

    Returns:
      out: [m, 16*c], out_dtype: products; 0 in rows behind the last group.

    Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors:
    rows (below mx).

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: grouped_matmul of dequantized weights; vLLM's and gpt-oss's formats. T is f32, f16
        or bf16.

    Example:
      >>> x = jnp.ones((8, 128))
      >>> packed = jnp.zeros((3, 1, 4, 4, 16, 4), jnp.uint8)
      >>> scales = jnp.ones((3, 1, 2, 16), jnp.float16)
      >>> group_sizes = jnp.array([3, 0, 5], jnp.int32)
      >>> out = grouped_matmul_quantized(x, packed, scales, group_sizes, format='u4b8', group=64)
      >>> print(jax.typeof(out))
      float32[8,16]
    """
    return one_or_all(
        call(
            "grouped_matmul_quantized",
            (
                x,
                packed,
                scales,
                group_sizes,
                zeros,
                group_offset,
                rows,
                bias,
                outer_scales,
                outer_zeros,
            ),
            format=format,
            group=group,
            zeros_are=zeros_are,
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

    Example:
      >>> x = jnp.ones((8, 32))
      >>> d_out = jnp.ones((8, 16))
      >>> group_sizes = jnp.array([3, 0, 5], jnp.int32)
      >>> out = grouped_matmul_weight_gradient(x, d_out, group_sizes)
      >>> print(jax.typeof(out))
      float32[3,32,16]
    """
    return one_or_all(
        call(
            "grouped_matmul_weight_gradient",
            (x, d_out, group_sizes, group_offset),
            num_groups=num_groups,
            out_dtype=out_dtype,
        )
    )


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

    Example:
      >>> x = jnp.ones((2, 64))
      >>> w = jnp.ones((16, 64))
      >>> bias = jnp.ones((16,))
      >>> out = wire.linear(x, w, bias)
      >>> print(jax.typeof(out))
      float32[2,16]
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

    Args:
      x: [..., k], T: rows.
      packed: [c, kb, 4, 16, 4] with format=u4/u4b8/e2m1 or [c, kb, 5, 16, 4] with
        format=u5/u5b16 or [c, kb, 6, 16, 4] with format=u6b32 or [c, kb, 8, 16, 4] with
        format=i8/e4m3, u8: codes, tile by tile: 16 results, and kb blocks of 32 of the k
        columns, which take a line for each bit of a code.
      scales: [c, kg, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes are
        multiplied by.
      zeros: [c, kg, 16], f32, f16, bf16, u8, i8: what is subtracted from codes, or added to
        their products with scales; optional.
      outer_scales: [1] or [c, ko, 16], f32, f16, bf16: what scales are multiplied by; optional.
      outer_zeros: [1] or [c, ko, 16], f32, f16, bf16: what minimums are multiplied by;
        optional.
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

    Example:
      >>> x = jnp.ones((2, 64))
      >>> packed = jnp.zeros((1, 2, 4, 16, 4), jnp.uint8)
      >>> scales = jnp.ones((1, 2, 16), jnp.float16)
      >>> zeros = jnp.ones((1, 2, 16), jnp.float16)
      >>> out = wire.linear_quantized(x, packed, scales, zeros, group=32, zeros_are='minimums')
      >>> print(jax.typeof(out))
      float32[2,16]
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


def linear_quantized_int8(
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
    out_dtype: LinearQuantizedInt8OutDtype = "auto",
) -> jax.Array:
    """A linear layer of x in int8 with weights in 8 bits or less.

    Runs on CPU alone; a program for another platform is refused.

    Args:
      x: [..., k], T: rows, rounded to int8 in blocks of 32.
      packed: [c, kb, 4, 16, 4] with format=u4/u4b8/e2m1 or [c, kb, 5, 16, 4] with
        format=u5/u5b16 or [c, kb, 6, 16, 4] with format=u6b32 or [c, kb, 8, 16, 4] with
        format=i8/e4m3, u8: codes, tile by tile: 16 results, and kb blocks of 32 of the k
        columns, which take a line for each bit of a code.
      scales: [c, kg, 16], f32, f16, bf16, u8, i8, f8e4m3fn, f8e8m0fnu: what codes are
        multiplied by.
      zeros: [c, kg, 16], f32, f16, bf16, u8, i8: what is subtracted from codes, or added to
        their products with scales; optional.
      outer_scales: [1] or [c, ko, 16], f32, f16, bf16: what scales are multiplied by; optional.
      outer_zeros: [1] or [c, ko, 16], f32, f16, bf16: what minimums are multiplied by;
        optional.
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

    Source: ggml's products of blocks (ggml_vec_dot_q4_1_q8_1). T is f32, f16 or bf16.

    Example:
      >>> x = jnp.ones((2, 64))
      >>> packed = jnp.zeros((1, 2, 4, 16, 4), jnp.uint8)
      >>> scales = jnp.ones((1, 2, 16), jnp.float16)
      >>> zeros = jnp.ones((1, 2, 16), jnp.float16)
      >>> out = linear_quantized_int8(x, packed, scales, zeros, group=32, zeros_are='minimums')
      >>> print(jax.typeof(out))
      float32[2,16]
    """
    return one_or_all(
        call(
            "linear_quantized_int8",
            (x, packed, scales, zeros, outer_scales, outer_zeros, bias),
            format=format,
            group=group,
            zeros_are=zeros_are,
            out_dtype=out_dtype,
        )
    )


def scaled_matmul(
    x: ArrayLike,
    w: ArrayLike,
    x_scales: ArrayLike,
    w_scales: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    out_dtype: ScaledMatmulOutDtype = "bf16",
) -> jax.Array:
    """A linear layer of codes of 8 bits, fp8 or int8, each with scales.

    Args:
      x: [..., k], f8e4m3fn, i8: codes, row by row.
      w: [n, k], x: codes of weights, a row for each result.
      x_scales: [1] or [..., kb], f32: what codes of x are multiplied by: one for all, or for
        each row one (kb = 1) or one for each 128 columns.
      w_scales: [1] or [n] or [nb, wb], f32: what codes of w are multiplied by: one for all, one
        for each row, or one for each 128 rows and 128 columns.
      bias: [n], f32, f16, bf16: added to the sums before they are rounded; optional.
      out_dtype: dtype of the result; one of bf16, f16, f32.

    Returns:
      out: [..., n], out_dtype: x w^T + bias, of the numbers.

    Raises:
      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,
        but not built.

    Source: vLLM's cutlass_scaled_mm; DeepSeek-AI 2024, arXiv:2412.19437, section 3.3. T is
        f32, f16 or bf16.

    Example:
      >>> x = jnp.zeros((2, 64), jnp.int8)
      >>> w = jnp.zeros((16, 64), jnp.int8)
      >>> x_scales = jnp.ones((2, 1))
      >>> w_scales = jnp.ones((16,))
      >>> bias = jnp.ones((16,))
      >>> out = scaled_matmul(x, w, x_scales, w_scales, bias, out_dtype='f32')
      >>> print(jax.typeof(out))
      float32[2,16]
    """
    return one_or_all(call("scaled_matmul", (x, w, x_scales, w_scales, bias), out_dtype=out_dtype))
