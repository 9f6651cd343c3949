"""Chat templates, which come with a model: Jinja programs by whoever made it, run in jinja2's sandbox.

The sandbox keeps them from Python; the bounds here keep them from taking all time and memory.
Each turn of a loop, each call and each filter looks at the clock of the thread. A value that any
of them makes, or an operator, may have so many elements and no more.
"""

import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.filters import do_format
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_SECONDS = 5.0
"""Of processor time; a template takes a few milliseconds."""
MOST_CHARACTERS = 1 << 24
"""Of the text, and of each value on the way to it."""
_ITEM_CHARACTERS = 16  # that an item of a list counts beside its own
_LARGEST_ARGUMENT = 10**6  # what a method or filter may be given as a width, say


class _LimitError(TemplateError):
    """A bound was met."""


class _Ticks(NodeTransformer):
    """Puts a call of `tick` into loops and macros, and concatenations through `within`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja2's name)
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, node.lineno)
        return node

    def _ticking(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.Output([_filtered(nodes.Const("", lineno=node.lineno), node.lineno)])
        node.body = [tick.set_lineno(node.lineno), *node.body]
        return node


def _filtered(node: nodes.Node | None, lineno: int) -> nodes.Filter:
    return nodes.Filter(node, "within", [], [], None, None, lineno=lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with bounds. It renders one template."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        # The settings and functions that transformers gives to templates. Constants are not
        # computed while a template is compiled, where nothing is bounded.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            optimized=False,
            finalize=self._within,
        )
        self._end = time.thread_time() + MOST_SECONDS
        self.filters["tojson"] = _to_json
        self.filters["format"] = self._format
        self.filters["within"] = _within
        self.filters = {name: self._bounded(f) for name, f in self.filters.items()}
        del self.globals["lipsum"]  # as much text as it is asked for, in one call
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Ticks().visit(source), *args, **kwargs)

    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_arguments(args, kwargs)
        return self._within(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    self._check_size(len(many) * max(times, 0))
        elif operator == "**":
            self._check_size(abs(right) * len(str(left)) if isinstance(right, int) else 0)
        elif operator == "%" and isinstance(left, str):
            self._check_form(left)
            self._check_arguments((right,), {})
        return self._within(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            self._check_form(str(value.__self__))
        return wrapped

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter; the copy has the mark of one that wants the context, too."""

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._check_arguments(args, kwargs)
            return self._within(function(*args, **kwargs))

        return bounded

    def _format(self, form: Any, *args: Any, **kwargs: Any) -> str:
        self._check_form(str(form))
        return do_format(form, *args, **kwargs)

    def _check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, int) and abs(one) > _LARGEST_ARGUMENT:
                    raise _LimitError(f"it takes {one:.0e} for an argument")
            self._within(value)

    def _check_form(self, form: str) -> None:
        if re.search(r"\d{7}", form):  # a width
            raise _LimitError("it formats to a width of millions")

    def _within(self, value: Any) -> Any:
        """The value, if there is time left and it is not too large."""
        if time.thread_time() > self._end:
            raise _LimitError(f"it takes more than {MOST_SECONDS:g} s")
        self._check_size(_size(value, MOST_CHARACTERS))
        return value

    def _check_size(self, size: int) -> None:
        if size > MOST_CHARACTERS:
            raise _LimitError(f"it makes more than {MOST_CHARACTERS} characters")


def _size(value: Any, most: int) -> int:
    """Roughly the characters of a value as text; no more than a little above `most` is counted."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3
    if not isinstance(value, list | tuple | dict):
        return 1
    items = [*value, *value.values()] if isinstance(value, dict) else value
    total = len(items) * _ITEM_CHARACTERS
    for item in items:
        if total > most:
            break
        total += _size(item, most - total)
    return total


@pass_context  # or it is called once, while the template is compiled
def _within(context: Any, value: Any) -> Any:
    """The filter that loops and macros call: it does nothing but look at the bounds, as all do."""
    del context
    return value


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def render(source: str, **variables: Any) -> str:
    """Renders a template.

    Raises:
        ValueError: The template is wrong, refuses the messages, or takes too much time or memory.
    """
    pieces, size = [], 0
    try:
        environment = _Environment()
        for piece in environment.from_string(source).generate(**variables):
            pieces.append(piece)
            size += len(piece)
            environment._check_size(size)
    except TemplateError as error:
        raise ValueError(f"chat template: {error.message or type(error).__name__}") from error
    except Exception as error:  # of the Python functions that it calls
        raise ValueError(f"chat template: {type(error).__name__}: {error}") from error
    return "".join(pieces)
