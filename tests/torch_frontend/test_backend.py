"""torch.compile(backend="intarsia") against eager torch: values, gradients, mutation, sizes that change."""

import concurrent.futures
import contextlib
import operator

import jax
import jax.numpy as jnp
import pytest
import running
import support
import torch
import torch.nn.functional as F
import torch_running
from intarsia import _torchax_import
from intarsia.torch import _island, backend
from intarsia.torch._form import Form
from test_ops import make
from torch._higher_order_ops import auto_functionalize
from torch._subclasses import FakeTensor


def compiled(function, **options):
    return torch.compile(function, backend="intarsia", fullgraph=True, **options)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def same(function, *inputs, **options):
    want = function(*(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs))
    got = compiled(function, **options)(*inputs)
    torch.testing.assert_close(got, want)
    return got


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
)
def test_dtypes(dtype):
    x = torch.randn(5, 7).to(dtype)
    same(lambda x: (torch.cat([x, x.flip(0)]), x.t()), x)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_crosses_the_border_both_ways(dtype):
    x = torch.randn(4, 8).to(dtype)
    got = compiled(lambda x: (x.float() * 2).to(dtype))(x)
    assert got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), (x.float() * 2).to(dtype).view(torch.uint8))


def test_integers_stay_64_bits_wide():
    x = torch.tensor([2**40, -(2**40)])
    same(lambda x: x + 2**33, x)


def test_views_that_are_not_dense():
    x = torch.randn(6, 8)
    same(lambda x: x * 2 + 1, x.t()[::2])
    same(lambda x: x.sum(0), x[:, 1:])  # not aligned, either


def test_no_elements_and_no_axes():
    same(lambda x, y: (x + 1, y.exp()), torch.zeros(0, 3), torch.tensor(2.0))


def test_a_size_that_changes_compiles_once_for_torch():
    f = compiled(lambda x: x @ x.t() / x.shape[0], dynamic=True)
    for rows in (3, 5, 2):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(f(x), x @ x.t() / rows)


def test_inputs_are_mutated():
    x, y = torch.randn(4), torch.randn(4)
    want = x + 2 * y
    got = compiled(lambda x, y: x.add_(y * 2).sum())(x, y)
    torch.testing.assert_close(x, want)
    torch.testing.assert_close(got, want.sum())


def test_random_numbers_are_those_of_torch():
    """Of AOTAutograd's graph, that is, which may draw through other operators than eager torch."""
    x = torch.ones(100)

    def dropped(backend: str) -> torch.Tensor:
        torch.manual_seed(3)
        function = torch.compile(lambda x: F.dropout(x * 3, 0.5) + 1, backend=backend)
        return function(x)

    assert torch.equal(dropped("intarsia"), dropped("aot_eager"))


def test_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(5, 8, requires_grad=True)
    want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    got = torch.autograd.grad(compiled(model)(x).square().sum(), [x, *model.parameters()])
    torch.testing.assert_close(got, want)


def test_parameters_are_read_where_they_lie():
    layer = torch.nn.Linear(64, 64, bias=False)
    f, x = compiled(layer), torch.randn(3, 64)
    with torch.no_grad():
        f(x)
        for _ in range(3):
            layer.weight.mul_(2)
            torch.testing.assert_close(f(x), layer(x))
        layer.weight.data = torch.randn(64, 64)
        torch.testing.assert_close(f(x), layer(x))


def test_what_has_no_lowering_stays_torchs(monkeypatch):
    lowered = _island.has_lowering
    monkeypatch.setattr(
        "intarsia.torch.backend.has_lowering",
        lambda target, kwargs: target is not torch.ops.aten.sin.default and lowered(target, kwargs),
    )
    same(lambda x: (x + 1).sin() * 2, torch.randn(9))


def test_results_are_not_overwritten_by_the_next_call():
    f = compiled(lambda x: x + 1)
    first = f(torch.zeros(4))
    f(torch.ones(4))
    assert first.tolist() == [1.0] * 4


