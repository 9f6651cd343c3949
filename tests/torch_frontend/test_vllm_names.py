"""vLLM's op names on CPU and CUDA tensors, without vLLM; and with one that is importable, which is then left its own."""

import os
import pathlib
import subprocess
import sys

import intarsia.vllm
import pytest
import torch
import torch_running
import vllm_names
from intarsia.vllm import _ops, _register

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True, scope="module")
def _registered():
    assert intarsia.vllm.register_ops() is True
    assert intarsia.vllm.register_ops() is True  # twice is as good as once


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_every_name_has_a_case():
    called = {make().op for make in vllm_names.CASES.values()}
    assert called == {f"{op.namespace}::{op.name}" for op in _ops.OPS}


@torch_running.on_each_device
@pytest.mark.parametrize("case", vllm_names.CASES)
def test_same_as_our_op(case, device):
    vllm_names.CASES[case]().check(device)


@pytest.mark.parametrize("op", sorted({name.split()[0] for name in vllm_names.CASES}))
def test_opcheck(op):
    call = vllm_names.CASES[op]()
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if not any(isinstance(x, torch.Tensor) and x.dtype == FP8 for x in call.arguments):
        checks.append("test_schema")  # which multiplies to compare, and torch cannot multiply fp8
    torch.library.opcheck(call.overload(), tuple(call.arguments), test_utils=checks)


def test_what_is_not_built_is_refused():
    ops = torch.ops._C
    x, codes = torch.randn(6, 64), torch.full((6, 64), 7, dtype=torch.int8)
    scale = torch.full((6, 2), 7.0)
    for name, limits in {
        "int8_min is -127.0, expected -128.0": (-127.0, 127.0),
        "int8_max is 126.0, expected 127.0": (-128.0, 126.0),
    }.items():
        with pytest.raises(NotImplementedError, match=f"per_token_group_quant_int8: {name}"):
            ops.per_token_group_quant_int8(x, codes, scale, 32, 1e-10, *limits)
    q, s = torch.zeros(6, 64, dtype=FP8), torch.zeros(6, 2)
    for name, options in {
        "fp8_min is -240.0, expected -448.0": (-240.0, 448.0, False),
        "fp8_max is 240.0, expected 448.0": (-448.0, 240.0, False),
    }.items():
        with pytest.raises(NotImplementedError, match=f"per_token_group_fp8_quant: {name}"):
            ops.per_token_group_fp8_quant(x, q, s, 32, 1e-10, *options)
    out, a, lse = torch.zeros(5, 2, 8), torch.ones(5, 2, 8), torch.ones(2, 5)
    with pytest.raises(
        NotImplementedError,
        match="merge_attn_states: prefill_tokens_with_context is 3, expected None",
    ):
        ops.merge_attn_states(out, None, a, lse, a, lse, 3)
    with pytest.raises(
        NotImplementedError, match="merge_attn_states: output_scale is given, expected None"
    ):
        ops.merge_attn_states(out, None, a, lse, a, lse, None, torch.ones(1))
    assert (codes == 7).all() and (scale == 7).all()
    assert not any(x.float().any() for x in (q, s, out))


def test_heads_that_do_not_fit_are_refused():
    qkv, weight = torch.randn(6, 8 * 16), torch.ones(16)
    kept = qkv.clone()
    with pytest.raises(ValueError, match=r"fused_qk_norm_rope: qkv has shape .6, 128., expected 7"):
        torch.ops._C.fused_qk_norm_rope(
            qkv, 4, 2, 1, 16, 1e-6, weight, weight, torch.randn(32, 8), True, torch.arange(6)
        )
    assert torch.equal(qkv, kept)


