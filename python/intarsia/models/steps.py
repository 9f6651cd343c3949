"""What a step of the engine computes: pure functions, each jitted into one XLA program."""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from intarsia.models import transformer, vocabulary
from intarsia.models.config import ModelConfig
from intarsia.models.sampling import Mode, sample
from intarsia.models.schedule import PAGE_SIZE, Chunk, Rows
from intarsia.models.weights import Params

Caches = list[transformer.KvCache] | transformer.KvCache
Numbers = jax.Array | np.ndarray  # NumPy's before the first step
# Rows whose logits `score` has in memory at a time: of 512 rows and 262144 tokens, they take 512 MB.
_ROWS_OF_LOGITS = 64


class State(NamedTuple):
    """Where each row of the batch stands; written by one step, read by the next; all [b]."""

    token: Numbers  # The next token to feed.
    length: Numbers  # Tokens whose keys and values are in the cache.
    generated: Numbers  # Tokens generated so far.
    active: Numbers  # False for empty, unfinished-prompt and finished rows.


def prefill(
    ops: ModuleType,
    config: ModelConfig,
    mode: Mode,
    params: Params,
    caches: Caches,
    rope_tables: Sequence[jax.Array],
    state: State,
    rows: Rows,
    chunk: Chunk,
) -> tuple[Caches, tuple[State, jax.Array]]:
    """Runs a chunk of the prompts; rows whose prompt it completes get their first token.

    The tokens come a second time, [1, b], for the host, which reads them when the state has been donated.
    """
    hidden, caches = transformer.forward(
        ops, config, params, caches, rope_tables, chunk.batch, decode=False
    )
    first = jnp.zeros_like(state.generated)
    token, active = _next_token(config, params, hidden[chunk.last_row], rows, first, mode)
    started = State(token, chunk.batch.seqused_k, first + 1, active)
    state = jax.tree.map(functools.partial(jnp.where, chunk.completes), started, state)
    return caches, (state, state.token[None])


def decode(
    ops: ModuleType,
    config: ModelConfig,
    mode: Mode,
    count: int,
    params: Params,
    caches: Caches,
    rope_tables: Sequence[jax.Array],
    state: State,
    rows: Rows,
) -> tuple[Caches, tuple[State, jax.Array]]:
    """Feeds every active row's token and chooses the one after it, `count` times; tokens are [count, b]."""

    def step(carry: tuple[Caches, State], _: None) -> tuple[tuple[Caches, State], jax.Array]:
        caches, state = _decode_once(
            ops, config, mode, params, carry[0], rope_tables, carry[1], rows
        )
        return (caches, state), state.token

    if count == 1:  # a loop of one trip would be for XLA to take away
        (caches, state), tokens = step((caches, state), None)
        return caches, (state, tokens[None])
    (caches, state), tokens = lax.scan(step, (caches, state), length=count)
    return caches, (state, tokens)


def _decode_once(
    ops: ModuleType,
    config: ModelConfig,
    mode: Mode,
    params: Params,
    caches: Caches,
    rope_tables: Sequence[jax.Array],
    state: State,
    rows: Rows,
) -> tuple[Caches, State]:
    place = state.length
    page = jnp.take_along_axis(rows.block_table, place[:, None] // PAGE_SIZE, axis=1)[:, 0]
    grown = place + state.active
    batch = transformer.Batch(
        tokens=state.token,
        positions=jnp.where(state.active, place, 0),
        slots=jnp.where(state.active, page * PAGE_SIZE + place % PAGE_SIZE, -1),
        cu_seqlens_q=rows.row_starts,
        seqused_k=jnp.where(state.active, grown, 0),
        block_table=rows.block_table,
    )
    hidden, caches = transformer.forward(
        ops, config, params, caches, rope_tables, batch, decode=True
    )
    token, active = _next_token(config, params, hidden, rows, state.generated, mode)
    return caches, State(token, grown, state.generated + state.active, active & state.active)


def _next_token(
    config: ModelConfig,
    params: Params,
    hidden: jax.Array,
    rows: Rows,
    generated: jax.Array,
    mode: Mode,
) -> tuple[jax.Array, jax.Array]:
    """Samples from the final hidden rows [b, n]; also says which rows go on after that token."""
    if mode == Mode.GREEDY:
        token = vocabulary.likeliest(config, params, hidden)
    else:
        logits = vocabulary.logits(config, params, hidden)
        token = sample(logits, rows.sampling, generated, mode=mode)
    stops = (token[:, None] == rows.stop_ids).any(axis=1)
    return token, ~stops & (generated + 1 < rows.limit)


def score(
    ops: ModuleType,
    config: ModelConfig,
    params: Params,
    caches: Caches,
    rope_tables: Sequence[jax.Array],
    batch: transformer.Batch,
    targets: jax.Array,
) -> tuple[Caches, jax.Array]:
    """Runs a chunk of the prompts; returns the log-probability of each row's target, f32 [t]."""
    hidden, caches = transformer.forward(
        ops, config, params, caches, rope_tables, batch, decode=False
    )

    def logprob(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = vocabulary.logits(config, params, row[0][None])[0]
        return logits[row[1]] - jax.nn.logsumexp(logits)

    return caches, lax.map(logprob, (hidden, targets), batch_size=_ROWS_OF_LOGITS)
