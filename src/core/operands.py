"""Random operands: what references of every family draw from."""

import numpy as np

# Random numbers are drawn up to here and then repeated: a prime, so that no two pages are alike.
_DRAWN = 1048583


def random_array(rng, shape, dtype):
    """Normal numbers; fast also for the gigabytes of a benchmark's cache."""
    size = int(np.prod(shape))
    return np.resize(rng.standard_normal(min(size, _DRAWN), np.float32).astype(dtype), shape)


def random_scale(rng, form, lens, heads):
    """f32 numbers between 1/2 and 2, by `form`: one for all, by head, by sequence and head; or none."""
    shape = {None: None, "tensor": (1,), "head": (heads,), "sequence": (len(lens), heads)}[form]
    return None if shape is None else rng.uniform(0.5, 2, shape).astype(np.float32)
