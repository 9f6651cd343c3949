"""Every op on torchax's tensors, against the op's own reference in f64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import intarsia.torchax  # noqa: F401  first: it imports torchax where torch is too new for it, too
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
import torch
import torch_running
import torchax
from intarsia import xla_ops
from intarsia.torch._form import Form, as_sequence
from test_ops import make
from test_torch_ops import on_each_case_of, some_dtype
from torchax.ops import mappings


def _on_torchax(form: Form):
    """The op on copies in torchax; what it writes there is written back."""

    def call(*operands, **attributes):
        env = torchax.default_env()
        moved = [
            None if x is None else env.j2t_iso(jnp.asarray(torch_running.to_numpy(x)))
            for x in operands
        ]
        with env:
            returned = torch_running.overload(form)(*moved, **attributes)
        for row, x, y in zip(form.op.operands, operands, moved, strict=True):
            if row["name"] in form.written and x is not None:
                x.copy_(_back(y))
        if returned is None or isinstance(returned, torch.Tensor):
            return None if returned is None else _back(returned)
        return [_back(x) for x in returned]

    return call


def _back(x: torch.Tensor) -> torch.Tensor:
    return torch_running.to_torch(np.asarray(x.jax()))


def lacks_a_type(call: tuple[list, dict]) -> bool:
    """Whether an operand has a dtype that torchax has no tensors of."""
    known = mappings.JAX_DTYPE_TO_TORCH
    return any(x is not None and jnp.dtype(x.dtype) not in known for x in call[0])


@functools.cache
def in_one_program(name: str, in_every_run: bool) -> dict[str, tuple[list, dict, Callable]]:
    """By case: operands, attributes, and the op as it ran in one program of all cases in every run, or all others."""
    form = next(form for form in torch_running.FORMS if form.name == name)
    given = {
        case: call
        for case in support.cases(form.op.name, "ci")
        if (case in support.kinds_of_cases(form.op.name)) == in_every_run
        and not lacks_a_type(call := make(form.op.name, case, some_dtype(case)))
    }

    def program(arrays: dict[str, list]) -> dict[str, tuple[list, list]]:
        env, found = torchax.default_env(), {}
        for case, operands in arrays.items():
            moved = [None if x is None else env.j2t_iso(x) for x in operands]
            with env:
                returned = torch_running.overload(form)(*moved, **given[case][1])
            found[case] = (
                [x.jax() for x in as_sequence(returned)],
                [y.jax() for _, y in _written(form, moved)],
            )
        return found

    results = jax.jit(program)({case: operands for case, (operands, _) in given.items()})
    return {case: (*given[case], _replayed(form, *results[case])) for case in given}


def _written(form: Form, operands: Sequence) -> list[tuple[int, Any]]:
    """The operands that the op writes, with their positions."""
    rows = zip(form.op.operands, operands, strict=True)
    return [
        (i, x) for i, (row, x) in enumerate(rows) if row["name"] in form.written and x is not None
    ]


def _replayed(form: Form, returned: list, written: list) -> Callable:
    """A function that does to its operands what a program did, and returns what that returned."""

    def call(*operands, **attributes):
        for (_, x), y in zip(_written(form, operands), written, strict=True):
            x.copy_(torch_running.to_torch(np.asarray(y)))
        return [torch_running.to_torch(np.asarray(x)) for x in returned]

    return call


@on_each_case_of(torch_running.FORMS, kinds=True)
def test_against_f64(form: Form, case: str) -> None:
    program = in_one_program(form.name, case in support.kinds_of_cases(form.op.name))
    if case not in program:
        pytest.skip("torchax has no tensors of an operand's dtype")
    operands, attributes, call = program[case]
    tensors = [torch_running.to_torch(x) for x in operands]
    got = torch_running.results(form, call, tensors, attributes)
    running.check_against_reference(form.op.name, operands, attributes, got)


@pytest.mark.parametrize("form", torch_running.FORMS, ids=lambda form: form.name)
def test_eagerly(form: Form) -> None:
    """Each op by itself, on arrays instead of a program's tracers."""
    (case,) = support.cases(form.op.name, "wire")
    operands, attributes = make(form.op.name, case, some_dtype(case))
    tensors = [torch_running.to_torch(x) for x in operands]
    got = torch_running.results(form, _on_torchax(form), tensors, attributes)
    running.check_against_reference(form.op.name, operands, attributes, got)


def test_a_view_is_written_where_it_lies():
    env = torchax.default_env()
    with env:
        both = torch.ones(2, 4, 64, device="jax")
        torch.ops.xla_gpu.fused_add_rms_norm(both[0], both[1])
    got = np.asarray(both.jax())
    np.testing.assert_allclose(got[1], 2.0)
    np.testing.assert_allclose(got[0], 1.0, rtol=1e-5)


def test_under_jit_an_op_is_one_custom_call():
    env = torchax.default_env()

    @jax.jit
    def norm(x):
        with env:
            return torch.ops.xla_gpu.rms_norm(env.j2t_iso(x)).jax()

    assert norm.lower(jnp.ones((3, 64))).as_text().count("custom_call @intarsia.rms_norm") == 1


def test_a_wrong_call_says_what_is_wrong():
    with torchax.default_env():
        x, weight = torch.ones(3, 64, device="jax"), torch.ones(5, device="jax")
        with pytest.raises(ValueError, match="rms_norm: weight has n=5 but x has n=64"):
            torch.ops.xla_gpu.rms_norm(x, weight)


