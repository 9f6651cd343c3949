"""intarsia ops: the targets, the platforms they run on, and what they do."""

import argparse
import json

from intarsia import _native


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the whole manifest")
    parser.add_argument(
        "--library", metavar="PATH", help="another library of ops than the package's own"
    )


def main(args: argparse.Namespace) -> int:
    library = _native.load_ops(args.library) if args.library else _native.main_library()
    if args.json:
        print(json.dumps(library.manifest, indent=2))
        return 0
    ops = library.ops.values()
    summaries = {op.target: op.summary for op in ops}
    summaries |= {op.target_alias: f"alias of {op.target}" for op in ops if op.target_alias}
    platforms: dict[str, list[str]] = {target: [] for target in summaries}
    for handler in library.handlers():
        if handler.target in platforms:  # a chain's is that of no op
            platforms[handler.target].append(handler.platform)
    cuda = library.manifest["cuda"]
    print(f"intarsia {library.version}, CPU code for {library.manifest['isa']}, ", end="")
    print(f"CUDA {cuda}" if cuda else "built without CUDA")
    width = max(map(len, platforms))
    for target, names in sorted(platforms.items()):
        built = " ".join(sorted(names, reverse=True)) or "not built"
        print(f"  {target:<{width}}  {built:<9}  {summaries[target]}")
    return 0
