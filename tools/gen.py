"""Writes what derives from the manifest: the functions of intarsia/jax/wire and which of them
`intarsia.jax` exports, docs/ops.md, and the tables of ops
in README.md and docs/torch.md.

Usage: gen.py [--check]     --check writes nothing and fails if a file would change.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

import gen_types  # noqa: E402
import support  # noqa: E402
from intarsia import _native  # noqa: E402
from intarsia.jax import _grad, _platforms  # noqa: E402
from wire import snippet  # noqa: E402

HEADER = (
    "Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`)."
)
EXPORTS = ROOT / "python/intarsia/jax/__init__.py"
WIRE = ROOT / "python/intarsia/jax/wire"
# What an op of several families is called by: the first of these.
_FAMILIES = ("attention", "rotary", "norm", "matmul", "activation", "cache", "quant")
_PLATFORMS = {"cpu": "CPU", "cuda": "CUDA"}  # as readers know them
BEGIN, END = "<!-- ops: written by tools/gen.py -->", "<!-- end of ops -->"


def _shape(dims: str) -> str:
    """A spec's dims for readers: `[t, h, d]`; `by layout` for a cache."""
    if dims.startswith("="):
        return f"as {dims[1:]}"
    if "layout=" in dims:
        paged = "cache pages, by layout"
        rest = [v for v in dims.split(" | ") if "layout=" not in v]
        return " or ".join([paged, *map(_shape, rest)])
    variants = []
    for variant in dims.split(" | "):
        condition, _, terms = variant.rpartition(": ")
        text = "[" + ", ".join(terms.split()) + "]" if terms else "scalar"
        variants.append(f"{text} with {condition}" if condition else text)
    return " or ".join(variants)


def _dtype(dtype: str) -> str:
    return dtype.replace("|", ", ")


def _choices(attribute: Mapping[str, Any]) -> str:
    other = ", or an order of axes" if attribute["or_cache_axes"] else ""
    return f"; one of {_dtype(attribute['one_of'])}{other}" if attribute["one_of"] else ""


def _results(op: _native.Op) -> list[Mapping[str, Any]]:
    return [r for r in op.results if not r["workspace"]]


def _doc_entry(name: str, text: str) -> str:
    return textwrap.fill(f"{name}: {text}", 96, initial_indent=" " * 6, subsequent_indent=" " * 8)


def _is_everywhere(op: _native.Op) -> bool:
    return set(op.platforms) == set(_PLATFORMS)


def _where(op: _native.Op) -> str:
    """What is said of an op that some platform lacks."""
    alone = f"Runs on {', '.join(_PLATFORMS[p] for p in op.platforms)} alone"
    if _platforms.has_fallback(op):
        return f"{alone}; `intarsia.jax.{op.name}` is XLA's version on other platforms."
    return f"{alone}; a program for another platform is refused."


def _docstring(op: _native.Op) -> str:
    lines = [f"    {op.summary}", ""]
    if not _is_everywhere(op):
        lines += [f"    {_where(op)}", ""]
    lines.append("    Args:")
    for operand in op.operands:
        absent = "; optional" if operand["optional"] else ""
        what = f"{_shape(operand['dims'])}, {_dtype(operand['dtype'])}: {operand['doc']}{absent}."
        lines.append(_doc_entry(operand["name"], what))
    for attribute in op.attributes:
        lines.append(_doc_entry(attribute["name"], f"{attribute['doc']}{_choices(attribute)}."))
    lines += ["", "    Returns:"]
    for result in _results(op):
        alias = f"; shares the buffer of {result['alias']}" if result["alias"] else ""
        when = f"; only with {result['when']}" if result["when"] else ""
        what = f"{_shape(result['dims'])}, {_dtype(result['dtype'])}: {result['doc']}{alias}{when}."
        lines.append(_doc_entry(result["name"], what))
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


