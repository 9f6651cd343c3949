"""The op reference: docs/ops.md, which lists the ops, and a page for each family in docs/ops."""

import ast
import functools
import inspect
import pathlib
from collections.abc import Mapping
from typing import Any

import gen_examples
import gen_types
import gen_words
import intarsia.jax
import support
from gen_words import HEADER, PLATFORMS, ROOT, table
from intarsia import _native
from intarsia.jax import _grad, _platforms
from wire import snippet

_TITLES = {
    "attention": "Attention",
    "rotary": "Rotary embedding",
    "norm": "Norms",
    "matmul": "Matrix products and experts",
    "activation": "Activations",
    "cache": "KV caches",
    "quant": "Quantization",
    "others": "Others",
}


def _operand_rows(op: _native.Op) -> list[list[str]]:
    return [
        [
            f"`{o['name']}`",
            gen_words.shape(o["dims"]),
            gen_words.dtype(o["dtype"]),
            o["doc"] + ("; optional" if o["optional"] else ""),
        ]
        for o in op.operands
    ]


def _attribute_rows(op: _native.Op) -> list[list[str]]:
    return [
        [
            f"`{a['name']}`",
            a["type"],
            "none" if a["default"] is None else f"`{a['default']!r}`",
            a["doc"] + gen_words.choices(a),
        ]
        for a in op.attributes
    ]


def _result_rows(op: _native.Op) -> list[list[str]]:
    return [
        [
            f"`{r['name']}`",
            "by shapes" if r["workspace"] else gen_words.shape(r["dims"]),
            gen_words.dtype(r["dtype"]),
            r["doc"]
            + (f"; shares the buffer of `{r['alias']}`" if r["alias"] else "")
            + (f"; only with `{r['when']}`" if r["when"] else ""),
        ]
        for r in op.results
    ]


