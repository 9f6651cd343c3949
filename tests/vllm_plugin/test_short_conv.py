"""Short convolutions over batches of requests, some of which go on where an earlier step ended."""

import itertools
import types

import numpy as np
import pytest
import vllm_running  # noqa: F401  which skips all where there is no vLLM


def _whole(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """A request's outputs from its beginning."""
    taps = weight.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    y = sum(padded[j : j + len(x)] * weight[:, j] for j in range(taps))
    return y if bias is None else y + bias


@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_chunks_give_what_the_whole_gives(taps: int, biased: bool) -> None:
    from intarsia.vllm.short_conv import convolve
    from intarsia.vllm.states import Form, read_states, write_states

    random, n = np.random.default_rng(taps), 8
    weight = random.standard_normal((n, taps)).astype(np.float32)
    bias = random.standard_normal(n).astype(np.float32) if biased else None
    lengths = [9, 1, 30, 4]
    inputs = [random.standard_normal((length, n)).astype(np.float32) for length in lengths]
    steps = [[2, 1, 7, 0], [1, 0, 1, 4], [0, 0, 22, 0], [6, 0, 0, 0]]  # tokens of each request
    # Rows of 12 numbers: the state of 4 taps needs the array of values, too. What a page held before must not matter.
    pages = tuple(_as_jax(np.full((9, 12), np.nan, np.float32)) for _ in range(2))
    own, done, found = np.array([3, 5, 1, 8, 0]), [0] * 4, [[] for _ in lengths]
    for counts in steps:
        starts = np.cumsum([0, *counts, 0]).astype(np.int32)  # the last request is padding
        behind = [a + b for a, b in zip(done, counts, strict=True)]
        group = types.SimpleNamespace(
            cu_seqlens_q=starts,
            seqused_k=np.array([*behind, 0], np.int32),
            block_table=own[:, None],
        )
        rows = [x[a:b] for x, a, b in zip(inputs, done, behind, strict=True)]
        x = np.concatenate([*rows, np.zeros((3, n), np.float32)])
        [states] = read_states(pages, group, [Form((taps - 1, n), np.float32)])
        [states] = read_states(pages, group, [Form((taps - 1, n), np.float32)])
        y, states = convolve(x, weight, bias, states, starts)
        pages = write_states(pages, group, [states])
        for i, (a, b) in enumerate(itertools.pairwise(starts[:5])):
            found[i].append(np.asarray(y)[a:b])
        done = behind
    for x, parts in zip(inputs, found, strict=True):
        np.testing.assert_allclose(np.concatenate(parts), _whole(x, weight, bias), atol=1e-5)
    untouched = [0, 2, 4, 6, 7]
    assert all(np.isnan(np.asarray(page)[untouched]).all() for page in pages)


def _as_jax(x):
    import jax.numpy as jnp

    return jnp.asarray(x)
