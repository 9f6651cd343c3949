"""Records an exported program of each op, which every later release must go on running.

Usage: record_exports.py [--check] [--overwrite] [op ...]

Without names, the ops of which the current version has no recording. What is recorded stays: a change of an op
must keep its old programs working. --overwrite is for a version that is not released yet.
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import recordings  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="op", help="default: all that are missing")
    parser.add_argument(
        "--check", action="store_true", help="fail if one is missing; write nothing"
    )
    parser.add_argument("--overwrite", action="store_true", help="record again what is there")
    args = parser.parse_args()
    missing = recordings.missing()
    if args.check:
        for op in missing:
            print(f"missing: {recordings.path_of(op).relative_to(ROOT)}")
        if missing:
            print("run `make gen`")
        return bool(missing)
    known = sorted(recordings.LIBRARY.ops)
    unknown = [op for op in args.ops if op not in known]
    if unknown:
        parser.error(f"no op {', '.join(unknown)}; there are {', '.join(known)}")
    there = [op for op in args.ops if op not in missing]
    if there and not args.overwrite:
        parser.error(f"{', '.join(there)}: recorded already; --overwrite records again")
    for op in args.ops or (known if args.overwrite else missing):
        path = recordings.path_of(op)
        recordings.record(op).save(path)
        print(f"wrote: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
