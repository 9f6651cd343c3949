"""Mamba 2's recurrence: tokens in chunks, and one for each request, give what it gives token by token."""

import itertools

import numpy as np
import vllm_running  # noqa: F401  which skips all where there is no vLLM

HEADS, SIZE, STATE = 3, 8, 16


def _operands(random: np.random.Generator, tokens: int) -> list[np.ndarray]:
    """x, b, c and g; decays from almost none to almost all."""
    x = random.standard_normal((tokens, HEADS, SIZE))
    b, c = (random.standard_normal((tokens, HEADS, STATE)) for _ in range(2))
    g = -np.exp(random.uniform(-6, 3, (tokens, HEADS)))
    return [x.astype(np.float32) for x in (x, b, c, g)]


def _token_by_token(operands: list[np.ndarray], state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outs = []
    for x, b, c, g in zip(*(x.astype(np.float64) for x in operands), strict=True):
        state = state * np.exp(g)[:, None, None] + x[..., None] * b[:, None]
        outs.append(np.einsum("hpn,hn->hp", state, c))
    return np.reshape(outs, (-1, HEADS, SIZE)), state


def test_chunks() -> None:
    from intarsia.vllm.chunks import over_chunks
    from intarsia.vllm.mamba2 import _chunk

    random = np.random.default_rng(0)
    lengths = [0, 1, 16, 17, 70, 0]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    operands = _operands(random, starts[-1] + 5)  # the last 5 are padding
    states = random.standard_normal((len(lengths), HEADS, SIZE, STATE)).astype(np.float32)
    out, new = over_chunks(_chunk, operands, states, starts)
    for i, (a, b) in enumerate(itertools.pairwise(starts)):
        expected, state = _token_by_token([x[a:b] for x in operands], states[i])
        np.testing.assert_allclose(out[a:b], expected, atol=2e-4)
        np.testing.assert_allclose(new[i], state, atol=2e-4)


def test_one_token_each() -> None:
    from intarsia.vllm.mamba2 import one_token_each

    random = np.random.default_rng(1)
    operands = _operands(random, 4)
    states = random.standard_normal((4, HEADS, SIZE, STATE)).astype(np.float32)
    out, new = one_token_each(*operands, states)
    for i in range(4):
        expected, state = _token_by_token([x[i : i + 1] for x in operands], states[i])
        np.testing.assert_allclose(out[i : i + 1], expected, atol=1e-4)
        np.testing.assert_allclose(new[i], state, atol=1e-4)
