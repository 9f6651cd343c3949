"""Tokens drawn on a CPU: their frequencies, what is never drawn, and seeds."""

import pytest

pytest.importorskip("torch")

import torch
import vllm_running  # noqa: F401  skips where there is no vLLM
from intarsia.vllm import sampling
from intarsia.vllm.sampling import draw


@pytest.mark.parametrize("size", [1, 5, 256, 700])
def test_frequencies_are_the_probabilities(size):
    torch.manual_seed(size)
    probs = (3 * torch.randn(size)).softmax(-1)
    drawn, count = 0, 0
    for _ in range(10):
        tokens = draw(probs.expand(20_000, -1), {})
        drawn, count = drawn + tokens.bincount(minlength=size), count + len(tokens)
    expected = probs.double() * count
    # The statistic of Pearson's test has this mean and this variance, whatever the size.
    frequent = expected >= 5
    excess = ((drawn - expected) ** 2 / expected)[frequent].sum() - frequent.sum() + 1
    assert abs(excess) <= 5 * (2 * frequent.sum()) ** 0.5


def test_what_is_masked_is_never_drawn():
    torch.manual_seed(0)
    probs = torch.rand(2000, 1000)
    probs[:, 3:990] = 0
    probs[:, 996:] = 0
    probs[0], probs[0, 994] = 0, 1e-38
    tokens = draw(probs, {})
    assert (probs.gather(1, tokens[:, None]) > 0).all()
    assert tokens[0] == 994


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval(number, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, number, dtype=float))
    probs = torch.zeros(1, 700)
    probs[0, [2, 5, 600]] = torch.tensor([0.1, 0.7, 0.2])
    assert draw(probs, {}).item() == (2 if number == 0 else 600)


def test_a_generator_decides_its_row_alone():
    probs = torch.rand(4, 5000)

    def drawn(row, of):
        return draw(of, {row: torch.Generator().manual_seed(7)})[row]

    assert drawn(2, probs) == drawn(0, probs[2:])
    assert (
        len({draw(probs[:1], {0: torch.Generator().manual_seed(i)}).item() for i in range(9)}) > 5
    )


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_row_without_probabilities_gives_its_last_token(value):
    assert draw(torch.full((1, 700), value), {}).item() == 699


def test_no_rows():
    assert draw(torch.rand(0, 700), {}).shape == (0,)


@pytest.fixture
def sampler(monkeypatch):
    """vLLM's module, as it was before and is again afterwards."""
    monkeypatch.setattr(sampling.topk_topp_sampler, "random_sample", None)
    return sampling.topk_topp_sampler


def test_vllms_sampler_draws_so(sampler):
    sampling.use_draw()
    logits = torch.zeros(3, 700)
    logits[range(3), [4, 5, 699]] = 1000.0
    tokens, _ = sampler.TopKTopPSampler().forward_native(logits, {}, None, None)
    assert tokens.tolist() == [4, 5, 699]
    assert sampler.random_sample is draw


def test_a_sampler_without_such_a_function_is_refused(sampler, monkeypatch):
    monkeypatch.delattr(sampler, "random_sample")
    with pytest.raises(RuntimeError, match="topk_topp_sampler: got no random_sample"):
        sampling.use_draw()
