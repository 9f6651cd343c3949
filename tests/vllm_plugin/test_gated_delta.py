"""Gated delta nets: tokens in chunks, and one for each request, give what the recurrence gives token by token."""

import itertools
import types

import numpy as np
import vllm_running  # noqa: F401  which skips all where there is no vLLM

HEADS, KEYS, VALUES = 3, 16, 8


def _operands(random: np.random.Generator, tokens: int) -> list[np.ndarray]:
    """q, k, v, g and beta; decays from almost none to almost all."""
    q, k = (random.standard_normal((tokens, HEADS, KEYS)) for _ in range(2))
    v = random.standard_normal((tokens, HEADS, VALUES))
    g = -np.exp(random.uniform(-6, 3, (tokens, HEADS)))
    beta = random.uniform(0, 1, (tokens, HEADS))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return [x.astype(np.float32) for x in (q, k, v, g, beta)]


def _token_by_token(operands: list[np.ndarray], state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outs = []
    for q, k, v, g, beta in zip(*(x.astype(np.float64) for x in operands), strict=True):
        state = state * np.exp(g)[:, None, None]
        seen = np.einsum("hkv,hk->hv", state, k)
        state = state + k[..., None] * (beta[:, None] * (v - seen))[:, None]
        outs.append(np.einsum("hkv,hk->hv", state, q))
    return np.reshape(outs, (-1, HEADS, VALUES)), state


def test_chunks() -> None:
    from intarsia.vllm.gated_delta import in_chunks

    random = np.random.default_rng(0)
    lengths = [0, 1, 16, 17, 70, 0]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    operands = _operands(random, starts[-1] + 5)  # the last 5 are padding
    states = random.standard_normal((len(lengths), HEADS, KEYS, VALUES)).astype(np.float32)
    out, new = in_chunks(*operands, states, starts)
    for i, (a, b) in enumerate(itertools.pairwise(starts)):
        expected, state = _token_by_token([x[a:b] for x in operands], states[i])
        np.testing.assert_allclose(out[a:b], expected, atol=2e-4)
        np.testing.assert_allclose(new[i], state, atol=2e-4)


def test_one_token_each() -> None:
    from intarsia.vllm.gated_delta import one_token_each

    random = np.random.default_rng(1)
    operands = _operands(random, 4)
    states = random.standard_normal((4, HEADS, KEYS, VALUES)).astype(np.float32)
    out, new = one_token_each(*operands, states)
    for i in range(4):
        expected, state = _token_by_token([x[i : i + 1] for x in operands], states[i])
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
