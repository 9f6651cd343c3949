"""The table of docs/torch.md, ops by routes: each of its cells has a test. This folder's tests can import those of all routes."""

import importlib
import pathlib

import pytest
import support
import test_backend  # noqa: F401  before test_torchax, whose device it cannot always bear
from intarsia.torch._form import Form


def ops_of(test: str) -> set[str]:
    """The ops that a test, "file::function", is parametrized with."""
    file, _, function = test.partition("::")
    marks = getattr(importlib.import_module(pathlib.Path(file).stem), function).pytestmark
    rows = [row for mark in marks if mark.name == "parametrize" for row in mark.args[1]]
    rows = [getattr(row, "values", row) for row in rows]  # of pytest.param
    values = [value for row in rows for value in (row if isinstance(row, tuple) else (row,))]
    return {value.op.name for value in values if isinstance(value, Form)}


@pytest.mark.parametrize("route", support.TORCH_ROUTES)
def test_each_op_is_tested_on_each_route(route: str) -> None:
    assert ops_of(support.TORCH_ROUTES[route]) == set(
        support.op_names(support.route_platform(route))
    )
