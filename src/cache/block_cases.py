"""copy_blocks and swap_blocks: what they compute, in NumPy, and plain XLA's way."""

import math

import numpy as np
from intarsia_src.core.operands import random_array


def blocks(rng, dtype, shape):
    """A cache of numbers, or of any codes."""
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 256, shape, np.uint8).view(dtype)
    return random_array(rng, shape, dtype)


def pairs(rng, num_from, num_to, count, index, same=False):
    """Blocks that are copied from, and to: no block is written twice, nor read and written."""
    order = rng.permutation(num_to)
    to = order[:count]
    left = order[count:] if same else np.arange(num_from)
    from_ = rng.choice(left, count) if count else left[:0]
    return from_.astype(index), to.astype(index)


def spoil(rng, from_, to, num_from, num_to):
    """Blocks that are not there, among the first ones."""
    from_[:3] = [-1, num_from, np.iinfo(from_.dtype).max]
    to[3:6] = [-1, num_to, np.iinfo(to.dtype).min]


def copy(target, source, from_, to, axis):
    """The target with the blocks of the source; what is not there is skipped."""
    target = target.copy()
    to_view, from_view = (np.moveaxis(x, int(axis), 0) for x in (target, source))
    for i, j in zip(from_.tolist(), to.tolist(), strict=True):
        if 0 <= i < len(from_view) and 0 <= j < len(to_view):
            to_view[j] = from_view[i]
    return target


def plain_copy(target, source, from_, to, axis):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    front = (slice(None),) * int(axis)
    exists = (from_ >= 0) & (from_ < source.shape[int(axis)]) & (to >= 0)
    # What is too large is dropped; a negative index would count from the back.
    to = jnp.where(exists, to, jnp.iinfo(to.dtype).max)
    found = source[(*front, jnp.where(exists, from_, 0))]
    return target.at[(*front, to)].set(found, mode="drop")


def floor(dtype_bytes, *, o, pairs, n, ps=None, kv=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    pairs = 0 if ps == 0 else pairs
    return 2 * math.prod(o) * pairs * math.prod(n) * (1 if kv else dtype_bytes), 0
