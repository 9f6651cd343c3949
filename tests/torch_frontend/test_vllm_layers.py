"""vLLM itself, unchanged, on torch_xla's tensors. `make test-vllm-ops` has the environment that this needs."""

import importlib.util
import os

import pytest
import torch
import vllm_names

if importlib.util.find_spec("vllm") is None:
    pytest.skip("no vLLM; make test-vllm-ops runs this beside one", allow_module_level=True)
if os.environ.get("PJRT_DEVICE") != "INTARSIA":
    pytest.skip("not a process with PJRT_DEVICE=INTARSIA", allow_module_level=True)

import intarsia.vllm
import torch_xla
import vllm.platforms
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.platforms.cuda import NonNvmlCudaPlatform


@pytest.fixture(autouse=True, scope="module")
def _as_on_nvidia():
    """vLLM's layers with their compiled ops, as they are where vLLM sees a GPU."""
    vllm.platforms._current_platform = NonNvmlCudaPlatform()
    assert intarsia.vllm.register_ops() is True
    config = VllmConfig(compilation_config=CompilationConfig(custom_ops=["all"]))
    with set_current_vllm_config(config):
        yield


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def calls(*results: torch.Tensor) -> list[str]:
    """The custom calls in the program of these results, which is yet to be run."""
    text = torch_xla._XLAC._get_xla_tensors_hlo(list(results))
    return [part.split('"')[0] for part in text.split('custom_call_target="intarsia.')[1:]]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_schemas_and_kernels_stay_vllms():
    """Those of the key Functionalize, where XLA's tensors arrive, are ours."""
    said = torch._C._dispatch_dump("_C::rms_norm").splitlines()
    registered = dict(
        line.split(": registered at ", 1) for line in said if ": registered at " in line
    )
    ours = registered.pop("Functionalize")
    assert "_register.py" in ours
    assert len(registered) > 1  # the schema, as "debug", and kernels
    assert all("torch_bindings.cpp" in where for where in registered.values())


def test_the_snippet():
    from vllm._custom_ops import rms_norm

    x, weight = torch.randn(6, 64), torch.randn(64)
    input, out = x.to("xla"), torch.empty(6, 64, device="xla")
    rms_norm(out, input, weight.to("xla"), 1e-6)
    assert calls(out) == ["rms_norm"]
    vllm_names.same(out.cpu(), torch.ops.xla_gpu.rms_norm(x, weight, eps=1e-6))


@pytest.mark.parametrize("case", vllm_names.CASES)
def test_each_name(case):
    call = vllm_names.CASES[case]()
    if not torch._C._jit_get_schemas_for_operator(call.op):
        pytest.skip(f"this vLLM has no {call.op}")
    rows = call.overload()._schema.arguments
    nones = [row.name for row, x in zip(rows, call.arguments, strict=False) if x is None]
    optional = [row.name for row in rows if row.type.kind() == "OptionalType"]
    if len(rows) < len(call.arguments) or set(nones) - set(optional):
        pytest.skip(f"this vLLM's {call.op} has no such arguments")
    call.check("xla")


def test_rms_norm_layer():
    from vllm.model_executor.layers.layernorm import RMSNorm

    x, residual = torch.randn(6, 64), torch.randn(6, 64)
    layer = RMSNorm(64)
    torch.nn.init.normal_(layer.weight)
    want, (want_sum, total) = layer.forward_native(x), layer.forward_native(x, residual)
    layer = layer.to("xla")
    assert layer._forward_method == layer.forward_cuda
    got = layer(x.to("xla"))
    assert calls(got) == ["rms_norm"]
    close(got, want)
    given = x.to("xla"), residual.to("xla")
    got = layer(*given)
    assert calls(*got) == ["fused_add_rms_norm"]
    close(got[0], want_sum)
    close(given[1], total)  # the caller's, written in place


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
def test_activation_layers(name):
    from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul

    layer = {
        "silu_and_mul": SiluAndMul,
        "gelu_and_mul": GeluAndMul,
        "gelu_tanh_and_mul": lambda: GeluAndMul(approximate="tanh"),
    }[name]()
    x = torch.randn(2, 3, 128)
    got = layer(x.to("xla"))
    assert calls(got) == [name]
    close(got, layer.forward_native(x))


@pytest.mark.parametrize("is_neox", [True, False])
def test_rotary_layer(is_neox):
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    layer = RotaryEmbedding(16, 16, 64, 1e4, is_neox, torch.float32)
    positions, qkv = torch.arange(3, 9), torch.randn(6, 4 * 16)
    q, k, _ = qkv.split([32, 16, 16], dim=-1)
    want = layer.forward_native(positions, q.clone(), k.clone())
    q, k, _ = qkv.to("xla").split([32, 16, 16], dim=-1)  # as vLLM's attention layers do
    got = layer(positions.to("xla"), q, k)
    assert calls(*got) == ["rotary_embedding"]
    for x, y in zip(got, want, strict=True):
        close(x, y)


def test_fp8_quantization():
    if len(torch.ops._C.dynamic_per_token_scaled_fp8_quant.default._schema.arguments) == 0:
        pytest.skip("this vLLM has no fp8")
    from vllm._custom_ops import scaled_fp8_quant

    x = torch.randn(6, 64)
    codes, scales = scaled_fp8_quant(
        x.to("xla"), num_token_padding=8, use_per_token_if_dynamic=True
    )
    want, want_scales = torch.ops.xla_gpu.dynamic_per_token_scaled_fp8_quant(x)
    assert codes.shape == (8, 64)
    vllm_names.same(codes.cpu()[:6], want)
    vllm_names.same(scales.cpu()[:6], want_scales)


def test_a_block_is_one_graph():
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm

    norm, activation = RMSNorm(64), SiluAndMul()
    up, down = torch.randn(128, 64) / 8, torch.randn(64, 64) / 8
    x, residual = torch.randn(6, 64), torch.randn(6, 64)
    want, total = norm.forward_native(x, residual)
    want = activation.forward_native(want @ up.t()) @ down.t()

    @torch.compile(backend="openxla", fullgraph=True)
    def block(x, residual, up, down):
        normed, residual = norm(x, residual)
        return activation(normed @ up.t()) @ down.t(), residual

    norm = norm.to("xla")
    got, got_total = block(*(x.to("xla") for x in (x, residual, up, down)))
    close(got, want)
    close(got_total, total)
