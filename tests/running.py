"""Runs an op, inside an XLA program or without XLA, on each platform there is; checks results."""

import contextlib
import functools
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from intarsia import _dtypes, _native
from intarsia_src.quant import reference as quant
from native_calls import LIBRARY, Arrays, run_native, run_over_garbage, tensor

PLATFORMS = ("cpu", "gpu")
on_each_platform = pytest.mark.parametrize(
    "platform", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
)


def flags_of_jax() -> str:
    """XLA_FLAGS for a process with JAX and without torch_xla, which knows fewer. tests/conftest.py says why these."""
    flags = os.environ.get("XLA_FLAGS", "")
    # XLA ends a process that has a flag it does not know, and that of jax 0.12 has lost the older emitters.
    if "--xla_backend_optimization_level=0" not in flags or jax.__version_info__ >= (0, 12):
        return flags
    return f"{flags} --xla_cpu_use_fusion_emitters=false"


def cpu_plugin() -> Path:
    """A PJRT plugin for the CPU, for what takes its path."""
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if not spec:
        pytest.skip("no plugin for the CPU; the extra [torch-xla] brings it")
    return Path(spec.origin).parent / "pjrt_c_api_cpu_plugin.so"


def on_its_platforms(op: str, *values: Any) -> list:
    """Rows (op, *values, platform) for pytest: one for each platform that has the op."""
    here = {"cpu": "cpu", "cuda": "gpu"}
    return [
        pytest.param(op, *values, here[p], marks=[pytest.mark.gpu] if p == "cuda" else [])
        for p in support.platforms(op)
    ]


@functools.cache
def why_not(platform: str) -> str | None:
    """Why nothing can be tested on a platform; None if it can."""
    try:
        jax.devices(platform)
    except RuntimeError:
        return f"JAX {jax.__version__} sees no {platform} device"
    name = {"cpu": "Host", "gpu": "CUDA"}[platform]
    if not any(h.platform == name for h in LIBRARY.handlers()):
        return f"this build of the library has no {name} handlers"
    return None


def has_wide_indices(arrays: Arrays) -> bool:
    return any(x is not None and x.dtype == np.int64 for x in arrays)


def wide_indices(arrays: Arrays) -> contextlib.AbstractContextManager:
    """A scope in which JAX keeps int64 operands as they are, if there are any."""
    return jax.enable_x64(True) if has_wide_indices(arrays) else contextlib.nullcontext()


Call = tuple[str, Arrays, dict[str, Any]]  # op, operands in spec order, attributes


def run(
    op: str, operands: Arrays, attributes: dict[str, Any], platform: str = "cpu"
) -> list[np.ndarray]:
    """The results of an op under jit; see `run_all`."""
    return run_all([(op, operands, attributes)], platform)[0]


def run_all(calls: Sequence[Call], platform: str = "cpu") -> list[list[np.ndarray]]:
    """The results of each call, of all in one XLA program, since compiling takes most of a call's time.

    What shares a buffer with a result is donated. Other results lie where there was garbage: it is donated, too,
    and XLA gives a result the buffer of the first donated array of its form. (Workspaces are XLA's own; those of
    `run_native` and of tests/cuda hold garbage.) Calls with int64 operands are a program of their own.
    """
    found: list[list[np.ndarray]] = [[] for _ in calls]
    for wide in (False, True):
        at = [i for i, (_, operands, _) in enumerate(calls) if has_wide_indices(operands) == wide]
        some = [calls[i] for i in at]
        device = jax.devices(platform)[0]
        with wide_indices([x for call in some for x in call[1]]), jax.default_device(device):
            for i, results in zip(at, _run_program(some, device) if some else [], strict=True):
                found[i] = results
    return found