WRONG_RESULTS = {
    "rms_norm: result has shape .6, 63., expected .6, 64.": (
        "rms_norm",
        lambda x, w: [torch.zeros(6, 63), x, w, 1e-5],
    ),
    "dynamic_scaled_int8_quant: azp has dtype torch.int64, expected torch.int32": (
        "dynamic_scaled_int8_quant",
        lambda x, w: [
            torch.zeros(6, 64, dtype=torch.int8),
            x,
            torch.zeros(6, 1),
            torch.zeros(6, 1, dtype=torch.int64),
        ],
    ),
    "rms_norm_per_block_quant: scale has shape .6, 3., expected .6, 4.": (
        "rms_norm_per_block_quant",
        lambda x, w: [
            torch.zeros(6, 64, dtype=FP8),
            *(x, w, torch.zeros(6, 3), 1e-5, None, None, 16, False),
        ],
    ),
    "rms_norm: result has shape .5, 64., expected .6, 64.": (
        "rms_norm",
        lambda x, w: [torch.zeros(5, 64), x, w, 1e-5],
    ),
    "rms_norm: result has dtype torch.float16, expected torch.float32": (
        "rms_norm",
        lambda x, w: [torch.zeros(6, 64).half(), x, w, 1e-5],
    ),
    "fused_add_rms_norm_static_fp8_quant: result has dtype torch.int8, expected torch.float8_e4m3fn": (
        "fused_add_rms_norm_static_fp8_quant",
        lambda x, w: [torch.zeros(6, 64).to(torch.int8), x, x * 2, w, torch.ones(1), 1e-5],
    ),
    "rms_norm_dynamic_per_token_quant: scale has shape .5, 1., expected .6, 1.": (
        "rms_norm_dynamic_per_token_quant",
        lambda x, w: [torch.zeros(6, 64).to(FP8), x, w, torch.zeros(5, 1), 1e-5, None, x * 2],
    ),
    "dynamic_per_token_scaled_fp8_quant: scale has shape .5, 1., expected .6, 1.": (
        "dynamic_per_token_scaled_fp8_quant",
        lambda x, w: [torch.zeros(6, 64).to(FP8), x, torch.zeros(5, 1), None],
    ),
    "rms_norm: weight has n=63 but x has n=64": (
        "rms_norm",
        lambda x, w: [torch.zeros(6, 64), x, w[1:], 1e-5],
    ),
}


@pytest.mark.parametrize("message", WRONG_RESULTS)
def test_what_does_not_fit_is_refused(message):
    op, make = WRONG_RESULTS[message]
    arguments = make(torch.randn(6, 64), torch.randn(64))
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    with pytest.raises(ValueError, match=message):
        getattr(torch.ops._C, op)(*arguments)
    for x, y in zip(arguments, before, strict=True):
        assert x is y or (torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y)


@pytest.mark.parametrize("choice", [(3, 1, 1), (0, 1, 1), (4, 5, 1), (4, 0, 1), (4, 2, 5)])
def test_groups_that_do_not_fit_are_refused(choice):
    """Of scores by the same words as of logits."""
    texts = []
    for scoring_func in (0, 1):
        with pytest.raises(ValueError, match=r"topk_router: .* expected") as error:
            torch.ops._moe_C.grouped_topk(
                torch.randn(2, 8), *choice, False, 1.0, torch.randn(8), scoring_func
            )
        texts.append(str(error.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["moe_align_block_size", "moe_permute"])
def test_a_map_of_too_few_experts_is_refused(name):
    call = vllm_names.CASES[f"{name} with a map"]()
    short = [x[:7] if isinstance(x, torch.Tensor) and len(x) == 8 else x for x in call.arguments]
    with pytest.raises(ValueError, match=f"{name}: the expert map has 7 experts, expected 8"):
        call.overload()(*short)


WRONG_SCALES = {
    r"a_scales has shape .5, 2. and dtype torch.float32, expected 1, 5 or .5, 3.": (0, (5, 2)),
    r"b_scales has shape .2, 3. and dtype torch.float32, expected 1, 200 or .3, 2.": (1, (2, 3)),
}


@pytest.mark.parametrize("message", WRONG_SCALES)
def test_scales_that_do_not_fit_are_refused(message):
    which, shape = WRONG_SCALES[message]
    a, b, out = torch.ones(5, 300).to(FP8), torch.ones(200, 300).to(FP8).t(), torch.zeros(5, 200)
    scales = [torch.ones(5, 3), torch.ones(3, 2)]
    scales[which] = torch.ones(shape)
    with pytest.raises(NotImplementedError, match=f"cutlass_scaled_mm: {message}"):
        torch.ops._C.cutlass_scaled_mm(out, a, b, *scales, None)
    with pytest.raises(ValueError, match=r"cutlass_scaled_mm: out has dtype torch\.int8, expected"):
        torch.ops._C.cutlass_scaled_mm(out.to(torch.int8), a, b, torch.ones(1), torch.ones(1), None)
    assert not out.any()


def test_a_strided_view_is_written_where_it_lies():
    both, x = torch.zeros(6, 2, 64), torch.randn(6, 64)
    torch.ops._C.rms_norm(both[:, 1], x, None, 1e-5)
    vllm_names.same(both[:, 1], torch.ops.xla_gpu.rms_norm(x, eps=1e-5))
    assert not both[:, 0].any()


def test_what_is_written_has_no_gradient():
    x, out = torch.randn(6, 64, requires_grad=True), torch.zeros(6, 64)
    torch.ops._C.rms_norm(out, x, None, 1e-5)
    assert out.any() and out.grad_fn is None


def test_writes_are_counted():
    """Else a backward pass would use the new numbers for the old, silently."""
    c = torch.randn(6, 64)
    w = torch.randn(6, 64, requires_grad=True)
    y = (w * c).sum()
    torch.ops._C.fused_add_rms_norm(c, torch.randn(6, 64), None, 1e-5)
    assert c._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    caches, one = (torch.zeros(1, 4, 2, 64), torch.zeros(1, 4, 2, 64)), torch.ones(1)
    key = torch.randn(1, 2, 64, requires_grad=True)
    torch.ops._C_cache_ops.reshape_and_cache_flash(
        key, key, *caches, torch.tensor([1]), "auto", one, one
    )
    assert [(x._version, x.requires_grad) for x in caches] == [(1, False)] * 2
    out = torch.zeros(6, 64)
    torch.ops._C.silu_and_mul(out, torch.randn(6, 128))
    assert out._version == 1
    with pytest.raises(ValueError):
        torch.ops._C.silu_and_mul(out, torch.randn(6, 64))
    assert out._version == 1


def test_compiled():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def norm(x, weight):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, 1e-5)
        torch.ops._C.fused_add_rms_norm(out, x, weight, 1e-5)
        return out * 2

    x, weight = torch.randn(6, 64), torch.randn(64)
    once = torch.ops.xla_gpu.rms_norm(x, weight, eps=1e-5)
    want, total = torch.ops.xla_gpu.fused_add_rms_norm.functional(once, x, weight, eps=1e-5)
    vllm_names.same(norm(x, weight), want * 2)
    vllm_names.same(x, total)  # the caller's residual


