"""Calls of vLLM's ops, with what they must write: our op of the same name on CPU tensors, or what vLLM documents."""

import torch
import vllm_experts  # noqa: F401  whose cases are among these
import vllm_quantized  # noqa: F401
from vllm_calls import CASES, FP8, INT8, Call, _codes, _scale, _x, also, case, on_gpu, same, xla_gpu

__all__ = ["CASES", "Call", "on_gpu", "same"]


@also("f16", dtype=torch.float16)
@also("of three axes, without weight", shape=(2, 3, 64), weighted=False)
@case
def rms_norm(dtype=torch.float32, shape=(6, 64), weighted=True):
    x, w = _x(*shape).to(dtype), _x(64).to(dtype) if weighted else None
    want = xla_gpu.rms_norm(x, w, eps=1e-5)
    return Call("_C::rms_norm", [torch.zeros_like(x), x, w, 1e-5], {0: want})


@also("of slices", wide=96)
@case
def fused_add_rms_norm(wide=64):
    x, r, w = _x(6, wide)[:, -64:], _x(6, wide)[:, :64], _x(64)
    want = xla_gpu.fused_add_rms_norm.functional(x, r, w, eps=1e-5)
    return Call("_C::fused_add_rms_norm", [x, r, w, 1e-5], dict(enumerate(want)))


@case
def rms_norm_static_fp8_quant():
    x, w = _x(), _x(64)
    want = xla_gpu.rms_norm_static_fp8_quant(x, w, _scale(), eps=1e-5)
    return Call("_C::rms_norm_static_fp8_quant", [_codes(), x, w, _scale(), 1e-5], {0: want})


@case
def fused_add_rms_norm_static_fp8_quant():
    x, r, w, s = _x(), _x(), _x(64), _scale()
    want = xla_gpu.fused_add_rms_norm_static_fp8_quant.functional(x, r, w, s, eps=1e-5)
    arguments = [_codes(), x, r, w, s, 1e-5]
    return Call("_C::fused_add_rms_norm_static_fp8_quant", arguments, {0: want[0], 2: want[1]})


@also("int8", dtype=INT8, bound=None)
@also("with a residual", residual=True)
@case
def rms_norm_dynamic_per_token_quant(dtype=FP8, bound=1.5, residual=False):
    x, w, r = _x(2, 3, 64), _x(64), _x(2, 3, 64) if residual else None
    bound = None if bound is None else torch.tensor(bound)
    codes, scales, total = xla_gpu.rms_norm_dynamic_per_token_quant.functional(
        x,
        w,
        None if bound is None else bound.reshape(1),
        r,
        eps=1e-5,
        quant_dtype="i8" if dtype == INT8 else "f8e4m3fn",
    )
    arguments = [torch.zeros_like(x, dtype=dtype), x, w, torch.zeros(6, 1), 1e-5, bound, r]
    want = {0: codes, 3: scales.reshape(6, 1)}
    return Call(
        "_C::rms_norm_dynamic_per_token_quant", arguments, want | ({6: total} if residual else {})
    )


@also("int8", dtype=INT8)
@also("column by column with a residual", residual=True, strided=True)
@case
def rms_norm_per_block_quant(dtype=FP8, residual=False, strided=False):
    x, w, r = _x(2, 3, 64), _x(64), _x(2, 3, 64) if residual else None
    codes, scales, total = xla_gpu.rms_norm_per_block_quant.functional(
        x,
        w,
        None,
        r,
        group_size=16,
        eps=1e-5,
        quant_dtype="i8" if dtype == INT8 else "f8e4m3fn",
    )
    room = torch.zeros(4, 6).t() if strided else torch.zeros(6, 4)
    arguments = [torch.zeros_like(x, dtype=dtype), x, w, room, 1e-5, None, r, 16, strided]
    want = {0: codes, 3: scales.reshape(6, 4)}
    return Call("_C::rms_norm_per_block_quant", arguments, want | ({6: total} if residual else {}))


