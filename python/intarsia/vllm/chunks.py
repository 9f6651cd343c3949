"""Recurrences over a batch's tokens in chunks: a loop, in which each chunk is of one request and has its state."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

CHUNK = 16
"""Tokens of a request that are taken at once, a power of two."""


def request_of_token(starts: jax.Array, tokens: int) -> tuple[jax.Array, jax.Array]:
    """Of each of a batch's tokens: its request (the last one for padding), and its place among that one's tokens."""
    at = jnp.arange(tokens, dtype=jnp.int32)
    request = jnp.searchsorted(starts[1:], at, side="right").clip(0, len(starts) - 2)
    return request, at - starts[request]


def decays(g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What a chunk's tokens leave of a state, by the logarithms g [h, c] of each one's factor.

    Returns:
      Of what came with token j, behind token i: [h, i, j], 0 where j comes later. Of the state before the chunk, behind token i: [h, i].
      Of what came with token j, behind the chunk: [h, j].
    """
    total = jnp.cumsum(g, axis=-1)
    before = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))
    # Masked first: what lies above the diagonal may overflow.
    between = jnp.exp(jnp.where(before, total[:, :, None] - total[:, None, :], -jnp.inf))
    return between, jnp.exp(total), jnp.exp(total[:, -1:] - total)


def over_chunks(
    function: Callable[..., tuple[jax.Array, jax.Array]],
    operands: Sequence[jax.Array],
    states: jax.Array,
    starts: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Calls a function for each chunk.

    Args:
      function: takes each operand's part [h, CHUNK, ...] and a state, returns [h, CHUNK, ...] and the state behind it. Tokens whose
        operands are all 0 must change no state: they fill chunks up.
      operands: [t, h, ...] each, tokens of one request after those of another.
      states: [requests, ...].
      starts: [requests + 1] i32, where each request's tokens begin.

    Returns:
      [t, h, ...], and the states behind these tokens.
    """
    tokens, requests = len(operands[0]), len(states)
    request, place = request_of_token(starts, tokens)
    lengths = starts[1:] - starts[:-1]
    of_request = -(-lengths // CHUNK)
    ends = jnp.cumsum(of_request)
    chunks = tokens // CHUNK + min(requests, tokens)  # at most
    first = (ends - of_request)[request]
    where = (
        jnp.where(place < lengths[request], first + place // CHUNK, chunks),
        place % CHUNK,
    )

    def spread(x: jax.Array) -> jax.Array:
        """[t, h, ...] as [chunks, h, tokens of a chunk, ...]."""
        empty = jnp.zeros((chunks, CHUNK, *x.shape[1:]), x.dtype)
        return jnp.moveaxis(empty.at[where].set(x, mode="drop"), 1, 2)

    owner = jnp.searchsorted(ends, jnp.arange(chunks), side="right").clip(0, requests - 1)

    def step(states: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        owner, *parts = one
        out, new = function(*parts, states[owner])
        return states.at[owner].set(new), out

    states, out = jax.lax.scan(step, states, (owner, *map(spread, operands)))
    return jnp.moveaxis(out, 2, 1).at[where].get(mode="clip"), states
