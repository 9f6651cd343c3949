"""Programs of several ops on torch_xla's tensors: one graph, few compilations, the numbers of the CPU."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import running
import support
import test_ops
import torch
import torch._dynamo.utils
import torch_running
import torch_xla
import torch_xla.debug.metrics as metrics
import vllm_names
from intarsia import _packages
from intarsia.torch._form import Form

OPS = torch.ops.xla_gpu


def openxla(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend="openxla", fullgraph=True)


def compilations() -> int:
    return (metrics.metric_data("CompileTime") or [0])[0]


# In every run those of a layer, in which are all kinds of results; each op by itself is in test_xla_ops.py.
OF_A_LAYER = {
    "flash_attn_varlen",
    "fused_add_rms_norm",
    "fused_add_rms_norm.functional",
    "reshape_and_cache_flash",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
}


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, id=form.name, marks=[] if form.name in OF_A_LAYER else pytest.mark.full)
        for form in torch_running.FORMS
    ],
)
def test_each_op_is_in_one_graph(form: Form) -> None:
    case = next(iter(support.cases(form.op.name, "ci")))
    operands, attributes = test_ops.make(form.op.name, case, "bf16")
    tensors = [None if x is None else torch_running.to_torch(x).to("xla") for x in operands]
    torch_xla.sync(wait=True)
    torch._dynamo.utils.counters.clear()
    overload = torch_running.overload(form)
    call = openxla(lambda *tensors: overload(*tensors, **attributes))
    before = compilations()
    got = torch_running.results(form, lambda *tensors, **_: call(*tensors), tensors, attributes)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert compilations() <= before + 1  # two forms of an op may be one program
    running.check_against_reference(form.op.name, operands, attributes, got)


def test_an_attribute_is_part_of_the_program() -> None:
    x = torch.randn(4, 64)
    on_xla = x.to("xla")
    for eps in (1e-6, 1.0, 1e-6):
        want = OPS.rms_norm(x, eps=eps)
        torch.testing.assert_close(OPS.rms_norm(on_xla, eps=eps).cpu(), want, rtol=1e-6, atol=1e-6)
        compiled = openxla(lambda x, eps=eps: OPS.rms_norm(x, eps=eps))
        torch.testing.assert_close(compiled(on_xla).cpu(), want, rtol=1e-6, atol=1e-6)


H, HK, D, PAGE, PAGES, BATCH = 4, 2, 32, 16, 32, 3


def decode_step(
    x: torch.Tensor, weights: dict[str, torch.Tensor], lens: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """A layer of a decoder over a batch of sequences, each with one new token."""
    normed = OPS.rms_norm(x, weights["norm"], eps=1e-5)
    query, key, value = (normed @ weights["qkv"]).split([H * D, HK * D, HK * D], dim=-1)
    query, key = query.view(BATCH, H, D).clone(), key.view(BATCH, HK, D).clone()
    OPS.rotary_embedding(lens - 1, query, weights["cos_sin"], key)
    value = value.reshape(BATCH, HK, D)
    OPS.reshape_and_cache_flash(key, value, weights["keys"], weights["values"], slots)
    starts = torch.arange(BATCH + 1, device=x.device, dtype=torch.int32)
    table = weights["table"]
    out, _ = OPS.paged_attention(query, weights["keys"], weights["values"], lens, table, starts)
    residual = x + out.reshape(BATCH, H * D) @ weights["out"]
    return residual + OPS.silu_and_mul(residual @ weights["up"]) @ weights["down"]


def decoder() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * shape[0] ** -0.5

    n = H * D
    weights = {
        "norm": torch.ones(n),
        "qkv": randn(n, (H + 2 * HK) * D),
        "out": randn(n, n),
        "up": randn(n, 4 * n),
        "down": randn(2 * n, n),
        "cos_sin": torch.randn(PAGE * PAGES, D, generator=generator),
        "keys": torch.zeros(PAGES, PAGE, HK, D),
        "values": torch.zeros(PAGES, PAGE, HK, D),
        "table": torch.randperm(PAGES, generator=generator)[: BATCH * 8].view(BATCH, 8).int(),
    }
    return randn(BATCH, n), weights


def lengths(weights: dict[str, torch.Tensor], step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the sequences, this step's token included, and the slots of that token."""
    lens = torch.tensor([step + 1] * BATCH, dtype=torch.int32)
    page = weights["table"][:, step // PAGE].long()
    return lens, page * PAGE + step % PAGE


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])
def test_a_hundred_growing_steps_compile_once(compiled: bool) -> None:
    """Decode steps, the CPU's next to them; what grows from step to step is in tensors."""
    x, weights = decoder()
    on_xla = {name: w.to("xla") for name, w in weights.items()}
    y = x.to("xla")
    step = openxla(decode_step) if compiled else decode_step
    tolerance = 2e-2 if vllm_names.on_gpu() else 1e-3  # XLA multiplies in TF32 there
    counts = []
    for i in range(100):
        lens, slots = lengths(weights, i)
        x = decode_step(x, weights, lens, slots)
        y = step(y, on_xla, lens.to("xla"), slots.to("xla"))
        torch_xla.sync(wait=True)
        counts.append(compilations())
        torch.testing.assert_close(y.cpu(), x, rtol=tolerance, atol=tolerance)
        x, y = (z / z.norm() * 10 for z in (x, y))
    assert counts[-1] == counts[1], counts  # the first input of all comes from elsewhere


