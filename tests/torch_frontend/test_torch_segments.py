"""Sums of rows in a fixed order, and gradients of experts, which have no sum in another. tests/test_segments.py has JAX's."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch_running
from intarsia.torch._segments import sums_of_groups, sums_of_rows
from torch.utils._python_dispatch import TorchDispatchMode

op = torch.ops.xla_gpu


def whole(*shape: int) -> torch.Tensor:
    """Numbers of which every sum is exact."""
    return torch.randint(-99, 99, shape).float()


def one_by_one(rows: torch.Tensor, owners: torch.Tensor, count: int) -> torch.Tensor:
    sums = [rows[owners == owner].sum(0) for owner in range(count)]
    return torch.stack(sums) if sums else rows.new_zeros(0, rows.shape[1])


@torch_running.on_each_device
@pytest.mark.parametrize("m", [0, 1, 600])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_sums(m: int, count: int, device: str) -> None:
    rows, owners = whole(m, 8).to(device), torch.randint(count + 1, (m,), device=device)
    want = one_by_one(rows, owners, count)
    assert torch.equal(sums_of_rows(rows, owners, count), want)
    owners, order = owners.sort()
    sizes = torch.bincount(owners, minlength=count + 1)[:-1].int()
    assert torch.equal(sums_of_groups(rows[order], owners, sizes, None, count), want)


def test_a_number_that_is_none_stays_with_its_owner() -> None:
    rows, owners = torch.randn(40, 8), torch.arange(40) // 14
    rows[7] = torch.nan
    sizes = torch.bincount(owners).int()
    for got in (sums_of_rows(rows, owners, 3), sums_of_groups(rows, owners, sizes, None, 3)):
        assert got[0].isnan().all() and got[1:].isfinite().all()


def test_gradients_of_gradients() -> None:
    owners, sizes = torch.tensor([0, 0, 1, 2, 2, 3]), torch.tensor([2, 1, 2])  # 3: nobody

    def twice(add: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        rows = torch.arange(48.0).reshape(6, 8).requires_grad_()
        (once,) = torch.autograd.grad((add(rows) ** 3).sum(), rows, create_graph=True)
        return torch.autograd.grad((once**2).sum(), rows)[0]

    want = twice(lambda rows: one_by_one(rows, owners, 3))
    assert want[:5].all()
    for got in (
        twice(lambda rows: sums_of_rows(rows, owners, 3)),
        twice(lambda rows: sums_of_groups(rows, owners, sizes, None, 3)),
    ):
        torch.testing.assert_close(got, want)


def loss_with_rows(device: str) -> tuple[Callable, Sequence[torch.Tensor]]:
    rows = torch.arange(300, device=device) ** 2 % 41 - 1
    sizes = torch.tensor([100, 0, 150], device=device)

    def loss(x, w, bias):
        return (op.grouped_matmul(x, w, sizes, None, rows, bias) ** 2).sum()

    return loss, [torch.randn(*s, device=device) for s in ((40, 64), (3, 64, 72), (3, 72))]


def loss_of_experts(device: str, on_input: bool = False) -> tuple[Callable, Sequence[torch.Tensor]]:
    ids = torch.arange(200, device=device).reshape(100, 2) ** 2 % 5

    def loss(x, w1, w2, weights, w1_bias, w2_bias):
        out = op.fused_experts(
            x, w1, w2, weights, ids, w1_bias, w2_bias, apply_router_weight_on_input=on_input
        )
        return (out**2).sum()

    shapes = ((100, 64), (3, 144, 64), (3, 64, 72), (100, 2), (3, 144), (3, 64))
    return loss, [torch.randn(*s, device=device) for s in shapes]


def loss_of_weighted_inputs(device: str) -> tuple[Callable, Sequence[torch.Tensor]]:
    return loss_of_experts(device, on_input=True)


each_loss = pytest.mark.parametrize(
    "make", [loss_with_rows, loss_of_experts, loss_of_weighted_inputs]
)


def gradients(loss: Callable, floats: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in floats]
    return torch.autograd.grad(loss(*leaves), leaves)


class Calls(TorchDispatchMode):
    """The ops that are called, those that add numbers of a float dtype by `index_add` and the like apart."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.scattered: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(name := func.overloadpacket.__name__)
        adds = name.rstrip("_") in ("index_add", "scatter_add", "index_put", "scatter_reduce")
        if adds and args[0].is_floating_point():
            self.scattered.append(name)
        return func(*args, **(kwargs or {}))


@each_loss
def test_gradients_add_no_floats_by_atomics(make: Callable) -> None:
    with Calls() as calls:
        gradients(*make("cpu"))
    assert "grouped_matmul_weight_gradient" in calls.seen and calls.scattered == []


@each_loss
def test_compiled(make: Callable) -> None:
    loss, floats = make("cpu")
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for got, want in zip(gradients(compiled, floats), gradients(loss, floats), strict=True):
        assert (got - want).norm() <= 1e-5 * want.norm()


def experts_one_by_one(on_input, x, w1, w2, weights, ids, w1_bias, w2_bias) -> torch.Tensor:
    """The layer pair by pair, with silu."""
    out = []
    for token, shares, experts in zip(x, weights, ids.tolist(), strict=True):
        total = torch.zeros_like(token)
        for share, e in zip(shares, experts, strict=True):
            if 0 <= e < len(w1):
                before, behind = (share, 1) if on_input else (1, share)
                gate, up = (before * (w1[e] @ token) + w1_bias[e]).chunk(2)
                gated = torch.nn.functional.silu(gate) * up
                total = total + behind * (w2[e] @ gated + w2_bias[e])
        out.append(total)
    return torch.stack(out) if out else x.new_zeros(x.shape)


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("sizes", [{}, *({axis: 0} for axis in "tniek")], ids=str)
def test_experts_of_any_size(sizes: dict[str, int], on_input: bool) -> None:
    t, n, i, e, k = (({"t": 5, "n": 8, "i": 6, "e": 3, "k": 2} | sizes)[axis] for axis in "tniek")
    ids = torch.arange(t * k).reshape(t, k) ** 2 % 5 - 1
    shapes = ((t, n), (e, 2 * i, n), (e, n, i), (t, k), (e, 2 * i), (e, n))
    floats = [torch.randn(shape, requires_grad=True) for shape in shapes]
    x, w1, w2, weights, *biases = floats
    given = x, w1, w2, weights, ids, *biases
    out = op.fused_experts(*given, apply_router_weight_on_input=on_input)
    want_out = experts_one_by_one(on_input, *given)
    torch.testing.assert_close(out, want_out, rtol=1e-4, atol=1e-4)
    got = torch.autograd.grad((out**2).sum(), floats)
    if want_out.requires_grad:
        options = {"allow_unused": True, "materialize_grads": True}
        want = torch.autograd.grad((want_out**2).sum(), floats, **options)
    else:
        want = [torch.zeros_like(x) for x in floats]
    torch.testing.assert_close(got, tuple(want), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_have_the_same_bits_in_every_run(make: Callable, dtype: torch.dtype) -> None:
    loss, floats = make("cuda")
    floats = [x.to(dtype) for x in floats]
    want = gradients(loss, floats)
    for _ in range(3):
        for x, y in zip(gradients(loss, floats), want, strict=True):
            assert x.isfinite().all() and torch.equal(x, y)
