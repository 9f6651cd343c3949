"""What a call in a chat template can make, from its arguments, before it is made.

A table has a rule for each method of a text and for each filter. What is not in it cannot be called: filters
for HTML, say, and whatever deals in bytes.
"""

import re
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    KeysView,
    Sequence,
    Sized,
    ValuesView,
)
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.utils import Namespace

MOST_CHARACTERS = 1 << 24
"""Of the text, and of each value on the way to it."""
MOST_BITS = 4096
"""Of an integer: the time of a division grows with the square."""
MOST_SOURCE = 1 << 18
"""Characters of a template."""
ITEM = 64
"""Characters that an item of a list counts beside its own."""
_QUOTED = 10  # most that a character takes in quotes: \U0001f600
_ESCAPED = 5  # in HTML: &#34;
_MOST_COMPARED = 1 << 30  # pairs of characters, where a search looks at all
_LONGEST_NUMBER = 4096  # digits that are read as a number
_LARGEST_FLOAT = 400  # digits of one that is written
_SHORT = 100  # what is no text and holds nothing, as text
_MOST_PRECISION = 1000
_WIDTH_IN_VALUES = "it formats to a width among its values"
_WHITESPACE = " \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_CONTROLS = "".join(map(chr, range(32)))
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

Rule = Callable[..., int]
"""Takes a call's arguments, by the same names; returns the characters of what it makes, or of what that takes on the way."""


class LimitError(TemplateError):
    """A bound was met."""


def check_size(size: int) -> None:
    """Raises LimitError if a value is too large."""
    if size > MOST_CHARACTERS:
        raise LimitError(f"it makes more than {MOST_CHARACTERS} characters")


def check_bits(bits: int) -> None:
    """Raises LimitError if an integer is too large."""
    if bits > MOST_BITS:
        raise LimitError(f"it makes an integer of more than {MOST_BITS} bits")


def size_of(value: Any, most: int = MOST_CHARACTERS, of_text: Callable[[str], int] = len) -> int:
    """Roughly the characters of a value with all that it holds; no more than a little above `most` is counted.

    of_text: the characters that one of its texts counts.
    """
    if isinstance(value, str):
        return of_text(value)
    if isinstance(value, bytes):
        raise LimitError("it makes bytes")
    if isinstance(value, int):
        check_bits(value.bit_length())
        return value.bit_length() // 3
    if isinstance(value, Namespace):
        value = value._Namespace__attrs  # of which it gives no other account
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
        return 1
    total = len(value) * ITEM
    for item in value:
        if total > most:
            break
        total += size_of(item, most - total, of_text)
    return total


def size_alone(value: Any) -> int:
    """The characters of a value without those that its items hold."""
    if isinstance(value, str):
        return len(value)
    return len(value) * ITEM if isinstance(value, list | tuple | dict) else 0


def size_as_text(value: Any) -> int:
    """Most characters of `str(value)`."""
    return len(value) if isinstance(value, str) else _SHORT + size_of(value, of_text=_quoted)


def size_as_json(value: Any, ascii_alone: bool) -> int:
    """Most characters of a value in JSON, without indents."""
    return size_of(value, of_text=_in_ascii if ascii_alone else _escaped_controls)


def _quoted(text: str) -> int:
    """Most characters of a text as Python writes it in a list."""
    return len(text) + _count(text, "'\\") if text.isprintable() else _QUOTED * len(text)


def _in_ascii(text: str) -> int:
    r"""In JSON whose other characters are two times \ud83d."""
    return _escaped_controls(text) if text.isascii() else 12 * len(text)


def _escaped_controls(text: str) -> int:
    r"""In JSON, where others are \u0001."""
    controls = 0 if text.isprintable() else _count(text, _CONTROLS)
    return len(text) + _count(text, '"\\') + 5 * controls


def size_by_percent(form: str, values: Any) -> int:
    """Most characters of `form % values`."""
    if re.search(r"%(\([^)]*\))?[-+ #0-9.]*\*", form):
        raise LimitError(_WIDTH_IN_VALUES)
    values = values if isinstance(values, tuple) else (values,)
    quotes = re.search("%[^%]*[ra]", form)
    return len(form) + form.count("%") * _size_of_field(form, values, bool(quotes))


def size_by_braces(form: str, /, *args: Any, **kwargs: Any) -> int:
    """Most characters of `form.format(*args, **kwargs)`."""
    if re.search(r"\{[^{}]*[:!][^{}]*\{", form.replace("{{", "").replace("}}", "")):
        raise LimitError(_WIDTH_IN_VALUES)
    quotes = re.search("![ra]", form)
    values = (*args, *kwargs.values())
    return len(form) + form.count("{") * _size_of_field(form, values, bool(quotes))


