"""copy_blocks: its cases, and what it computes."""

import ml_dtypes
import numpy as np
from intarsia_src.cache import block_cases
from intarsia_src.cache.block_cases import floor

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

_LLAMA = dict(o=(2,), n=(16, 8, 128))

# fmt: off
# o: axes in front of that of p blocks; n: those behind.
CASES = {
    "example": dict(tags="ci wire", o=(), p=6, n=(4, 2, 8), pairs=2),
    "llama3_8b_beam": dict(tags="bench", p=4096, pairs=64, **_LLAMA),
    "llama3_8b_beam_few": dict(tags="ci bench bench_cpu", p=16, pairs=4, **_LLAMA),
    "layers": dict(tags="ci", o=(3, 2), p=9, n=(4, 5, 2), pairs=4, index=np.int64),
    "odd": dict(tags="ci", o=(), p=7, n=(5,), pairs=3),
    "long": dict(tags="ci", o=(1,), p=4, n=(20011,), pairs=2),
    "skipped": dict(tags="ci", o=(2,), p=20, n=(24,), pairs=9, skip=True),
    "e4m3": dict(tags="ci", o=(2,), p=7, n=(48,), pairs=3, kv=ml_dtypes.float8_e4m3fn),
    "e5m2": dict(tags="ci", o=(2,), p=7, n=(33,), pairs=3, kv=ml_dtypes.float8_e5m2),
    "uint8": dict(tags="ci", o=(1,), p=7, n=(48,), pairs=3, kv=np.uint8),
    "int8": dict(tags="ci", o=(1,), p=7, n=(48,), pairs=3, kv=np.int8),
    "none": dict(tags="ci", o=(2,), p=3, n=(8,), pairs=0),
    "empty": dict(tags="ci", o=(2,), p=3, n=(0,), pairs=1),
}
# fmt: on


def arguments(rng, dtype, *, o, p, n, pairs, kv=None, skip=False, index=np.int32):
    """Random operands in spec order, and attributes."""
    from_, to = block_cases.pairs(rng, p, p, pairs, index, same=True)
    if skip:
        block_cases.spoil(rng, from_, to, p, p)
    blocks = block_cases.blocks(rng, kv or dtype, (*o, p, *n))
    return [blocks, np.stack([from_, to], axis=1)], dict(axis=str(len(o)))


def reference(blocks, block_mapping, *, axis):
    """The results in spec order."""
    return [block_cases.copy(blocks, blocks, block_mapping[:, 0], block_mapping[:, 1], axis)]


exact = reference


def plain_xla(blocks, block_mapping, *, axis):
    """The same in jax.numpy, as a user without this library would write it."""
    return [block_cases.plain_copy(blocks, blocks, block_mapping[:, 0], block_mapping[:, 1], axis)]
