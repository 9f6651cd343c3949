"""What the ops with given scales compute, in NumPy; their cases; and plain XLA's way of computing it."""

from dataclasses import dataclass

import numpy as np
from intarsia_src.quant import reference as quant

CASES = quant.CASES | {
    "per_channel": dict(tags="ci bench", t=16, n=4096, scales="channel"),
    "per_channel_prefill": dict(tags="bench", t=16384, n=4096, scales="channel"),
    "per_channel_odd": dict(tags="ci", t=3, n=77, scales="channel"),
    "per_token": dict(tags="ci", t=37, n=576, scales="token"),
    "per_token_one_column": dict(tags="ci", t=37, n=1, scales="token"),
    "per_group": dict(tags="ci bench", t=16, n=4096, scales=32),
    "per_group_odd": dict(tags="ci", t=3, n=77, scales=7),
    "per_group_small": dict(tags="ci", t=9, n=96, scales=24),
    "no_rows_per_token": dict(tags="ci", t=0, n=64, scales="token"),
}


@dataclass(frozen=True)
class GivenScale:
    """An op that quantizes to `code` by scales of a tensor, of columns, rows or groups."""

    code: str

    def arguments(self, rng, dtype, *, t, n, scales="tensor", zeros=False, spread=1.0):
        """Random operands in spec order, and attributes. `scales`: or how many groups a row has."""
        x = quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)
        shape = {"tensor": (1,), "channel": (n,), "token": (t, 1)}.get(scales, (t, scales))
        largest = quant.LARGEST[self.code]
        scale = rng.uniform(0.2, 3, shape) * spread * 2 / largest  # some saturate
        return [x, scale.astype(np.float32)], {}

    def reference(self, x, scale):
        """The results in spec order, not yet rounded to codes. Operands are f64."""
        return [quant.given_scale(x, scale, self.code)]

    def exact(self, x, scale):
        """The results, to the bit."""
        scaled = quant.given_scale(x.astype(np.float32), scale, self.code)
        return [quant.saturated(scaled, quant.CODES[self.code])]

    def plain_xla(self, x, scale):
        """The same in jax.numpy, as a user without this library would write it."""
        import jax.numpy as jnp

        if scale.ndim > 1:
            scale = jnp.repeat(scale, x.shape[-1] // max(scale.shape[-1], 1), axis=-1)
        return [quant.xla_codes(x.astype(jnp.float32) / scale, self.code)]
