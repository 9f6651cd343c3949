"""Every op on torchax's tensors, against the op's own reference in f64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import torch
import torch_running
import torchax
from intarsia.torch._form import Form
from test_ops import make
from test_torch_ops import on_each_case, some_dtype

import intarsia.torchax  # noqa: F401  isort: skip


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


@on_each_case
def test_against_f64(form: Form, case: str) -> None:
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
