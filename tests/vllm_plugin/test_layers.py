"""Our layers against vLLM's native ones, on vLLM's own inputs; each is one custom call."""

import re

import jax
import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import layers
from intarsia.vllm.compat import import_torchax
from vllm import ir
from vllm.config import VllmConfig, get_cached_compilation_config, set_current_vllm_config
from vllm.model_executor.layers.activation import GeluAndMul, MulAndSilu, SiluAndMul
from vllm.model_executor.layers.layernorm import LayerNorm
from vllm.model_executor.layers.rotary_embedding import get_rope

_, ENVIRONMENT = import_torchax()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def run_as_program(function, *tensors: torch.Tensor) -> tuple[object, list[str]]:
    """What a function of tensors gives as an XLA program, and our custom calls in it."""
    from torchax import interop

    def traced(*arrays: jax.Array):
        with ENVIRONMENT, torch.no_grad():
            return interop.jax_view(function(*interop.torch_view(arrays)))

    arrays = [jax.dlpack.from_dlpack(x.contiguous()) for x in tensors]
    compiled = jax.jit(traced).lower(*arrays).compile()
    results = jax.tree.map(torch.from_dlpack, compiled(*arrays))
    return results, re.findall(r'custom_call_target="intarsia\.(\w+)"', compiled.as_text())


@pytest.fixture(autouse=True)
def config():
    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", layers.IR_OPS)
def test_ir_ops(name: str, dtype: torch.dtype) -> None:
    op = getattr(ir.ops, name)
    tensors = op.generate_inputs(num_tokens=5, hidden_size=96, dtype=dtype)
    *operands, epsilon = tensors
    with op.set_priority([layers.PROVIDER, "native"]), ir.op.enable_torch_wrap(False):
        got, calls = run_as_program(lambda *x: op(*x, epsilon), *operands)
    assert calls == [name]
    torch.testing.assert_close(got, op.impls["native"].impl_fn(*tensors), **op.get_tolerance(dtype))


def test_a_norm_without_a_form_of_ours_is_vllms() -> None:
    x = torch.randn(3, 64)
    with ir.ops.rms_norm.set_priority([layers.PROVIDER, "native"]), ir.op.enable_torch_wrap(False):
        got, calls = run_as_program(lambda x: ir.ops.rms_norm(x, None, 1e-6, 32), x)
    assert calls == []
    torch.testing.assert_close(got, ir.ops.rms_norm.impls["native"].impl_fn(x, None, 1e-6, 32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("layer", "call"),
    [
        (lambda: SiluAndMul(), "silu_and_mul"),
        (lambda: MulAndSilu(), "silu_and_mul"),
        (lambda: GeluAndMul("none"), "gelu_and_mul"),
        (lambda: GeluAndMul("tanh"), "gelu_tanh_and_mul"),
    ],
    ids=["SiluAndMul", "MulAndSilu", "GeluAndMul", "GeluAndMul_tanh"],
)
def test_activations(layer, call: str, dtype: torch.dtype) -> None:
    module, x = layer(), torch.randn(5, 96, dtype=dtype)
    got, calls = run_as_program(module.forward_oot, x)
    assert calls == [call]
    expected = module.forward_native(x.double() if dtype == torch.float32 else x.float())
    torch.testing.assert_close(
        got.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )
    torch.testing.assert_close(module.forward_oot(x), module.forward_native(x))  # torch's tensors


@pytest.mark.parametrize(
    ("asked", "on"),
    [
        (["all", "-silu_and_mul"], ["GeluAndMul"]),
        (["none", "+silu_and_mul"], ["SiluAndMul"]),
        (["all", "-rotary_embedding"], ["SiluAndMul", "GeluAndMul"]),
    ],
    ids=str,
)
def test_custom_ops_go_by_vllms_names(asked: list[str], on: list[str]) -> None:
    get_cached_compilation_config.cache_clear()
    with set_current_vllm_config(VllmConfig(compilation_config={"custom_ops": asked})):
        rope = get_rope(32, 128, rope_parameters=ROPES["llama"], dtype=torch.float32)
        assert rope.enabled() == ("all" in asked and "-rotary_embedding" not in asked)
        assert [x.__name__ for x in (SiluAndMul, GeluAndMul) if x().enabled()] == on
    get_cached_compilation_config.cache_clear()


ROPES = {
    "llama": {"rope_type": "default", "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "partial": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
}


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("name", ROPES)
def test_rotation(name: str, is_neox: bool) -> None:
    rope = get_rope(
        32, 128, is_neox_style=is_neox, rope_parameters=ROPES[name], dtype=torch.float32
    )
    assert isinstance(rope, layers._XlaRotary)
    positions = torch.tensor([0, 5, 127, 64], dtype=torch.int32)
    query, key = torch.randn(4, 6 * 32), torch.randn(4, 2, 32)

    def turn(table: torch.Tensor, *operands: torch.Tensor):
        return torch.func.functional_call(rope, {"cos_sin_cache": table}, operands)

    table = rope.cos_sin_cache
    got, calls = run_as_program(turn, table, positions, query, key)
    assert calls == ["rotary_embedding"]
    torch.testing.assert_close(
        got, rope.forward_native(positions, query, key), atol=1e-5, rtol=1e-5
    )
    alone, _ = run_as_program(lambda *x: turn(*x)[0], table, positions, query)
    torch.testing.assert_close(alone, got[0])


def test_layer_norm() -> None:
    """No op of ours: torchax's, which is given what vLLM's layer asks of torch."""
    layer = LayerNorm(96)
    x = torch.randn(5, 96)

    def norm(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    got, calls = run_as_program(norm, layer.weight.detach(), layer.bias.detach(), x)
    assert calls == []
    torch.testing.assert_close(got, layer.forward_native(x), atol=1e-5, rtol=1e-5)
