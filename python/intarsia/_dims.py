"""Reads a spec's shapes (the language of `src/core/dims.h`) as far as front ends need it: what each axis is, for vmap
and sharding, and the results' sizes where the operands' are symbols.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from intarsia import _native

Shape = tuple[int, ...]
STARTS = "b+1"  # where each sequence of a ragged batch starts
SEQUENCES = "b"
TOKENS = ("t", "tq", "tk")


class Axes(NamedTuple):
    """The axes of one operand or result: `free` leading ones ("..."), then one for each letter.

    A letter is as the spec writes it: "h", "2*hk", "b+1". free is None where the spec has no "...".
    """

    free: int | None
    letters: tuple[str, ...]

    def find(self, letter: str) -> int | None:
        """Where the axis of that letter is, and of no multiple of it."""
        if letter not in self.letters:
            return None
        return (self.free or 0) + self.letters.index(letter)

    def letter(self, at: int) -> str:
        """What an axis is."""
        return "..." if at < (self.free or 0) else self.letters[at - (self.free or 0)]

    @property
    def tokens(self) -> int | None:
        """The axis of tokens: the first free one, or one with a letter of its own."""
        if self.free:
            return 0
        return next((at for at in map(self.find, TOKENS) if at is not None), None)


class CallAxes(NamedTuple):
    """The axes of a call's operands and results in spec order, None for what is absent."""

    operands: tuple[Axes | None, ...]
    results: tuple[Axes | None, ...]


def axes_of_call(
    op: _native.Op, shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> CallAxes:
    """Which axes a call has.

    Args:
      op: the op.
      shapes: of its operands in spec order, None for absent ones.
      attributes: those that are given, by name.
    """
    reader = _Reader(op, shapes, attributes)
    operands = tuple(
        None if shape is None else reader.axes(row, shape)
        for row, shape in zip(op.operands, shapes, strict=True)
    )
    names = [row["name"] for row in op.operands]

    def axes_of_result(row: Mapping[str, Any]) -> Axes | None:
        if row["workspace"] or (row["when"] and not reader.holds(row["when"])):
            return None
        if row["dims"].startswith("="):
            return operands[names.index(row["dims"][1:])]
        return reader.axes(row, None)

    return CallAxes(operands, tuple(map(axes_of_result, op.results)))


def result_shapes(
    op: _native.Op, shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
) -> list[Shape | None]:
    """The shapes of a call's results in spec order, None for workspaces and what does not exist.

    Nothing is checked, and sizes are only added, multiplied and divided: they may be symbols. Where they are numbers,
    `Library.infer` says the same and checks the call.
    """
    axes = axes_of_call(op, shapes, attributes)
    values = {row["name"]: row["default"] for row in op.attributes} | dict(attributes)
    sizes = _Sizes({name: value for name, value in values.items() if isinstance(value, int)})
    for row, of_operand, shape in zip(op.operands, axes.operands, shapes, strict=True):
        if of_operand is not None and shape is not None:
            sizes.bind(of_operand, shape)
            sizes.shapes[row["name"]] = shape
    return [
        None if of_result is None else sizes.shape(row, of_result)
        for row, of_result in zip(op.results, axes.results, strict=True)
    ]


class _Sizes:
    """What the letters of one call stand for."""

    def __init__(self, attributes: Mapping[str, int]):
        self.shapes: dict[str, Shape] = {}  # of the operands
        self._letters: dict[str, Any] = dict(attributes)
        self._free: Shape = ()

    def bind(self, axes: Axes, shape: Shape) -> None:
        """Learns the letters of an operand that are not known yet."""
        free = axes.free or 0
        if axes.free is not None:
            self._free = tuple(shape[:free])
        for term, size in zip(axes.letters, shape[free:], strict=True):
            factors, divisor, addend = self._parts(term)
            unknown = [f for f in factors if self._value(f) is None]
            if unknown:
                known = math.prod(self._value(f) for f in factors if f != unknown[0])
                self._letters[unknown[0]] = (size - addend) * divisor // known

    def shape(self, row: Mapping[str, Any], axes: Axes) -> Shape:
        """The shape of a result."""
        if row["dims"].startswith("="):
            return tuple(self.shapes[row["dims"][1:]])
        sizes = []
        for term in axes.letters:
            factors, divisor, addend = self._parts(term)
            sizes.append(math.prod(map(self._value, factors)) // divisor + addend)
        return (*(self._free if axes.free is not None else ()), *sizes)

    def _parts(self, term: str) -> tuple[list[str], Any, int]:
        """The factors, the divisor and the addend of a term such as "n/group_size" or "b+1"."""
        product, _, addend = term.partition("+")
        product, _, divisor = product.partition("/")
        return product.split("*"), self._value(divisor or "1"), int(addend or 0)

    def _value(self, factor: str) -> Any:
        return int(factor) if factor.isdigit() else self._letters.get(factor)


class _Reader:
    """Chooses the variant of a shape that holds in one call."""

    def __init__(
        self, op: _native.Op, shapes: Sequence[Shape | None], attributes: Mapping[str, Any]
    ):
        self._op = op.name
        self._values: dict[str, Any] = {row["name"]: row["default"] for row in op.attributes}
        self._values |= {name: value for name, value in attributes.items() if value is not None}
        names = [row["name"] for row in op.operands]
        self._values |= {n: shape is not None for n, shape in zip(names, shapes, strict=True)}
        self._free: int | None = None  # how many axes "..." stands for; the same in the whole call

    def holds(self, condition: str) -> bool:
        """`name`, `!name` or `name=value`: it is given, a bool is true, a string is that value."""
        if condition.startswith("!"):
            return not self.holds(condition[1:])
        name, equals, value = condition.partition("=")
        if equals:
            return self._values[name] == value
        return self._values[name] is not None and self._values[name] is not False

    def axes(self, row: Mapping[str, Any], shape: Shape | None) -> Axes:
        """The first variant of an operand or result whose conditions hold and whose axes fit."""
        for variant in row["dims"].split(" | "):
            *conditions, terms = variant.split(": ")
            if all(map(self.holds, conditions)):
                axes = self._fit(self._spelled(terms), shape)
                if axes is not None:
                    return axes
        raise ValueError(f"{self._op}: {row['name']} has shape {shape}, expected {row['dims']}")

    def _spelled(self, terms: str) -> list[str]:
        """The terms of a variant; those of "@key_cache" are the order of axes that `layout` spells."""
        if not terms.startswith("@"):
            return terms.split()
        return _native.main_library().cache_axes(self._values["layout"], self._values["layer"])

    def _fit(self, terms: Sequence[str], shape: Shape | None) -> Axes | None:
        letters: list[str] = []
        for term in terms:
            condition, conditional, letter = term.rpartition("?")
            if not conditional or self.holds(condition):
                letters.append(letter)
        is_open = "..." in letters
        if is_open and letters.pop(0) != "...":
            raise NotImplementedError(f"'{' '.join(terms)}' has free axes that do not come first")
        if shape is None:
            return Axes(self._free if is_open else None, tuple(letters))
        free = len(shape) - len(letters)
        named = shape[free:]
        if free < 0 or any(
            n.isdigit() and int(n) != size for n, size in zip(letters, named, strict=True)
        ):
            return None
        if not is_open:
            return Axes(None, tuple(letters)) if free == 0 else None
        if self._free not in (None, free):
            return None
        self._free = free
        return Axes(free, tuple(letters))
