"""Indices that mean nothing, to operands and results that lie between guards: the call returns, and changes only what it is to write."""

import zlib

import numpy as np
import pytest
import running
import torch
import torch_running
from intarsia import _dtypes, _native
from intarsia.torch._form import Form
from test_ops import make
from test_torch_ops import on_each_case_of, some_dtype

GUARD = 4096  # bytes before and behind each operand
POISON = 0x5A
RUBBISH = (-1, -(2**31), 2**31 - 1, 2**31 - 16, 1 << 20, 63)
INDICES = ("i32|i64", "i32")


def takes_indices(form: Form) -> bool:
    return any(row["dtype"] == INDICES[0] for row in form.op.operands)


def is_op(form: Form) -> bool:
    """One form of each op."""
    return form.name == form.op.name


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


def hostile(form: Form, case: str) -> tuple[list[torch.Tensor | None], dict]:
    """The case's operands, their indices ruined and some of them in 64 bits, and its attributes."""
    rng = np.random.default_rng(zlib.crc32(f"{form.name} {case}".encode()))
    operands, attributes = make(form.op.name, case, some_dtype(case))
    arrays = []
    for row, x in zip(form.op.operands, operands, strict=True):
        if x is not None and row["dtype"] in INDICES:
            wide = row["dtype"] == INDICES[0] and rng.integers(2)
            x = ruined(x.astype(np.int64) if wide else x, rng)
        arrays.append(torch_running.to_torch(x))
    return arrays, attributes


def check_unchanged(pool: torch.Tensor, before: torch.Tensor, written: list[tuple[int, int]]):
    """All of the pool but these places is what it was."""
    may_change = torch.zeros_like(pool, dtype=torch.bool)
    for begin, stop in written:
        may_change[begin:stop] = True
    changed = ((pool != before) & ~may_change).nonzero().flatten().tolist()
    assert not changed, f"bytes {changed[:8]} changed, written may be {written}"


@torch_running.on_each_device
@on_each_case_of([form for form in torch_running.FORMS if takes_indices(form)])
def test_nothing_else_is_written(form: Form, case: str, device: str) -> None:
    arrays, attributes = hostile(form, case)
    pool, views, places = between_guards(arrays, device)
    before = pool.clone()
    torch_running.overload(form)(*views, **attributes)
    rows = zip(form.op.operands, places, strict=True)
    check_unchanged(pool, before, [place for row, place in rows if row["name"] in form.written])


def as_row(x: torch.Tensor | None) -> _native.Tensor | None:
    if x is None:
        return None
    dtype = _dtypes.name_of(str(x.dtype).removeprefix("torch."))
    return _native.Tensor(tuple(x.shape), dtype, x.data_ptr())


def poisoned(row: _native.Result | None) -> torch.Tensor | None:
    """Memory for a result or a workspace that is no operand."""
    if row is None or row.alias is not None:
        return None
    dtype = getattr(torch, _dtypes.array_name(row.dtype))
    size = int(np.prod(row.shape)) * dtype.itemsize
    return torch.full((size,), POISON, dtype=torch.uint8).view(dtype).view(row.shape)


@torch_running.on_each_device
@on_each_case_of([form for form in torch_running.FORMS if takes_indices(form) and is_op(form)])
def test_results_are_written_where_they_lie(form: Form, case: str, device: str) -> None:
    """By the C function, as torch gives results memory of its own: they and workspaces lie between guards, too."""
    op, (arrays, attributes) = form.op, hostile(form, case)
    rows = running.LIBRARY.infer(op.name, list(map(as_row, arrays)), attributes)
    pool, views, places = between_guards(arrays + list(map(poisoned, rows)), device)
    operands, results = views[: len(arrays)], views[len(arrays) :]
    written = places[len(arrays) :]
    for i, row in enumerate(rows):
        if row is not None and row.alias is not None:
            results[i], written[i] = operands[row.alias], places[row.alias]
    before, cuda = pool.clone(), device == "cuda"
    running.LIBRARY.call(
        op.name,
        "CUDA" if cuda else "Host",
        list(map(as_row, operands)),
        attributes,
        list(map(as_row, results)),
        torch.cuda.current_stream().cuda_stream if cuda else None,
    )
    check_unchanged(pool, before, written)


def test_guards_see_a_write_behind_an_operand() -> None:
    pool, (view,), [(begin, stop)] = between_guards([torch.zeros(5)], "cpu")
    assert view.shape == (5,) and pool[stop - 1] == 0 and pool[stop] == POISON == pool[-1]
    before = pool.clone()
    pool[begin:stop] = 1
    check_unchanged(pool, before, [(begin, stop)])
    for place in (begin - 1, stop):
        pool[place] += 1
        with pytest.raises(AssertionError, match=rf"bytes \[{place}\] changed"):
            check_unchanged(pool, before, [(begin, stop)])
        pool[place] -= 1
