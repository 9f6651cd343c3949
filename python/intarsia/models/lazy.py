"""Arrays of a model's file that are read where they are cut, so that a process reads what its devices hold."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Index = tuple[slice, ...]
"""Ranges of all axes, as `jax.make_array_from_callback` asks for them."""


class LazyArray:
    """An array that `lazy[index]` reads a part of, and `np.asarray` reads whole.

    `np.concatenate` and `np.stack` of such arrays give one (NumPy's NEP 18), and read nothing.

    Args:
        shape: Of the whole.
        read: Reads a part, of whatever dtype.

    Attributes:
        ndim: Number of axes.
    """

    def __init__(self, shape: Sequence[int], read: Callable[[Index], np.ndarray]) -> None:
        self.shape = tuple(shape)
        self.ndim = len(self.shape)
        self._read = read

    def __getitem__(self, index: Index) -> np.ndarray:
        bounds = zip(index, self.shape, strict=True)
        return self._read(tuple(slice(*part.indices(size)[:2]) for part, size in bounds))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # what is read is new
        return np.asarray(self[(slice(None),) * self.ndim], dtype)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> "LazyArray":
        if function not in (np.concatenate, np.stack) or kwargs:
            return NotImplemented
        (arrays,) = args
        return _concatenated(arrays) if function is np.concatenate else _stacked(arrays)

    def astype(self, dtype: Any) -> "LazyArray":
        """The same in another dtype."""
        return LazyArray(self.shape, lambda index: self._read(index).astype(dtype))

    def swapaxes(self, a: int, b: int) -> "LazyArray":
        """The same with two axes swapped."""

        def swap(values: Sequence[Any]) -> tuple[Any, ...]:
            swapped = list(values)
            swapped[a], swapped[b] = swapped[b], swapped[a]
            return tuple(swapped)

        return LazyArray(swap(self.shape), lambda index: self._read(swap(index)).swapaxes(a, b))

    def take(self, ids: np.ndarray, axis: int) -> np.ndarray:
        """Reads the parts at some places of an axis, each run of neighbors at once; -1 stands for zeros."""
        everything = [slice(None)] * self.ndim
        breaks = np.flatnonzero((np.diff(ids) != 1) | (ids[1:] < 0) | (ids[:-1] < 0)) + 1
        parts = []
        for run in np.split(ids, breaks):
            start, stop = (int(run[0]), int(run[-1]) + 1) if run[0] >= 0 else (0, 1)
            everything[axis] = slice(start, stop)
            part = self[tuple(everything)]
            parts.append(part if run[0] >= 0 else np.zeros_like(part))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def beside(first: Any, second: Any) -> Any:
    """Rows [e, i, ...] of two arrays, in each of e those of the first and then those of the second: NumPy's or lazy."""
    if not isinstance(first, LazyArray):
        return np.concatenate([first, second], axis=1)
    return _concatenated([first.swapaxes(0, 1), second.swapaxes(0, 1)]).swapaxes(0, 1)


def arrays_in_turn(first: Any, second: Any) -> Any:
    """Rows [e, i, ...] of two arrays as [e, 2 * i, ...], one of the first and one of the second in turn: NumPy's or lazy."""
    if not isinstance(first, LazyArray):
        return _in_turn(first, second)

    def read(index: Index) -> np.ndarray:
        lead, rows, *rest = index
        begin, end = rows.start // 2, -(-rows.stop // 2)
        both = _in_turn(*(array[(lead, slice(begin, end), *rest)] for array in (first, second)))
        return both[:, rows.start - 2 * begin : rows.stop - 2 * begin]

    e, i, *others = first.shape
    return LazyArray((e, 2 * i, *others), read)


def _in_turn(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    both = np.stack([first, second], axis=2)
    return both.reshape(len(both), -1, *both.shape[3:])


def _concatenated(arrays: Sequence[LazyArray]) -> LazyArray:
    """Arrays one after the other along the first axis."""
    ends = np.cumsum([array.shape[0] for array in arrays]).tolist()

    def read(index: Index) -> np.ndarray:
        parts = []
        for array, end in zip(arrays, ends, strict=True):
            begin = end - array.shape[0]
            start, stop = max(index[0].start, begin), min(index[0].stop, end)
            if start < stop:
                parts.append(array[(slice(start - begin, stop - begin), *index[1:])])
        return np.concatenate(parts)

    return LazyArray((ends[-1], *arrays[0].shape[1:]), read)


def _stacked(arrays: Sequence[LazyArray]) -> LazyArray:
    """Arrays side by side along a new first axis."""

    def read(index: Index) -> np.ndarray:
        return np.stack([array[index[1:]] for array in arrays[index[0]]])

    return LazyArray((len(arrays), *arrays[0].shape), read)
