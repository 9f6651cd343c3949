"""Budgets of the CUDA build: size of the library, cost of compiling it, spills of its kernels.

The build writes what it cost (`tools/compile_cost.py`); `tests/data/cuda_budgets.json` says what it
may cost. Skips where the CUDA half was not built.
"""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
BUILD = ROOT / "build" / "cuda"
BUDGETS = json.loads((ROOT / "tests" / "data" / "cuda_budgets.json").read_text())


@pytest.fixture(scope="module")
def records() -> list[dict]:
    """The last record of each source."""
    log = BUILD / "compile_cost.jsonl"
    if not log.exists():
        pytest.skip("the CUDA half was not built here: make build CUDA=on")
    rows = map(json.loads, log.read_text().splitlines())
    return list({row["source"]: row for row in rows}.values())


def architectures(records: list[dict]) -> set[str]:
    return {kernel["arch"] for row in records for kernel in row["kernels"]}


def test_size_of_the_library(records: list[dict]) -> None:
    megabytes = (BUILD / "libintarsia.so").stat().st_size / 1e6
    allowed = BUDGETS["megabytes_per_architecture"] * len(architectures(records))
    assert megabytes <= allowed


def test_no_source_is_slow_or_large_to_compile(records: list[dict]) -> None:
    per_source = BUDGETS["seconds_per_source_and_architecture"] * len(architectures(records))
    slow = {r["source"]: r["seconds"] for r in records if r["seconds"] > per_source}
    large = {r["source"]: r["peak_mb"] for r in records if r["peak_mb"] > BUDGETS["peak_mb"]}
    assert not slow and not large


@pytest.mark.parametrize("kernel", BUDGETS["spilled_bytes"])
def test_kernels_spill_no_more_than_they_may(records: list[dict], kernel: str) -> None:
    found = [k for row in records for k in row["kernels"] if kernel in k["kernel"]]
    assert found, f"no kernel is called {kernel}"
    allowed = BUDGETS["spilled_bytes"][kernel]
    worst = max(found, key=lambda k: k["stores"])
    assert worst["stores"] <= allowed, worst
