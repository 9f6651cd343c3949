"""Writes the figures of a run to a file of bench/results, and keeps those of earlier runs in it under `history`.

A file has `device`, `date`, `versions`, `commit`, `command` and `rows`. `commit` is the one whose code ran; where figures were written
down later, it is the first one that has them. `rows` are those of the newest run. Each earlier one has its own date, commit and rows,
and whatever else was different. A fact that nobody wrote down is null, and `<name>_unknown` says why. tools/tables.py makes the tables of
docs/notebook from these files.
"""

import json
import pathlib
import subprocess
import time
from typing import Any

_FIRST = ("device", "date", "versions", "commit", "command", "note", "ceilings")
_LAST = ("rows", "history")


def as_text(data: dict[str, Any]) -> str:
    """The file: one line for each fact, and one for each row."""
    return _block(data, 0) + "\n"


def _block(data: dict[str, Any], depth: int) -> str:
    names = [*_FIRST, *(name for name in data if name not in _FIRST + _LAST), *_LAST]
    parts = []
    for name in (name for name in names if name in data):
        value = data[name]
        if name in _LAST:
            inner = " " * (depth + 2)
            lines = [_block(x, depth + 2) if name == "history" else json.dumps(x) for x in value]
            text = "[\n" + ",\n".join(inner + line for line in lines) + f"\n{' ' * (depth + 1)}]"
        else:
            text = json.dumps(value)
        parts.append(f"{' ' * (depth + 1)}{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + f"\n{' ' * depth}}}"


def _driver() -> str | None:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _commit() -> dict[str, str | None]:
    git = ("git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "--short", "HEAD")
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "commit_unknown": "not a git checkout"}
    return {"commit": done.stdout.strip()}


def after(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` with the run that `old` has, and those before it, as its history; the newest first."""
    same = {name for name, x in old.items() if new.get(name) == x} - {"date", "commit"}
    earlier = {name: x for name, x in old.items() if name not in same | {"history"}}
    return new | {"history": [earlier, *old.get("history", [])]}


def write(path: pathlib.Path, rows: list[dict[str, Any]], **facts: Any) -> None:
    """Writes `rows` with the facts of this run: `device`, `versions`, `command`, and whatever else there is to say.

    A run without a row leaves the file as it is.
    """
    if not rows:
        return
    if driver := _driver():
        facts["versions"] = {"driver": driver} | facts["versions"]
    new = facts | {"date": time.strftime("%Y-%m-%d")} | _commit() | {"rows": rows}
    if path.exists():
        new = after(json.loads(path.read_text()), new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(new))
