"""Writes what derives from the manifest: the functions of intarsia/jax/wire and which of them
`intarsia.jax` exports, docs/ops.md and docs/ops, docs/matrices.md, and the table in docs/torch.md.

Usage: gen.py [--check]     --check writes nothing and fails if a file would change.
"""

import argparse
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import gen_examples  # noqa: E402
import gen_matrices  # noqa: E402
import gen_pages  # noqa: E402
import gen_types  # noqa: E402
import gen_words  # noqa: E402
import support  # noqa: E402
from gen_words import HEADER  # noqa: E402
from intarsia import _native  # noqa: E402

EXPORTS = ROOT / "python/intarsia/jax/__init__.py"
WIRE = ROOT / "python/intarsia/jax/wire"
PAGES = ROOT / "docs/ops"
BEGIN, END = "<!-- ops: written by tools/gen.py -->", "<!-- end of ops -->"


def _doc_entry(name: str, text: str) -> str:
    return textwrap.fill(f"{name}: {text}", 96, initial_indent=" " * 6, subsequent_indent=" " * 8)


def _docstring(op: _native.Op) -> str:
    lines = [f"    {op.summary}", ""]
    if not gen_words.is_everywhere(op):
        lines += [f"    {gen_words.where(op)}", ""]
    lines.append("    Args:")
    for operand in op.operands:
        absent = "; optional" if operand["optional"] else ""
        what = f"{gen_words.shape(operand['dims'])}, {gen_words.dtype(operand['dtype'])}: {operand['doc']}{absent}."
        lines.append(_doc_entry(operand["name"], what))
    for attribute in op.attributes:
        lines.append(
            _doc_entry(attribute["name"], f"{attribute['doc']}{gen_words.choices(attribute)}.")
        )
    lines += ["", "    Returns:"]
    for result in gen_words.results(op):
        alias = f"; shares the buffer of {result['alias']}" if result["alias"] else ""
        when = f"; only with {result['when']}" if result["when"] else ""
        what = f"{gen_words.shape(result['dims'])}, {gen_words.dtype(result['dtype'])}: {result['doc']}{alias}{when}."
        lines.append(_doc_entry(result["name"], what))
    if checked := gen_words.checked(op):
        lines += ["", textwrap.fill(checked, 96, initial_indent=" " * 4, subsequent_indent=" " * 4)]
    lines += [
        "",
        "    Raises:",
        "      ValueError: operands or attributes do not fit; the text says which. NotImplementedError: legal,",
        "        but not built.",
        "",
        _doc_entry("Source", f"{op.source}. T is f32, f16 or bf16.").replace(
            "      Source", "    Source", 1
        ),
    ]
    if example := gen_examples.of_wire(op):
        lines += ["", "    Example:", *(f"      {line}" for line in example)]
    return "\n".join(lines).lstrip()


def _wrapper(op: _native.Op, words: gen_types.Words) -> str:
    operands = ", ".join(o["name"] for o in op.operands) + ("," if len(op.operands) == 1 else "")
    attributes = "".join(f", {a['name']}={a['name']}" for a in op.attributes)
    overloads = gen_types.overloads(op, words)
    return f'''{overloads}

def {op.name}({gen_types.parameters(op, words)}) -> {gen_types.returns(op)}:
    """{_docstring(op)}
    """
    return one_or_all(call("{op.name}", ({operands}){attributes}))
'''


def _wire_module(family: str, ops: list[_native.Op], words: gen_types.Words) -> str:
    body = "".join(_wrapper(op, words) for op in ops)
    subject = "no family" if family == "others" else f"the family {family}"
    head = f'"""Ops of {subject}, operand by operand.\n\n{HEADER}\n"""\n\n'
    typing = [name for name in ("Literal", "overload") if re.search(rf"\b{name}\b", body)]
    head += f"from typing import {', '.join(typing)}\n\n" if typing else ""
    head += "import jax\nfrom jax.typing import ArrayLike\n\n"
    head += "from intarsia.jax._call import call, one_or_all\n"
    if named := words.of(ops):
        head += f"from intarsia.jax.wire._words import {', '.join(named)}\n"
    return gen_words.formatted(head + body)


def wrappers(ops: list[_native.Op]) -> dict[pathlib.Path, str]:
    """The package intarsia.jax.wire: a module for each family, their words, and what exports them."""
    words = gen_types.Words(ops)
    families: dict[str, list[_native.Op]] = {}
    for op in ops:
        families.setdefault(gen_words.family(op), []).append(op)
    said = '"""The words that attributes take.\n\n' + HEADER + '\n"""\n\n'
    said += "from typing import Literal, TypeAlias\n\n" + words.aliases()
    package = f'"""The ops as plain functions, operand by operand as they go over the wire.\n\n{HEADER}\n"""\n\n'
    for name in words.of(ops):
        package += f"from intarsia.jax.wire._words import {name} as {name}\n"
    for family in sorted(families):
        names = "".join(f"    {op.name},\n" for op in families[family])
        package += f"from intarsia.jax.wire.{family} import (\n{names})\n"
    package += "\n__all__ = [\n" + "".join(f'    "{op.name}",\n' for op in ops) + "]\n"
    sources = {"__init__": gen_words.formatted(package), "_words": gen_words.formatted(said)}
    sources |= {name: _wire_module(name, of_it, words) for name, of_it in families.items()}
    return {WIRE / f"{name}.py": source for name, source in sources.items()}


def _with_table(page: pathlib.Path, header: list[str], rows: list[list[str]]) -> str:
    """The page with its table of ops written anew."""
    before, rest = page.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{gen_words.table(header, rows)}\n{END}{rest.split(END)[1]}"


def torch_page(ops: list[_native.Op]) -> str:
    """tests/torch_frontend/xla/test_routes.py sees to it that each route's test is parametrized with its ops."""

    def row(route: str) -> list[str]:
        file, _, function = support.TORCH_ROUTES[route].partition("::")
        platform = support.route_platform(route)
        lacking = [f"`{op.name}`" for op in ops if platform not in op.platforms]
        alone = [f"`{name}`" for name in support.NOT_CALLED_ALONE if f"`{name}`" not in lacking]
        test = f"[`{function}`](../tests/torch_frontend/{file})"
        return [route, test, ", ".join(lacking) or "none", ", ".join(alone) or "none"]

    header = ["route", "its test", "ops that the platform lacks", "ops that it leaves out"]
    return _with_table(ROOT / "docs" / "torch.md", header, list(map(row, support.TORCH_ROUTES)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="fail if a file is out of date; write nothing"
    )
    args = parser.parse_args()
    library = _native.main_library()
    ops = sorted(library.ops.values(), key=lambda op: op.name)
    files = {
        **wrappers(ops),
        EXPORTS: gen_types.exports(EXPORTS, ops),
        **gen_pages.pages(ops, library.manifest["layouts"]),
        ROOT / "docs/matrices.md": gen_matrices.page(ops),
        ROOT / "docs/torch.md": torch_page(ops),
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    # Of a family that has no op any more.
    gone = sorted({*WIRE.glob("*.py"), *PAGES.glob("*.md")} - {*files})
    for path in gone:
        print(f"{'no op is in' if args.check else 'removed'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.unlink()
    for path in stale:
        print(f"{'out of date' if args.check else 'wrote'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path])
    if (stale or gone) and args.check:
        print("run `make gen`")
    return bool((stale or gone) and args.check)


if __name__ == "__main__":
    sys.exit(main())
