"""The values of a model's configuration, checked as they are taken out of it."""

import math
import numbers
from collections.abc import Mapping
from typing import Any

LARGEST_HEAD, MOST_LAYERS = 1 << 16, 1 << 16
"""Bounds of what decides the size of tables; beyond any model."""
_REQUIRED: Any = object()
_LARGEST = 2**31 - 1  # of what becomes a shape or an index


class Fields:
    """Values by key, where null counts as absent.

    Args:
        values: What the file has.
        prefix: Stands before every key in the file.
    """

    def __init__(self, values: Any, prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{prefix or 'it'} is {_said(values)}, expected an object")
        self._values = values
        self._prefix = prefix

    def has(self, key: str) -> bool:
        """Whether the key is there, and not null."""
        return self._values.get(self._prefix + key) is not None

    def others(self, *known: str) -> list[str]:
        """Keys that are there, not null, and none of some."""
        ours = {self._prefix + key for key in known}
        there = (key for key in self._values if key.startswith(self._prefix) and key not in ours)
        return [key.removeprefix(self._prefix) for key in there if self._values[key] is not None]

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value as it is."""
        value = self._values.get(self._prefix + key)
        if value is None and default is _REQUIRED:
            raise ValueError(f"key {self._prefix}{key} is missing")
        return default if value is None else value

    def whole(
        self, key: str, default: Any = _REQUIRED, *, least: int = 1, most: int = _LARGEST
    ) -> Any:
        """A whole number between bounds; the default may be anything."""
        return self._checked(key, default, _is_whole, least, most, "a whole number")

    def number(
        self, key: str, default: Any = _REQUIRED, *, least: float = 0.0, above: float | None = None
    ) -> Any:
        """A finite number from `least` on, or larger than `above`; the default may be anything."""
        if above is None:
            return self._checked(key, default, _is_number, least, _MOST, "a number")
        least = math.nextafter(above, math.inf)
        return self._checked(key, default, _is_number, least, _MOST, "a number", f"above {above:g}")

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """True or false."""
        value = self.get(key, default)
        return value if value is default or isinstance(value, bool) else self._refuse(key, "a bool")

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        value = self.get(key, default)
        return value if value is default or isinstance(value, str) else self._refuse(key, "a text")

    def texts(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of strings, at least one."""
        value = self.get(key, default)
        if value is default:
            return value
        if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
            self._refuse(key, "a list of texts")
        return value

    def tokens(self, key: str) -> tuple[int, ...]:
        """Ids of tokens: none, one, or a list of them."""
        value = self.get(key, None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_whole(x) and -_LARGEST - 1 <= x <= _LARGEST for x in values):
            self._refuse(key, "the id of a token, or a list of them")
        return tuple(map(int, values))

    def expect(self, key: str, only: Any) -> None:
        """Refuses any value but the one that is supported."""
        if (got := self.get(key, None)) is not None and got != only:
            raise ValueError(f"{self._prefix}{key} is {_said(got)}, expected {only!r}")

    def inner(self, key: str) -> "Fields | None":
        """The object under a key; None if it is absent or empty."""
        value = self.get(key, None)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            self._refuse(key, "an object")
        return Fields(value)

    def _checked(
        self,
        key: str,
        default: Any,
        fits: Any,
        least: float,
        most: float,
        kind: str,
        bounds: str = "",
    ) -> Any:
        value = self.get(key, default)
        if value is default:
            return value
        if not fits(value) or not least <= value <= most:
            ends = f"{least:g} or more" if most in (_LARGEST, _MOST) else f"{least:g} to {most:g}"
            self._refuse(key, f"{kind}, {bounds or ends}")
        return value

    def _refuse(self, key: str, expected: str) -> Any:
        got = _said(self._values.get(self._prefix + key))
        raise ValueError(f"{self._prefix}{key} is {got}, expected {expected}")


_MOST = 1e30  # beyond any number of a configuration; its square is finite in f64


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
