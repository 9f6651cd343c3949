"""Tensor parallelism on virtual CPU devices: the tokens of one device, and no cache that travels."""

import re

import pytest
from intarsia.models import Engine, SamplingParams
from test_engine import GREEDY, tokens_of

PROMPTS = [[5, 9, 200, 31], list(range(40, 80)), [7]]


@pytest.fixture(scope="module")
def whole(tiny):
    """What the tiny model says greedily on one device."""
    return tokens_of(_engine(tiny).generate(PROMPTS, GREEDY))


def _engine(model, **kwargs):
    return Engine(*model, max_num_seqs=3, max_model_len=64, **kwargs)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_tokens_are_those_of_one_device(tiny, whole, size, scan_layers):
    # Two KV heads: with four devices, each head has a copy on two of them.
    engine = _engine(tiny, tensor_parallel=size, scan_layers=scan_layers)
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == whole


def test_gemma(tiny_gemma):
    engine = _engine(tiny_gemma, tensor_parallel=2)
    expected = tokens_of(_engine(tiny_gemma).generate(PROMPTS, GREEDY))
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == expected


def test_sampling_is_that_of_one_device(tiny):
    sampling = SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=8, ignore_eos=True)
    one, two = (_engine(tiny, tensor_parallel=n).generate(PROMPTS, sampling) for n in (1, 2))
    assert tokens_of(one) == tokens_of(two)


@pytest.mark.parametrize("greedy", [True, False])
def test_only_logits_are_gathered(tiny, greedy):
    """Nothing of the cache's size goes from device to device, and the cache is not copied. Of logits, the largest will do."""
    config, _ = tiny
    engine = _engine(tiny, tensor_parallel=2)
    engine.generate(PROMPTS, GREEDY if greedy else SamplingParams(max_tokens=2))
    vocab = -(-config.vocab // 2) * 2
    expected = ["f32[2,3]", "s32[2,3]"] if greedy else [f"f32[3,{vocab}]"]
    for key, executable in engine._executables.items():
        text = executable.as_text()
        gathered = re.findall(r"= \(?(\w+\[.*?\]).* all-gather\(", text)
        assert gathered == expected, key
        assert not re.search(r"all-to-all|collective-permute", text)
        cache = rf"{engine._allocator.num_pages},16,\d+,{config.head_dim}"
        assert re.search(rf"f32\[{cache}\]\S* custom-call", text), key
        assert not re.search(rf"f32\[{cache}\]\S* copy\(", text), key


@pytest.mark.parametrize(
    ("size", "message"),
    [(3, "tensor_parallel=3 does not divide heads=4"), (0, "expected 1 to 8"), (99, "1 to 8")],
)
def test_impossible_sizes_are_refused(tiny, size, message):
    with pytest.raises(ValueError, match=message):
        _engine(tiny, tensor_parallel=size)