@pytest.mark.parametrize("form", torch_running.FORMS, ids=lambda form: form.name)
def test_each_of_our_ops(form: Form, monkeypatch):
    """Those that mutate run between islands, on the tensors themselves; the others within one."""
    islands = []
    monkeypatch.setattr(
        backend, "Island", lambda part: islands.append(part) or _island.Island(part)
    )
    case = next(iter(support.cases(form.op.name, "ci")))
    operands, attributes = make(form.op.name, case, "f32")
    tensors = [torch_running.to_torch(x) for x in operands]
    op = torch_running.overload(form)
    got = torch_running.results(form, compiled(lambda *x, **k: op(*x, **k)), tensors, attributes)
    running.check_against_reference(form.op.name, operands, attributes, got)
    called = [node.target for part in islands for node in part.graph.nodes]
    assert (op in called) == (not form.written)


def decode_step(key, value, key_cache, value_cache, query, slots, lengths, pages, starts):
    torch.ops.xla_gpu.reshape_and_cache_flash(key, value, key_cache, value_cache, slots)
    out, _ = torch.ops.xla_gpu.paged_attention.default(
        query * 2, key_cache, value_cache, lengths, pages, starts
    )
    return out + 1


def decode_inputs():
    key, value, query = torch.randn(2, 2, 64), torch.randn(2, 2, 64), torch.randn(2, 4, 64)
    caches = torch.randn(8, 16, 2, 64), torch.randn(8, 16, 2, 64)
    slots, lengths = torch.tensor([3 * 16 + 4, 6 * 16 + 1]), torch.tensor([5, 18])
    pages, starts = torch.tensor([[3, 0], [1, 6]]), torch.tensor([0, 1, 2])
    return [key, value, *caches, query, slots, lengths, pages, starts]


def test_a_cache_is_written_where_it_lies(monkeypatch):
    """No clone of a cache, and attention sees what was written just before."""
    inputs = decode_inputs()
    want = decode_step(*(x.clone() for x in inputs))
    clones = count_clones(monkeypatch)
    torch.testing.assert_close(compiled(decode_step)(*inputs), want)
    torch.testing.assert_close(inputs[2][3, 4], inputs[0][0])
    assert not clones


def count_clones(monkeypatch) -> list[torch.Tensor]:
    """Fills with the tensors that are cloned so that an op may write them."""
    cloned, clone = [], auto_functionalize.clone_preserve_strides

    def counting(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, FakeTensor):  # tracing clones what it likes
            cloned.append(x)
        return clone(x)

    monkeypatch.setattr(auto_functionalize, "clone_preserve_strides", counting)
    return cloned


def test_intermediate_results_are_written_where_they_lie(monkeypatch):
    def step(x, residual):
        y, residual = x * 2, residual * 3
        torch.ops.xla_gpu.fused_add_rms_norm(y, residual)
        return y + 1, residual

    x, residual = torch.randn(3, 64), torch.randn(3, 64)
    want = step(x, residual)
    clones = count_clones(monkeypatch)
    torch.testing.assert_close(compiled(step)(x, residual), want)
    assert not clones


def test_layers_of_one_cache_are_written_where_they_lie(monkeypatch):
    def step(keys, values, key_cache, value_cache, slots, layers):
        for key, value, layer in zip(keys, values, layers, strict=True):
            torch.ops.xla_gpu.reshape_and_cache_flash(
                key, value, key_cache, value_cache, slots, layer
            )
        return key_cache.sum()

    keys, values = torch.randn(2, 3, 4, 2, 8).unbind()
    inputs = [keys, values, *torch.zeros(2, 3, 5, 16, 2, 8).unbind(), torch.arange(4)]
    inputs.append(torch.arange(3, dtype=torch.int32))
    want = [x.clone() for x in inputs]
    total = step(*want)
    clones = count_clones(monkeypatch)
    torch.testing.assert_close(compiled(step)(*inputs), total)
    torch.testing.assert_close(inputs, want)
    assert not clones


