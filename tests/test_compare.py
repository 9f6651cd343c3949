"""bench/compare.py on the CPU: a library beside itself, and beside one whose results are others."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import support

pytest.importorskip("torch")

# Stands for another build: it computes something else.
_OTHER = """
_call = Library.call
Library.call = lambda self, op, platform, operands, attributes, *rest: _call(
    self, op, platform, operands, attributes | {"eps": 0.5}, *rest
)
"""


@pytest.fixture
def other(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the package with another library."""
    package = tmp_path / "other" / "python" / "intarsia"
    shutil.copytree(support.ROOT / "python" / "intarsia", package)
    with (package / "_native.py").open("a") as file:
        file.write(_OTHER)
    return tmp_path / "other"


def compare(tmp_path: pathlib.Path, old: pathlib.Path, *flags: str) -> tuple[int, list[dict]]:
    """The exit status and the rows."""
    out = tmp_path / "rows.json"
    command = [sys.executable, "bench/compare.py", "--platform", "cpu", "--op", "rms_norm"]
    command += ["--old", str(old), "--out", str(out), *flags]
    done = subprocess.run(command, cwd=support.ROOT, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr
    return done.returncode, json.loads(out.read_text())


def test_bits_of_one_library_are_the_same(tmp_path: pathlib.Path) -> None:
    status, rows = compare(tmp_path, support.ROOT, "--bits")
    assert status == 0
    assert len(rows) == len(support.cases("rms_norm", "ci")) * len(support.DTYPES)
    assert {row["verdict"] for row in rows} == {"same"}


def test_bits_of_another_library_differ(tmp_path: pathlib.Path, other: pathlib.Path) -> None:
    status, rows = compare(tmp_path, other, "--bits")
    assert status == 1
    assert "differs" in {row["verdict"] for row in rows}


def test_times(tmp_path: pathlib.Path) -> None:
    _, rows = compare(tmp_path, support.ROOT, "--rounds", "1")
    assert len(rows) == len(support.cases("rms_norm", "bench_cpu"))
    assert all(row["old_us"] > 0 and row["new_us"] > 0 for row in rows)
