"""Every op on torch_xla's tensors, by the cases that it has everywhere, against its own reference in NumPy f64."""

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import pytest
import running
import support
import test_ops
import torch_running
import torch_xla

FORMS = {form.name: form for form in torch_running.FORMS}


def _given(returned: Any) -> Callable[..., Any]:
    return lambda *_, **__: returned


@pytest.mark.parametrize("in_every_run", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", FORMS)
def test_against_f64(name: str, in_every_run: bool) -> None:
    """A case of each kind, or all others, in one program, which is compiled once; their dtypes take turns."""
    form = FORMS[name]
    kinds = support.kinds_of_cases(form.op.name)
    calls = []
    for case, dtype in zip(
        support.cases(form.op.name, "ci"), itertools.cycle(support.DTYPES), strict=False
    ):
        if (case in kinds) != in_every_run:
            continue
        operands, attributes = test_ops.make(form.op.name, case, dtype)
        if any(x is not None and x.dtype == ml_dtypes.float8_e8m0fnu for x in operands):
            continue  # torch_xla has no tensors of it
        tensors = [None if x is None else torch_running.to_torch(x).to("xla") for x in operands]
        returned = torch_running.overload(form)(*tensors, **attributes)
        calls.append((operands, attributes, tensors, returned))
    torch_xla.sync(wait=True)
    for operands, attributes, tensors, returned in calls:
        got = torch_running.results(form, _given(returned), tensors, attributes)
        running.check_against_reference(form.op.name, operands, attributes, got)
