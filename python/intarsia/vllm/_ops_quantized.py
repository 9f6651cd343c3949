"""What vLLM's products with weights in codes do: part of `_ops.py`. Schemas: csrc/torch_bindings.cpp and csrc/cpu/torch_bindings.cpp.

They get the weights anew at every call, as the checkpoint or vLLM has packed them. Products of 8-bit codes with 8-bit codes are our
op `scaled_matmul`. Other codes are decoded here, in f32, and multiplied by torch's product, which XLA
fuses; `intarsia.jax.linear_quantized` reads codes that were packed once.
"""

from collections.abc import Sequence

import torch

from intarsia import _dtypes
from intarsia._words import AWQ_PLACES
from intarsia.vllm._declare import (
    ANY,
    FP8,
    INDICES,
    INT,
    Tensor,
    check,
    declare,
    inside,
    on_one_device,
    refuse,
    write,
)
from intarsia.vllm._ops_cache import xla_gpu
from intarsia.vllm.compat import dtype_name


def _fields(words: Tensor, bits: int, places: Sequence[int] | None = None) -> Tensor:
    """The numbers of `bits` bits in i32 words [..., w], the lowest first: f32 [..., w * 32 / bits]."""
    order = range(32 // bits) if places is None else places
    shifts = torch.tensor([bits * place for place in order], dtype=torch.int64, device=words.device)
    unsigned = (
        words[..., None].long() & 0xFFFFFFFF
    )  # torch_xla shifts by a division, which rounds toward 0
    return ((unsigned >> shifts) & ((1 << bits) - 1)).flatten(-2).float()


def _of_columns(factors: Tensor, columns: int) -> Tensor:
    """Factors [g, n] of groups of the `columns` rows of [columns, n]."""
    return factors.repeat_interleave(columns // factors.shape[0], 0)


def _groups_of(op: str, scales: Tensor, columns: int) -> int:
    """How many groups scales [g, n] have."""
    groups = scales.shape[0] if scales.ndim == 2 else 0
    if groups == 0 or columns % groups:
        raise ValueError(f"{op}: scales has shape {[*scales.shape]}, expected groups of {columns}")
    return groups


def _awq(op: str, words: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    check(op, qweight=(words, ("k", "n/8"), INT))
    columns, packed = words.shape
    groups = _groups_of(op, scales, columns)
    check(
        op,
        qweight=(words, (columns, packed), INT),
        scales=(scales, (groups, 8 * packed), ANY),
        zeros=(zeros, (groups, packed), INT),
    )
    codes, points = (_fields(words, 4, AWQ_PLACES) for words in (words, zeros))
    points, by = _of_columns(points, columns), _of_columns(scales.float(), columns)
    return (codes - points) * by


@declare(
    "Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters, int thx, int thy",
    returns="Tensor",
)
def awq_dequantize(op, _kernel, _scaling_factors, _zeros, split_k_iters, thx, thy):
    del split_k_iters, thx, thy  # of a launch
    return _awq(op, _kernel, _scaling_factors, _zeros).to(_scaling_factors.dtype)


@declare(
    "Tensor _in_feats, Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters",
    returns="Tensor",
)
def awq_gemm(op, _in_feats, _kernel, _scaling_factors, _zeros, split_k_iters):
    del split_k_iters
    on_one_device(op, _in_feats=_in_feats, _kernel=_kernel)
    weights = _awq(op, _kernel, _scaling_factors, _zeros)
    check(op, _in_feats=(_in_feats, ("t", weights.shape[0]), ANY))
    return (_in_feats.float() @ weights).to(_in_feats.dtype)


@declare(
    "Tensor a, Tensor b_q_weight, Tensor b_gptq_qzeros, Tensor b_gptq_scales, Tensor b_g_idx, bool use_exllama, "
    "bool use_v2_format, int bit",
    returns="Tensor",
)
def gptq_gemm(
    op, a, b_q_weight, b_gptq_qzeros, b_gptq_scales, b_g_idx, use_exllama, use_v2_format, bit
):
    # Exllama's order of codes is what gptq_shuffle makes of them.
    refuse(op, use_exllama=(use_exllama, False))
    on_one_device(op, a=a, b_g_idx=b_g_idx, b_q_weight=b_q_weight)
    if bit not in (2, 4, 8):
        raise NotImplementedError(f"{op}: bit is {bit}, expected 2, 4 or 8")
    check(op, b_q_weight=(b_q_weight, (f"k/{32 // bit}", "n"), INT))
    columns, n = b_q_weight.shape[0] * 32 // bit, b_q_weight.shape[1]
    groups = _groups_of(op, b_gptq_scales, columns)
    check(
        op,
        b_gptq_qzeros=(b_gptq_qzeros, (groups, n * bit // 32), INT),
        b_gptq_scales=(b_gptq_scales, (groups, n), ANY),
        a=(a, ("t", columns), ANY),
    )
    codes = _fields(b_q_weight.t(), bit).t()
    points, scales = _fields(b_gptq_qzeros, bit), b_gptq_scales.float()
    if not use_v2_format:
        points = points + 1
    if b_g_idx.numel() == 0:
        points, scales = _of_columns(points, columns), _of_columns(scales, columns)
    else:  # the group of each column, in any order
        check(op, b_g_idx=(b_g_idx, (columns,), INDICES))
        known, group = inside(b_g_idx, groups)
        points, scales = points[group], torch.where(known[:, None], scales[group], 0.0)
    return (a.float() @ ((codes - points) * scales)).to(a.dtype)


_BLOCK = 128  # columns of a, and rows and columns of b, that share a scale


def _scaled_mm(
    op: str,
    dtype: torch.dtype,
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """a b of codes with scales, by our op, whose weights are b^T: b is column-major, so that nothing is copied."""
    check(op, a=(a, ("m", "k"), (torch.int8, FP8)), b=(b, (*a.shape[-1:], "n"), (a.dtype,)))
    (m, k), n = a.shape, b.shape[1]
    on_one_device(op, a=a, a_scales=a_scales, b_scales=b_scales, bias=bias)
    kb, nb = -(-k // _BLOCK), -(-n // _BLOCK)
    # As in vLLM: what can be scales of rows on both sides is.
    rows = a_scales.numel() in (1, m) and b_scales.numel() in (1, n)
    a_scales = _scales_of(op, "a_scales", a_scales, (m, 1), (m, kb), rows)
    b_scales = _scales_of(op, "b_scales", b_scales, (n,), (kb, nb), rows)
    arrays = [a, b.t(), a_scales, b_scales.t() if b_scales.ndim == 2 else b_scales]
    return xla_gpu.scaled_matmul(
        *(x.contiguous() for x in arrays), bias, out_dtype=_name_of(op, dtype)
    )


def _scales_of(
    op: str,
    name: str,
    scales: Tensor,
    rows: tuple[int, ...],
    blocks: tuple[int, int],
    by_rows: bool,
) -> Tensor:
    """Scales as [1], in the shape of those of rows, or [*blocks]."""
    count = rows[0]
    if scales.dtype == torch.float32:
        if scales.numel() == 1:
            return scales.reshape(1)
        if scales.shape == blocks and not by_rows:
            return scales
        if scales.numel() == count:
            return scales.reshape(rows)
    raise NotImplementedError(
        f"{op}: {name} has shape {[*scales.shape]} and dtype {scales.dtype}, "
        f"expected 1, {count} or {[*blocks]} of float32"
    )


def _name_of(op: str, dtype: torch.dtype) -> str:
    if dtype not in ANY:
        raise ValueError(f"{op}: out has dtype {dtype}, expected {' or '.join(map(str, ANY))}")
    return _dtypes.name_of(dtype_name(dtype))


@declare("Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias")
def cutlass_scaled_mm(op, out, a, b, a_scales, b_scales, bias):
    write(op, out=(out, _scaled_mm(op, out.dtype, a, b, a_scales, b_scales, bias)))


@declare(
    "Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, Tensor? azp, Tensor? bias"
)
def cutlass_scaled_mm_azp(op, out, a, b, a_scales, b_scales, azp_adj, azp, bias):
    # sa sb (a b - azp azp_adj), where azp_adj is the sums of b's columns, or those times the tensor's azp.
    on_one_device(
        op, a=a, a_scales=a_scales, b_scales=b_scales, azp_adj=azp_adj, azp=azp, bias=bias
    )
    check(op, a=(a, ("m", "k"), (torch.int8,)), b=(b, (*a.shape[-1:], "n"), (torch.int8,)))
    m, n = a.shape[0], b.shape[1]
    check(
        op,
        azp_adj=(azp_adj.reshape(-1), (n,), INT),
        azp=(None if azp is None else azp.reshape(-1), (m,), INT),
        bias=(bias, (n,), ANY),
    )
    for name, scales, count in (("a_scales", a_scales, m), ("b_scales", b_scales, n)):
        if scales.dtype != torch.float32 or scales.numel() not in (1, count):
            raise ValueError(
                f"{op}: {name} has shape {[*scales.shape]} and dtype {scales.dtype}, expected 1 or {count} of float32"
            )
    ones = torch.ones(1, dtype=torch.float32, device=a.device)
    sums = _scaled_mm(op, torch.float32, a, b, ones, ones, None).int()
    less = azp_adj.reshape(1, n) * (1 if azp is None else azp.reshape(m, 1))
    total = (sums - less).float() * a_scales.reshape(-1, 1) * b_scales.reshape(1, -1)
    if bias is not None:
        total = total + bias.float()
    write(op, out=(out, total.to(out.dtype)))


@declare(
    "Tensor input, Tensor q_weight, Tensor! output, Tensor scales, Tensor? zeros, Tensor? g_idx, Tensor? bias, "
    "SymInt pack_factor, str isa_hint"
)
def cpu_gemm_wna16(op, input, q_weight, output, scales, zeros, g_idx, bias, pack_factor, isa_hint):
    del isa_hint  # codes lie alike for all
    refuse(op, pack_factor=(pack_factor, 8), g_idx=(g_idx, None))
    check(op, input=(input, ("t", "k"), ANY))
    columns = input.shape[1]
    groups, n = _groups_of(op, scales, columns), scales.shape[1]
    # Blocks of 16 results, which have two words a column.
    check(
        op,
        input=(input, ("t", columns), ANY),
        q_weight=(q_weight, (n // 16, 2 * columns), INT),
        scales=(scales, (groups, n), ANY),
        zeros=(zeros, (groups, n // 8), INT),
        bias=(bias, (n,), ANY),
    )
    codes = _fields(q_weight.reshape(n // 16, columns, 2), 4)  # [n / 16, columns, 16]
    codes = codes.transpose(0, 1).reshape(columns, n)
    points = 8.0 if zeros is None else _of_columns(_fields(zeros, 4), columns)
    total = input.float() @ ((codes - points) * _of_columns(scales.float(), columns))
    if bias is not None:
        total = total + bias.float()
    write(op, output=(output, total.to(output.dtype)))
