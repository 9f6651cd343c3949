"""What vLLM's ops do, by ours.

vLLM's write results that they are given, ours return them: on an XLA device the copy between the two is a change of names
and costs nothing. Schemas: csrc/torch_bindings.cpp of vLLM 0.12 and 0.13; what later versions have added stands last, with a
default. Like vLLM's, these take more rows than there are results of, and leave the others as they are.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from intarsia import _dtypes
from intarsia.torch import _cache  # and so intarsia.torch, which defines torch.ops.xla_gpu

_xla_gpu = torch.ops.xla_gpu
_FP8 = torch.float8_e4m3fn
_Tensor = torch.Tensor


@dataclass(frozen=True)
class Op:
    """An op of vLLM: `function` takes the arguments of `schema`, by position, and raises errors that begin with `name`."""

    namespace: str
    name: str
    schema: str
    function: Callable[..., None]


OPS: list[Op] = []


def _op(
    arguments: str, namespace: str = "_C"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declares the decorated function, which takes its own name before them, to be the op of that name with these arguments."""

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        name = function.__name__
        bound = functools.partial(function, name)
        OPS.append(Op(namespace, name, f"{name}({arguments}) -> ()", bound))
        return function

    return declare


# ---------------------------------------------------------------------------- norms


@_op("Tensor! result, Tensor input, Tensor? weight, float epsilon")
def rms_norm(op, result, input, weight, epsilon):
    _write(op, result=(result, _xla_gpu.rms_norm(input, weight, eps=epsilon)))


@_op("Tensor! input, Tensor! residual, Tensor? weight, float epsilon")
def fused_add_rms_norm(op, input, residual, weight, epsilon):
    _xla_gpu.fused_add_rms_norm(input, residual, weight, eps=epsilon)


@_op("Tensor! result, Tensor input, Tensor weight, Tensor scale, float epsilon")
def rms_norm_static_fp8_quant(op, result, input, weight, scale, epsilon):
    codes = _xla_gpu.rms_norm_static_fp8_quant(input, weight, _one(scale), eps=epsilon)
    _write(op, result=(result, codes))


@_op("Tensor! result, Tensor input, Tensor! residual, Tensor weight, Tensor scale, float epsilon")
def fused_add_rms_norm_static_fp8_quant(op, result, input, residual, weight, scale, epsilon):
    _rows(op, "result", result, input.shape, _FP8, input.device)  # before the residual is written
    codes = _xla_gpu.fused_add_rms_norm_static_fp8_quant(
        input, residual, weight, _one(scale), eps=epsilon
    )
    _write(op, result=(result, codes))


@_op(
    "Tensor! result, Tensor input, Tensor weight, Tensor! scale, float epsilon, Tensor? scale_ub, Tensor!? residual"
)
def rms_norm_dynamic_per_token_quant(op, result, input, weight, scale, epsilon, scale_ub, residual):
    dtype = torch.int8 if result.dtype == torch.int8 else _FP8
    rows, device = input.shape[:-1].numel(), input.device
    _rows(op, "result", result, input.shape, dtype, device)  # before the residual is written
    _rows(op, "scale", scale, (rows, *scale.shape[1:2]), torch.float32, device)
    codes, scales = _xla_gpu.rms_norm_dynamic_per_token_quant(
        input,
        weight,
        _one(scale_ub),
        residual,
        eps=epsilon,
        quant_dtype="i8" if dtype == torch.int8 else "f8e4m3fn",
    )
    _write(op, result=(result, codes), scale=(scale, _of_tokens(scales, scale)))