def _run_program(calls: Sequence[Call], device: jax.Device) -> list[list[np.ndarray]]:
    in_place = [_are_in_place(call) for call in calls]

    def traced(_garbage: list, shared: list, others: list) -> list:
        results = [
            intarsia.jax.call(
                op, [a if b is None else b for a, b in zip(xs, ys, strict=True)], **how
            )
            for (op, _, how), xs, ys in zip(calls, shared, others, strict=True)
        ]
        # As the donated arrays are ordered, so that each finds its own.
        return [
            [
                [x for x, s in zip(xs, flags, strict=True) if s == last]
                for xs, flags in zip(results, in_place, strict=True)
            ]
            for last in (False, True)
        ]

    step = jax.jit(traced, donate_argnums=(0, 1), keep_unused=True)

    def run_over(fill: int) -> list[list[np.ndarray]]:
        shared, others = (
            [
                [
                    # A copy, or the device would write into NumPy's memory.
                    jax.device_put(np.array(x), device)
                    if x is not None and (i in donated(op)) == is_shared
                    else None
                    for i, x in enumerate(operands)
                ]
                for op, operands, _ in calls
            ]
            for is_shared in (True, False)
        )
        fresh, written = step(garbage(calls, fill), shared, others)
        return [
            [np.asarray(next(w if s else f)) for s in flags]
            for flags, f, w in zip(in_place, map(iter, fresh), map(iter, written), strict=True)
        ]

    return run_over_garbage([op for op, _, _ in calls], run_over)


def _are_in_place(call: Call) -> list[bool]:
    """For each result that exists, whether it shares an operand's buffer."""
    return [row.alias is not None for row in _results_of(call)]


def bytes_of_results(op: str, operands: Arrays, attributes: dict[str, Any]) -> int:
    """What the results take that exist, workspaces aside."""
    rows = _results_of((op, operands, attributes))
    return sum(math.prod(row.shape) * _dtypes.numpy_dtype(row.dtype).itemsize for row in rows)


def _results_of(call: Call) -> list[_native.Result]:
    op, operands, attributes = call
    rows = LIBRARY.infer(op, [tensor(x) for x in operands], attributes)
    return [row for row in rows if row is not None and not row.workspace]


def garbage(calls: Sequence[Call], fill: int) -> list[jax.Array]:
    """An array of the bytes `fill` for each result that has memory of its own, in XLA's memory."""
    arrays = []
    for row in (row for call in calls for row in _results_of(call) if row.alias is None):
        bits = np.empty(row.shape, _dtypes.numpy_dtype(row.dtype))
        bits.reshape(-1).view(np.uint8).fill(fill)
        if bits.size:
            arrays.append(bits)
    # Copies by XLA: device_put takes NumPy's memory as it is where it lies aligned, may_alias=False or not.
    return _copy(arrays)


@jax.jit
def _copy(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(x) for x in arrays]


def donated(op: str) -> tuple[int, ...]:
    """The operands (spec positions) that share their buffer with a result."""
    row = LIBRARY.find(op)
    names = [operand["name"] for operand in row.operands]
    return tuple(names.index(result["alias"]) for result in row.results if result["alias"])


def run_any(op: str, operands: Arrays, attributes: dict[str, Any], platform: str):
    """The fastest way to the results on a platform."""
    if platform == "cpu":
        return run_native(op, operands, attributes)
    return run(op, operands, attributes, platform)


# Rounding to T changes a number by at most this, relatively; a subnormal one by half of the other.
_UNIT_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_SUBNORMAL = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}


# Of what cancels in a result, relatively: the arithmetic is in f32, or in three products of TF32.
_F32_ARITHMETIC = 16 * _UNIT_ROUNDOFF["f32"]


def check(
    op: str,
    got: np.ndarray,
    want: np.ndarray,
    what: str = "result",
    least: float = 0.0,
    cancelled: np.ndarray | None = None,
) -> None:
    """Asserts that a result is right within the op's tolerance for its dtype, or within `least`.

    The tolerances are for arrays in which roundings average out. Where few elements make up most of
    the norm they may not: two roundings of each can then add up. `cancelled`: the result's sums,
    of absolute values.
    """
    assert got.shape == want.shape, f"{op}: {what} is {got.shape}, expected {want.shape}"
    dtype = _dtypes.name_of(got.dtype)
    if np.issubdtype(got.dtype, np.integer) and got.dtype.itemsize > 1:
        assert np.array_equal(got, want), f"{op}: {what} in {dtype} is not the same"
        return
    if got.dtype.itemsize == 1:
        check_codes(f"{op}: {what} in {dtype}", got, want)
        return
    tolerance = getattr(support.op_module(op), "TOLERANCE", support.TOLERANCE)[dtype]
    tolerance = max(tolerance, least)
    tolerance += 2 * _UNIT_ROUNDOFF[dtype] * min(1.0, 4 / np.sqrt(max(want.size, 1)))
    # Subnormal numbers have an absolute precision; what comes from one may be a few times off.
    size = np.linalg.norm(np.where(np.isfinite(want), want, 0))
    if size > 0:
        tolerance += 4 * _SUBNORMAL[dtype] * np.sqrt(want.size) / size
    if cancelled is not None:
        tolerance += _F32_ARITHMETIC * np.linalg.norm(cancelled) / (size if size > 0 else 1.0)
    error = support.relative_error(got, want)
    assert error <= tolerance, f"{op}: {what} in {dtype} is off by {error:.2e} > {tolerance:.2e}"


