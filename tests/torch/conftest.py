"""torch's tests need torch: where it is missing they are left out, and the header says so."""

import importlib.util
import os

HAS_TORCH = importlib.util.find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]

# Inductor would start a process for each core, and import torch in each.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_report_header() -> str:
    if not HAS_TORCH:
        return "tests/torch skipped: no torch"
    import torch

    return f"torch {torch.__version__}"
