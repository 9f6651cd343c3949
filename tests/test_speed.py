"""README's table of speeds and its plot are what tools/speed.py makes of bench/results."""

import datetime
import json
import re
import subprocess
import sys

import pytest
import support

sys.path.insert(0, str(support.ROOT / "tools"))

import speed

RESULTS = support.ROOT / "bench" / "results"


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


def test_each_file_says_where_its_figures_are_from() -> None:
    for file in RESULTS.glob("*.json"):
        data = json.loads(file.read_text())
        for part in (data, *(x for x in data.values() if isinstance(x, dict) and "rows" in x)):
            assert datetime.date.fromisoformat(part["date"]), file
            assert re.fullmatch("[0-9a-f]{7,}", part["commit"]), file
        assert data["device"] and data["command"], file
        assert {"driver", "jax", "note"} & data.keys(), f"{file}: no version"


def test_commits_of_figures_exist() -> None:
    git = ("git", "-C", str(support.ROOT))
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.stdout.strip() != b"false":
        pytest.skip("not a checkout with its history")
    text = "".join(file.read_text() for file in RESULTS.glob("*.json"))
    commits = {*re.findall('"commit": "(.*)"', text)}
    found = subprocess.run([*git, "rev-list", "--no-walk", *commits], capture_output=True)
    assert found.returncode == 0 and len(found.stdout.split()) == len(commits), found.stderr