def _activation(op, numbers=(), n=128, dtype=torch.float32, **attributes):
    """`numbers` are what vLLM's op takes behind its tensors, `attributes` what that is here."""
    x = _x(6, n).to(dtype)
    out = torch.zeros(6, 64, dtype=dtype)
    return Call(f"_C::{op}", [out, x, *numbers], {0: getattr(xla_gpu, op)(x, **attributes)})


for _name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu"):
    case(_activation, _name, op=_name)
for _name in ("gelu_new", "gelu_fast"):
    case(_activation, _name, op=_name, n=64, dtype=torch.bfloat16, round_steps=True)
case(_activation, "gelu_quick", op="gelu_quick", n=64)
case(_activation, "fatrelu_and_mul", op="fatrelu_and_mul", numbers=(0.25,), threshold=0.25)
case(_activation, "swigluoai_and_mul", op="swigluoai_and_mul")
case(
    _activation,
    "swigluoai_and_mul clamped",
    op="swigluoai_and_mul",
    numbers=(1.5, 0.5),
    alpha=1.5,
    limit=0.5,
)
_clamped = {"limit": 0.5, "alpha": 1.5, "beta": 1.0}
for _name, _count in (("silu_and_mul_with_clamp", 1), ("silu_and_mul_with_clamp shifted", 3)):
    case(
        _activation,
        _name,
        op="silu_and_mul_with_clamp",
        numbers=tuple(_clamped.values())[:_count],
        **dict(list(_clamped.items())[:_count]),
    )


@case
def silu_and_mul_quant():
    x = _x(6, 128)
    want = xla_gpu.silu_and_mul_quant(x, _scale())
    return Call("_C::silu_and_mul_quant", [_codes(), x, _scale()], {0: want})


@also("without key", keyed=False)
@also("of three axes, pairs apart", shape=(6, -1, 16), is_neox=False)
@case
def rotary_embedding(shape=(6, -1), keyed=True, is_neox=True):
    q, k = _x(6, 4 * 16).reshape(shape), _x(6, 2 * 16).reshape(shape) if keyed else None
    positions, table = torch.arange(6), _x(32, 8)
    want_q, want_k = xla_gpu.rotary_embedding.functional(
        positions, q, table, k, head_size=16, is_neox=is_neox
    )
    want = {1: want_q, 2: want_k} if keyed else {1: want_q}
    return Call("_C::rotary_embedding", [positions, q, k, 16, table, is_neox], want)


@also("pairs apart", is_neox=False)
@case
def fused_qk_norm_rope(is_neox=True):
    qkv, table, positions = _x(6, 8 * 16), _x(32, 8), torch.arange(6)
    weights = _x(16), _x(16)
    want = xla_gpu.fused_qk_norm_rope.functional(
        positions,
        qkv.view(6, 8, 16),
        table,
        *weights,
        num_heads_q=4,
        num_heads_k=2,
        eps=1e-5,
        is_neox=is_neox,
    )
    arguments = [qkv, 4, 2, 2, 16, 1e-5, *weights, table, is_neox, positions]
    return Call("_C::fused_qk_norm_rope", arguments, {0: want.reshape(6, -1)})


@also("padded", rows=8)
@also("tokens", scale=(6,), ours=(6, 1), groups=[(1, -1)])
@also("channels", scale=(1, 64), ours=(64,), groups=[(-1, 1)])
@also("groups", scale=(6, 2), ours=(6, 2), groups=[(1, 32)])
@case
def static_scaled_fp8_quant(scale=(), ours=(1,), groups=(), rows=6):
    x, scale = _x(), torch.rand(scale) + 0.1
    codes = xla_gpu.static_scaled_fp8_quant(x, scale.reshape(ours))
    want = torch.cat([codes, _codes(rows=rows - 6)])
    return Call("_C::static_scaled_fp8_quant", [_codes(rows=rows), x, scale, *groups], {0: want})


@also("by a scalar", scale=())
@also("with room for a scale of each token", scale=(6, 1))  # of which vLLM writes the first
@case
def dynamic_scaled_fp8_quant(scale=(1,)):
    x, want = _x(), torch.zeros(scale)
    codes, new = xla_gpu.dynamic_scaled_fp8_quant(x)
    want.reshape(-1)[0] = new[0]
    return Call(
        "_C::dynamic_scaled_fp8_quant", [_codes(), x, torch.zeros(scale)], {0: codes, 2: want}
    )


