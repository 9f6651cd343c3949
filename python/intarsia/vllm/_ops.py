"""What vLLM's ops do, by ours.

vLLM's write results that they are given, ours return them: on an XLA device the copy between the two is a change of names
and costs nothing. Schemas: csrc/torch_bindings.cpp of vLLM 0.12 and 0.13; what later versions have added stands last, with a
default. Like vLLM's, these take more rows than there are results of, and leave the others as they are.
"""

import torch

from intarsia.vllm import (  # whose ops are among these
    _ops_cache,
    _ops_experts,  # noqa: F401
    _ops_quantized,  # noqa: F401
)
from intarsia.vllm._declare import (
    FP8,
    OPS,
    Op,
    declare,
    of_tokens,
    one,
    refuse,
    rows_of,
    write,
)

__all__ = ["OPS", "Op"]

_xla_gpu = _ops_cache.xla_gpu


# ---------------------------------------------------------------------------- norms


@declare("Tensor! result, Tensor input, Tensor? weight, float epsilon")
def rms_norm(op, result, input, weight, epsilon):
    write(op, result=(result, _xla_gpu.rms_norm(input, weight, eps=epsilon)))


@declare("Tensor! input, Tensor! residual, Tensor? weight, float epsilon")
def fused_add_rms_norm(op, input, residual, weight, epsilon):
    _xla_gpu.fused_add_rms_norm(input, residual, weight, eps=epsilon)


@declare("Tensor! result, Tensor input, Tensor weight, Tensor scale, float epsilon")
def rms_norm_static_fp8_quant(op, result, input, weight, scale, epsilon):
    codes = _xla_gpu.rms_norm_static_fp8_quant(input, weight, one(scale), eps=epsilon)
    write(op, result=(result, codes))


@declare(
    "Tensor! result, Tensor input, Tensor! residual, Tensor weight, Tensor scale, float epsilon"
)
def fused_add_rms_norm_static_fp8_quant(op, result, input, residual, weight, scale, epsilon):
    rows_of(op, "result", result, input.shape, FP8, input.device)  # before the residual is written
    codes = _xla_gpu.fused_add_rms_norm_static_fp8_quant(
        input, residual, weight, one(scale), eps=epsilon
    )
    write(op, result=(result, codes))


@declare(
    "Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, Tensor? scale_ub, Tensor!? residual"
)
def rms_norm_dynamic_per_token_quant(op, result, input, weight, scale, epsilon, scale_ub, residual):
    dtype = torch.int8 if result.dtype == torch.int8 else FP8
    rows, device = input.shape[:-1].numel(), input.device
    rows_of(op, "result", result, input.shape, dtype, device)  # before the residual is written
    rows_of(op, "scale", scale, (rows, *scale.shape[1:2]), torch.float32, device)
    codes, scales = _xla_gpu.rms_norm_dynamic_per_token_quant(
        input,
        weight,
        one(scale_ub),
        residual,
        eps=epsilon,
        quant_dtype="i8" if dtype == torch.int8 else "f8e4m3fn",
    )
    write(op, result=(result, codes), scale=(scale, of_tokens(scales, scale)))


