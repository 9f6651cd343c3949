"""torch's tests need torch, and some of them more: where it is missing they are left out, and the summary says so."""

import importlib.util
import os
import pathlib

import pytest


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


HAS_TORCH = _has("torch")
# Tests that need more than torch and jax.
_NEEDS = {
    "test_backend.py": ("torchax",),
    "test_on_xla.py": ("torch_xla",),
    "test_pjrt_plugin.py": ("torch_xla",),
    "test_torchax.py": ("torchax",),
}
_LEFT_OUT = {
    test: f"no {', '.join(missing)}"
    for test, names in _NEEDS.items()
    if (missing := [name for name in names if not _has(name)])
}
if HAS_TORCH:
    import torch
    from intarsia._torchax_import import can_bear_device

    if not can_bear_device():
        # Of torch 2.9 beside a GPU, CUDA_VISIBLE_DEVICES= runs it all the same.
        _LEFT_OUT["test_torchax.py"] = "torchax makes its own device this process's accelerator"
collect_ignore_glob = list(_LEFT_OUT) if HAS_TORCH else ["test_*.py"]

# Inductor would start a process for each core, and import torch in each.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# A graph of sizes that may change has guards; as C++ each takes g++ a second. `make test-full` leaves that on.
if HAS_TORCH and os.environ.get("INTARSIA_TEST_FULL") != "1":
    import torch._dynamo.config as dynamo

    if hasattr(dynamo, "enable_cpp_symbolic_shape_guards"):
        dynamo.enable_cpp_symbolic_shape_guards = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Not in the header, which `-q` suppresses and which the conftest of a folder further down has no part in."""
    lines = [
        f"tests/torch_frontend/{test} left out: {reason}" for test, reason in _LEFT_OUT.items()
    ]
    for line in lines if HAS_TORCH else ["tests/torch_frontend left out: no torch"]:
        terminalreporter.write_line(line, yellow=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_TORCH or torch.cuda.is_available():
        return
    for item in items:
        here = item.path.is_relative_to(pathlib.Path(__file__).parent)
        if here and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))
