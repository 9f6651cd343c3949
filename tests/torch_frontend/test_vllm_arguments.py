"""Wrong arguments of vLLM's op names, each refused by its name; and indices outside, which are skipped."""

import intarsia.vllm
import pytest
import torch
from intarsia.vllm import _ops_cache
from torch import float32, int32, int64

FP8 = torch.float8_e4m3fn
ALIGN, PERMUTE = "moe_align_block_size", "moe_permute"


@pytest.fixture(autouse=True, scope="module")
def _registered():
    assert intarsia.vllm.register_ops()


def _ints(*shape, dtype=int32):
    return torch.zeros(shape, dtype=dtype)


def _align(room=64, blocks=4, block_size=16, ids=int32, expert_map=None):
    """Of 8 pairs and 4 experts: 8 + 4 * 15 places at most, and so 4 blocks."""
    results = [_ints(room), _ints(blocks), _ints(1)]
    return [_ints(4, 2, dtype=ids), 4, block_size, *results, expert_map]


def _permute(x=(4, 6), topk=2, room=8, experts=3, local=3, expert_map=None):
    ids, offsets, rows = _ints(4, 2), _ints(4, dtype=int64), torch.zeros(room, 6)
    arguments = [torch.ones(x), ids, ids, expert_map, experts, local, topk, None, rows]
    return [*arguments, offsets, ids.clone(), _ints(room), ids]


def _unpermute(topk=2, weights=(4, 2), offsets=None, **places):
    inverse = places.get("inverse", torch.arange(8, dtype=int32).view(4, 2))
    return [torch.ones(8, 6), torch.ones(weights), inverse, offsets, topk, torch.zeros(4, 6)]


def _sum(ids=(4, 3), expert_map=None, x=(4, 3, 6)):
    return [torch.ones(x), torch.zeros(4, 6), _ints(*ids), expert_map]


def _softmax(weights=(4, 2), logits=(4, 300), ids=int32):
    return [torch.zeros(weights), _ints(4, 2, dtype=ids), _ints(4, 2), torch.ones(logits)]


def _gather(num_tokens):
    lengths = torch.tensor([0, 6, 15])
    arguments = [torch.ones(6, 4, 10), torch.zeros(16, 10), _ints(2, 3), lengths, lengths]
    return [*arguments, num_tokens, "auto", torch.tensor(1.0), None]


def _cp_gather(batch_size, starts=None):
    lengths = torch.tensor([0, 6, 15])
    return [torch.ones(6, 4, 10), torch.zeros(16, 10), _ints(2, 3), lengths, batch_size, starts]


def _swap(*mapping):
    return [torch.ones(6, 4), torch.zeros(6, 4), torch.tensor(mapping)]


def _grouped(scores):
    return [scores, 4, 2, 3, True, 1.0, torch.zeros(8), 0]


def _fp8(scale, group_shape):
    return [torch.zeros(4, 128, dtype=FP8), torch.ones(4, 128), torch.ones(scale), group_shape]


def _mm(a=(4, 64), b=(16, 64)):
    codes = [torch.ones(x, dtype=torch.int8) for x in (a, b)]
    return [torch.zeros(4, 16), codes[0], codes[1].t(), torch.ones(1), torch.ones(1)]


def _azp(*bias, a=(4, 64), **scales):
    codes = _mm(a)
    codes[3:5] = [scales.get(name, torch.ones(1)) for name in ("a_scales", "b_scales")]
    return [*codes, torch.full((16,), 64, dtype=int32), None, torch.ones(bias) if bias else None]


def _awq(x=(5, 64), words=(64, 4), dtype=float32):
    return [torch.ones(x, dtype=dtype), _ints(*words), torch.ones(2, 32), _ints(2, 4), 8]


def _gptq(words=(16, 32), group=None):
    groups = _ints(0) if group is None else torch.full((64,), group, dtype=int32)
    codes = [torch.ones(5, 64), _ints(*words), _ints(2, 8), torch.ones(2, 32)]
    return [*codes, groups, False, True, 8]


def _wna16(x):
    return [torch.ones(x), _ints(2, 128), torch.zeros(5, 32), torch.ones(2, 32), *[None] * 3, 8, ""]


