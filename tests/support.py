"""What tests and benchmarks share: the ops' own modules, tolerances, running an op on any platform."""

import functools
import importlib
import pathlib
import re
from types import ModuleType

import numpy as np
from intarsia import _dtypes, _native

ROOT = pathlib.Path(__file__).parent.parent
OPS = ROOT / "src" / "ops"
# What T stands for in specs.
DTYPES = {name: _dtypes.numpy_dtype(name).type for name in ("f32", "f16", "bf16")}

# Relative Frobenius error against f64, by the result's dtype (docs/design.md, "Accuracy"). An op's
# module may have a TOLERANCE of its own.
TOLERANCE = {"f32": 2e-6, "f16": 4e-4, "bf16": 4e-3}
FP8_ATTENTION_TOLERANCE = 5e-2  # where a tensor core multiplies fp8 q, K and probabilities

# The routes from torch in the table of docs/torch.md, and the tests in tests/torch_frontend that run every op on them.
TORCH_ROUTES = {
    "eager, CPU": "test_torch_ops.py::test_against_f64",
    "eager, CUDA": "test_torch_cuda.py::test_against_f64",
    "inductor": "test_torch_compile.py::test_compiled_is_eager",
    "openxla, CPU": "xla/test_xla_programs.py::test_each_op_is_in_one_graph",
    "torchax": "test_torchax.py::test_against_f64",
    '`"intarsia"`': "test_backend.py::test_each_of_our_ops",
}


# Ops that tests which call one op by itself leave out: the reason, and the tests that run the op instead.
NOT_CALLED_ALONE = {
    "all_reduce_fused_add_rms_norm": (
        "its operands hold addresses of several GPUs' memory, as no drawn array does",
        "test_exchange.py",
    ),
}


def route_platform(route: str) -> str:
    """The platform of a route in TORCH_ROUTES."""
    return "cuda" if "CUDA" in route else "cpu"


def op_names(platform: str | None = None) -> list[str]:
    """The ops that can be called by themselves, in the order of src/ops/ops.inc.

    Args:
      platform: "cpu" or "cuda": only those that it has, by their specs.
    """
    return [
        op
        for op in listed_ops()
        if op not in NOT_CALLED_ALONE and (platform is None or platform in platforms(op))
    ]


def listed_ops() -> list[str]:
    """Every op, as src/ops/ops.inc lists them."""
    return re.findall(r"^INTARSIA_OP\((\w+),", (OPS / "ops.inc").read_text(), re.M)


def platforms(op: str) -> tuple[str, ...]:
    """The platforms that an op has a half for: "cpu", "cuda"."""
    return _native.main_library().find(op).platforms


@functools.cache
def op_module(op: str) -> ModuleType:
    """src/ops/<op>/<op>.py: CASES, arguments, reference, floor, plain_xla, perhaps TOLERANCE."""
    return importlib.import_module(f"intarsia_src.ops.{op}.{op}")


def cases(op: str, tag: str) -> dict[str, dict]:
    """The op's cases with a tag, without the tags."""
    return {
        name: {k: v for k, v in case.items() if k != "tags"}
        for name, case in op_module(op).CASES.items()
        if tag in case["tags"].split()
    }


@functools.cache
def kinds_of_cases(op: str) -> list[str]:
    """A "ci" case of each kind: of the same words, flags and dtypes, and with the same sizes given, whatever these are."""
    found: dict[object, str] = {}
    for name, case in cases(op, "ci").items():
        found.setdefault(_kind(case), name)
    return list(found.values())


def _kind(value: object) -> object:
    if isinstance(value, dict):
        return tuple((k, _kind(v)) for k, v in sorted(value.items()))
    if isinstance(value, tuple):
        return tuple, len(value)
    return type(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Frobenius norm of the difference over that of `want`; inf where exactly one of them is finite."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(want)
    if (
        not np.array_equal(got[~finite], want[~finite], equal_nan=True)
        or not np.isfinite(got[finite]).all()
    ):
        return np.inf
    scale = np.linalg.norm(want[finite])
    return float(np.linalg.norm(got[finite] - want[finite]) / (scale if scale > 0 else 1.0))
