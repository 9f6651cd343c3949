"""Every op and case through torch's dispatcher, against the op's own reference in NumPy f64."""

import zlib

import pytest
import running
import support
import torch
import torch_running
from intarsia.torch._fake import result_types
from intarsia.torch._form import Form
from test_ops import make


def on_each_case_of(forms: list[Form], kinds: bool = False) -> pytest.MarkDecorator:
    """With `kinds`, all but a case of each kind is left to `make test-full`."""
    rows = []
    for form in forms:
        every = support.cases(form.op.name, "ci")
        in_every_run = support.kinds_of_cases(form.op.name) if kinds else every
        for case in every:
            marks = [] if case in in_every_run else [pytest.mark.full]
            rows.append(pytest.param(form, case, marks=marks, id=f"{form.name}-{case}"))
    return pytest.mark.parametrize(("form", "case"), rows)


on_each_case = on_each_case_of(torch_running.FORMS)


def some_dtype(case: str) -> str:
    """One of what T stands for: all are tested with XLA, and here all over the cases."""
    return list(support.DTYPES)[zlib.crc32(case.encode()) % len(support.DTYPES)]


@on_each_case
def test_against_f64(form: Form, case: str) -> None:
    operands, attributes = make(form.op.name, case, some_dtype(case))
    tensors = [torch_running.to_torch(x) for x in operands]
    got = torch_running.results(form, torch_running.overload(form), tensors, attributes)
    running.check_against_reference(form.op.name, operands, attributes, got)


@on_each_case
def test_symbolic_results_are_the_inferred_ones(form: Form, case: str) -> None:
    """What fake kernels compute with symbols is what the library infers from numbers."""
    operands, attributes = make(form.op.name, case, some_dtype(case))
    inferred = running.LIBRARY.infer(
        form.op.name, [running.tensor(x) for x in operands], attributes
    )
    types = result_types(form.op, [torch_running.to_torch(x) for x in operands], attributes)
    for row, want, got in zip(form.op.results, inferred, types, strict=True):
        if row["workspace"] or want is None:
            assert got is None
        else:
            assert got == (want.shape, want.dtype)


def test_an_op_on_a_device_that_lacks_it() -> None:
    """CUDA alone has the op: the call says so."""
    op = torch.ops.xla_gpu.all_reduce_fused_add_rms_norm
    x, addresses = torch.ones(4, 64), torch.zeros(2, 2, dtype=torch.int32)
    inbox = torch.full((3, 8, 16, 4), -1, dtype=torch.int32)
    message = "all_reduce_fused_add_rms_norm: runs on cuda, not on cpu"
    with pytest.raises(RuntimeError, match=message):
        op(x, x, None, addresses, inbox)
