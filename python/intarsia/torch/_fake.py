"""Fake kernels: what a call returns where tensors have shapes and no numbers (torch.compile, export, meta tensors)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from intarsia import _dims, _dtypes, _native
from intarsia.torch._form import Form, Row, check_devices, to_return

Operands = Sequence[torch.Tensor | None]


class _Type(NamedTuple):
    shape: _dims.Shape
    dtype: str


def fake(form: Form, library: _native.Library) -> Callable[..., Any]:
    """The fake kernel of an op.

    Sizes that are numbers are checked as they are in a call, with the same messages; symbols are computed with.
    """

    def kernel(*args: torch.Tensor | None, **attributes: Any) -> Any:
        operands = form.operands(args)
        check_devices(form.op, operands)
        _check_memory(form, operands)
        shapes = [() if x is None else x.shape for x in operands]
        are_numbers = all(isinstance(size, int) for shape in shapes for size in shape)
        if are_numbers:
            types = _checked(form, library, operands, attributes)
        else:
            types = result_types(form.op, operands, attributes)
        device = operands[0].device
        results = [
            None if x is None else torch.empty(x.shape, dtype=torch_dtype(x.dtype), device=device)
            for x in (types[i] for i in form.returns)
        ]
        return to_return(results, device)

    return kernel


def _check_memory(form: Form, operands: Operands) -> None:
    """Raises if an operand that is written is another one, too: torch.compile would write a copy of it."""
    given = form.by_name(operands)
    for name in form.written:
        written = given[name]
        for other, x in given.items():
            if other != name and x is written is not None and x.numel():
                raise ValueError(
                    f"{form.op.name}: {name} shares memory with {other} and is written"
                )


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of the type with this name."""
    return getattr(torch, _dtypes.array_name(name))


def _name_of(x: torch.Tensor) -> str:
    return _dtypes.name_of(str(x.dtype).removeprefix("torch."))


def _checked(
    form: Form, library: _native.Library, operands: Operands, attributes: Mapping[str, Any]
) -> list[_Type | None]:
    """The results of a call as the library infers them; what is only read may be strided."""

    def seen(x: torch.Tensor | None, row: Row) -> _native.Tensor | None:
        if x is None:
            return None
        strides = tuple(x.stride()) if row["name"] in form.written else None
        return _native.Tensor(tuple(x.shape), _name_of(x), strides=strides)

    tensors = [seen(x, row) for x, row in zip(operands, form.op.operands, strict=True)]
    return [
        None if r is None else _Type(r.shape, r.dtype)
        for r in library.infer(form.op.name, tensors, attributes)
    ]


def result_types(
    op: _native.Op, operands: Operands, attributes: Mapping[str, Any]
) -> list[_Type | None]:
    """The results of a call by the spec's rules alone, which also hold for symbolic sizes."""
    shapes = [None if x is None else tuple(x.shape) for x in operands]
    names = [row["name"] for row in op.operands]
    dtypes = {n: _name_of(x) for n, x in zip(names, operands, strict=True) if x is not None}
    activation = next(
        (
            dtypes[row["name"]]
            for row in op.operands
            if "T" in row["dtype"].split("|") and dtypes.get(row["name"]) in _dtypes.ACTIVATIONS
        ),
        "bf16",
    )
    texts = {row["name"]: row["default"] for row in op.attributes} | dict(attributes)

    def dtype(rule: str) -> str:
        rule = texts.get(rule, rule)
        return rule if rule in _dtypes.NAMES else dtypes.get(rule, activation)

    return [
        None if shape is None else _Type(shape, dtype(row["dtype"]))
        for row, shape in zip(op.results, _dims.result_shapes(op, shapes, attributes), strict=True)
    ]
