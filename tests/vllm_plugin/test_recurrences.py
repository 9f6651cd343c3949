"""Gated delta nets and Mamba 2: tokens in chunks, and one for each request, give what the recurrence gives token by token."""

import importlib
import itertools
import types
from collections.abc import Iterator

import numpy as np
import pytest
import vllm_running  # noqa: F401  which skips all where there is no vLLM

HEADS = 3


def _decays(random: np.random.Generator, tokens: int) -> np.ndarray:
    """Logarithms of factors from almost none to almost all."""
    return -np.exp(random.uniform(-6, 3, (tokens, HEADS)))


class GatedDelta:
    MODULE = "gated_delta"
    STATE = (16, 8)  # keys, values
    SIZE = 8  # of an output

    @classmethod
    def operands(cls, random: np.random.Generator, tokens: int) -> Iterator[np.ndarray]:
        """q, k, v, g and beta."""
        keys, values = cls.STATE
        q, k = (random.standard_normal((tokens, HEADS, keys)) for _ in range(2))
        v = random.standard_normal((tokens, HEADS, values))
        g = _decays(random, tokens)
        beta = random.uniform(0, 1, (tokens, HEADS))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        yield from (q, k, v, g, beta)

    @staticmethod
    def token(state, q, k, v, g, beta):
        state = state * np.exp(g)[:, None, None]
        seen = np.einsum("hkv,hk->hv", state, k)
        state = state + k[..., None] * (beta[:, None] * (v - seen))[:, None]
        return state, np.einsum("hkv,hk->hv", state, q)


class Mamba2:
    MODULE = "mamba2"
    STATE = (8, 16)  # head, state
    SIZE = 8  # of an output

    @classmethod
    def operands(cls, random: np.random.Generator, tokens: int) -> Iterator[np.ndarray]:
        """x, b, c and g."""
        size, state = cls.STATE
        x = random.standard_normal((tokens, HEADS, size))
        b, c = (random.standard_normal((tokens, HEADS, state)) for _ in range(2))
        yield from (x, b, c, _decays(random, tokens))

    @staticmethod
    def token(state, x, b, c, g):
        state = state * np.exp(g)[:, None, None] + x[..., None] * b[:, None]
        return state, np.einsum("hpn,hn->hp", state, c)


@pytest.fixture(params=[GatedDelta, Mamba2], ids=lambda kind: kind.MODULE)
def kind(request):
    return request.param


def _drawn(kind, random: np.random.Generator, tokens: int, requests: int):
    """Operands and states in f32."""
    operands = [x.astype(np.float32) for x in kind.operands(random, tokens)]
    states = random.standard_normal((requests, HEADS, *kind.STATE)).astype(np.float32)
    return operands, states


def _token_by_token(kind, operands: list[np.ndarray], state: np.ndarray):
    outs = []
    for token in zip(*(x.astype(np.float64) for x in operands), strict=True):
        state, out = kind.token(state, *token)
        outs.append(out)
    return np.reshape(outs, (-1, HEADS, kind.SIZE)), state


def test_chunks(kind) -> None:
    from intarsia.vllm.chunks import over_chunks

    chunk = importlib.import_module(f"intarsia.vllm.{kind.MODULE}").chunk
    lengths = [0, 1, 16, 17, 70, 0]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    # The last 5 tokens are padding.
    operands, states = _drawn(kind, np.random.default_rng(0), starts[-1] + 5, len(lengths))
    out, new = over_chunks(chunk, operands, states, starts)
    for i, (a, b) in enumerate(itertools.pairwise(starts)):
        expected, state = _token_by_token(kind, [x[a:b] for x in operands], states[i])
        np.testing.assert_allclose(out[a:b], expected, atol=2e-4)
        np.testing.assert_allclose(new[i], state, atol=2e-4)


def test_one_token_each(kind) -> None:
    one_token_each = importlib.import_module(f"intarsia.vllm.{kind.MODULE}").one_token_each
    operands, states = _drawn(kind, np.random.default_rng(1), 4, 4)
    out, new = one_token_each(*operands, states)
    for i in range(4):
        expected, state = _token_by_token(kind, [x[i : i + 1] for x in operands], states[i])
        np.testing.assert_allclose(out[i : i + 1], expected, atol=1e-4)
        np.testing.assert_allclose(new[i], state, atol=1e-4)


def test_states_of_another_dtype_keep_their_bits() -> None:
    import jax.numpy as jnp
    from intarsia.vllm.states import Form, read_states, write_states

    random = np.random.default_rng(2)
    forms = [Form((3, 4), jnp.bfloat16), Form((2, 5), np.float32)]
    given = [jnp.asarray(random.standard_normal((3, *form.shape)), form.dtype) for form in forms]
    group = types.SimpleNamespace(
        cu_seqlens_q=np.array([0, 2, 3, 3], np.int32),
        seqused_k=np.array([5, 1, 0], np.int32),
        block_table=np.array([[4], [2], [0]]),
    )
    pages = tuple(jnp.full((6, 20), jnp.nan, jnp.bfloat16) for _ in range(2))
    pages = write_states(pages, group, given)
    for found, before in zip(read_states(pages, group, forms), given, strict=True):
        assert found.dtype == before.dtype
        np.testing.assert_array_equal(found[0], before[0])  # which goes on
        assert not found[1].any()  # which begins
    assert jnp.isnan(pages[0][jnp.array([0, 1, 3, 5])]).all()
