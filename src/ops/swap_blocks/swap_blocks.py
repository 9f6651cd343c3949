"""swap_blocks: its cases, and what it computes."""

import ml_dtypes
import numpy as np
from intarsia_src.cache import block_cases
from intarsia_src.cache.block_cases import floor

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

_LLAMA = dict(o=(2,), n=(16, 8, 128))

# fmt: off
# o: axes in front of that of ps and p blocks; n: those behind.
CASES = {
    "example": dict(tags="ci wire", o=(), ps=4, p=6, n=(4, 2, 8), pairs=2),
    "llama3_8b_swap": dict(tags="bench", ps=512, p=4096, pairs=64, **_LLAMA),
    "llama3_8b_swap_few": dict(tags="ci bench bench_cpu", ps=8, p=16, pairs=4, **_LLAMA),
    "layers": dict(tags="ci", o=(3, 2), ps=12, p=9, n=(4, 5, 2), pairs=4, index=np.int64),
    "odd": dict(tags="ci", o=(), ps=3, p=7, n=(5,), pairs=3),
    "skipped": dict(tags="ci", o=(2,), ps=15, p=20, n=(24,), pairs=9, skip=True),
    "e4m3": dict(tags="ci", o=(2,), ps=9, p=7, n=(48,), pairs=3, kv=ml_dtypes.float8_e4m3fn),
    "uint8": dict(tags="ci", o=(1,), ps=4, p=7, n=(48,), pairs=3, kv=np.uint8),
    "int8": dict(tags="ci", o=(1,), ps=4, p=7, n=(33,), pairs=3, kv=np.int8),
    "no_source": dict(tags="ci beyond_plain", o=(2,), ps=0, p=9, n=(8,), pairs=7, skip=True),
    "none": dict(tags="ci", o=(2,), ps=2, p=3, n=(8,), pairs=0),
}
# fmt: on


def arguments(rng, dtype, *, o, ps, p, n, pairs, kv=None, skip=False, index=np.int32):
    """Random operands in spec order, and attributes."""
    from_, to = block_cases.pairs(rng, max(ps, 1), p, pairs, index)
    if skip:
        block_cases.spoil(rng, from_, to, ps, p)
    source, blocks = (block_cases.blocks(rng, kv or dtype, (*o, m, *n)) for m in (ps, p))
    return [source, blocks, from_, to], dict(axis=str(len(o)))


def reference(source, blocks, from_blocks, to_blocks, *, axis):
    """The results in spec order."""
    return [block_cases.copy(blocks, source, from_blocks, to_blocks, axis)]


exact = reference


def plain_xla(source, blocks, from_blocks, to_blocks, *, axis):
    """The same in jax.numpy, as a user without this library would write it."""
    return [block_cases.plain_copy(blocks, source, from_blocks, to_blocks, axis)]