WRONG = {
    f"{ALIGN}: sorted_token_ids has room for 63, expected 64": _align(room=63),
    f"{ALIGN}: experts_ids has room for 3, expected 4": _align(blocks=3),
    f"{ALIGN}: block_size is 0, expected at least 1": _align(block_size=0),
    f"{ALIGN}: block_size is -1, expected at least 1": _align(block_size=-1),
    f"{ALIGN}: topk_ids has dtype torch.float32, expected torch.int32 or": _align(ids=float32),
    f"{PERMUTE}: topk_ids has shape [4, 2], expected [4, 3]": _permute(topk=3),
    f"{PERMUTE}: topk_ids has shape [4, 2], expected [3, 2]": _permute((3, 6)),
    f"{PERMUTE}: input has shape [], expected [t, n]": _permute(()),
    f"{PERMUTE}: expert_map has shape [], expected [e]": _permute(expert_map=_ints()),
    f"{PERMUTE}: n_expert is -2147483648, expected 0 to": _permute(experts=-(2**31)),
    f"{PERMUTE}: n_local_expert is -1, expected 0 to 3": _permute(local=-1),
    f"{PERMUTE}: n_local_expert is 2147483647, expected 0 to 3": _permute(local=2**31 - 1),
    f"{PERMUTE}: expert_first_token_offset has shape [4], expected [2147483648]": _permute(
        experts=2**31 - 1, local=2**31 - 1
    ),
    f"{PERMUTE}: permuted_input has shape [6, 6], expected [8, 6]": _permute(room=6),
    "moe_unpermute: topk_weights has shape [4, 2], expected [4, 3]": _unpermute(
        3, inverse=_ints(4, 3)
    ),
    "moe_unpermute: inv_permuted_idx has dtype torch.float32, expected": _unpermute(
        inverse=torch.ones(4, 2)
    ),
    "moe_unpermute: topk_weights has shape [], expected [t, k]": _unpermute(weights=()),
    "moe_unpermute: the length of expert_first_token_offset is 0, expected at least 1": _unpermute(
        offsets=_ints(0)
    ),
    f"{ALIGN}: maybe_expert_map has shape [], expected [e]": _align(expert_map=_ints()),
    "moe_sum: topk_ids has shape [4, 1], expected [4, 3]": _sum((4, 1)),
    "moe_sum: input has shape [], expected [t, k, n]": _sum(x=()),
    "moe_sum: expert_map has shape [], expected [e]": _sum(expert_map=_ints()),
    "moe_sum: expert_map has shape [1, 8], expected [e]": _sum(expert_map=_ints(1, 8)),
    "topk_softmax: topk_indices has dtype torch.uint8, expected": _softmax(ids=torch.uint8),
    "topk_softmax: gating_output has shape [], expected [t, e]": _softmax(logits=()),
    "topk_softmax: topk_weights has shape [8], expected [t, k]": _softmax((8,)),
    "grouped_topk: scores has shape [], expected [t, e]": _grouped(torch.ones(())),
    "grouped_topk: scores has shape [8], expected [t, e]": _grouped(torch.ones(8)),
    "grouped_topk: bias has shape [8], expected [4]": _grouped(torch.ones(2, 4)),
    "shuffle_rows: input_tensor has shape [8], expected [t, n]": [
        *(torch.ones(8), _ints(4), torch.zeros(4))
    ],
    "static_scaled_fp8_quant: scale has shape [4, 2], expected [4, 4] for": _fp8((4, 2), (1, 32)),
    "static_scaled_fp8_quant: scale has shape [4], expected [4, 2] for": _fp8(4, (1, 64)),
    "static_scaled_fp8_quant: group_shape is [3, -1], expected parts of": _fp8(4, (3, -1)),
    "static_scaled_fp8_quant: group_shape is [0, -1], expected parts of": _fp8(4, (0, -1)),
    "gather_and_maybe_dequant_cache: num_tokens is 99, expected 0 to 16": _gather(99),
    "gather_and_maybe_dequant_cache: num_tokens is -3, expected 0 to 16": _gather(-3),
    "cp_gather_cache: batch_size is 5, expected 0 to 2": _cp_gather(5),
    "cp_gather_cache: batch_size is 2, expected 0 to 1": _cp_gather(2, _ints(1)),
    "swap_blocks: block_mapping has shape [2], expected [n, 2]": _swap(0, 1),
    "swap_blocks: block_mapping has shape [1, 3], expected [n, 2]": _swap([0, 1, 2]),
    "cutlass_scaled_mm: a has shape [64], expected [m, k]": [*_mm(a=(64,)), None],
    "cutlass_scaled_mm: b has shape [64], expected [64, n]": [*_mm(b=(64,)), None],
    "cutlass_scaled_mm_azp: a has shape [64], expected [m, k]": _azp(a=(64,)),
    "cutlass_scaled_mm: a has shape [], expected [m, k]": [*_mm(a=()), None],
    "cutlass_scaled_mm_azp: a has shape [], expected [m, k]": _azp(a=()),
    "cutlass_scaled_mm_azp: a_scales has shape [1] and dtype torch.float16, expected 1 or 4 of": _azp(
        a_scales=torch.ones(1, dtype=torch.float16)
    ),
    "cutlass_scaled_mm_azp: b_scales has shape [16] and dtype torch.int32, expected 1 or 16 of": _azp(
        b_scales=_ints(16)
    ),
    "cutlass_scaled_mm_azp: bias has shape [4, 1], expected [16]": _azp(4, 1),
    "cutlass_scaled_mm_azp: bias has shape [1], expected [16]": _azp(1),
    "awq_gemm: _in_feats has shape [5, 32], expected [t, 64]": _awq(x=(5, 32)),
    "awq_gemm: _in_feats has dtype torch.int32, expected torch.float32 or": _awq(dtype=int32),
    "awq_gemm: qweight has shape [4], expected [k, n/8]": _awq(words=(4,)),
    "gptq_gemm: b_q_weight has shape [16], expected [k/4, n]": _gptq(words=(16,)),
    "cpu_gemm_wna16: input has shape [64], expected [t, k]": _wna16((64,)),
}


