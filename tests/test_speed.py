"""README's table of speeds and its plot are what tools/speed.py makes of bench/results."""

import datetime
import json
import pathlib
import re
import subprocess
import sys

import pytest
import support

sys.path.insert(0, str(support.ROOT / "tools"))
sys.path.insert(0, str(support.ROOT / "bench"))

import record
import speed

RESULTS = support.ROOT / "bench" / "results"
FILES = sorted(RESULTS.glob("*.json"))


def test_readme_and_plots_are_written_from_the_results() -> None:
    for path, text in speed.files().items():
        assert path.read_text() == text, path


def test_a_ratio_above_1_means_that_ours_is_faster() -> None:
    faster = {row.peer: speed.ratio(row) for row in speed.ROWS}
    ours, theirs = speed.figures(next(row for row in speed.ROWS if row.is_rate))
    assert (ours > theirs) == (faster["llama.cpp"] > 1)
    (write,) = [row for row in speed.ROWS if row.what.startswith("KV cache write")]
    rows = json.loads((RESULTS / "h200.json").read_text())["rows"]
    (row,) = [r for r in rows if write.row.items() <= r.items()]
    assert speed.ratio(write) == row["xla_us"] / row["us"] == row["ratio"]


def test_what_is_slower_than_a_peer_is_in_the_table() -> None:
    """A table of speeds without a loss would not be believed, and should not be."""
    ratios = [float(x) for x in re.findall(r"\| ([\d.]+)x \|", speed.table())]
    assert len(ratios) == len(speed.ROWS) and min(ratios) < 1 < max(ratios)
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_says_where_its_figures_are_from(file: pathlib.Path) -> None:
    data = json.loads(file.read_text())
    for name in ("device", "date", "versions", "commit", "command"):
        assert data[name] or (data[name] is None and data[f"{name}_unknown"]), name
    for name, version in data["versions"].items():
        assert version or (version is None and data[f"{name}_unknown"]), name
    assert "driver" in data["versions"] or "cpu" in data["device"].lower()
    for run in (data, *data.get("history", [])):
        assert datetime.date.fromisoformat(run["date"])
        assert run["commit"] is None or re.fullmatch("[0-9a-f]{7,}", run["commit"])
        assert run["rows"]
    dates = [run["date"] for run in (data, *data.get("history", []))]
    assert dates == sorted(dates, reverse=True), "the newest run comes first"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_has_a_line_for_each_row(file: pathlib.Path) -> None:
    assert file.read_text() == record.as_text(json.loads(file.read_text()))


def test_a_new_run_keeps_the_ones_before(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "new.json"
    facts = {"device": "a CPU", "command": "python bench/ops.py"}
    for us in (3.0, 2.0, 1.0):
        record.write(file, [{"us": us}], versions={"jax": str(us)}, **facts)
    record.write(file, [], versions={}, **facts)  # all too noisy
    data = json.loads(file.read_text())
    assert data["rows"] == [{"us": 1.0}]
    assert [run["rows"][0]["us"] for run in data["history"]] == [2.0, 3.0]
    assert data["history"][1]["versions"]["jax"] == "3.0"
    assert all(run["date"] == data["date"] for run in data["history"])


def test_commits_of_figures_exist() -> None:
    git = ("git", "-C", str(support.ROOT))
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.stdout.strip() != b"false":
        pytest.skip("not a checkout with its history")
    text = "".join(file.read_text() for file in FILES)
    commits = {*re.findall('"commit": "(.*)"', text)}
    found = subprocess.run([*git, "rev-list", "--no-walk", *commits], capture_output=True)
    assert found.returncode == 0 and len(found.stdout.split()) == len(commits), found.stderr
