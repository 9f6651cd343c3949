"""Codes in words, for tests of those that read them."""

import numpy as np


def words_of(codes: np.ndarray, bits: int, places=None) -> np.ndarray:
    """Numbers along the last axis in i32 words, written as the packers of these formats do: one by one."""
    each = 32 // bits
    words = np.zeros((codes.shape[0], -(-codes.shape[1] // each)), np.uint32)
    for i in range(codes.shape[1]):
        place = i % each if places is None else places[i % each]
        words[:, i // each] |= codes[:, i].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)
