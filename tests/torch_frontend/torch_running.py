"""Runs an op through torch: NumPy's arrays in, NumPy's arrays out, as tests/running.py does through JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import intarsia.torch
import ml_dtypes
import numpy as np
import pytest
import running
import support
import torch
from intarsia import _dtypes
from intarsia.torch._form import Form, as_sequence, find, forms


def _forms_on(platform: str) -> list[Form]:
    names = support.op_names(platform)
    return [form for op in names for form in forms(running.LIBRARY.find(op))]


FORMS, FORMS_ON_CUDA = _forms_on("cpu"), _forms_on("cuda")

on_each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def overload(form: Form) -> torch._ops.OpOverload:
    """torch's op."""
    return find(f"{intarsia.torch.NAMESPACE}::{form.name}")


def to_torch(x: np.ndarray | None) -> torch.Tensor | None:
    """A copy; NumPy and torch share no names for the 16- and 8-bit floats."""
    if x is None:
        return None
    x = np.array(x, order="C")
    if x.dtype.type.__module__ != ml_dtypes.bfloat16.__module__:
        return torch.from_numpy(x)
    dtype = getattr(torch, _dtypes.array_name(_dtypes.name_of(x.dtype)))
    return torch.from_numpy(x.view(f"u{x.itemsize}")).view(dtype)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    x = x.detach().cpu()
    dtype = _dtypes.numpy_dtype(_dtypes.name_of(str(x.dtype).removeprefix("torch.")))
    if dtype.type.__module__ != ml_dtypes.bfloat16.__module__:
        return x.numpy()
    return (
        x.contiguous().view({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).numpy().view(dtype)
    )


def raw_results(
    form: Form, call: Callable[..., Any], operands: Sequence[torch.Tensor | None], attributes: dict
) -> list[torch.Tensor]:
    """The results that exist, in spec order; those in place are taken from their operands."""
    exists = running.LIBRARY.infer(
        form.op.name,
        [running.tensor(x if x is None else to_numpy(x)) for x in operands],
        attributes,
    )
    left = iter(as_sequence(call(*operands, **attributes)))
    names = [row["name"] for row in form.op.operands]
    found = []
    for i, row in enumerate(form.op.results):
        if row["workspace"]:
            continue
        result = next(left) if i in form.returns else operands[names.index(form.destination(row))]
        if exists[i] is not None:
            found.append(result)
        elif i in form.returns:
            assert tuple(result.shape) == (0,) and result.dtype == torch.float32
    return found


def results(
    form: Form, call: Callable[..., Any], operands: Sequence[torch.Tensor | None], attributes: dict
) -> list[np.ndarray]:
    """The same as NumPy's."""
    return [to_numpy(x) for x in raw_results(form, call, operands, attributes)]