@_op(
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
    dtype = torch.int8 if result.dtype == torch.int8 else _FP8
    rows, n = input.shape[:-1].numel(), input.shape[-1]
    _rows(op, "result", result, input.shape, dtype, input.device)  # before the residual is written
    _rows(op, "scale", scale, (rows, n // group_size), torch.float32, input.device)
    codes, scales = _xla_gpu.rms_norm_per_block_quant(
        input,
        weight,
        _one(scale_ub),
        residual,
        group_size=group_size,
        eps=epsilon,
        quant_dtype="i8" if dtype == torch.int8 else "f8e4m3fn",
    )
    _write(op, result=(result, codes), scale=(scale, scales.reshape(rows, -1)))


# ---------------------------------------------------------------------------- activations, rotary


@_op("Tensor! result, Tensor input")
def silu_and_mul(op, result, input):
    _write(op, result=(result, _xla_gpu.silu_and_mul(input)))


@_op("Tensor! out, Tensor input")
def gelu_and_mul(op, out, input):
    _write(op, out=(out, _xla_gpu.gelu_and_mul(input)))


@_op("Tensor! out, Tensor input")
def gelu_tanh_and_mul(op, out, input):
    _write(op, out=(out, _xla_gpu.gelu_tanh_and_mul(input)))


@_op("Tensor! out, Tensor input")
def mul_and_silu(op, out, input):
    _write(op, out=(out, _xla_gpu.mul_and_silu(input)))


@_op("Tensor! out, Tensor input, float threshold")
def fatrelu_and_mul(op, out, input, threshold):
    _write(op, out=(out, _xla_gpu.fatrelu_and_mul(input, threshold=threshold)))


@_op("Tensor! out, Tensor input, float alpha=1.702, float limit=7.0")
def swigluoai_and_mul(op, out, input, alpha=1.702, limit=7.0):
    _write(op, out=(out, _xla_gpu.swigluoai_and_mul(input, alpha=alpha, limit=limit)))


@_op("Tensor! result, Tensor input, float limit, float alpha=1.0, float beta=0.0")
def silu_and_mul_with_clamp(op, result, input, limit, alpha=1.0, beta=0.0):
    product = _xla_gpu.silu_and_mul_with_clamp(input, limit=limit, alpha=alpha, beta=beta)
    _write(op, result=(result, product))


@_op("Tensor! out, Tensor input")
def gelu_new(op, out, input):
    _write(op, out=(out, _xla_gpu.gelu_new(input, round_steps=True)))


@_op("Tensor! out, Tensor input")
def gelu_fast(op, out, input):
    _write(op, out=(out, _xla_gpu.gelu_fast(input, round_steps=True)))


@_op("Tensor! out, Tensor input")
def gelu_quick(op, out, input):
    _write(op, out=(out, _xla_gpu.gelu_quick(input)))


@_op("Tensor! result, Tensor input, Tensor scale")
def silu_and_mul_quant(op, result, input, scale):
    codes = _xla_gpu.silu_and_mul_quant(input, _one(scale))
    _write(op, result=(result, codes))


@_op(
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


@_op(
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


# ---------------------------------------------------------------------------- quantisation


@_op("Tensor! result, Tensor input, Tensor scale, (int, int)? group_shape=None")
def static_scaled_fp8_quant(op, result, input, scale, group_shape=None):
    scale = _one(scale)
    if scale.ndim == 1 and group_shape is not None and group_shape[0] == 1 != group_shape[1]:
        scale = scale[:, None]  # of tokens
    elif scale.ndim == 2 and scale.shape[0] == 1 != input.shape[0]:
        scale = scale[0]  # of channels
    codes = _xla_gpu.static_scaled_fp8_quant(input, scale)
    _write(op, result=(result, codes))


@_op("Tensor! result, Tensor input, Tensor! scale")
def dynamic_scaled_fp8_quant(op, result, input, scale):
    codes, new = _xla_gpu.dynamic_scaled_fp8_quant(input)
    if scale.ndim == 2 and scale.shape == (input.shape[:-1].numel(), 1):
        scale = scale[:1]  # one for each token, of which vLLM's kernel writes the first
    if scale.numel() == 1:
        new = new.reshape(scale.shape)
    _write(op, result=(result, codes), scale=(scale, new))


@_op("Tensor! result, Tensor input, Tensor! scale, Tensor? scale_ub")
def dynamic_per_token_scaled_fp8_quant(op, result, input, scale, scale_ub):
    codes, scales = _xla_gpu.dynamic_per_token_scaled_fp8_quant(input, _one(scale_ub))
    _write(
        op,
        result=(result, codes),
        scale=(scale, _of_tokens(scales, scale)),
    )


@_op(
    "Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float fp8_min, float fp8_max, "
    "bool scale_ue8m0"
)
def per_token_group_fp8_quant(
    op, input, output_q, output_s, group_size, eps, fp8_min, fp8_max, scale_ue8m0
):
    limit = torch.finfo(_FP8).max
    _refuse(op, fp8_min=(fp8_min, -limit), fp8_max=(fp8_max, limit))
    codes, scales = _xla_gpu.per_token_group_fp8_quant(
        input, group_size=group_size, eps=eps, scale_ue8m0=scale_ue8m0
    )
    _write(op, output_q=(output_q, codes), output_s=(output_s, scales))


@_op(
    "Tensor input, Tensor! output_q, Tensor! output_s, int group_size, float eps, float int8_min, float int8_max"
)
def per_token_group_quant_int8(op, input, output_q, output_s, group_size, eps, int8_min, int8_max):
    _refuse(op, int8_min=(int8_min, -128.0), int8_max=(int8_max, 127.0))
    codes, scales = _xla_gpu.per_token_group_quant_int8(input, group_size=group_size, eps=eps)
    _write(op, output_q=(output_q, codes), output_s=(output_s, scales))


@_op("Tensor! result, Tensor input, Tensor scale, Tensor? azp")
def static_scaled_int8_quant(op, result, input, scale, azp):
    codes = _xla_gpu.static_scaled_int8_quant(input, _one(scale), _one(azp))
    _write(op, result=(result, codes))


@_op("Tensor! result, Tensor input, Tensor! scale, Tensor!? azp")
def dynamic_scaled_int8_quant(op, result, input, scale, azp):
    points = {}
    if azp is None:
        codes, scales = _xla_gpu.dynamic_scaled_int8_quant(input)
    else:
        codes, scales, found = _xla_gpu.dynamic_scaled_int8_azp_quant(input)
        points["azp"] = (azp, _of_tokens(found, azp))
    _write(op, result=(result, codes), scale=(scale, _of_tokens(scales, scale)), **points)


# ---------------------------------------------------------------------------- attention


@_op(
    "Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, "
    "Tensor k_scale, Tensor v_scale",
    namespace="_C_cache_ops",
)
def reshape_and_cache_flash(op, *arguments):
    _cache.reshape_and_cache_flash(*arguments)


@_op(
    "Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping",
    namespace="_C_cache_ops",
)
def copy_blocks(op, key_caches, value_caches, block_mapping):
    for name, caches in (("key_caches", key_caches), ("value_caches", value_caches)):
        for cache in caches:
            _xla_gpu.copy_blocks(_flat(op, name, cache, 1), block_mapping)


@_op("Tensor src, Tensor! dst, Tensor block_mapping", namespace="_C_cache_ops")
def swap_blocks(op, src, dst, block_mapping):
    blocks = _flat(op, "dst", dst, 1)
    source, target = block_mapping.unbind(1)
    if src.device != dst.device:  # a host's memory and a GPU's: only what is copied goes over
        src = src[source.to(src.device)].to(dst.device)
        source = torch.arange(len(src), device=dst.device)
    on_device = (x.to(dst.device) for x in (source, target))
    _xla_gpu.swap_blocks(_flat(op, "src", src, 1), blocks, *on_device)


def _first_slots(seq_starts: _Tensor | None, cache: _Tensor, batch_size: int) -> _Tensor | None:
    """vLLM's kernels round down to whole pages."""
    if seq_starts is None:
        return None
    return seq_starts[:batch_size] // cache.shape[1] * cache.shape[1]


@_op(
    "Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, int batch_size, Tensor? seq_starts",
    namespace="_C_cache_ops",
)
def cp_gather_cache(op, src_cache, dst, block_table, cu_seq_lens, batch_size, seq_starts):
    _xla_gpu.gather_cache(
        _flat(op, "src_cache", src_cache, 2),
        _flat(op, "dst", dst, 1),
        block_table[:batch_size],
        cu_seq_lens[: batch_size + 1],
        _first_slots(seq_starts, src_cache, batch_size),
    )


@_op(
    "Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, Tensor token_to_seq, int num_tokens, "
    "str kv_cache_dtype, Tensor scale, Tensor? seq_starts",
    namespace="_C_cache_ops",
)
def gather_and_maybe_dequant_cache(
    op,
    src_cache,
    dst,
    block_table,
    cu_seq_lens,
    token_to_seq,
    num_tokens,
    kv_cache_dtype,
    scale,
    seq_starts,
):
    del token_to_seq  # which cu_seq_lens says as well
    batch_size = cu_seq_lens.numel() - 1
    _xla_gpu.gather_cache(
        _flat(op, "src_cache", src_cache, 2),
        _flat(op, "dst", dst, 1)[:num_tokens],
        block_table[:batch_size],
        cu_seq_lens,
        _first_slots(seq_starts, src_cache, batch_size),
        None if src_cache.dtype == dst.dtype else _one(scale),
        kv_cache_dtype=kv_cache_dtype,
    )


@_op(
    "Tensor! dst_cache, Tensor src_cache, float scale, str kv_cache_dtype",
    namespace="_C_cache_ops",
)
def convert_fp8(op, dst_cache, src_cache, scale, kv_cache_dtype):
    converted = _xla_gpu.convert_fp8(
        src_cache,
        scale=scale,
        out_dtype=_dtypes.name_of(str(dst_cache.dtype).removeprefix("torch.")),
        kv_cache_dtype=kv_cache_dtype,
    )
    _write(op, dst_cache=(dst_cache, converted))


@_op(
    "Tensor! output, Tensor!? output_lse, Tensor prefix_output, Tensor prefix_lse, Tensor suffix_output, "
    "Tensor suffix_lse, int? prefill_tokens_with_context=None, Tensor? output_scale=None"
)
def merge_attn_states(
    op,
    output,
    output_lse,
    prefix_output,
    prefix_lse,
    suffix_output,
    suffix_lse,
    prefill_tokens_with_context=None,
    output_scale=None,
):
    _refuse(
        op,
        prefill_tokens_with_context=(prefill_tokens_with_context, None),
        output_scale=(output_scale, None),
    )
    out, lse = _xla_gpu.merge_attn_states(prefix_output, prefix_lse, suffix_output, suffix_lse)
    lses = {} if output_lse is None else {"output_lse": (output_lse, lse)}
    _write(op, output=(output, out), **lses)


# ---------------------------------------------------------------------------- arguments


def _refuse(op: str, **given: Any) -> None:
    """Raises if an argument, given with the value that is built, asks for something else."""
    for name, (value, built) in given.items():
        if value is not built and (built is None or value != built):
            got = "given" if isinstance(value, _Tensor) else value
            raise NotImplementedError(f"{op}: {name} is {got}, expected {built}")


def _one(scale: _Tensor | None) -> _Tensor | None:
    """A scale of a whole tensor is one number of any rank in vLLM, and [1] here."""
    return scale.reshape(1) if scale is not None and scale.numel() == 1 else scale


def _flat(op: str, name: str, tensor: _Tensor, axes: int) -> _Tensor:
    """A view of a dense tensor with so many axes, and one of all others."""
    if not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} is strided, expected a dense row-major array")
    return tensor.view(*tensor.shape[:axes], -1 if tensor.numel() else 0)


def _of_tokens(scales: _Tensor, given: _Tensor) -> _Tensor:
    """Scales of tokens as vLLM has them, [t, 1] or [t], however many axes the tokens have."""
    return scales.reshape(-1, 1) if given.ndim == 2 else scales.reshape(-1)


def _write(op: str, **results: tuple[_Tensor, _Tensor]) -> None:
    """Copies to each tensor, named, the result that belongs there; to none if one does not fit."""
    fitting = [
        (_rows(op, name, tensor, result.shape, result.dtype, result.device), result)
        for name, (tensor, result) in results.items()
    ]
    for rows, result in fitting:
        rows.copy_(result)


def _rows(
    op: str, name: str, tensor: _Tensor, shape: Any, dtype: torch.dtype, device: torch.device
) -> _Tensor:
    """As many rows of a tensor as the shape has; raises if they are not of that shape, dtype and device."""
    if tensor.device != device:
        raise ValueError(f"{op}: {name} is on {tensor.device}, expected {device}")
    if tensor.dtype != dtype:
        raise ValueError(f"{op}: {name} has dtype {tensor.dtype}, expected {dtype}")
    got, shape = list(tensor.shape), list(shape)
    if got == shape:
        return tensor
    if len(got) != len(shape) or got[1:] != shape[1:] or got[0] < shape[0]:
        raise ValueError(f"{op}: {name} has shape {got}, expected {shape}")
    return tensor[: shape[0]]