def _size_of_field(form: str, values: Sequence[Any], quotes: bool) -> int:
    """Most that a field makes: all the values, at the largest width that can be in the form."""
    if re.search(r"\d{7}", form):
        raise LimitError("it formats to a width of millions")
    digits = next(n for n in reversed(range(7)) if re.search(rf"\d{{{n}}}", form))
    sizes = sum(map(size_as_text, values)) * (_QUOTED if quotes else 1)
    return sizes + 10**digits + _LARGEST_FLOAT


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Raises LimitError if an operator makes too much of two values, or takes too long over them."""
    sizes = size_of(left), size_of(right)
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                check_size(size_of(many) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() * abs(right))
    elif operator == "%" and isinstance(left, str):
        check_size(size_by_percent(left, right))
    elif operator == "+" and not isinstance(left, int | float):
        check_size(sum(sizes))


def _text(value: Any) -> str:
    check_size(size_as_text(value))
    return str(value)


def _count(text: str, characters: str) -> int:
    return sum(map(text.count, characters))


def _check_search(text: str, sought: Any) -> None:
    """Raises LimitError for a long search: from the end, or for a set of characters, Python looks at every pair."""
    if isinstance(sought, str) and len(text) * len(sought) > _MOST_COMPARED:
        raise LimitError(f"it compares more than {_MOST_COMPARED} characters")


def _as_long(value: Any, *args: Any, **kwargs: Any) -> int:
    return size_as_text(value)


def _in_other_case(value: Any) -> int:
    size = size_as_text(value)
    return size if isinstance(value, str) and value.isascii() else 3 * size


def _in_pieces(value: Any) -> int:
    return size_as_text(value) * ITEM


def _escaped(value: Any) -> int:
    return size_as_text(value) * _ESCAPED


def _padded(value: Any, width: int = 80, *args: Any) -> int:
    return max(size_as_text(value), width)


def _expanded(text: str, tabsize: int = 8) -> int:
    return len(text) + text.count("\t") * max(tabsize, 0)


def _replaced(value: Any, old: Any, new: Any, count: int | None = None) -> int:
    text, old, new = _text(value), _text(old), _text(new)
    found = text.count(old)
    times = found if count is None or count < 0 else min(count, found)
    return len(text) + times * max(len(new) - len(old), 0)


def _joined(value: Any, d: Any = "", attribute: Any = None) -> int:
    between = size_as_text(d)
    if isinstance(value, str):
        return len(value) * (1 + between)
    count = len(value) if isinstance(value, Sized) else 0
    # With an attribute it is a part of an item that is joined.
    items = sum(map(size_as_text, value)) if isinstance(value, Iterable) else 0
    return items + count * between


def _stripped(value: Any, chars: Any = None) -> int:
    _check_search(_text(value), chars)
    return size_as_text(value)


def _split(text: str, sep: str | None = None, maxsplit: int = -1) -> int:
    found = _count(text, _WHITESPACE) if sep is None else text.count(sep or " ")
    times = found if maxsplit < 0 else min(maxsplit, found)
    return len(text) + (times + 1) * ITEM


def _split_from_end(text: str, sep: str | None = None, maxsplit: int = -1) -> int:
    _check_search(text, sep)
    return _split(text, sep, maxsplit)


def _split_lines(text: str, keepends: bool = False) -> int:
    return len(text) + (_count(text, _LINE_ENDS) + 1) * ITEM


def _found_from_end(text: str, sought: Any, *args: Any) -> int:
    _check_search(text, sought)
    return len(text)


def _in_json(value: Any, ensure_ascii: bool = False, *args: Any, **kwargs: Any) -> int:
    return size_as_json(value, ensure_ascii)


def _formatted(form: Any, /, *args: Any, **kwargs: Any) -> int:
    return size_by_percent(_text(form), kwargs or args)


def _indented(value: Any, width: int | str = 4, *args: Any, **kwargs: Any) -> int:
    if not isinstance(value, str):  # jinja2 would put a line's end into the caller's list
        raise LimitError(f"it indents a {type(value).__name__}, expected a text")
    each = width if isinstance(width, int) else len(width)
    return len(value) + (_count(value, _LINE_ENDS) + 1) * (each + ITEM)


def _listed(value: Any, *args: Any, **kwargs: Any) -> int:
    # Items of an iterator are counted as they come.
    return len(value) * ITEM if isinstance(value, Sized) else 0


def _batched(value: Any, linecount: int, fill_with: Any = None) -> int:
    return _listed(value) + max(linecount, 0) * ITEM


def _sliced(value: Any, slices: int, fill_with: Any = None) -> int:
    return _listed(value) + max(slices, 0) * ITEM


def _number(value: Any, *args: Any, **kwargs: Any) -> int:
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        raise LimitError(f"it reads a number of more than {_LONGEST_NUMBER} digits")
    return 0


def _rounded(value: Any, precision: int = 0, *args: Any, **kwargs: Any) -> int:
    if abs(precision) > _MOST_PRECISION:
        raise LimitError(f"it rounds to more than {_MOST_PRECISION} digits")
    return 0


def _summed(value: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise LimitError("it sums what are no numbers")
    return 0


def _referred(*args: Any, **kwargs: Any) -> int:
    """It makes a number, or hands on what is there."""
    return 0


def _by_name(rules: dict[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in rules.items() for name in names.split()}


METHODS: dict[str, Rule] = _by_name(
    {
        _referred: "count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower "
        "isnumeric isprintable isspace istitle isupper startswith",
        _as_long: "partition removeprefix removesuffix",
        _in_other_case: "capitalize casefold lower swapcase title upper",
        _padded: "center ljust rjust zfill",
        _expanded: "expandtabs",
        _replaced: "replace",
        _stripped: "lstrip rstrip strip",
        _split: "split",
        _split_from_end: "rsplit",
        _split_lines: "splitlines",
        _found_from_end: "rfind rindex rpartition",
        size_by_braces: "format format_map",
    }
) | {"join": lambda between, items: _joined(items, between)}
"""Of texts. No other can be called."""

FILTERS: dict[str, Rule] = _by_name(
    {
        _referred: "abs attr count d default dictsort filesizeformat first groupby items last length map max min "
        "random reject rejectattr reverse select selectattr unique within",
        _as_long: "emitted safe string truncate",
        _in_other_case: "capitalize lower upper",
        _in_pieces: "title",
        _escaped: "e escape forceescape",
        _padded: "center",
        _replaced: "replace",
        _joined: "join",
        _stripped: "trim",
        _in_json: "tojson",
        _formatted: "format",
        _indented: "indent",
        _listed: "list sort",
        _batched: "batch",
        _sliced: "slice",
        _number: "float int",
        _rounded: "round",
        _summed: "sum",
    }
)
"""Templates have no other."""