def _call(name, arguments):
    spaces = (torch.ops._C, torch.ops._moe_C, torch.ops._C_cache_ops)
    return getattr(next(space for space in spaces if hasattr(space, name)), name)(*arguments)


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message):
    with pytest.raises(ValueError) as error:
        _call(message.partition(":")[0], WRONG[message])
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (ALIGN, _align()),
        (PERMUTE, _permute()),
        ("gather_and_maybe_dequant_cache", _gather(15)),
        ("cp_gather_cache", _cp_gather(2, _ints(2))),
        ("swap_blocks", _swap([0, 1], [2, 3])),
        ("cutlass_scaled_mm_azp", _azp(16)),
        ("awq_gemm", _awq()),
        ("gptq_gemm", _gptq()),
        ("cpu_gemm_wna16", _wna16((5, 64))),
    ],
)
def test_right_ones_are_taken(name, arguments):
    _call(name, arguments)


@pytest.mark.parametrize(
    ("shape", "group_shape"),
    [((4, 4), (1, 32)), ((4,), (1, -1)), ((128,), (-1, 1)), ((1,), (1, 32))],
)
def test_scales_of_groups(shape, group_shape):
    scale, x = 2.0 ** torch.randint(-2, 2, shape), torch.randint(-8, 9, (4, 128)).float()
    codes = torch.zeros(4, 128, dtype=FP8)
    torch.ops._C.static_scaled_fp8_quant(codes, x, scale, group_shape)
    m, n = (size if g == -1 else g for g, size in zip(group_shape, x.shape, strict=True))
    factors = scale if len(scale) == 1 else scale.reshape(4 // m, 128 // n)
    if len(scale) > 1:
        factors = factors.repeat_interleave(m, 0).repeat_interleave(n, 1)
    torch.testing.assert_close(codes.float() * factors, x, rtol=0, atol=0)


def test_indices_outside_are_skipped():
    x, out = torch.randn(4, 6), torch.full((3, 6), 7.0)
    torch.ops._moe_C.shuffle_rows(x, torch.tensor([-1, 2, 4]), out)
    torch.testing.assert_close(out, torch.stack([torch.full((6,), 7.0), x[2], out[0]]))
    places = torch.tensor([[-3, 1], [2, 8], [-1, 9], [6, 7]], dtype=int32)
    arguments = _unpermute(inverse=places)
    torch.ops._moe_C.moe_unpermute(*arguments)
    assert arguments[-1][:, 0].tolist() == [1, 1, 0, 2]
    for group, want in ((-1, 0.0), (2, 0.0), (1, 64.0)):
        arguments = _gptq(group=group)
        arguments[1].fill_(0x01010101)
        assert (torch.ops._C.gptq_gemm(*arguments) == want).all()


def test_blocks_outside_do_not_go_to_another_device():
    """What `swap_blocks` takes from a source elsewhere, by tensors of one device: it is as within that one."""
    src, mapping = (
        torch.randn(6, 4),
        torch.tensor([[1, 0], [-1, 1], [6, 2], [5, -1], [4, 6], [0, 3]]),
    )
    want, got = torch.zeros(6, 4), torch.zeros(6, 4)
    torch.ops._C_cache_ops.swap_blocks(src, want, mapping)
    blocks, target = _ops_cache._taken(src, *mapping.unbind(1))
    torch.ops.xla_gpu.swap_blocks(blocks, got, torch.arange(6), target)
    torch.testing.assert_close(got, want)
    assert got.any(1).tolist() == [True, False, False, True, False, False]


def test_default_dtype_does_not_matter():
    torch.set_default_dtype(torch.bfloat16)
    try:
        arguments = [
            x.float() if x is not None and x.dtype == torch.bfloat16 else x for x in _azp()
        ]
        arguments[0].fill_(7)
        torch.ops._C.cutlass_scaled_mm_azp(*arguments)
    finally:
        torch.set_default_dtype(float32)
    assert not arguments[0].any()  # 64 of 1 * 1, less azp_adj's 64
