"""Chat templates, which come with a model: Jinja programs by whoever made it, run in jinja2's sandbox.

The sandbox keeps them from Python; the bounds here keep them from taking all time and memory. Each
turn of a loop, operator, call, filter and output looks at the clock of the thread. What it makes is
bounded three times: before it is made (`template_bounds.py`), as a value, and in the sum of all values.
"""

import datetime
import functools
import json
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from markupsafe import escape

from intarsia.models.template_bounds import (
    FILTERS,
    ITEM,
    METHODS,
    MOST_CHARACTERS,
    MOST_SOURCE,
    LimitError,
    Rule,
    check_operands,
    check_size,
    size_alone,
    size_by_braces,
    size_of,
)

MOST_SECONDS = 5.0
"""Of processor time; a template takes a few milliseconds."""
MOST_MADE = 4 * MOST_CHARACTERS
"""Of all values together, those that are no more counted as well."""
_TURN = 8  # characters that a turn of a loop counts
_LARGEST_INDENT = 16
_LONGEST_DATE = 256
_OF_JINJA = ("_loop_vars", "_block_vars")


class _Bounds(NodeTransformer):
    """Sends whatever makes values past the bounds, by filters.

    They take the context. So nothing is computed while the template is compiled, where it would be
    counted once, however often a loop puts it out.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja2's name)
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._ticking(node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [
            child if isinstance(child, nodes.TemplateData) else _filtered(child, "emitted")
            for child in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _concat(node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._built(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._built(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._built(node, node.items) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node) if isinstance(node.arg, nodes.Slice) else node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, lineno=node.lineno)
        return node

    def visit_ScopedEvalContextModifier(self, node: Any) -> nodes.Node:  # noqa: N802
        raise LimitError("it sets autoescape, which is for HTML")

    def _built(self, node: nodes.Expr, items: list[Any]) -> nodes.Node:
        self.generic_visit(node)
        return node if all(isinstance(item, nodes.Const) for item in items) else _filtered(node)

    def _ticking(self, node: Any) -> nodes.Node:
        # The text between the tags of a loop is put out without a filter.
        data = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = nodes.Output([_filtered(nodes.Const(data, lineno=node.lineno), "tick")])
        node.body = [tick.set_lineno(node.lineno), *node.body]
        return node


def _filtered(
    node: nodes.Expr | None, name: str = "within", *, lineno: int | None = None
) -> nodes.Filter:
    lineno = node.lineno if node else lineno
    return nodes.Filter(node, name, [], [], None, None, lineno=lineno)


def _concat(operands: list[nodes.Expr]) -> nodes.Expr:
    """Two at a time, or a long line of them would make too much at once."""
    if len(operands) == 1:
        return operands[0]
    half = len(operands) // 2
    pair = [_concat(operands[:half]), _concat(operands[half:])]
    return _filtered(nodes.Concat(pair, lineno=operands[0].lineno))


class _Generation(Extension):
    """`{% generation %}`, by which transformers marks what an assistant said, for training: its body as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Takes the body as a scope of its own, as transformers does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with bounds. It renders one template."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        # The settings and functions that transformers gives to templates.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,
        )
        self._end = time.thread_time() + MOST_SECONDS
        self._made = 0
        self.filters |= {
            "tojson": self._to_json,
            "within": _within,
            "emitted": _emitted,
            # No text is escaped, so none is kept apart as safe.
            "safe": self.filters["string"],
        } | dict.fromkeys(("e", "escape", "forceescape"), lambda value: str(escape(value)))
        self.filters = {
            name: self._bounded(function, FILTERS[name])
            for name, function in self.filters.items()
            if name in FILTERS
        } | {"tick": self._tick}
        del self.globals["lipsum"]  # as much text as it is asked for, in one call
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Bounds().visit(source), *args, **kwargs)

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        # In loops and blocks jinja2 adds the variables of these, and takes them off again.
        named = {name: value for name, value in kwargs.items() if name not in _OF_JINJA}
        for value in (*args, *named.values()):
            check_size(size_of(value))
        owner, size = getattr(called, "__self__", None), 0
        if isinstance(owner, str):
            args = tuple(self._listed(value) for value in args)
            size = METHODS[called.__name__](owner, *args, **named)
            check_size(size)
        return self._within(super().call(context, called, *args, **kwargs), size)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return self._within(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, bytes) or (isinstance(obj, str) and attr not in METHODS):
            return False
        if isinstance(obj, int) and attr in ("to_bytes", "from_bytes"):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        form = str(value.__self__)

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_size(size_by_braces(form, *args, **kwargs))
            return wrapped(*args, **kwargs)

        return bounded

    def _bounded(self, function: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        """A filter; the copy has the mark of one that wants the context, too."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if rule is FILTERS["join"]:
                args = tuple(self._listed(value) for value in args)
            for value in (*args[first:], *kwargs.values()):
                check_size(size_of(value))
            size = rule(*args[first:], **kwargs)
            check_size(size)
            return self._within(function(*args, **kwargs), size)

        return bounded

    def _within(self, value: Any, size: int = 0) -> Any:
        """A value that was made, of so many characters, if there is time left and it is not too large."""
        self._count(max(size, size_alone(value)))
        check_size(size_of(value))
        return self._items(value) if isinstance(value, types.GeneratorType) else value

    def _count(self, size: int) -> None:
        if time.thread_time() > self._end:
            raise LimitError(f"it takes more than {MOST_SECONDS:g} s")
        self._made += size
        if self._made > MOST_MADE:
            raise LimitError(f"it makes more than {MOST_MADE} characters in all")

    def _items(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._count(ITEM)
            yield item

    def _listed(self, value: Any) -> Any:
        """A list in the place of an iterator, so that it can be measured."""
        return list(self._items(value)) if isinstance(value, Iterator) else value

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        if (len(indent) if isinstance(indent, str) else indent or 0) > _LARGEST_INDENT:
            raise LimitError(f"it indents by more than {_LARGEST_INDENT} characters")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        pieces, size = [], 0
        for piece in encoder.iterencode(value):
            pieces.append(piece)
            size += len(piece)
            check_size(size)
            self._count(1)
        return "".join(pieces)

    @pass_context
    def _tick(self, context: Any, data: int) -> str:
        """What a turn of a loop or macro calls, with the characters of the text in it."""
        self._count(max(data, 0) + _TURN)
        return ""


@pass_context
def _within(context: Any, value: Any) -> Any:
    """Does nothing but meet the bounds, as each filter does."""
    del context
    return value


@pass_context
def _emitted(context: Any, value: Any) -> str:
    """What goes into the text."""
    del context
    return str(value)


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_DATE:
        raise LimitError(f"it writes a date by more than {_LONGEST_DATE} characters")
    return datetime.datetime.now().strftime(form)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def render(source: str, **variables: Any) -> str:
    """Renders a template.

    Raises:
        ValueError: The template is wrong, refuses the messages, or takes too much time or memory.
    """
    pieces, size = [], 0
    try:
        if len(source) > MOST_SOURCE:
            raise LimitError(f"it has {len(source)} characters, expected {MOST_SOURCE} or fewer")
        for piece in _Environment().from_string(source).generate(**variables):
            pieces.append(piece)
            size += len(piece)
            check_size(size)
    except TemplateError as error:
        raise ValueError(f"chat template: {error.message or type(error).__name__}") from error
    except Exception as error:  # of the Python functions that it calls
        raise ValueError(f"chat template: {type(error).__name__}: {error}") from error
    return "".join(pieces)
