"""Grouped products in NumPy: which rows belong to which group, and groups as models route tokens."""

from collections.abc import Sequence

import numpy as np


def ranges(group_sizes, m: int, groups: int, offset: int = 0) -> list[tuple[int, int]]:
    """The rows (first, behind the last) of the groups offset ... offset + groups - 1, clamped."""
    ends = [0]
    for size in np.asarray(group_sizes).tolist():
        ends.append(min(ends[-1] + max(size, 0), m))
    known = len(ends) - 1
    found = []
    for group in range(offset, offset + groups):
        begin = ends[min(max(group, 0), known)]
        found.append((begin, ends[group + 1] if 0 <= group < known else begin))
    return found


def balanced(m: int, g: int) -> list[int]:
    """m rows shared evenly by g groups."""
    return [m // g + (i < m % g) for i in range(g)]


def zipf(m: int, g: int) -> list[int]:
    """m rows shared as 1 : 1/2 : 1/3 ..., shuffled: some groups have many, some none."""
    shares = 1 / np.arange(1, g + 1)
    sizes = np.floor(m * shares / shares.sum()).astype(int)
    sizes[: m - sizes.sum()] += 1
    return np.random.default_rng(g).permutation(sizes).tolist()


def sizes_of(sizes: str | Sequence[int], m: int, g: int) -> list[int]:
    """The sizes that a case names: `balanced`, `zipf`, or the numbers themselves."""
    if isinstance(sizes, str):
        return {"balanced": balanced, "zipf": zipf}[sizes](m, g)
    return list(sizes)


def covered(sizes: Sequence[int], m: int, groups: int, offset: int = 0) -> tuple[int, int]:
    """How many rows have a group at hand, and how many groups have rows."""
    counts = [end - begin for begin, end in ranges(sizes, m, groups, offset)]
    return sum(counts), sum(count > 0 for count in counts)
