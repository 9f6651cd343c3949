"""Indices that mean nothing, to operands that lie between guards: the call returns, and changes only what it is to write."""

import zlib

import numpy as np
import torch
import torch_running
from intarsia.torch._form import Form
from test_ops import make
from test_torch_ops import on_each_case_of, some_dtype

GUARD = 4096  # bytes before and behind each operand
POISON = 0x5A
RUBBISH = (-1, -(2**31), 2**31 - 1, 2**31 - 16, 1 << 20, 63)
INDICES = ("i32|i64", "i32")


def takes_indices(form: Form) -> bool:
    return any(row["dtype"] == INDICES[0] for row in form.op.operands)


def ruined(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half of the numbers, and one at the least, are rubbish."""
    chosen = rng.random(x.shape) < 0.5
    chosen.reshape(-1)[:1] = True
    wide = (-(2**63), 2**63 - 1, 2**62) if x.dtype == np.int64 else ()
    return np.where(chosen, rng.choice(RUBBISH + wide, x.shape), x).astype(x.dtype)


def between_guards(arrays: list[torch.Tensor | None], device: str):
    """The operands in one allocation: it, they, and where they lie."""
    sizes = [0 if x is None else x.numel() * x.element_size() for x in arrays]
    places, end = [], GUARD
    for size in sizes:
        places.append((end, end + size))
        end = (end + size + 2 * GUARD - 1) // GUARD * GUARD
    pool = torch.full((end,), POISON, dtype=torch.uint8, device=device)
    views = [
        None if x is None else pool[begin:stop].view(x.dtype).view(x.shape).copy_(x)
        for x, (begin, stop) in zip(arrays, places, strict=True)
    ]
    return pool, views, places


@torch_running.on_each_device
@on_each_case_of([form for form in torch_running.FORMS if takes_indices(form)])
def test_nothing_else_is_written(form: Form, case: str, device: str) -> None:
    rng = np.random.default_rng(zlib.crc32(f"{form.name} {case}".encode()))
    operands, attributes = make(form.op.name, case, some_dtype(case))
    arrays = [
        torch_running.to_torch(ruined(x, rng) if x is not None and row["dtype"] in INDICES else x)
        for row, x in zip(form.op.operands, operands, strict=True)
    ]
    pool, views, places = between_guards(arrays, device)
    before = pool.clone()
    torch_running.overload(form)(*views, **attributes)
    may_change = torch.zeros_like(pool, dtype=torch.bool)
    for row, (begin, stop) in zip(form.op.operands, places, strict=True):
        may_change[begin:stop] = row["name"] in form.written
    changed = ((pool != before) & ~may_change).nonzero().flatten().tolist()
    assert not changed, f"bytes {changed[:8]} of {places} changed"


def test_guards_see_a_write_behind_an_operand() -> None:
    pool, (view,), [(_, stop)] = between_guards([torch.zeros(5)], "cpu")
    assert view.shape == (5,) and pool[stop - 1] == 0 and pool[stop] == POISON == pool[-1]