def _family(op: _native.Op) -> str:
    """The family of src whose headers the op includes; of several, what the op is first of all."""
    texts = (path.read_text() for path in (ROOT / "src" / "ops" / op.name).glob(f"{op.name}*"))
    included = set(re.findall(r'^#include "src/(\w+)/', "\n".join(texts), re.M))
    return next((family for family in _FAMILIES if family in included), "others")


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
    return _formatted(head + body)


def wrappers(ops: list[_native.Op]) -> dict[pathlib.Path, str]:
    """The package intarsia.jax.wire: a module for each family, their words, and what exports them."""
    words = gen_types.Words(ops)
    families: dict[str, list[_native.Op]] = {}
    for op in ops:
        families.setdefault(_family(op), []).append(op)
    said = '"""The words that attributes take.\n\n' + HEADER + '\n"""\n\n'
    said += "from typing import Literal, TypeAlias\n\n" + words.aliases()
    package = f'"""The ops as plain functions, operand by operand as they go over the wire.\n\n{HEADER}\n"""\n\n'
    for name in words.of(ops):
        package += f"from intarsia.jax.wire._words import {name} as {name}\n"
    for family in sorted(families):
        names = "".join(f"    {op.name},\n" for op in families[family])
        package += f"from intarsia.jax.wire.{family} import (\n{names})\n"
    package += "\n__all__ = [\n" + "".join(f'    "{op.name}",\n' for op in ops) + "]\n"
    sources = {"__init__": _formatted(package), "_words": _formatted(said)}
    sources |= {name: _wire_module(name, of_it, words) for name, of_it in families.items()}
    return {WIRE / f"{name}.py": source for name, source in sources.items()}


def _formatted(source: str) -> str:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--config",
        str(ROOT / "pyproject.toml"),
        "-",
    ]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _op_page(op: _native.Op) -> str:
    operands = [
        [
            f"`{o['name']}`",
            _shape(o["dims"]),
            _dtype(o["dtype"]),
            o["doc"] + ("; optional" if o["optional"] else ""),
        ]
        for o in op.operands
    ]
    attributes = [
        [
            f"`{a['name']}`",
            a["type"],
            "none" if a["default"] is None else f"`{a['default']!r}`",
            a["doc"] + _choices(a),
        ]
        for a in op.attributes
    ]
    results = [
        [
            f"`{r['name']}`",
            "by shapes" if r["workspace"] else _shape(r["dims"]),
            _dtype(r["dtype"]),
            r["doc"]
            + (f"; shares the buffer of `{r['alias']}`" if r["alias"] else "")
            + (f"; only with `{r['when']}`" if r["when"] else ""),
        ]
        for r in op.results
    ]
    alias = f" Also registered as `{op.target_alias}`." if op.target_alias else ""
    parts = [
        f"## {op.name}",
        f"{op.summary} Target `{op.target}`.{alias}",
        "" if _is_everywhere(op) else _where(op),
        f"Source: {op.source}.",
        _table(["operand", "shape", "dtype", "meaning"], operands),
        _table(["attribute", "type", "default", "meaning"], attributes) if attributes else "",
        _table(["result", "shape", "dtype", "meaning"], results),
        f"```mlir\n{snippet(op)}```",
    ]
    return "\n\n".join(part for part in parts if part)


def _built(op: _native.Op) -> list[str]:
    """A row of the table of what is built: every case of an op is tested on each of its platforms."""
    lacking = "XLA's" if _platforms.has_fallback(op) else "no"
    platforms = ["yes" if p in op.platforms else lacking for p in _PLATFORMS]
    if op.name in support.NOT_CALLED_ALONE:
        _, tests = support.NOT_CALLED_ALONE[op.name]
        cases = f"[tests](../tests/{tests})"
    else:
        count = len(support.cases(op.name, "ci"))
        cases = f"[{count}](../src/ops/{op.name}/{op.name}.py)"
    gradient = "yes" if _grad.has_gradient(op) else "no"
    return [f"[`{op.name}`](#{op.name})", *platforms, gradient, cases]


_PLACES_OF_VALUES = {
    "2*hk": "in the odd heads, K in the even ones",
    "2*d": "behind the K of each head",
    "2": "second in the axis 2, K first",
}