@declare(
    "Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, Tensor? scale_ub, Tensor!? residual, "
    "int group_size, bool is_scale_transposed"
)
def rms_norm_per_block_quant(
    op,
    result,
    input,
    weight,
    scale,
    epsilon,
    scale_ub,
    residual,
    group_size,
    is_scale_transposed,
):
    del is_scale_transposed  # which says how `scale` lies in memory: its strides say it, too
    dtype = torch.int8 if result.dtype == torch.int8 else FP8
    rows, n = input.shape[:-1].numel(), input.shape[-1]
    rows_of(
        op, "result", result, input.shape, dtype, input.device
    )  # before the residual is written
    rows_of(op, "scale", scale, (rows, n // max(group_size, 1)), torch.float32, input.device)
    codes, scales = _xla_gpu.rms_norm_per_block_quant(
        input,
        weight,
        one(scale_ub),
        residual,
        group_size=group_size,
        eps=epsilon,
        quant_dtype="i8" if dtype == torch.int8 else "f8e4m3fn",
    )
    write(op, result=(result, codes), scale=(scale, scales.reshape(rows, -1)))


# ---------------------------------------------------------------------------- activations, rotary


@declare("Tensor! result, Tensor input")
def silu_and_mul(op, result, input):
    write(op, result=(result, _xla_gpu.silu_and_mul(input)))


@declare("Tensor! out, Tensor input")
def gelu_and_mul(op, out, input):
    write(op, out=(out, _xla_gpu.gelu_and_mul(input)))


@declare("Tensor! out, Tensor input")
def gelu_tanh_and_mul(op, out, input):
    write(op, out=(out, _xla_gpu.gelu_tanh_and_mul(input)))


@declare("Tensor! out, Tensor input")
def mul_and_silu(op, out, input):
    write(op, out=(out, _xla_gpu.mul_and_silu(input)))


@declare("Tensor! out, Tensor input, float threshold")
def fatrelu_and_mul(op, out, input, threshold):
    write(op, out=(out, _xla_gpu.fatrelu_and_mul(input, threshold=threshold)))


@declare("Tensor! out, Tensor input, float alpha=1.702, float limit=7.0")
def swigluoai_and_mul(op, out, input, alpha=1.702, limit=7.0):
    write(op, out=(out, _xla_gpu.swigluoai_and_mul(input, alpha=alpha, limit=limit)))


@declare("Tensor! result, Tensor input, float limit, float alpha=1.0, float beta=0.0")
def silu_and_mul_with_clamp(op, result, input, limit, alpha=1.0, beta=0.0):
    product = _xla_gpu.silu_and_mul_with_clamp(input, limit=limit, alpha=alpha, beta=beta)
    write(op, result=(result, product))


@declare("Tensor! out, Tensor input")
def gelu_new(op, out, input):
    write(op, out=(out, _xla_gpu.gelu_new(input, round_steps=True)))


@declare("Tensor! out, Tensor input")
def gelu_fast(op, out, input):
    write(op, out=(out, _xla_gpu.gelu_fast(input, round_steps=True)))


@declare("Tensor! out, Tensor input")
def gelu_quick(op, out, input):
    write(op, out=(out, _xla_gpu.gelu_quick(input)))


@declare("Tensor! result, Tensor input, Tensor scale")
def silu_and_mul_quant(op, result, input, scale):
    codes = _xla_gpu.silu_and_mul_quant(input, one(scale))
    write(op, result=(result, codes))


@declare(
    "Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, bool is_neox, "
    "int rope_dim_offset=0, bool inverse=False"
)
def rotary_embedding(
    op, positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False
):
    _xla_gpu.rotary_embedding(
        positions,
        query,
        cos_sin_cache,
        key,
        head_size=head_size,
        is_neox=is_neox,
        rope_dim_offset=rope_dim_offset,
        inverse=inverse,
    )


@declare(
    "Tensor! qkv, int num_heads_q, int num_heads_k, int num_heads_v, int head_dim, float eps, Tensor q_weight, "
    "Tensor k_weight, Tensor cos_sin_cache, bool is_neox, Tensor position_ids"
)
def fused_qk_norm_rope(
    op,
    qkv,
    num_heads_q,
    num_heads_k,
    num_heads_v,
    head_dim,
    eps,
    q_weight,
    k_weight,
    cos_sin_cache,
    is_neox,
    position_ids,
):
    heads = num_heads_q + num_heads_k + num_heads_v
    if qkv.shape[-1] != heads * head_dim:
        raise ValueError(
            f"{op}: qkv has shape {list(qkv.shape)}, expected {heads} heads of {head_dim} in its last axis"
        )
    _xla_gpu.fused_qk_norm_rope(
        position_ids,
        qkv.view(-1, heads, head_dim),
        cos_sin_cache,
        q_weight,
        k_weight,
        num_heads_q=num_heads_q,
        num_heads_k=num_heads_k,
        eps=eps,
        is_neox=is_neox,
    )


# ---------------------------------------------------------------------------- quantization


@declare("Tensor! result, Tensor input, Tensor scale, (int, int)? group_shape=None")
def static_scaled_fp8_quant(op, result, input, scale, group_shape=None):
    scale = one(scale)
    if group_shape is not None and scale.numel() != 1:
        scale = _scale_of_groups(op, input, scale, group_shape)
    if scale.ndim == 2 and scale.shape[0] == 1 != input.shape[0]:
        scale = scale[0]  # of channels
    codes = _xla_gpu.static_scaled_fp8_quant(input, scale)
    write(op, result=(result, codes))


def _scale_of_groups(op, input, scale, group_shape):
    """In two axes a scale of groups [rows, columns], of which -1 stands for all; in one it has either of them."""
    sizes = input.shape[:-1].numel(), input.shape[-1]
    each = [size if n == -1 else n for n, size in zip(group_shape, sizes, strict=True)]
    if any(n < 1 or size % n for n, size in zip(each, sizes, strict=True)):
        raise ValueError(f"{op}: group_shape is {[*group_shape]}, expected parts of {[*sizes]}")
    groups = [size // n for n, size in zip(each, sizes, strict=True)]
    if [*scale.shape] not in (groups, [n for n in groups if n != 1]):
        raise ValueError(
            f"{op}: scale has shape {[*scale.shape]}, expected {groups} for group_shape={[*group_shape]}"
        )
    return scale.reshape(groups)


@declare("Tensor! result, Tensor input, Tensor! scale")
def dynamic_scaled_fp8_quant(op, result, input, scale):
    codes, new = _xla_gpu.dynamic_scaled_fp8_quant(input)
    if scale.ndim == 2 and scale.shape == (input.shape[:-1].numel(), 1):
        scale = scale[:1]  # one for each token, of which vLLM's kernel writes the first
    if scale.numel() == 1:
        new = new.reshape(scale.shape)
    write(op, result=(result, codes), scale=(scale, new))


@declare("Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub")
def dynamic_per_token_scaled_fp8_quant(op, result, input, scale, scale_ub):
    codes, scales = _xla_gpu.dynamic_per_token_scaled_fp8_quant(input, one(scale_ub))
    write(
        op,
        result=(result, codes),
        scale=(scale, of_tokens(scales, scale)),
    )


@declare(
    "Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float fp8_min, float fp8_max, "
    "bool scale_ue8m0"
)
def per_token_group_fp8_quant(
    op, input, output_q, output_s, group_size, eps, fp8_min, fp8_max, scale_ue8m0
):
    limit = torch.finfo(FP8).max
    refuse(op, fp8_min=(fp8_min, -limit), fp8_max=(fp8_max, limit))
    codes, scales = _xla_gpu.per_token_group_fp8_quant(
        input, group_size=group_size, eps=eps, scale_ue8m0=scale_ue8m0
    )
    write(op, output_q=(output_q, codes), output_s=(output_s, scales))


@declare(
    "Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float int8_min, float int8_max"
)
def per_token_group_quant_int8(op, input, output_q, output_s, group_size, eps, int8_min, int8_max):
    refuse(op, int8_min=(int8_min, -128.0), int8_max=(int8_max, 127.0))
    codes, scales = _xla_gpu.per_token_group_quant_int8(input, group_size=group_size, eps=eps)
    write(op, output_q=(output_q, codes), output_s=(output_s, scales))


@declare("Tensor! result, Tensor input, Tensor scale, Tensor? azp")
def static_scaled_int8_quant(op, result, input, scale, azp):
    codes = _xla_gpu.static_scaled_int8_quant(input, one(scale), one(azp))
    write(op, result=(result, codes))


@declare("Tensor! result, Tensor input, Tensor! scale, Tensor!? azp")
def dynamic_scaled_int8_quant(op, result, input, scale, azp):
    points = {}
    if azp is None:
        codes, scales = _xla_gpu.dynamic_scaled_int8_quant(input)
    else:
        codes, scales, found = _xla_gpu.dynamic_scaled_int8_azp_quant(input)
        points["azp"] = (azp, of_tokens(found, azp))
    write(op, result=(result, codes), scale=(scale, of_tokens(scales, scale)), **points)
