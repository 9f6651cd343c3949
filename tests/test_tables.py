"""Tables of docs/notebook are what tools/tables.py makes of bench/results."""

import re
import sys

import pytest
import support

sys.path.insert(0, str(support.ROOT / "tools"))

import tables

DATA = {
    "device": "NVIDIA H200",
    "date": "2026-11-24",
    "versions": {"driver": "580"},
    "commit": "b2",
    "rows": [
        {"case": "a", "kind": "x", "us": 1.5, "fa3_us": [2.0, 4.0]},
        {"case": "a", "kind": "y", "us": 20.0},
        {"case": "b", "kind": "x", "us": 1234.5},
    ],
    "history": [
        {"date": "2026-11-23", "commit": "a1", "rows": [{"case": "a", "kind": "x", "us": 3.0}]}
    ],
}
SOURCE = "[f.json](../../bench/results/f.json): NVIDIA H200, driver 580, 2026-11-24, commit b2.\n\n"


def test_pages_are_written_from_the_results() -> None:
    for page, text in tables.files().items():
        assert page.read_text() == text, page


def test_each_file_of_results_has_a_table() -> None:
    pages = "".join(page.read_text() for page in tables.PAGES.glob("*.md"))
    shown = {tables.parse(query).file for _, query in tables.BLOCK.findall(pages)}
    shown.add("cpu_llama_cpp")  # a single row, which README has
    assert shown == {file.stem for file in tables.RESULTS.glob("*.json")}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "f kind=x case us fa3_us/us",
            "| case | ours, us | FA3 / ours |\n|---|---:|---:|\n| a | 1.50 | 2.00 |\n| b | 1234 |  |",
        ),
        (
            "f case~^a kind fa3_us",
            "| kind | FA3, us |\n|---|---:|\n| x | 2.00, 4.00 |\n| y |  |",
        ),
        (
            "f case across:kind us",
            "| case | x | y |\n|---|---:|---:|\n| a | 1.50 | 20.0 |\n| b | 1234 |  |",
        ),
    ],
)
def test_a_table(query: str, expected: str) -> None:
    assert tables.table(tables.parse(query), DATA) == SOURCE + expected


def test_a_history_has_the_rows_that_two_runs_have() -> None:
    text = tables.history(tables.parse("f case kind us"), DATA)
    assert text.splitlines()[2:] == [
        "| case | kind | 2026-11-23, a1 | 2026-11-24, b2 |",
        "|---|---|---:|---:|",
        "| a | x | 3.00 | 1.50 |",
    ]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("f kind=z case us", "no row has"),
        ("f case xla_us", "no row has xla_us"),
        ("f across:kind us", "do not tell the rows apart"),
    ],
)
def test_a_comment_that_asks_for_nothing_is_an_error(query: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        tables.table(tables.parse(query), DATA)
