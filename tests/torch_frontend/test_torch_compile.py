"""What torch itself checks of an op, and the ops in graphs that torch compiles."""

import os
from typing import Any

import numpy as np
import pytest
import support
import torch
import torch_running
from intarsia.torch._form import Form, as_sequence
from test_ops import make

on_each_form = pytest.mark.parametrize(
    "form", torch_running.FORMS, ids=[form.name for form in torch_running.FORMS]
)


# But in `make test-full` without the one that compiles: test_compiled_is_eager asks for more.
OPCHECKS = ["test_schema", "test_autograd_registration", "test_faketensor"]
if os.environ.get("INTARSIA_TEST_FULL") == "1":
    OPCHECKS.append("test_aot_dispatch_dynamic")


def example(form: Form, dtype: str = "f32") -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """A small call."""
    (case,) = support.cases(form.op.name, "wire")
    operands, attributes = make(form.op.name, case, dtype)
    return [torch_running.to_torch(x) for x in operands], attributes


@on_each_form
@torch_running.on_each_device
def test_opcheck(form: Form, device: str) -> None:
    if device not in form.op.platforms:
        pytest.skip(f"{form.op.name} runs on {', '.join(form.op.platforms)}")
    operands, attributes = example(form)
    operands = tuple(None if x is None else x.to(device) for x in operands)
    torch.library.opcheck(torch_running.overload(form), operands, attributes, test_utils=OPCHECKS)


@on_each_form
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.full), True])
def test_compiled_is_eager(form: Form, dynamic: bool) -> None:
    """In one graph, by inductor; the caller's tensors are written."""
    torch.compiler.reset()
    operands, attributes = example(form)
    op = torch_running.overload(form)

    def program(*operands: torch.Tensor | None) -> Any:
        return op(*operands, **attributes)

    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic)
    eager = [None if x is None else x.clone() for x in operands]
    want = [*as_sequence(program(*eager)), *eager]
    got = [*as_sequence(compiled(*operands)), *operands]
    for x, y in zip(want, got, strict=True):
        if x is not None:
            np.testing.assert_array_equal(torch_running.to_numpy(x), torch_running.to_numpy(y))


def test_a_compiled_layer_is_eager() -> None:
    """Ops of several kinds with torch's own between them; one program serves other sizes and lengths."""
    torch.compiler.reset()
    op = torch.ops.xla_gpu
    h, hk, d, page = 4, 2, 64, 4
    weights = {
        n: torch.randn(s) / 8 for n, s in (("qkv", ((h + 2 * hk) * d, 64)), ("out", (64, h * d)))
    }
    table = torch.randn(32, d)

    def layer(x, residual, caches, positions, slots, lengths, pages, starts):
        op.fused_add_rms_norm(x, residual, eps=1e-5)
        q, k, v = (x @ weights["qkv"].T).view(-1, h + 2 * hk, d).split([h, hk, hk], dim=1)
        q, k = q.contiguous(), k.contiguous()
        op.rotary_embedding(positions, q, table, k)
        op.reshape_and_cache_flash(k, v, *caches, slots)
        out, _ = op.paged_attention(q, *caches, lengths, pages, starts)
        return out.flatten(1) @ weights["out"].T + residual

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for tokens in (3, 5, 7):
        caches = [torch.zeros(6, page, hk, d) for _ in range(2)]
        args = (
            torch.arange(tokens, dtype=torch.int32),
            torch.arange(tokens) + 4,
            torch.tensor([tokens], dtype=torch.int32),
            torch.tensor([[1, 2, 3]], dtype=torch.int32),
            torch.tensor([0, tokens], dtype=torch.int32),
        )
        x, residual = torch.randn(2, tokens, 64)
        copies = [x.clone(), residual.clone(), [c.clone() for c in caches]]
        want, got = layer(x, residual, caches, *args), compiled(*copies, *args)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(copies, [x, residual, caches])
