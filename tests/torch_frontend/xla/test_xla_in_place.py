"""Caches are written where they lie: the same buffer before and after, whatever their order in the program."""

import os
import pathlib
import re
from collections.abc import Callable

import intarsia.torch  # noqa: F401  torch.ops.xla_gpu
import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm

PAGES, PAGE, HEADS, D, LAYERS = 4, 8, 2, 16, 3
Caches = dict[str, torch.Tensor]

ORDERS = {
    "by layer": [f"{what}{layer}" for layer in range(LAYERS) for what in ("key", "value")],
    "values first": [f"{what}{layer}" for what in ("value", "key") for layer in range(LAYERS)],
    "backwards": [f"{what}{layer}" for layer in (2, 1, 0) for what in ("value", "key")],
}


def pointers(caches: Caches) -> dict[str, int]:
    torch_xla.sync(wait=True)
    xm.wait_device_ops()
    return {name: torch_xla._XLAC._unsafe_buffer_pointer(x) for name, x in caches.items()}


def write(caches: Caches, new: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Every layer's caches get numbers of their own; one layer depends on the one before."""
    total = new
    for layer in range(LAYERS):
        key, value = caches[f"key{layer}"], caches[f"value{layer}"]
        torch.ops.xla_gpu.reshape_and_cache_flash(new + layer, total, key, value, slots)
        total = total + key[0, :3] + value[1, :3]
    return total


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])
def test_writes_keep_the_buffers(order: str, compiled: bool) -> None:
    shape = (PAGES, PAGE, HEADS, D)
    plain = {name: torch.zeros(shape) for name in ORDERS[order]}
    caches = {name: x.to("xla") for name, x in plain.items()}
    step: Callable[..., torch.Tensor] = write
    if compiled:
        torch.compiler.reset()
        step = torch.compile(write, backend="openxla", fullgraph=True)
    before = pointers(caches)
    assert len(set(before.values())) == len(caches)
    for i in range(3):
        new = torch.full((3, HEADS, D), float(i + 1))
        slots = torch.tensor([i, PAGE + i, -1])
        want = write(plain, new, slots)
        got = step(caches, new.to("xla"), slots.to("xla"))
        assert pointers(caches) == before
        assert torch.equal(got.cpu(), want)
        for name, x in plain.items():
            assert torch.equal(caches[name].cpu(), x), name


def test_a_program_runs_on_the_device_and_copies_no_cache() -> None:
    """Two caches of one size, in the order in which XLA by itself would swap them."""
    folder = re.search(r"--xla_dump_to=(\S+)", os.environ.get("XLA_FLAGS", ""))
    if not folder:
        pytest.skip("test_on_xla.py has XLA write its modules")
    assert xm.xla_device_hw(torch_xla.device()) == "INTARSIA"
    assert torch_xla.runtime.global_device_count() == 1
    assert torch.arange(5, device="xla").sum().item() == 10
    tokens, pages = 5, 11  # sizes that no other test has
    key_cache, value_cache = (torch.zeros(pages, 16, 2, 64).to("xla") for _ in range(2))
    new = torch.ones(tokens, 2, 64).to("xla")
    slots = torch.arange(tokens).to("xla")
    torch.ops.xla_gpu.reshape_and_cache_flash(new, new, key_cache, value_cache, slots)
    torch_xla.sync(wait=True)
    assert key_cache.cpu().sum() == tokens * 2 * 64
    files = pathlib.Path(folder[1]).glob("*after_optimizations.txt")
    modules = [text for file in files if f"f32[{pages},16,2,64]" in (text := file.read_text())]
    (module,) = (text for text in modules if "intarsia.reshape_and_cache_flash" in text)
    assert len(re.findall(r"\{\d\}: \(\d, \{\}, may-alias\)", module.splitlines()[0])) == 2
    assert " copy(" not in module


def test_a_copy_of_a_cache_stays_what_it_was() -> None:
    cache = torch.zeros(PAGES, PAGE, HEADS, D).to("xla")
    value = cache.clone()
    torch_xla.sync(wait=True)
    first = cache.clone()
    new, slots = torch.ones(1, HEADS, D).to("xla"), torch.tensor([0]).to("xla")
    torch.ops.xla_gpu.reshape_and_cache_flash(new, new, cache, value, slots)
    torch_xla.sync(wait=True)
    assert first.cpu().sum() == 0
    assert cache.cpu().sum() == value.cpu().sum() == HEADS * D


def test_activations_are_replaced() -> None:
    """What torch writes in place and XLA does not: the tensor, and views of it, have the new numbers."""
    x, residual = torch.randn(2, 3, 64), torch.randn(2, 3, 64)
    on_xla, sum_on_xla = x.to("xla"), residual.to("xla")
    view = on_xla[1]
    torch.ops.xla_gpu.fused_add_rms_norm(on_xla, sum_on_xla)
    torch.ops.xla_gpu.fused_add_rms_norm(x, residual)
    torch.testing.assert_close(on_xla.cpu(), x)
    torch.testing.assert_close(sum_on_xla.cpu(), residual)
    torch.testing.assert_close(view.cpu(), x[1])