@also("padded", rows=8)
@also("bounded", bound=1.5)
@case
def dynamic_per_token_scaled_fp8_quant(rows=6, bound=None):
    x, bound = _x(), None if bound is None else torch.tensor([bound])
    codes, scales = xla_gpu.dynamic_per_token_scaled_fp8_quant(x, bound)
    arguments = [_codes(rows=rows), x, torch.zeros(rows, 1), bound]
    want = {0: torch.cat([codes, _codes(rows=rows - 6)])}
    want[2] = torch.cat([scales, torch.zeros(rows - 6, 1)])
    return Call("_C::dynamic_per_token_scaled_fp8_quant", arguments, want)


@also("column by column", strided=True)  # as DeepGEMM wants it
@also("by powers of two", ue8m0=True)
@case
def per_token_group_fp8_quant(strided=False, ue8m0=False):
    x, scales = _x(), torch.zeros(2, 6).t() if strided else torch.zeros(6, 2)
    arguments = [x, _codes(), scales, 32, 1e-10, -448.0, 448.0, ue8m0]
    codes, scales = xla_gpu.per_token_group_fp8_quant(
        x, group_size=32, eps=1e-10, scale_ue8m0=ue8m0
    )
    return Call("_C::per_token_group_fp8_quant", arguments, {1: codes, 2: scales})


@case
def per_token_group_quant_int8():
    x = _x()
    arguments = [x, _codes(INT8), torch.zeros(6, 2), 32, 1e-10, -128.0, 127.0]
    codes, scales = xla_gpu.per_token_group_quant_int8(x, group_size=32, eps=1e-10)
    return Call("_C::per_token_group_quant_int8", arguments, {1: codes, 2: scales})


@also("around a zero point", azp=-17)
@case
def static_scaled_int8_quant(azp=None):
    x, azp = _x(), None if azp is None else torch.tensor(azp, dtype=torch.int32)
    want = xla_gpu.static_scaled_int8_quant(x, _scale(), None if azp is None else azp.reshape(1))
    return Call("_C::static_scaled_int8_quant", [_codes(INT8), x, _scale(), azp], {0: want})


@case
def dynamic_scaled_int8_quant():
    x = _x()
    codes, scales = xla_gpu.dynamic_scaled_int8_quant(x)
    arguments = [_codes(INT8), x, torch.zeros(6, 1), None]
    return Call("_C::dynamic_scaled_int8_quant", arguments, {0: codes, 2: scales.reshape(6, 1)})


def _asymmetric():
    x, azp = _x(), torch.zeros(6, 1, dtype=torch.int32)
    want = xla_gpu.dynamic_scaled_int8_azp_quant(x)
    arguments = [_codes(INT8), x, torch.zeros(6, 1), azp]
    return Call("_C::dynamic_scaled_int8_quant", arguments, {0: want[0], 2: want[1], 3: want[2]})


case(_asymmetric, "dynamic_scaled_int8_quant asymmetric")


@also("fp8", codes=FP8, kv_cache_dtype="fp8", scale=0.5)
@also("fp8 in bytes", codes=FP8, kv_cache_dtype="fp8_e4m3", in_bytes=True, scale=0.5)
@also("with scales of no use", scale=0.5)
@case
def reshape_and_cache_flash(codes=torch.float32, kv_cache_dtype="auto", in_bytes=False, scale=1.0):
    key, value, scale = _x(3, 2, 8), _x(3, 2, 8), torch.tensor(scale)
    caches = [torch.zeros(4, 16, 2, 8, dtype=codes) for _ in range(2)]
    want = [cache.clone() for cache in caches]
    for cache, new in zip(want, (key, value), strict=True):
        new = (new / scale).to(codes) if codes == FP8 else new
        cache[1, 1], cache[0, 3] = new[0], new[2]
    if in_bytes:
        caches, want = ([x.view(torch.uint8) for x in y] for y in (caches, want))
    slots = torch.tensor([17, -1, 3])
    return Call(
        "_C_cache_ops::reshape_and_cache_flash",
        [key, value, *caches, slots, kv_cache_dtype, scale, scale],
        dict(enumerate(want, 2)),
        unused=() if codes == FP8 else (scale,),
    )


