"""The ops on CUDA tensors: values, streams, captured graphs, compiled, and wrong calls."""

import importlib.util

import intarsia.torch  # noqa: F401
import pytest
import running
import torch
import torch_running
from intarsia.torch._form import Form
from test_ops import make
from test_torch_ops import on_each_case_of, some_dtype

pytestmark = pytest.mark.gpu
op = torch.ops.xla_gpu


def on_cuda(operands) -> list[torch.Tensor | None]:
    return [None if x is None else torch_running.to_torch(x).cuda() for x in operands]


@on_each_case_of(torch_running.FORMS_ON_CUDA)
def test_against_f64(form: Form, case: str) -> None:
    operands, attributes = make(form.op.name, case, some_dtype(case))
    got = torch_running.results(form, torch_running.overload(form), on_cuda(operands), attributes)
    running.check_against_reference(form.op.name, operands, attributes, got, "gpu")


@pytest.mark.parametrize("backend", ["inductor", "intarsia"])
@pytest.mark.parametrize("form", torch_running.FORMS_ON_CUDA, ids=lambda form: form.name)
def test_compiled(form: Form, backend: str) -> None:
    if backend == "intarsia" and importlib.util.find_spec("torchax") is None:
        pytest.skip("no torchax")
    torch._dynamo.reset()
    operands, attributes = make(form.op.name, "example", "bf16")
    function = torch_running.overload(form)
    compiled = torch.compile(lambda *x, **k: function(*x, **k), backend=backend, fullgraph=True)
    got = torch_running.results(form, compiled, on_cuda(operands), attributes)
    running.check_against_reference(form.op.name, operands, attributes, got, "gpu")


def decode_operands() -> list[torch.Tensor]:
    operands, _ = make("paged_attention", "example", "bf16")
    return on_cuda(operands)


def test_calls_follow_the_current_stream() -> None:
    """What a stream of one's own still computes is waited for."""
    weight = torch.rand(4096, device="cuda")
    big = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x = (big @ big)[:16, :4096].contiguous()
        y = op.rms_norm(x, weight)
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(y, op.rms_norm(x.clone(), weight), rtol=0, atol=0)


def test_a_captured_graph_is_replayed_with_other_numbers() -> None:
    operands = decode_operands()
    op.paged_attention.default(*operands)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = op.paged_attention.default(*operands)
        normed = op.rms_norm(out)
    for seed in range(3):
        torch.manual_seed(seed)
        operands[0].copy_(torch.randn_like(operands[0]))
        graph.replay()
        want, _ = op.paged_attention.default(*operands)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(normed, op.rms_norm(want))


def test_operands_of_other_devices_are_refused() -> None:
    x = torch.randn(3, 64, device="cuda")
    with pytest.raises(ValueError, match="rms_norm: weight is on cpu but x is on cuda:0"):
        op.rms_norm(x, torch.ones(64))


def test_a_layer_of_a_cache_is_written_where_it_lies() -> None:
    """A part of a larger cache, as a model's layers have it."""
    caches = torch.zeros(2, 3, 64, 16, 4, 128, device="cuda", dtype=torch.bfloat16)
    key, value = torch.randn(2, 9, 4, 128, device="cuda", dtype=torch.bfloat16)
    slots = torch.randperm(64 * 16, device="cuda")[:9]
    op.reshape_and_cache_flash(key, value, caches[0, 1], caches[1, 1], slots)
    torch.testing.assert_close(caches[0, 1].flatten(0, 1)[slots], key, rtol=0, atol=0)
    torch.testing.assert_close(caches[1, 1].flatten(0, 1)[slots], value, rtol=0, atol=0)
    caches[:, 1] = 0
    assert not caches.any()


@pytest.mark.parametrize("first", [0, 1])
def test_parts_of_a_product_are_read_where_they_lie(first: int) -> None:
    """In rows wider than the heads, at strides that 16 bytes divide and at others."""
    wide = torch.randn(5, 9, 64 + first, device="cuda", dtype=torch.bfloat16)
    qkv, positions = wide[:, 1:, first:], torch.arange(5, device="cuda")
    table, slots = torch.randn(16, 64, device="cuda"), torch.tensor([3, 9, -1, 0, 7], device="cuda")
    parts, whole = (torch.zeros(2, 3, 4, 2, 64, device="cuda", dtype=wide.dtype) for _ in range(2))
    got = op.rotary_embedding_and_cache(positions, qkv, table, *parts, slots, num_heads=4)
    dense = qkv.contiguous()
    want = op.rotary_embedding_and_cache(positions, dense, table, *whole, slots, num_heads=4)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.testing.assert_close(parts, whole, rtol=0, atol=0)
    assert parts.any()