@functools.cache
def _definitions(path: pathlib.Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name; of overloads the last one, which is the function itself."""
    body = ast.parse(path.read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    """`x` or `eps=1e-06`: types stand in the tables."""
    return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"


def signature(op: _native.Op) -> str:
    """The function of intarsia.jax as a reader calls it, a line or two of it."""
    if gen_examples.is_exported(op):  # its file may be about to be written
        parameters = gen_types.parameters(op, gen_types.Words([op]))
        (node,) = ast.parse(f"def {op.name}({parameters}) -> {gen_types.returns(op)}: ...").body
    else:
        file = inspect.getsourcefile(getattr(intarsia.jax, op.name))
        node = _definitions(pathlib.Path(file or ""))[op.name]
    given = node.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + [*given.defaults]
    parameters = [_parameter(a, d) for a, d in zip(given.args, defaults, strict=True)]
    if given.kwonlyargs:
        parameters.append("*")
        pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        parameters += [_parameter(a, d) for a, d in pairs]
    returned = ast.unparse(node.returns) if node.returns else ""
    one_line = f"intarsia.jax.{op.name}({', '.join(parameters)}) -> {returned}"
    if len(one_line) <= 80:
        return one_line
    lines, line = [f"intarsia.jax.{op.name}("], "   "
    for parameter in parameters:
        if len(line) + len(parameter) > 76:
            lines.append(line)
            line = "   "
        line += f" {parameter},"
    return "\n".join([*lines, line, f") -> {returned}"])


def _own_doc(op: _native.Op) -> str:
    """What the function of intarsia.jax says beyond the op: where its parameters are others."""
    if gen_examples.is_exported(op):
        return ""
    return (
        f"This signature is that of `intarsia.jax`, whose docstring explains it. "
        f"`intarsia.jax.wire.{op.name}` takes the operands below one by one."
    )


def _on_the_wire(op: _native.Op) -> str:
    alias = f" Also registered as `{op.target_alias}`." if op.target_alias else ""
    return (
        f'<details markdown="1">\n<summary>StableHLO</summary>\n\n'
        f"Target `{op.target}`.{alias}\n\n```mlir\n{snippet(op)}```\n\n</details>"
    )


def _op_section(op: _native.Op) -> str:
    attributes = _attribute_rows(op)
    example = "\n".join(gen_examples.of_page(op))
    parts = [
        f"## {op.name}",
        op.summary,
        "" if gen_words.is_everywhere(op) else gen_words.where(op),
        f"```python\n{signature(op)}\n```",
        _own_doc(op),
        f"```pycon\n{example}\n```",
        table(["operand", "shape", "dtype", "meaning"], _operand_rows(op)),
        table(["attribute", "type", "default", "meaning"], attributes) if attributes else "",
        table(["result", "shape", "dtype", "meaning"], _result_rows(op)),
        f"In PyTorch: `torch.ops.xla_gpu.{op.name}`. Source: {op.source}.",
        _on_the_wire(op),
    ]
    return "\n\n".join(part for part in parts if part)


def _family_page(family: str, ops: list[_native.Op]) -> str:
    summaries = table(
        ["op", "what it does"], [[f"[`{op.name}`](#{op.name})", op.summary] for op in ops]
    )
    intro = (
        f"# {_TITLES[family]}\n\n<!-- {HEADER} -->\n\n"
        "Shape letters, dtypes and what is built where: [Ops](../ops.md).\n\n"
    )
    return intro + summaries + "\n\n" + "\n\n".join(map(_op_section, ops)) + "\n"


def _built(op: _native.Op) -> list[str]:
    """A row of the table of what is built: every case of an op is tested on each of its platforms."""
    lacking = "XLA's" if _platforms.has_fallback(op) else "no"
    platforms = ["yes" if p in op.platforms else lacking for p in PLATFORMS]
    if op.name in support.NOT_CALLED_ALONE:
        _, tests = support.NOT_CALLED_ALONE[op.name]
        cases = f"[tests](../tests/{tests})"
    else:
        count = len(support.cases(op.name, "ci"))
        cases = f"[{count}](../src/ops/{op.name}/{op.name}.py)"
    gradient = "yes" if _grad.has_gradient(op) else "no"
    page = f"ops/{gen_words.family(op)}.md#{op.name}"
    # The anchor is what links of earlier versions name.
    return [f'<a id="{op.name}"></a>[`{op.name}`]({page})', *platforms, gradient, cases]


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


def _index(ops: list[_native.Op], layouts: list[Mapping[str, Any]]) -> str:
    layout_rows = [
        [f"`{row['name']}`", f"`{row['axes']}`", _place_of_values(row["axes"].split())]
        for row in layouts
    ]
    named = {family for op in ops for family in [gen_words.family(op)]}
    families = ", ".join(f"[{_TITLES[f]}](ops/{f}.md)" for f in _TITLES if f in named)
    return f"""# Ops

<!-- {HEADER} -->

Each family has a page: {families}. An op runs on the CPU ("Host" for XLA) and on NVIDIA GPUs ("CUDA") under one target name. The
table says where one does not.

## Shapes and dtypes

T is one of f32, f16 and bf16, the same for all that say T. Shape letters: b sequences, t tokens, h query heads, hk KV heads, d
head dim, n hidden size, p pages, s page size, m pages per sequence, r rotary dim, l layers.

## What is built

{table(["op", "CPU", "CUDA", "gradient", "cases"], [_built(op) for op in ops])}

`tests/test_ops.py` compares every case with a reference in f64, on each platform of the op and for each T. CUDA's cases run where
there is a GPU (`make test-gpu`). The last column counts an op's cases, and links to them. "XLA's" means that the platform lacks
the op, and that its function in `intarsia.jax` is XLA's version there.

CUDA means every NVIDIA GPU of compute capability 8.0 or newer. Attention and its gradient take every head dim that is a multiple
of 8 up to 256, on the CPU too, whose forward pass goes up to 512. V has K's head dim, or 128 beside 192 in the forward pass. Some GPUs have 99 KB of shared memory
per block (8.6, 8.9, 12.x: A10, L4, L40S, RTX 3090, 4090, 5090). Tiles are smaller there wherever the large ones do not fit often
enough. `intarsia doctor` says which kernels a GPU gets.

## Layouts of a paged KV cache

By the order of the axes of key_cache, slowest first:

{table(["layout", "axes", "values"], layout_rows)}

`layout` may also spell another order of these axes, such as `p 2 hk s d` (FlashInfer's HND): p, s, hk and d once each, d last.
V stands where the table says for `2*hk`, `2*d` or an axis `2`. The operand `layer` adds an axis l: in front, unless the order
says where (`p l s hk d`).

## Indices

Indices (slots, pages, positions) that are out of range are skipped. With `INTARSIA_CHECK=1` in the environment they are errors:
`reshape_and_cache_flash: slot_mapping[0] is 99999, expected less than 128 (or negative: skip)`.

## On the wire

A call is a `stablehlo.custom_call` with API version 4: operands in the order of the op's table, absent ones left out, then the
results, workspaces last. Attribute `present` says which optional operands are there (bit i: the i-th). Attributes may be left
out; f64 is taken for f32 and i32 for i64. Operands and attributes are only ever added, at the end. A library refuses those that it
does not know.
"""


def pages(ops: list[_native.Op], layouts: list[Mapping[str, Any]]) -> dict[pathlib.Path, str]:
    """The text of each page of the reference."""
    families: dict[str, list[_native.Op]] = {}
    for op in ops:
        families.setdefault(gen_words.family(op), []).append(op)
    found = {ROOT / "docs/ops.md": _index(ops, layouts)}
    found |= {
        ROOT / f"docs/ops/{family}.md": _family_page(family, of_it)
        for family, of_it in families.items()
    }
    return found
