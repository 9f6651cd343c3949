"""Public docstrings as prose: modules, classes and functions whose names have no leading underscore.

A module's underscore does not hide its functions, since `intarsia.jax` and others export them. Examples are left out. Each entry of a
list such as Args is a text of its own, without the names, shapes and dtypes in front of it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_LISTS = "Args|Attributes|Raises|Returns|Warns|Yields"
_LIST = re.compile(rf"^(?:{_LISTS}):\n((?: +.*\n?|\n)*)", re.M)
_CODE = re.compile(r"^Example:\n(?: +.*\n?|\n)*|^ *>>>.*(?:\n.*\S.*)*", re.M)
# In front of an entry's text: `name:` or `k, v:`, and behind it what tools/gen.py writes, as in `[t, h] or [t], T:`.
_NAMES = re.compile(r"\A[*\w.]+(?:, [*\w.]+)*: ")
_FORM = re.compile(r"\A(?:\[|cache pages)(?:(?!\. )[^:])*: ")
_SHAPE = re.compile(r"\[[^\[\]]*\]")


def public(source: str, module: str) -> Iterator[tuple[int, str]]:
    """The docstrings of what is public in a module, each with its line."""
    tree = ast.parse(source)
    is_hidden = module.startswith("_") and module != "__init__.py"
    nodes = [*([] if is_hidden else [tree]), *_members(tree)]
    for node in nodes:
        if text := ast.get_docstring(node):
            yield node.body[0].lineno, text


def _members(parent: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _members(node)


def as_page(docstring: str) -> str:
    """The docstring as Markdown, line by line as it was: entries are items of a list, and code is blank."""
    text = _CODE.sub(lambda match: "\n" * match[0].count("\n"), docstring)
    return _SHAPE.sub("`shape`", _LIST.sub(_items, text))


def _items(section: re.Match[str]) -> str:
    """The entries of a list, which are as far in as its first; their further lines are further in."""
    first = re.search(r"^ +(?=\S)", section[1], re.M)
    indent = len(first[0]) if first else 0
    return "\n" + re.sub(
        rf"^ {{{indent}}}\S.*(?:\n {{{indent}}} +\S.*)*", _item, section[1], flags=re.M
    )


def _item(entry: re.Match[str]) -> str:
    text = _NAMES.sub("", " ".join(entry[0].split()))
    return f"- {_FORM.sub('', text)}" + "\n" * entry[0].count("\n")


def files(root: Path) -> Iterator[Path]:
    yield from sorted((root / "python" / "intarsia").rglob("*.py"))
