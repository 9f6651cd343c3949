"""Codes that lie in words of 32 bits, as AWQ, GPTQ and compressed-tensors have them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which 4 bits of a word AWQ keeps each of 8 neighbors in (AutoAWQ, awq/utils/packing_utils.py)."""


def fields(words: Any, bits: int, places: Sequence[int] | None = None) -> Any:
    """The numbers of `bits` bits in i32 words [..., w], the lowest first or where `places` says: u8 [..., w * 32 / bits].

    NumPy's or JAX's.
    """
    shifts = bits * (np.arange(32 // bits) if places is None else np.asarray(places))
    numbers = words.view(np.uint32)[..., None] >> shifts.astype(np.uint32)
    return (numbers & ((1 << bits) - 1)).astype(np.uint8).reshape(*words.shape[:-1], -1)


def across(words: np.ndarray) -> np.ndarray:
    """Words i32 [8 * m, c] of eight codes of 4 bits, so that the codes of a word come from neighboring rows: u32 [8, m, c].

    Code i of word [j, m, c] was code j of word [8 * m + i, c]. An 8 x 8 transpose in three steps, which exchange halves,
    quarters and eighths of words: Warren, "Hacker's Delight", 7-3.
    """
    eights = words.view(np.uint32).reshape(-1, 8, words.shape[1])
    lines = list(np.array(eights.swapaxes(0, 1), order="C"))  # a copy, which steps change
    for distance, lower in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        bits, mask = np.uint32(4 * distance), np.uint32(lower)
        for i in (x for x in range(8) if not x & distance):
            low, high = lines[i], lines[i + distance]
            moved = ((low >> bits) ^ high) & mask
            high ^= moved
            low ^= moved << bits
    return np.stack(lines)