def _place_of_values(axes: list[str]) -> str:
    (place,) = [_PLACES_OF_VALUES[axis] for axis in axes if axis in _PLACES_OF_VALUES] or [
        "in an array of its own, value_cache"
    ]
    return place


def reference_page(ops: list[_native.Op], layouts: list[Mapping[str, Any]]) -> str:
    layout_rows = [
        [f"`{row['name']}`", f"`{row['axes']}`", _place_of_values(row["axes"].split())]
        for row in layouts
    ]
    intro = f"""# Ops

{HEADER}

An op runs on the CPU ("Host") and on NVIDIA GPUs ("CUDA") under one target name, where the table below does not
say otherwise. T is one of f32, f16
and bf16, the same for all that say T. Shape letters: b sequences, t tokens, h query heads, hk KV heads, d
head dim, n hidden size, p pages, s page size, m pages per sequence, r rotary dim, l layers.

On the wire a call is a `stablehlo.custom_call` with API version 4: operands in the order below, absent
ones left out; attribute `present` says which optional ones are there (bit i: the i-th); then the results
in the order below, workspaces last. Attributes may be left out; f64 is taken for f32 and i32 for i64.
Operands and attributes are only ever added, at the end; what a library does not know, it refuses.

Layouts of a paged KV cache, by the order of the axes of key_cache, slowest first:

{_table(["layout", "axes", "values"], layout_rows)}

`layout` may also spell another order of these axes, such as `p 2 hk s d` (FlashInfer's HND): p, s, hk and d
once each, d last; V stands where the table says for `2*hk`, `2*d` or an axis `2`. When the operand `layer`
is given, there is an axis l more: in front, unless the order says where (`p l s hk d`).

Elements that are indices ("slots", "pages", "positions") are skipped where they are out of range. With `INTARSIA_CHECK=1` in
the environment they are errors: `reshape_and_cache_flash: slot_mapping[0] is 99999, expected less than 128 (or negative: skip)`.

What is built: `tests/test_ops.py` compares every case with a reference in f64, on each platform of the op and for each T. CUDA's
cases run where there is a GPU (`make test-gpu`). The last column counts an op's cases, and links to them. "XLA's": the platform lacks the op, and its function in `intarsia.jax` is
XLA's version there. CUDA means every NVIDIA GPU of compute capability 8.0 or newer. Attention and its gradient take
every head dim there that is a multiple of 8 up to 256, on the CPU too, whose forward pass goes up to 512. V has K's head dim, or 128 beside 192 in the forward pass. Where
a block has 99 KB of shared memory (8.6, 8.9, 12.x: A10, L4, L40S, RTX 3090, 4090, 5090 and their like), tiles are smaller wherever
the large ones do not fit often enough. `intarsia doctor` says which kernels a GPU gets.

{_table(["op", "CPU", "CUDA", "gradient", "cases"], [_built(op) for op in ops])}
"""
    return intro + "\n" + "\n\n".join(_op_page(op) for op in ops) + "\n"


def _with_table(page: pathlib.Path, header: list[str], rows: list[list[str]]) -> str:
    """The page with its table of ops written anew."""
    before, rest = page.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{_table(header, rows)}\n{END}{rest.split(END)[1]}"


def readme(ops: list[_native.Op]) -> str:
    rows = [[f"[`{op.name}`](docs/ops.md#{op.name})", op.summary] for op in ops]
    return _with_table(ROOT / "README.md", ["op", "what it does"], rows)


def torch_page(ops: list[_native.Op]) -> str:
    """tests/torch_frontend/xla/test_routes.py sees to it that each route's test is parametrised with its ops."""

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
        ROOT / "docs/ops.md": reference_page(ops, library.manifest["layouts"]),
        ROOT / "README.md": readme(ops),
        ROOT / "docs/torch.md": torch_page(ops),
    }
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    gone = sorted({*WIRE.glob("*.py")} - {*files})  # of a family that has no op any more
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