def _in_torchax(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [torchax.default_env().j2t_iso(jnp.asarray(x.numpy())) for x in tensors]


def test_operands_by_name():
    x, residual, weight = torch.randn(3, 3, 64).unbind(1)
    weight = weight[0]
    op = torch.ops.xla_gpu
    a, b, w = _in_torchax(x, residual, weight)
    with torchax.default_env():
        norm = op.rms_norm(weight=w, x=a, eps=1e-5)
        both = op.fused_add_rms_norm.functional(a, residual=b, weight=w)
        op.fused_add_rms_norm(a, weight=w, residual=b)
    torch.testing.assert_close(_back(norm), op.rms_norm(x, weight, eps=1e-5))
    want = op.fused_add_rms_norm.functional(x, residual, weight)
    torch.testing.assert_close(tuple(map(_back, both)), want)
    torch.testing.assert_close((_back(a), _back(b)), want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda op, x: op.rms_norm(x, x, x), "rms_norm: got 3 operands, expected x, weight"),
        (lambda op, x: op.rms_norm(x, x=x), "rms_norm: x is given twice"),
        (
            lambda op, x: op.fused_add_rms_norm(x, weight=x),
            "rms_norm: residual is missing, expected",
        ),
        (lambda op, x: op.rms_norm(x, wait=x), "rms_norm: unknown attribute wait"),
    ],
)
def test_operands_that_do_not_fit(call, message):
    with torchax.default_env(), pytest.raises(TypeError, match=message):
        call(torch.ops.xla_gpu, torch.ones(3, 64, device="jax"))


def _attention_inputs() -> tuple[torch.Tensor, ...]:
    query, cache = torch.randn(2, 4, 8), torch.randn(6, 16, 4, 8)  # K in even, V in odd heads
    lengths, pages, starts = [20, 7], [[0, 3], [5, 0]], [0, 1, 2]
    return query, cache, *(torch.tensor(x, dtype=torch.int32) for x in (lengths, pages, starts))


@pytest.mark.parametrize("num_seqs", [1, 2, "tensor"])
@pytest.mark.parametrize(
    "call",
    [
        lambda *x: torch.ops.xla_gpu.paged_attention(*x, 8**-0.5),
        lambda *x: torch.ops.xla_gpu.paged_attention(*x[:-1], num_seqs=x[-1], scale=8**-0.5),
        lambda *x: xla_ops.xla_gpu_paged_attention(*x, 8**-0.5),
    ],
    ids=["op", "by name", "function"],
)
def test_paged_attention_with_one_cache(call, num_seqs):
    inputs = _attention_inputs()
    number = torch.tensor([2], dtype=torch.int32) if num_seqs == "tensor" else num_seqs
    want = call(*inputs, number)
    moved = _in_torchax(*inputs)
    if num_seqs == "tensor":
        (number,) = _in_torchax(number)
    with torchax.default_env():
        got = call(*moved, number)
    torch.testing.assert_close(_back(got), want)


def test_paged_attention_with_two_caches():
    query, cache, *rest = _attention_inputs()
    inputs = query, cache[:, :, ::2].contiguous(), cache[:, :, 1::2].contiguous(), *rest
    want, _ = torch.ops.xla_gpu.paged_attention(*inputs)
    with torchax.default_env():
        for op in (torch.ops.xla_gpu.paged_attention, torch.ops.xla_gpu.paged_attention.default):
            got, lse = op(*_in_torchax(*inputs))
            torch.testing.assert_close(_back(got), want)
            assert lse.shape == (0,) and lse.dtype == torch.float32


def test_flash_attention_under_its_names():
    q, k, v = torch.randn(3, 10, 4, 8).unbind()
    starts = torch.tensor([0, 4, 10], dtype=torch.int32)
    want = xla_ops.flash_attn_varlen_func(q, k, v, starts, starts, 6, 6, causal=True)
    inputs = _in_torchax(q, k, v, starts, starts)
    with torchax.default_env():
        got = xla_ops.flash_attn_varlen_func(*inputs, 6, 6, causal=True)
        for op in (torch.ops.xla.flash_attn_varlen_op, torch.ops.xla.flash_attn_varlen_op.default):
            torch.testing.assert_close(_back(op(*inputs, 6, 6, is_causal=True)[0]), want)
    torch.testing.assert_close(_back(got), want)


def test_vllms_and_torch_xlas_functions():
    x, weight = torch.randn(4, 64), torch.randn(64)
    key, value = torch.randn(2, 4, 2, 8).unbind()
    caches = torch.zeros(2, 2, 16, 2, 8).unbind()
    slots = torch.tensor([0, 17, 2, -1], dtype=torch.int32)
    moved = _in_torchax(x, weight, key, value, *caches, slots)
    with torchax.default_env():
        norm = xla_ops.rms_norm_xla(*moved[:2], epsilon=1e-5)
        xla_ops.reshape_and_cache_flash(*moved[2:])
    torch.testing.assert_close(_back(norm), xla_ops.rms_norm_xla(x, weight, epsilon=1e-5))
    xla_ops.reshape_and_cache_flash(key, value, *caches, slots)
    torch.testing.assert_close(list(map(_back, moved[4:6])), list(caches))