@case
def copy_blocks():
    keys, values = [_x(4, 2, 8), _x(4, 2, 8)], [_x(4, 2, 8), _x(4, 2, 8)]
    want = [[x.clone() for x in caches] for caches in (keys, values)]
    for cache in [*want[0], *want[1]]:
        cache[3], cache[0] = cache[1].clone(), cache[2].clone()
    mapping = torch.tensor([[1, 3], [2, 0]])
    return Call("_C_cache_ops::copy_blocks", [keys, values, mapping], dict(enumerate(want)))


@case
def swap_blocks():
    src, dst = _x(3, 2, 8), _x(5, 2, 8)
    want = dst.clone()
    want[4], want[0] = src[2], src[1]
    mapping = torch.tensor([[2, 4], [1, 0]])
    return Call("_C_cache_ops::swap_blocks", [src, dst, mapping], {1: want}, (src, dst, mapping))


def _gathered():
    """A cache, a table, where two sequences start, from which slots, and the slots that they have."""
    table, starts = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32), torch.tensor([0, 3, 7])
    slots = [12 + 0, 12 + 1, 12 + 2, 8 + 0, 8 + 1, 8 + 2, 8 + 3]  # page * 4 + offset
    return table, starts.int(), torch.tensor([0, 6], dtype=torch.int32), slots  # 6 is rounded to 4


@case
def cp_gather_cache():
    cache, dst = _x(4, 4, 2, 8), _x(9, 2, 8)
    table, starts, first, slots = _gathered()
    want = torch.cat([cache.flatten(0, 1)[slots], dst[7:]])
    return Call("_C_cache_ops::cp_gather_cache", [cache, dst, table, starts, 2, first], {1: want})


@also("as stored", codes=torch.float32)
@also("in bytes", in_bytes=True)
@case
def gather_and_maybe_dequant_cache(codes=FP8, in_bytes=False):
    cache, dst, scale = _x(4, 4, 16).to(codes), _x(9, 16), torch.tensor(0.5)
    table, starts, first, slots = _gathered()
    found = cache.float().flatten(0, 1)[slots]
    want = torch.cat([found * 0.5 if codes == FP8 else found, dst[7:]])
    sequences = torch.tensor([0, 0, 0, 1, 1, 1, 1], dtype=torch.int32)
    cache = cache.view(torch.uint8) if in_bytes else cache
    name = "fp8" if codes == FP8 else "auto"
    arguments = [cache, dst, table, starts, sequences, 7, name, scale, first]
    unused = (sequences,) if codes == FP8 else (sequences, scale)
    return Call("_C_cache_ops::gather_and_maybe_dequant_cache", arguments, {1: want}, unused=unused)


@also("back", back=True)
@also("in bytes", in_bytes=True)
@case
def convert_fp8(back=False, in_bytes=False):
    numbers, codes = _x(4, 3, 8), (_x(4, 3, 8) * 3).to(FP8)
    src, dst = (codes, numbers) if back else (numbers, codes)
    want = codes.float() * 0.5 if back else (numbers / 0.5).to(FP8)
    if in_bytes:
        dst, want = dst.view(torch.uint8), want.view(torch.uint8)
    return Call("_C_cache_ops::convert_fp8", [dst, src, 0.5, "fp8"], {0: want})


@also("without lse", lse=False)
@case
def merge_attn_states(lse=True):
    a, b, lse_a, lse_b = _x(5, 2, 8), _x(5, 2, 8), _x(2, 5), _x(2, 5)
    want = xla_gpu.merge_attn_states(a, lse_a, b, lse_b)
    out, lse = torch.zeros(5, 2, 8), torch.zeros(2, 5) if lse else None
    wanted = {0: want[0]} if lse is None else dict(enumerate(want))
    return Call("_C::merge_attn_states", [out, lse, a, lse_a, b, lse_b], wanted)
