"""What a type checker is told of the functions in intarsia/jax/wire: parameters, words, and overloads."""

import ast
import pathlib
from collections.abc import Iterator, Sequence

from intarsia import _native

_PYTHON_TYPES = {"bool": "bool", "i64": "int", "f32": "float", "string": "str"}


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _closed(row: _native.Row) -> bool:
    """Whether an attribute is one of a few words."""
    return bool(row["one_of"]) and not row["or_cache_axes"]


class Words:
    """Names for the words of attributes: that of the attribute, with the op's in front where ops differ."""

    def __init__(self, ops: Sequence[_native.Op]) -> None:
        choices: dict[str, set[str]] = {}
        for op in ops:
            for row in filter(_closed, op.attributes):
                choices.setdefault(row["name"], set()).add(row["one_of"])
        self._differ = {name for name, sets in choices.items() if len(sets) > 1}
        self._rows = [(op, row) for op in ops for row in filter(_closed, op.attributes)]

    def name(self, op: _native.Op, row: _native.Row) -> str:
        return _camel(f"{op.name}_{row['name']}" if row["name"] in self._differ else row["name"])

    def of(self, ops: Sequence[_native.Op]) -> list[str]:
        """The names that the functions of some ops mention."""
        return sorted({self.name(op, row) for op, row in self._rows if op in ops})

    def aliases(self) -> str:
        found = {self.name(op, row): row["one_of"].split("|") for op, row in self._rows}
        return "".join(f"{name}: TypeAlias = Literal{found[name]!r}\n" for name in sorted(found))


def _attribute(op: _native.Op, row: _native.Row, words: Words) -> str:
    kind = words.name(op, row) if _closed(row) else _PYTHON_TYPES[row["type"]]
    nullable = " | None" if row["default"] is None else ""
    return f"{row['name']}: {kind}{nullable} = {row['default']!r}"


def _operands(op: _native.Op, kinds: dict[str, str], required: str = "") -> list[str]:
    """The operands as parameters.

    An operand that can be absent has a default only if no required one follows it.

    Args:
      op: the op.
      kinds: the types of some, where they are not ArrayLike, or that or None.
      required: an operand that is to have no default, nor what stands before it.
    """
    names = [row["name"] for row in op.operands]
    last = names.index(required) if required else -1
    found = []
    for i, row in enumerate(op.operands):
        required_after = any(not o["optional"] for o in op.operands[i + 1 :])
        default = " = None" if row["optional"] and not required_after and i > last else ""
        kind = kinds.get(row["name"], "ArrayLike | None" if row["optional"] else "ArrayLike")
        found.append(f"{row['name']}: {kind}{default}")
    return found


def _joined(operands: Sequence[str], attributes: Sequence[str]) -> str:
    return ", ".join(
        [*operands, *(["*"] if attributes and "*" not in operands else []), *attributes]
    )


def parameters(op: _native.Op, words: Words) -> str:
    attributes = [_attribute(op, row, words) for row in op.attributes]
    return _joined(_operands(op, {}), attributes)


def returns(op: _native.Op) -> str:
    """The type of what the function returns, whatever it is given."""
    results = [row for row in op.results if not row["workspace"]]
    counts = sorted({sum(not row["when"] for row in results), len(results)})
    return " | ".join(map(_tuple, counts))


def _tuple(count: int) -> str:
    return "jax.Array" if count == 1 else f"tuple[{', '.join(['jax.Array'] * count)}]"


def overloads(op: _native.Op, words: Words) -> str:
    """A signature for each form of the results, where one is there only with a flag or an operand."""
    results = [row for row in op.results if not row["workspace"]]
    conditions = {row["when"] for row in results} - {""}
    if not conditions:
        return ""
    (when,) = conditions
    without, every = sum(not row["when"] for row in results), len(results)
    attributes = {row["name"]: _attribute(op, row, words) for row in op.attributes}
    if when in attributes:
        found = _by_flag(op, attributes, when, without, every)
    else:
        found = _by_operand(op, list(attributes.values()), when, without, every)
    return "".join(
        f"\n\n@overload\ndef {op.name}({given}) -> {result}: ...\n" for given, result in found
    )


def _by_flag(
    op: _native.Op, attributes: dict[str, str], flag: str, without: int, every: int
) -> Iterator[tuple[str, str]]:
    forms = {
        f"{flag}: Literal[False] = False": _tuple(without),
        f"{flag}: Literal[True]": _tuple(every),
        f"{flag}: bool": f"{_tuple(without)} | {_tuple(every)}",
    }
    for parameter, result in forms.items():
        yield _joined(_operands(op, {}), [*(attributes | {flag: parameter}).values()]), result


def _by_operand(
    op: _native.Op, attributes: Sequence[str], name: str, without: int, every: int
) -> Iterator[tuple[str, str]]:
    yield _joined(_operands(op, {name: "None"}), attributes), _tuple(without)
    given = _operands(op, {name: "ArrayLike"}, required=name)
    yield _joined(given, attributes), _tuple(every)
    at = [row["name"] for row in op.operands].index(name)
    defaults = _operands(op, {name: "ArrayLike"})
    if defaults[:at] != given[:at]:  # by its name, behind operands that are left out
        keywords = [*defaults[:at], "*", given[at], *defaults[at + 1 :]]
        yield _joined(keywords, attributes), _tuple(every)


def exports(page: pathlib.Path, ops: Sequence[_native.Op]) -> str:
    """intarsia/jax/__init__.py, with the ops that no module of its own says otherwise, and `__all__`."""
    source = page.read_text()
    own: list[str] = []
    places: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "intarsia.jax.wire":
            places["imports"] = node
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("intarsia.jax."):
            own += [name.name for name in node.names]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            places["all"] = node
    wire = sorted({op.name for op in ops} - {*own})
    lines = source.splitlines(keepends=True)
    for name, text in (
        (
            "all",
            "__all__ = [\n"
            + "".join(f'    "{n}",\n' for n in sorted([*own, *wire, "wire"]))
            + "]\n",
        ),
        (
            "imports",
            "from intarsia.jax.wire import (\n" + "".join(f"    {n},\n" for n in wire) + ")\n",
        ),
    ):
        place = places[name]
        lines[place.lineno - 1 : place.end_lineno] = [text]
    return "".join(lines)