def test_writes_in_inference_mode() -> None:
    x, residual = torch.randn(3, 64), torch.randn(3, 64)
    with torch.inference_mode():
        on_xla, sum_on_xla = x.to("xla"), residual.to("xla")
        torch.ops.xla_gpu.fused_add_rms_norm(on_xla, sum_on_xla)
    torch.ops.xla_gpu.fused_add_rms_norm(x, residual)
    torch.testing.assert_close(on_xla.cpu(), x)
    torch.testing.assert_close(sum_on_xla.cpu(), residual)


def either(compiled: bool, op: Callable[..., object]) -> Callable[..., object]:
    torch.compiler.reset()
    return torch.compile(op, backend="openxla", fullgraph=True) if compiled else op


@pytest.mark.parametrize("key", [torch.ones(1, HEADS, D - 1), torch.ones(1, HEADS, D)])
def test_a_refused_write_leaves_the_cache_readable(key: torch.Tensor) -> None:
    """No program takes its buffer, as that of the write would have: of a wrong shape, or from another device."""
    cache = torch.randn(PAGES, PAGE, HEADS, D)
    on_xla, slots = cache.to("xla"), torch.tensor([1], device="xla")
    value = torch.ones(1, HEADS, D, device="xla")
    key = key if key.shape[-1] == D else key.to("xla")
    with pytest.raises(ValueError, match=r"^reshape_and_cache_flash: "):
        torch.ops.xla_gpu.reshape_and_cache_flash(value, key, on_xla, on_xla.clone(), slots)
    torch_xla.sync(wait=True)
    copy = on_xla + 0
    torch_xla.sync(wait=True)
    assert torch.equal(copy.cpu(), cache) and torch.equal(on_xla.cpu(), cache)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("part", ["whole", "page order", "half"])
def test_one_memory_for_two_written_operands_is_refused(part: str, mode: type) -> None:
    """As on the CPU, and with nothing written."""
    for device in ("cpu", "xla"):
        with mode():
            cache = torch.zeros(2, PAGES, PAGE, HEADS, D, device=device)
            key_cache, value_cache = {
                "whole": lambda x: (x[0].clone(),) * 2,
                "page order": lambda x: [x.flatten(0, 1), x.flatten(0, 1)],
                "half": lambda x: [x[1], x[1]],
            }[part](cache)
            key = torch.ones(1, HEADS, D, device=device)
            with pytest.raises(ValueError, match="value_cache shares memory with key_cache"):
                torch.ops.xla_gpu.reshape_and_cache_flash(
                    key, key, key_cache, value_cache, torch.tensor([1], device=device)
                )
            assert not cache.cpu().any()
            assert not key_cache.cpu().any()
            x = torch.ones(3, 64, device=device)
            with pytest.raises(ValueError, match="residual shares memory with x and both are"):
                torch.ops.xla_gpu.fused_add_rms_norm(x, x)
            assert (x.cpu() == 1).all()
            said, first = r"swap_blocks: blocks .* source", torch.tensor([0], device=device)
            with pytest.raises(ValueError, match=said):
                torch.ops.xla_gpu.swap_blocks(x, x, first, first + 1)


@pytest.mark.parametrize("pages", [1, PAGES])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])
def test_an_expanded_cache_is_refused(compiled: bool, pages: int) -> None:
    def op(key: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        expanded = cache[:pages, :1].expand(-1, PAGE, -1, -1)
        torch.ops.xla_gpu.reshape_and_cache_flash(key, key, expanded, expanded.clone(), slots)

    key, cache = torch.ones(1, HEADS, D).to("xla"), torch.zeros(PAGES, PAGE, HEADS, D).to("xla")
    with pytest.raises((ValueError, torch._dynamo.exc.BackendCompilerFailed)) as error:
        either(compiled, op)(key, cache, torch.tensor([1]).to("xla"))
    assert "key_cache is expanded and is written, expected memory for each" in str(error.value)
    assert not cache.cpu().any()


@pytest.mark.parametrize(
    "mode", [torch.no_grad, pytest.param(torch.inference_mode, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])
@pytest.mark.parametrize("how", ["select", "unbind", "split", "chunk"])
def test_two_parts_of_one_cache_are_written(how: str, compiled: bool, mode: type) -> None:
    def op(key: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        parts = {
            "select": lambda: [cache[0], cache[1]],
            "unbind": cache.unbind,
            "split": lambda: [x.squeeze(0) for x in cache.split(1)],
            "chunk": lambda: [x[0] for x in cache.chunk(2)],
        }[how]()
        torch.ops.xla_gpu.reshape_and_cache_flash(key, key * 2, *parts, slots)

    with mode():
        key, cache = torch.ones(1, HEADS, D), torch.zeros(2, PAGES, PAGE, HEADS, D)
        slots, on_xla = torch.tensor([1]), cache.to("xla")
        op(key, cache, slots)
        either(compiled, op)(key.to("xla"), on_xla, slots.to("xla"))
        assert torch.equal(on_xla.cpu(), cache)
