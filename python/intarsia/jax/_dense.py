"""Attention of a dense batch, in which each member has as many rows and keys as the arrays: what the functions under other
projects' names share.
"""

import jax
import jax.numpy as jnp
import numpy as np

from intarsia.jax._attention import flash_attn_varlen

Count = int | jax.Array  # the same for all members of a batch, or int32 [b]
_BUILT_MULTIPLE = 8  # of head dims
_BUILT_DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16)


def check_built(what: str, x: jax.Array) -> None:
    """Raises NotImplementedError if the functions of this form are not built for the dtype."""
    if x.dtype not in _BUILT_DTYPES:
        raise NotImplementedError(
            f"{what} has dtype {x.dtype}; built are float32, float16 and bfloat16"
        )


def pad_head_dim(x: jax.Array) -> jax.Array:
    """The array with zeros behind each head, up to a head dim that is built: scores and values stay the same."""
    missing = -x.shape[-1] % _BUILT_MULTIPLE
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def in_one_row(x: jax.Array) -> jax.Array:
    """[b, n, h, d] as [b * n, h, d]."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def starts_of(counts: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    """int32 [b + 1]: where each of a row of parts starts, from how long each is."""
    if isinstance(counts, np.ndarray):
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return jnp.pad(jnp.cumsum(counts, dtype=jnp.int32), (1, 0))


def attend_rows(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    first: Count,
    count: Count,
    used: Count,
    window: tuple[int, int],
    scale: float,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Attention of rows [first, first + count) of each member to its first `used` keys, aligned at the bottom right.

    Args:
      q: [b, t, h, d].
      k, v: [b, s, hk, d].
      first, count, used: of each member; first + count <= t, used <= s.
      window, scale, deterministic: of `flash_attn_varlen`.

    Returns:
      out [b, t, h, d] and lse [b, t, h]; other rows have 0 and -inf.
    """
    b, t, h, _ = q.shape
    s = k.shape[1]
    # A part without keys gives rows 0 and -inf, so what lies around the rows is a part of its own.
    parts = [*_without_keys(first), (count, used, s), *_without_keys(t - first - count)]
    rows, keys, held = ([part[i] for part in parts] for i in range(3))
    out, lse = flash_attn_varlen(
        in_one_row(pad_head_dim(q)),
        in_one_row(pad_head_dim(k)),
        in_one_row(pad_head_dim(v)),
        starts_of(_in_turn(b, rows)),
        cu_seqlens_k=starts_of(_in_turn(b, held)),
        seqused_k=_in_turn(b, keys),
        scale=scale,
        window=window,
        return_lse=True,
        deterministic=deterministic,
    )
    return out[..., : v.shape[-1]].reshape(b, t, h, v.shape[-1]), lse.T.reshape(b, t, h)


def _without_keys(rows: Count) -> list[tuple[Count, Count, int]]:
    return [] if isinstance(rows, int) and rows == 0 else [(rows, 0, 0)]


def _in_turn(b: int, counts: list[Count]) -> np.ndarray | jax.Array:
    """int32 [b * parts]: the counts of the first member, those of the second, ..."""
    if all(isinstance(x, int) for x in counts):
        return np.tile(np.array(counts, np.int32), b)
    columns = [jnp.broadcast_to(jnp.asarray(x, jnp.int32), b) for x in counts]
    return jnp.stack(columns, axis=1).reshape(-1)
