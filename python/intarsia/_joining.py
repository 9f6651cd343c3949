"""Packed weights put together: rows one after the other, rows in turn, and matrices side by side."""

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from intarsia._packing import ARRAYS, TILE_ROWS, PackedWeight, empty


def joined(weights: Sequence[PackedWeight]) -> list[PackedWeight]:
    """The same rows in fewer weights: neighbors in one format become one where tiles allow."""
    found: list[PackedWeight] = []
    for weight in weights:
        if found and found[-1].rows % TILE_ROWS == 0 and _can_be_one(found[-1], weight):
            pairs = zip(found[-1].arrays, weight.arrays, strict=True)
            arrays = [None if a is None else _concatenated(a, b) for a, b in pairs]
            rows = found.pop().rows + weight.rows
            weight = weight.with_arrays(arrays, rows)
        found.append(weight)
    return found


def is_for_all_rows(factor: np.ndarray | None) -> TypeGuard[np.ndarray]:
    """Whether it is an outer factor [1]."""
    return factor is not None and factor.shape == (1,)


def same_form(first: PackedWeight, second: PackedWeight) -> bool:
    """Whether two weights differ in their numbers and their numbers of rows alone."""
    return _form(first) == _form(second)


def form_in_words(weight: PackedWeight) -> str:
    """Its format, its groups, and what its outer scales are of."""
    said = f"{weight.format} in groups of {weight.group}"
    if weight.outer_scales is None:
        return said
    of = "all rows" if is_for_all_rows(weight.outer_scales) else "rows"
    return f"{said} with outer scales of {of}"


def forms_in_words(first: PackedWeight, second: PackedWeight) -> tuple[str, str]:
    """`form_in_words` of each, and where that is the same for both, what differs."""
    said = form_in_words(first), form_in_words(second)
    if said[0] != said[1]:
        return said
    if first.zeros_are != second.zeros_are:
        return f"{said[0]} with {first.zeros_are}", f"{said[1]} with {second.zeros_are}"
    for name, *arrays in zip(ARRAYS, first.arrays, second.arrays, strict=True):
        a, b = map(_of_tiles, arrays)
        if a != b:
            words = (f"{x.dtype} {[*x.shape]}" if x is not None else "none" for x in arrays)
            of_first, of_second = (f"{name} {word}" for word in words)
            return f"{said[0]} with {of_first}", f"{said[1]} with {of_second}"
    return said


def rows_in_turn(first: PackedWeight, second: PackedWeight) -> PackedWeight:
    """The rows of two weights of one form in turn, the first one's before the second one's.

    Raises:
        ValueError: They differ in form, have an outer factor for all rows, or have rows beyond their whole tiles.
    """
    if not _can_be_one(first, second) or first.rows != second.rows or first.rows % TILE_ROWS:
        said, others = forms_in_words(first, second)
        raise ValueError(
            f"rows of {said} {[*first.shape]} and {others} {[*second.shape]} cannot take "
            f"turns, expected one form and whole tiles of {TILE_ROWS} rows"
        )

    def mixed(*arrays: np.ndarray) -> np.ndarray:
        """Arrays of tiles; a row has a word of codes, or a factor, at each place between the axes of tiles and of rows."""
        out = empty((2 * len(arrays[0]), *arrays[0].shape[1:]), arrays[0].dtype)
        to, *parts = (x.view(np.uint32)[..., 0] if x.ndim == 5 else x for x in (out, *arrays))
        c, *places, _ = parts[0].shape
        to = to.reshape(c, 2, *places, TILE_ROWS // 2, 2)
        for turn, part in enumerate(parts):
            halves = part.reshape(c, *places, 2, TILE_ROWS // 2)
            to[..., turn] = np.moveaxis(halves, -2, 1)
        return out

    pairs = zip(first.arrays, second.arrays, strict=True)
    arrays = [None if a is None else mixed(a, b) for a, b in pairs]
    return first.with_arrays(arrays, 2 * first.rows)


def stacked(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Matrices of one form side by side: each array has an axis in front, for the matrix; outer factors [1] are [e] then.

    Raises:
        ValueError: They differ in form, or have rows beyond their whole tiles.
    """
    first = weights[0]
    for weight in weights:
        if not same_form(weight, first) or weight.rows != first.rows:
            said, others = forms_in_words(weight, first)
            raise ValueError(
                f"experts are {[*weight.shape]} in {said} beside {[*first.shape]} in {others}, expected one form for all"
            )
    if first.rows % TILE_ROWS:
        raise ValueError(f"experts have {first.rows} rows, expected a multiple of {TILE_ROWS}")
    arrays = [
        None if a[0] is None else _stacked(a)
        for a in zip(*(w.arrays for w in weights), strict=True)
    ]
    return first.with_arrays(arrays, first.rows)


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    shape = arrays[0].shape[1:] if arrays[0].ndim == 1 else arrays[0].shape
    out = empty((len(arrays), *shape), arrays[0].dtype)
    return np.concatenate(arrays, out=out) if arrays[0].ndim == 1 else np.stack(arrays, out=out)


def _concatenated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = empty((len(a) + len(b), *a.shape[1:]), a.dtype)
    return np.concatenate([a, b], out=out)


def _can_be_one(first: PackedWeight, second: PackedWeight) -> bool:
    """Whether the rows of both can be those of one weight: an outer factor for all rows is a weight's own."""
    return same_form(first, second) and not any(is_for_all_rows(a) for a in first.arrays)


def _form(weight: PackedWeight) -> tuple[Any, ...]:
    """What does not depend on a weight's numbers or its number of rows."""
    return (*map(_of_tiles, weight.arrays), weight.columns, *weight.attributes.values())


def _of_tiles(array: np.ndarray | None) -> Any:
    """What does not depend on an array's numbers or its number of tiles."""
    return None if array is None else (array.dtype, array.shape[1:])