# Most elements of an 8-bit result have the reference's code; this share may have a neighbor of it,
# as numbers that are rounded to T on the way come near a tie.
_NEIGHBORS = 0.2


def check_codes(what: str, got: np.ndarray, want: np.ndarray) -> None:
    """Asserts that 8-bit numbers are `want` as rounded to them, or now and then next to that."""
    want = quant.saturated(want, got.dtype)
    is_nan, want_nan = (np.isnan(x.astype(np.float32)) for x in (got, want))
    assert np.array_equal(is_nan, want_nan), f"{what} has NaN elsewhere than expected"
    distance = np.abs(_ordinals(got) - _ordinals(want))
    distance = distance[~is_nan]
    assert distance.max(initial=0) <= 1, f"{what} is off by {distance.max()} codes"
    off = np.count_nonzero(distance)
    assert off <= _NEIGHBORS * got.size + 3, f"{what}: {off} codes of {got.size} are neighbors"


def _ordinals(x: np.ndarray) -> np.ndarray:
    """Integers in the order of the numbers, one apart for neighbors."""
    if np.issubdtype(x.dtype, np.integer):
        return x.astype(np.int32)
    bits = x.view(np.uint8).astype(np.int32)
    return np.where(bits & 0x80, -(bits & 0x7F), bits)


def least_tolerance(op: str, operands: Arrays, platform: str) -> float:
    """What results may be off by because of the arithmetic of a platform."""
    if platform == "gpu" and op == "flash_attn_varlen" and operands[0].dtype.itemsize == 1:
        return support.FP8_ATTENTION_TOLERANCE
    return 0.0


def magnitudes(
    op: str, operands: Arrays, attributes: dict[str, Any], count: int
) -> Sequence[np.ndarray | None]:
    """For each result its sums of absolute values, where the op's module knows that they cancel."""
    module = support.op_module(op)
    if not hasattr(module, "magnitudes"):
        return [None] * count
    return module.magnitudes(*map(as_f64, operands), **attributes)


def check_against_reference(
    op: str,
    operands: Arrays,
    attributes: dict[str, Any],
    got: Sequence[np.ndarray],
    platform: str = "cpu",
) -> None:
    """Asserts that all results are right, to the bit where the contract says so."""
    module = support.op_module(op)
    want = module.reference(*map(as_f64, operands), **attributes)
    assert isinstance(want, list | tuple), (
        f"{op}.py: reference gives {type(want)}, expected a list with an array a result"
    )
    if hasattr(module, "rounded"):  # with the roundings to T that show in codes
        models = module.rounded(*operands, **attributes)
        want = [w if m is None else m for w, m in zip(want, models, strict=True)]
    exact = [None] * len(want)
    if hasattr(module, "exact"):
        exact = module.exact(*operands, **attributes)
    assert len(got) == len(want), f"{op} gave {len(got)} results, expected {len(want)}"
    least = least_tolerance(op, operands, platform)
    sums = magnitudes(op, operands, attributes, len(want))
    for i, (result, expected, bits) in enumerate(zip(got, want, exact, strict=True)):
        check(op, result, expected, f"result {i}", least, sums[i])
        if bits is not None:
            assert result.tobytes() == bits.tobytes(), f"{op}: result {i} is not exact"


def as_f64(x: np.ndarray | None) -> np.ndarray | None:
    """What a reference takes: f64 for numbers, integers as they are."""
    return x if x is None or np.issubdtype(x.dtype, np.integer) else x.astype(np.float64)


def second_derivatives(function: Callable[..., jax.Array], floats: Sequence[np.ndarray]) -> tuple:
    """The gradient of a function of the gradient, in each operand."""
    every = tuple(range(len(floats)))
    first = jax.grad(lambda *xs: jnp.sin(function(*xs)).sum(), every)
    return jax.jit(jax.grad(lambda *xs: sum((d**2).sum() for d in first(*xs)), every))(*floats)
