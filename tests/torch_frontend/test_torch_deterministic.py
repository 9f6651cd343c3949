"""The deterministic gradient of attention: who asks for it, and that the backward op is told."""

from collections.abc import Callable, Sequence

import pytest
import torch
from intarsia import xla_ops
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils._python_dispatch import TorchDispatchMode

op = torch.ops.xla_gpu


class BackwardCalls(TorchDispatchMode):
    """What calls of attention's backward op say of `deterministic`: a CPU gives the same bits at any rate."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is op.flash_attn_varlen_backward.default:
            self.seen.append((kwargs or {}).get("deterministic", False))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("return_lse", [False, True])
def test_deterministic_algorithms_ask_for_the_deterministic_gradient(return_lse: bool) -> None:
    q, k, v = (torch.randn(5, 2, 16, requires_grad=True) for _ in range(3))
    starts = torch.tensor([0, 5], dtype=torch.int32)
    out, _ = op.flash_attn_varlen(q, k, v, starts, starts, return_lse=return_lse)
    with BackwardCalls() as calls:
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic)
            try:
                torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
            finally:
                torch.use_deterministic_algorithms(False)
    assert calls.seen == [False, True]


def compiled_backward(function: Callable, seen: list[bool]) -> Callable:
    """The function compiled; `seen` gets what the graph of its backward pass says of `deterministic`."""

    def look(graph: torch.fx.GraphModule, inputs: Sequence) -> Callable:
        target = op.flash_attn_varlen_backward.default
        calls = graph.graph.find_nodes(op="call_function", target=target)
        seen.extend(call.kwargs.get("deterministic", False) for call in calls)
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("differentiated", [(0, 1, 2), (3,)])
def test_one_call_asks_for_the_deterministic_gradient(
    compiled: bool, differentiated: tuple[int, ...]
) -> None:
    tensors = [*torch.randn(3, 5, 2, 16), torch.zeros(2)]
    of = [tensors[i].requires_grad_() for i in differentiated]
    starts = torch.tensor([0, 5], dtype=torch.int32)

    def attend(q, k, v, sinks, deterministic):
        return xla_ops.flash_attn_varlen_func(
            q, k, v, starts, starts, 5, 5, causal=True, sinks=sinks, deterministic=deterministic
        )

    def gradients() -> list[tuple[torch.Tensor, ...]]:
        outs = [attend(*tensors, deterministic) for deterministic in (True, False)]
        return [torch.autograd.grad(out.square().sum(), of) for out in outs]

    with BackwardCalls() as calls:
        want, seen = gradients(), calls.seen
    if compiled:
        seen = []
        attend = compiled_backward(attend, seen)
        torch.testing.assert_close(gradients(), want, rtol=0, atol=0)
    assert sorted(seen) == [False, True] and calls.seen == [True, False]
    for one, other in zip(*want, strict=True):
        assert torch.equal(one, other) and one.any()


def test_deterministic_matters_to_gradients_alone() -> None:
    """Over a paged cache, too, which has none."""
    q, pages = torch.randn(1, 2, 16), torch.randn(4, 8, 2, 16)
    starts, used = torch.tensor([0, 1]), {"seqused_k": torch.tensor([9])}
    call = [q, pages, pages, starts, None, 1, 9]
    options = used | {"block_table": torch.tensor([[2, 0]])}
    want = xla_ops.flash_attn_varlen_func(*call, **options)
    assert torch.equal(xla_ops.flash_attn_varlen_func(*call, **options, deterministic=True), want)