def test_a_value_that_is_read_later_is_cloned():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    op = torch.ops.xla_gpu.fused_add_rms_norm.default
    node = graph.call_function(
        auto_functionalize.auto_functionalized_v2, (op,), {"_all_bases": [x, x]}
    )
    first, second = (graph.call_function(operator.getitem, (node, i)) for i in (1, 2))
    old = graph.call_function(torch.ops.aten.relu.default, (x,))
    graph.call_function(torch.ops.aten.copy_.default, (x, second))
    graph.output((first, old))
    backend._mutate_in_place(graph)
    assert node.args == (op, (0, 1))
    assert graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)


def test_threads_compile_at_once():
    f = compiled(lambda x: (x @ x.t()).softmax(-1), dynamic=True)
    f(torch.randn(3, 4))

    def run(rows: int) -> bool:
        x = torch.randn(rows, 4)
        return torch.allclose(f(x), (x @ x.t()).softmax(-1), atol=1e-6)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(5, 13)))


def test_a_clone_is_memory_of_its_own():
    x = torch.ones(16)
    y, z = compiled(lambda x: (x.clone(), x.clone()))(x)
    y.zero_()
    assert x.tolist() == z.tolist() == [1.0] * 16


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, torch.empty_like(x, device="meta") * 2),
        lambda x: (torch.empty_like(x, device="meta") * 2, x + 1),
        lambda x: (x * 3, x.to("meta", torch.float64), x.to("meta").sum(0)),
        lambda x: (x.exp(), torch.ones(3, device="meta") + 1, torch.ones(3) + 1),
    ],
)
def test_each_result_is_on_its_device(function):
    """meta stands for a second device, which any machine has."""
    x = torch.randn(2, 3)
    got, want = compiled(function)(x), function(x)
    for ours, torchs in zip(got, want, strict=True):
        assert (ours.device, ours.shape, ours.dtype) == (torchs.device, torchs.shape, torchs.dtype)
        if not ours.is_meta:
            torch.testing.assert_close(ours, torchs)


def test_a_copy_may_keep_its_dtype():
    same(
        lambda x: torch.ops.aten._to_copy(x * 2, memory_format=torch.preserve_format) + 1,
        torch.randn(5),
    )
    same(lambda x: torch.ops.aten._to_copy(x * 2, dtype=torch.float64) + 1, torch.randn(5))


@pytest.mark.gpu
def test_between_a_gpu_and_the_cpu():
    def function(x, y, scale):
        z = x * scale  # a CPU scalar among a GPU's tensors
        return z.cpu() + y, z.sum(), y.cuda() @ z, torch.ones(3) + 1, y + 1

    x, y = torch.randn(4, 4, device="cuda"), torch.randn(4, 4)
    for scale in (torch.tensor(3.0), torch.nn.Parameter(torch.tensor(3.0), requires_grad=False)):
        got, want = compiled(function)(x, y, scale), function(x, y, scale)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert [t.device for t in got] == [t.device for t in want]


@pytest.mark.filterwarnings("ignore:Please use the new API")
@pytest.mark.parametrize(
    ("precision", "word"), [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")]
)
def test_the_precision_of_products_is_torchs(precision, word, monkeypatch):
    """As XLA reads it from the program: a CPU computes all three alike."""
    islands = []
    monkeypatch.setattr(
        backend, "Island", lambda part: islands.append(_island.Island(part)) or islands[-1]
    )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        x = torch.randn(4, 4)
        compiled(lambda x: x @ x)(x)
    finally:
        torch.set_float32_matmul_precision(before)
    (island,) = islands
    with jax.default_matmul_precision(island._precision):
        text = island._program.lower((), jnp.zeros((4, 4))).as_text()
    assert f"precision = [{word}, {word}]" in text


@pytest.mark.parametrize(
    ("version", "device", "refused"),
    [
        ("2.11.0", "jax", True),
        ("2.11.0", "privateuseone", False),
        ("2.9.0", "jax", False),
    ],
)
def test_a_process_whose_accelerator_torchax_is_is_told(monkeypatch, version, device, refused):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: device)
    message = r'imported torchax, .* torch 2.11.0: use torch.compile\(backend="intarsia"\) in a'
    expected = pytest.raises(RuntimeError, match=message) if refused else contextlib.nullcontext()
    with expected, _torchax_import.only_tables_are_wanted():
        pass
