"""Budgets of the CUDA build: size of the library, cost of compiling it, spills of its kernels.

The build writes what it cost (`tools/compile_cost.py`); `tests/data/cuda_budgets.json` says what it
may cost. Skips where the CUDA half was not built, or compiled with INTARSIA_FAST_COMPILE, as in CI.
"""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
BUILD = ROOT / "build" / "cuda"
BUDGETS = json.loads((ROOT / "tests" / "data" / "cuda_budgets.json").read_text())


@pytest.fixture(scope="module")
def records() -> list[dict]:
    """The last record of each of the library's sources, with the highest cost of its records.

    A compiler's cache answers in no time, and writes a record of that.
    """
    log = BUILD / "compile_cost.jsonl"
    if not log.exists():
        pytest.skip("the CUDA half was not built here: make test CUDA=on")
    newest: dict[str, dict] = {}
    for row in map(json.loads, log.read_text().splitlines()):
        source = pathlib.Path(row["source"])
        if not source.is_relative_to(ROOT / "src") or not source.exists():
            continue
        before = newest.get(row["source"], row)
        row |= {key: max(row[key], before[key]) for key in ("seconds", "peak_mb")}
        newest[row["source"]] = row
    if any(row.get("fast_compile") for row in newest.values()):
        pytest.skip("the CUDA half was hardly optimized here: make test-budgets optimizes it")
    return list(newest.values())


def architectures(row: dict) -> set[str]:
    return {kernel["arch"] for kernel in row["kernels"]}


def test_size_of_the_library(records: list[dict]) -> None:
    """The CPU's code, what launches kernels, and Hopper's own come once; portable kernels for each architecture.

    A release has five and PTX, which may take 60 MB.
    """
    portable = set().union(*map(architectures, records)) - {"sm_90a"}
    megabytes = (BUILD / "libintarsia.so").stat().st_size / 1e6
    each, once = (
        BUDGETS[f"megabytes_{key}"] for key in ("per_architecture", "without_portable_kernels")
    )
    assert megabytes <= once + each * len(portable)
    assert once + each * 6 <= 60


def test_no_source_is_slow_or_large_to_compile(records: list[dict]) -> None:
    def allowed(row: dict) -> float:
        return BUDGETS["seconds_per_source_and_architecture"] * max(len(architectures(row)), 1)

    slow = {r["source"]: r["seconds"] for r in records if r["seconds"] > allowed(r)}
    large = {r["source"]: r["peak_mb"] for r in records if r["peak_mb"] > BUDGETS["peak_mb"]}
    assert not slow and not large


def test_kernels_spill_no_more_than_they_may(records: list[dict]) -> None:
    """A kernel that the budgets do not name may spill nothing."""
    exceptions = BUDGETS["spilled_bytes"]
    too_many, used = [], set()
    for kernel in (kernel for row in records for kernel in row["kernels"]):
        name = next((name for name in exceptions if name in kernel["kernel"]), None)
        used.add(name)
        if max(kernel["stores"], kernel["loads"]) > exceptions.get(name, 0):
            too_many.append(kernel)
    assert not too_many
    assert set(exceptions) <= used, "the budgets name kernels that there are not"
