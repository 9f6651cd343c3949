"""What tools/gen.py and its modules share: an op's spec in words, and text in form."""

import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia import _native
from intarsia.jax import _platforms

ROOT = pathlib.Path(__file__).parent.parent
HEADER = (
    "Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`)."
)
# What an op of several families is called by: the first of these.
FAMILIES = ("attention", "rotary", "norm", "matmul", "activation", "cache", "quant")
PLATFORMS = {"cpu": "CPU", "cuda": "CUDA"}  # as readers know them


def shape(dims: str) -> str:
    """A spec's dims for readers: `[t, h, d]`; `by layout` for a cache."""
    if dims.startswith("="):
        return f"as {dims[1:]}"
    if "layout=" in dims:
        paged = "cache pages, by layout"
        rest = [v for v in dims.split(" | ") if "layout=" not in v]
        return " or ".join([paged, *map(shape, rest)])
    variants: dict[str, list[str]] = {}
    for variant in dims.split(" | "):
        condition, _, terms = variant.rpartition(": ")
        text = "[" + ", ".join(terms.split()) + "]" if terms else "scalar"
        variants.setdefault(text, []).append(condition)
    return " or ".join(
        f"{text} with {_either(conditions)}" if conditions[0] else text
        for text, conditions in variants.items()
    )


def _either(conditions: Sequence[str]) -> str:
    """Conditions of one shape: those of one attribute's values together."""
    values: dict[str, list[str]] = {}
    for condition in conditions:
        attribute, _, value = condition.rpartition("=")
        values.setdefault(attribute, []).append(value)
    for name, of in list(values.items()):
        # "w2_format=same: format" beside "w2_format", of the same values.
        attribute, _, word = name.partition(": ")[0].rpartition("=")
        if attribute and values.get(attribute) == of:
            del values[attribute], values[name]
            values[f"{attribute} ({name.partition(': ')[2]} if {word})"] = of
    texts = [f"{name}={'/'.join(of)}" if name else "/".join(of) for name, of in values.items()]
    return ", or ".join(text.replace(": ", " and ") for text in texts)


def dtype(rule: str) -> str:
    return rule.replace("|", ", ")


def choices(attribute: Mapping[str, Any]) -> str:
    other = ", or an order of axes" if attribute["or_cache_axes"] else ""
    return f"; one of {dtype(attribute['one_of'])}{other}" if attribute["one_of"] else ""


def results(op: _native.Op) -> list[Mapping[str, Any]]:
    return [r for r in op.results if not r["workspace"]]


def is_everywhere(op: _native.Op) -> bool:
    return set(op.platforms) == set(PLATFORMS)


def where(op: _native.Op) -> str:
    """What is said of an op that some platform lacks."""
    alone = f"Runs on {', '.join(PLATFORMS[p] for p in op.platforms)} alone"
    if _platforms.has_fallback(op):
        return f"{alone}; `intarsia.jax.{op.name}` is XLA's version on other platforms."
    return f"{alone}; a program for another platform is refused."


def checked(op: _native.Op) -> str:
    """What becomes of indices out of range; empty if the op has no operand of indices."""
    ranges = [
        f"{row['name']} ({'below' if row['negative_skips'] else 'from 0, below'} {row['indexes']})"
        for row in op.operands
        if row["indexes"]
    ]
    said = "Indices out of range are skipped; INTARSIA_CHECK=1 in the environment makes them errors"
    return f"{said}: {', '.join(ranges)}." if ranges else ""


def family(op: _native.Op) -> str:
    """The family of src whose headers the op includes; of several, what the op is first of all."""
    texts = (path.read_text() for path in (ROOT / "src" / "ops" / op.name).glob(f"{op.name}*"))
    included = set(re.findall(r'^#include "src/(\w+)/', "\n".join(texts), re.M))
    return next((name for name in FAMILIES if name in included), "others")


def formatted(source: str) -> str:
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


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
