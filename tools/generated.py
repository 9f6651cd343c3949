"""Files that a program of this folder writes: `--check` says which are out of date, and writes nothing."""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(files: Mapping[Path, str]) -> int:
    """The exit status: 1 where `--check` has found a file that would change."""
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    check = "--check" in sys.argv
    for path in stale:
        if check:
            print(f"out of date: {path.relative_to(ROOT)}: run `make gen`")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path])
    return int(bool(stale) and check)
