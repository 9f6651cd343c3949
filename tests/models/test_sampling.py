"""Sampling: greedy, temperature, top-k, top-p and seeds, against NumPy and against statistics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intarsia.models import Engine, SamplingParams
from intarsia.models.sampling import Mode, SamplingState, argmax, sample

DRAWS = 20_000
LOGITS = np.log(np.array([0.4, 0.05, 0.3, 0.05, 0.2], np.float32))


@functools.partial(jax.jit, static_argnames="mode")
def jitted_sample(logits, state, step, mode):
    return sample(logits, state, step, mode=mode)


def draw(logits, *, temperature=1.0, top_k=0, top_p=1.0, seed=0, step=None, mode=Mode.FILTERED):
    """Samples once a row; settings are broadcast over the rows."""
    b = len(logits)
    state = SamplingState(
        temperature=jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), b),
        top_k=jnp.broadcast_to(jnp.asarray(top_k, jnp.int32), b),
        top_p=jnp.broadcast_to(jnp.asarray(top_p, jnp.float32), b),
        seed=jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), b),
    )
    step = jnp.zeros(b, jnp.int32) if step is None else jnp.asarray(step, jnp.int32)
    return np.asarray(jitted_sample(jnp.asarray(logits), state, step, mode))


def frequencies(**kwargs):
    """How often each of the five tokens is drawn, one seed a draw."""
    tokens = draw(np.tile(LOGITS, (DRAWS, 1)), seed=np.arange(DRAWS), **kwargs)
    return np.bincount(tokens, minlength=5) / DRAWS


def kept_tokens(logits, top_k, top_p):
    """Which tokens vLLM's rules keep, by sorting, in f64: top-k first, then top-p of the rest."""
    order = np.argsort(-logits, kind="stable")
    order = order[: top_k if top_k > 0 else None]
    probabilities = np.exp(logits[order].astype(np.float64))
    before = np.cumsum(probabilities / probabilities.sum()) - probabilities / probabilities.sum()
    return set(order[before < top_p].tolist())


def assert_close(observed, expected):
    sigma = np.sqrt(expected * (1 - expected) / DRAWS)
    np.testing.assert_array_less(np.abs(observed - expected), 4 * sigma + 1e-9)


def test_temperature_zero_is_greedy_in_both_modes():
    logits = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    for mode in (Mode.RANDOM, Mode.FILTERED):
        tokens = draw(logits, temperature=0.0, top_k=3, seed=5, mode=mode)
        np.testing.assert_array_equal(tokens, logits.argmax(axis=1))


def test_argmax_takes_the_first_of_equals():
    x = jnp.array([[1.0, 3.0, 3.0], [-jnp.inf, -jnp.inf, -jnp.inf], [0.0, -1.0, 0.0]])
    np.testing.assert_array_equal(argmax(x), [1, 0, 0])


def test_no_token_is_chosen_among_nan():
    x = np.array([[1.0, np.nan, 3.0], [np.nan] * 3, [0.0, np.inf, 0.0]], np.float32)
    np.testing.assert_array_equal(argmax(jnp.asarray(x)), [-1, -1, 1])
    for mode in (Mode.RANDOM, Mode.FILTERED):
        assert draw(np.full((2, 9), np.nan, np.float32), mode=mode).tolist() == [-1, -1]


def test_there_are_settings_for_each_prompt(tiny):
    engine = Engine(*tiny, max_num_seqs=2, max_model_len=32)
    said = "^engine: sampling has 1 settings, expected 1 for each of 2 prompts$"
    with pytest.raises(ValueError, match=said):
        engine.generate([[1], [2]], [SamplingParams()])


@pytest.mark.parametrize("mode", [Mode.RANDOM, Mode.FILTERED])
def test_draws_follow_the_softmax(mode):
    assert_close(frequencies(mode=mode), np.exp(LOGITS))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature):
    expected = np.exp(LOGITS / temperature)
    assert_close(frequencies(temperature=temperature), expected / expected.sum())


def test_top_k_keeps_the_likeliest_and_renormalizes():
    expected = np.array([0.4, 0, 0.3, 0, 0]) / 0.7
    assert_close(frequencies(top_k=2), expected)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    assert_close(frequencies(top_p=0.69), np.array([0.4, 0, 0.3, 0, 0]) / 0.7)
    assert_close(frequencies(top_p=0.71), np.array([0.4, 0, 0.3, 0, 0.2]) / 0.9)


