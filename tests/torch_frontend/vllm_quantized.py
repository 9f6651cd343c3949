"""Calls of vLLM's products with weights in codes; all numbers are small multiples of powers of two, so that sums are exact in any order."""

import torch
from vllm_calls import FP8, INT8, Call, also, case

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def _numbers(*shape, most=8, dtype=torch.float32):
    return (torch.randint(-most, most + 1, shape) / 4).to(dtype)


def _scales(groups, n, dtype=torch.float32):
    return (2.0 ** torch.randint(-2, 2, (groups, n))).to(dtype)


def _draw(rows, columns, bits=4):
    return torch.randint(0, 1 << bits, (rows, columns))


def _words(codes, bits=4, places=None):
    """Numbers along the last axis in i32 words, one by one."""
    each = 32 // bits
    words = torch.zeros(codes.shape[0], codes.shape[1] // each, dtype=torch.int64)
    for i in range(codes.shape[1]):
        place = i % each if places is None else places[i % each]
        words[:, i // each] |= codes[:, i] << bits * place
    return words.to(torch.int32)  # the lowest 32 bits


def _spread(factors, columns):
    return factors.double().repeat_interleave(columns // len(factors), 0)


@also("f16", dtype=torch.float16)
@case
def awq_dequantize(dtype=torch.float32, columns=64, n=32, groups=2):
    codes, points, scales = _draw(columns, n), _draw(groups, n), _scales(groups, n, dtype)
    want = ((codes - _spread(points, columns)) * _spread(scales, columns)).to(dtype)
    arguments = [_words(codes, 4, AWQ_PLACES), scales, _words(points, 4, AWQ_PLACES), 0, 0, 0]
    return Call("_C::awq_dequantize", arguments, {}, returned=(want,))


@case
def awq_gemm(columns=64, n=32, groups=2):
    x, codes, points, scales = (
        _numbers(5, columns),
        _draw(columns, n),
        _draw(groups, n),
        _scales(groups, n),
    )
    w = (codes - _spread(points, columns)) * _spread(scales, columns)
    arguments = [x, _words(codes, 4, AWQ_PLACES), scales, _words(points, 4, AWQ_PLACES), 8]
    return Call("_C::awq_gemm", arguments, {}, returned=((x.double() @ w).float(),))


@also("act-order", order=True)
@also("second version in 8 bits", v2=True, bits=8)
@case
def gptq_gemm(columns=64, n=32, groups=2, bits=4, v2=False, order=False):
    x, codes, scales = _numbers(5, columns), _draw(n, columns, bits), _scales(groups, n)
    stored = _draw(groups, n, bits)
    points = stored + (not v2)
    of_column = torch.arange(columns) // (columns // groups)
    if order:
        of_column = of_column[torch.randperm(columns)]
    w = (codes.t() - points[of_column].double()) * scales.double()[of_column]
    g_idx = of_column.int() if order else torch.empty(0, dtype=torch.int32)
    qweight = _words(codes, bits).t().contiguous()
    arguments = [x, qweight, _words(stored, bits), scales, g_idx, False, v2, bits]
    return Call("_C::gptq_gemm", arguments, {}, returned=((x.double() @ w).float(),))


@also("int8 with a bias", dtype=INT8, biased=True)
@also("one scale of each", whole=True)
@also("in f16", out=torch.float16)
@case
def cutlass_scaled_mm(dtype=FP8, biased=False, whole=False, out=torch.float32, m=5, n=32, k=48):
    a, b = (torch.randint(-4, 5, shape).to(dtype) for shape in ((m, k), (n, k)))
    b = b.t()  # column-major
    a_scales, b_scales = (_scales(1, 1), _scales(1, 1)) if whole else (_scales(m, 1), _scales(1, n))
    bias = _numbers(n) if biased else None
    want = (a.double() @ b.double()) * a_scales.double() * b_scales.double()
    want = (want + (bias.double() if biased else 0)).to(out)
    arguments = [torch.zeros(m, n, dtype=out), a, b, a_scales, b_scales, bias]
    return Call("_C::cutlass_scaled_mm", arguments, {0: want})


def scaled_mm_of_blocks(m=5, n=200, k=300, column_major=False):
    """As vLLM's layers of DeepSeek's blocks call it."""
    a, b = (torch.randint(-4, 5, shape).to(FP8) for shape in ((m, k), (n, k)))
    a_scales, b_scales = _scales(m, -(-k // 128)), _scales(-(-n // 128), -(-k // 128))
    if column_major:
        a_scales = a_scales.t().contiguous().t()
    x = a.double() * a_scales.double().repeat_interleave(128, 1)[:, :k]
    by = b_scales.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    want = (x @ (b.double() * by).t()).float()
    arguments = [torch.zeros(m, n), a, b.t(), a_scales, b_scales.t(), None]
    return Call("_C::cutlass_scaled_mm", arguments, {0: want})


case(scaled_mm_of_blocks, "cutlass_scaled_mm of blocks")
case(scaled_mm_of_blocks, "cutlass_scaled_mm of blocks, column-major", column_major=True)


@also("of a tensor", of_tokens=False)
@case
def cutlass_scaled_mm_azp(of_tokens=True, m=5, n=32, k=48):
    a, b = (torch.randint(-128, 128, shape).to(INT8) for shape in ((m, k), (k, n)))
    azp = torch.randint(-128, 128, (m, 1) if of_tokens else (1, 1)).int()
    a_scales, b_scales, bias = _scales(m if of_tokens else 1, 1), _scales(1, n), _numbers(n)
    sums = b.int().sum(0, keepdim=True).int()
    want = ((a.double() - azp) @ b.double()) * a_scales.double() * b_scales.double()
    adj = sums if of_tokens else sums * azp
    arguments = [torch.zeros(m, n), a, b.t().contiguous().t(), a_scales, b_scales]
    arguments += [adj, azp if of_tokens else None, bias]
    return Call("_C::cutlass_scaled_mm_azp", arguments, {0: (want + bias.double()).float()})


@also("with zero points and a bias", pointed=True)
@case
def cpu_gemm_wna16(pointed=False, columns=64, n=48, groups=2):
    x, codes, scales = _numbers(5, columns), _draw(columns, n), _scales(groups, n)
    points = _draw(groups, n) if pointed else torch.full((groups, n), 8)
    bias = _numbers(n) if pointed else None
    # As vLLM's CPUWNA16LinearKernel packs them: 16 results a block, [n / 16, 2 columns].
    blocks = _words(codes).reshape(columns, n // 16, 2).transpose(0, 1).reshape(n // 16, -1)
    want = x.double() @ ((codes - _spread(points, columns)) * _spread(scales, columns))
    want = (want + (bias.double() if pointed else 0)).float()
    zeros = _words(points) if pointed else None
    arguments = [x, blocks, torch.zeros(5, n), scales, zeros, None, bias, 8, "vec"]
    return Call("_C::cpu_gemm_wna16", arguments, {2: want})