# ---------------------------------------------------------------------------- beside a vLLM

CUSTOM_OPS = """
import torch
library = torch.library.Library("_C", "DEF")
def fill(out, x, weight, epsilon):
    out.fill_(3)
library.define("rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()")
library.impl("rms_norm", fill, "CPU")
"""


def _beside(folder: pathlib.Path, files: dict[str, str], program: str) -> str:
    """What a program prints where there is a package `vllm` with these files."""
    (folder / "vllm").mkdir()
    for name, text in ({"__init__.py": ""} | files).items():
        (folder / "vllm" / name).write_text(text)
    paths = [str(folder), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_schemas_and_kernels_stay_vllms(tmp_path):
    program = """
import intarsia.vllm, torch
intarsia.vllm.register_ops()
out = torch.zeros(2, 4)
torch.ops._C.rms_norm(out, torch.ones(2, 4), torch.ones(4), 1e-5)
print(out.unique().tolist(), hasattr(torch.ops._C, "gelu_and_mul"), hasattr(torch.ops._C_cache_ops, "reshape_and_cache_flash"))
"""
    said = _beside(tmp_path, {"_custom_ops.py": CUSTOM_OPS}, program)
    assert said.split("\n")[0] == "[3.0] False False"


def test_without_vllms_ops_nothing_is_defined(tmp_path):
    program = """
import intarsia.vllm, torch
try:
    intarsia.vllm.register_ops()
except ImportError as error:
    print(error, hasattr(torch.ops._C, "rms_norm"))
"""
    said = _beside(tmp_path, {"_custom_ops.py": ""}, program)
    assert "is installed, but its compiled ops do not load: No module named 'vllm._C'" in said
    assert said.endswith("False\n")


def test_another_schema_is_refused():
    theirs = [
        torch._C.parse_schema(f"_C::silu_and_mul({arguments}) -> ()")
        for arguments in (
            "Tensor! out, Tensor input",
            "Tensor input, Tensor! out",
            "Tensor! out, Tensor input, Tensor scale",
            "",
        )
    ]
    op = next(op for op in _ops.OPS if op.name == "silu_and_mul")
    ours = torch._C.parse_schema(f"_C::{op.schema}")
    assert [_register._fits(x, ours) for x in theirs] == [True, False, False, False]
    with pytest.raises(
        NotImplementedError,
        match=r"silu_and_mul: vLLM .* has it as .*, expected silu_and_mul\(Tens",
    ):
        _register._refusal(op, theirs[1])(None, None)


def test_what_a_schema_lacks_must_have_a_default():
    ours = torch._C.parse_schema("_C::op(Tensor! out, Tensor? w, int g=1) -> ()")
    texts = ("Tensor! result, Tensor w", "Tensor! out, Tensor? w, int g", "Tensor! out")
    theirs = [torch._C.parse_schema(f"_C::op({text}) -> ()") for text in texts]
    assert [_register._fits(x, ours) for x in theirs] == [True, True, False]