def test_top_p_counts_what_top_k_has_left():
    # Of the three likeliest, 0.4 / 0.9 and 0.3 / 0.9 reach 0.75; of all five they would not.
    assert_close(frequencies(top_k=3, top_p=0.75), np.array([0.4, 0, 0.3, 0, 0]) / 0.7)


def test_tiny_top_p_and_top_k_of_one_are_greedy():
    for kwargs in ({"top_p": 1e-6}, {"top_k": 1}):
        np.testing.assert_array_equal(frequencies(**kwargs), [1, 0, 0, 0, 0])


def test_settings_that_f32_and_int32_do_not_have(tiny):
    engine = Engine(*tiny, max_num_seqs=1, max_model_len=32, decode_steps=10**20)

    def tokens(**settings):
        params = SamplingParams(seed=1, max_tokens=4, **settings)
        [completion] = engine.generate([[5, 6, 7]], params)
        return completion.tokens

    greedy = tokens(temperature=0)
    assert tokens(temperature=1e-45) == tokens(temperature=1, top_p=1e-46) == greedy
    assert tokens(temperature=1, top_k=2**31) == tokens(temperature=1)


@pytest.mark.parametrize("top_k", [-1, 0, 5, 1000])
def test_top_k_that_keeps_all(top_k):
    assert_close(frequencies(top_k=top_k), np.exp(LOGITS))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.05, 0.99),
    temperature=st.floats(0.3, 3.0),
)
def test_only_kept_tokens_are_drawn(seed, top_k, top_p, temperature):
    rows, vocab = 64, 40
    logits = np.random.default_rng(seed).standard_normal(vocab).astype(np.float32) * 2
    tokens = draw(
        np.tile(logits, (rows, 1)),
        top_k=top_k,
        top_p=top_p,
        temperature=temperature,
        seed=np.arange(rows, dtype=np.uint32) + np.uint32(seed // 2),
    )
    # Slightly wider, since the sum that top_p is compared with is rounded.
    assert set(tokens.tolist()) <= kept_tokens(logits / temperature, top_k, top_p + 1e-4)


def test_rows_have_settings_of_their_own():
    b = 6
    tokens = draw(
        np.tile(LOGITS, (b, 1)),
        temperature=[0, 1, 1, 0, 1, 1],
        top_k=[0, 1, 0, 4, 0, 1],
        top_p=[1, 1, 1e-6, 1, 1e-6, 0.5],
        seed=np.arange(b),
    )
    np.testing.assert_array_equal(tokens, np.zeros(b))


def test_a_seed_fixes_a_request_whatever_the_batch():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((8, 500)).astype(np.float32)
    seeds, steps = np.arange(8) + 40, np.arange(8) * 3
    together = draw(logits, seed=seeds, step=steps)
    order = rng.permutation(8)
    np.testing.assert_array_equal(
        draw(logits[order], seed=seeds[order], step=steps[order]), together[order]
    )
    for i in range(8):
        assert draw(logits[i : i + 1], seed=seeds[i], step=steps[i : i + 1])[0] == together[i]


def test_seeds_and_steps_give_different_draws():
    flat = np.zeros((200, 1000), np.float32)
    same = draw(flat, seed=7)
    assert len(set(same.tolist())) == 1
    assert len(set(draw(flat, seed=np.arange(200)).tolist())) > 150
    assert len(set(draw(flat, seed=7, step=np.arange(200)).tolist())) > 150


def test_mode_is_the_cheapest_that_serves():
    assert SamplingParams(temperature=0.0, top_k=5).mode == Mode.GREEDY
    assert SamplingParams().mode == Mode.RANDOM
    assert SamplingParams(top_k=-1).mode == Mode.RANDOM
    assert SamplingParams(top_k=5).mode == Mode.FILTERED
    assert SamplingParams(top_p=0.9).mode == Mode.FILTERED


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        ({"top_k": -2}, "top_k is -2, expected -1 or more"),
        ({"top_p": 0.0}, r"top_p is 0.0, expected in \(0, 1\]"),
        ({"max_tokens": 0}, "max_tokens is 0, expected 1 or more"),
    ],
)
def test_impossible_settings(settings_, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**settings_)