def test_a_compiled_decode_step_equals_eager() -> None:
    x, weights = decoder()
    results = []
    for step in (decode_step, openxla(decode_step)):
        on_xla = {name: w.to("xla") for name, w in weights.items()}
        lens, slots = lengths(weights, 0)
        results.append(step(x.to("xla"), on_xla, lens.to("xla"), slots.to("xla")).cpu())
        results.append(on_xla["keys"].cpu())
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


def test_choosing_an_overload_computes_nothing() -> None:
    """torch prints what does not fit an overload that it tries, and a tensor that is printed is computed."""
    lens, starts = torch.ones(1, dtype=torch.int32).to("xla"), torch.tensor([0, 1]).to("xla")
    cache = torch.ones(PAGES, PAGE, 2 * HK, D).to("xla")
    operands = [torch.ones(1, H, D).to("xla") + 1, cache[:, :, ::2], cache[:, :, 1::2], lens]
    operands += [torch.zeros(1, 1, dtype=torch.int32).to("xla"), starts + 0]
    torch_xla.sync(wait=True)
    operands[-1] = operands[-1] + 0
    before = (metrics.metric_data("ExecuteTime") or [0])[0]
    OPS.paged_attention(*operands)
    query, _, _, lens, table, starts = operands
    OPS.paged_attention(query, cache, lens, table, starts, 1, 0.5)
    OPS.paged_attention(query, cache, lens, table, starts, lens, 0.5)
    assert (metrics.metric_data("ExecuteTime") or [0])[0] == before


def test_a_wrong_call_writes_nothing_and_says_why() -> None:
    """What JAX says, at the call; the program collected so far is as it was."""
    cache = torch.zeros(PAGES, PAGE, HK, D).to("xla")
    key, slots = torch.ones(3, HK, D).to("xla"), torch.tensor([0, 1, 2]).to("xla")
    narrow = torch.zeros(PAGES, PAGE, HK + 1, D).to("xla")
    with pytest.raises(ValueError, match=r"reshape_and_cache_flash: value_cache has hk=3 but"):
        OPS.reshape_and_cache_flash(key, key, cache, narrow, slots)
    with pytest.raises(ValueError, match="rms_norm: weight has n=5 but x has n=64"):
        OPS.rms_norm(torch.ones(3, 64).to("xla"), torch.ones(5).to("xla"))
    with pytest.raises(ValueError, match="rms_norm: weight is on cpu but x is on xla:0"):
        OPS.rms_norm(torch.ones(3, 64).to("xla"), torch.ones(64))
    with pytest.raises(ValueError, match="rms_norm: x has dtype"):
        OPS.rms_norm(torch.ones(3, 64, dtype=torch.int32).to("xla"))
    assert cache.cpu().sum() == narrow.cpu().sum() == 0
    OPS.reshape_and_cache_flash(key, key, cache, cache.clone(), slots)
    assert cache.cpu().sum() == 3 * HK * D


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 88, device="xla")  # a program that there has not been yet
    monkeypatch.setitem(sys.modules, "jax", None)
    extra = _packages.Requirement("jax", "jax", ">=", "0.9.1", "jax>=0.9.1")
    monkeypatch.setattr(_packages, "requirements", lambda: [extra])  # installed as a package or not
    message = r"^rms_norm on XLA tensors needs jax, .*: pip install 'intarsia\[jax\]'$"
    with pytest.raises(ModuleNotFoundError, match=message):
        torch.ops.xla_gpu.rms_norm(x)


@pytest.mark.parametrize("how", ["operand", "parameter", "within"])
def test_the_other_backend_refuses_the_device(how: str) -> None:
    """It has no islands there, and what it leaves to torch would run as if it were not compiled."""
    function, x = {
        "operand": (lambda x: x * 2, torch.ones(3, device="xla")),
        "parameter": (lambda x: x * 2, torch.ones(3, device="xla", requires_grad=True)),
        "within": (lambda x: (x.to("xla") * 2).cpu(), torch.ones(3)),
    }[how]
    torch.compiler.reset()
    message = r'torch.compile\(backend="intarsia"\): \w+ is on xla:0, expected cpu or cuda; use backend="openxla"'
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as error:
        torch.compile(function, backend="intarsia")(x)
    assert isinstance(error.value.inner_exception, NotImplementedError)
