"""Tensor parallelism on virtual CPU devices: the tokens of one device, and no cache that travels."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from intarsia.models import Engine, SamplingParams, vocabulary
from intarsia.models.parallel import ModelParallel
from intarsia.models.sampling import argmax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from test_engine import GREEDY, tokens_of

PROMPTS = [[5, 9, 200, 31], list(range(40, 80)), [7]]


@pytest.fixture(scope="module")
def whole(tiny):
    """What the tiny model says greedily on one device."""
    return tokens_of(_engine(tiny).generate(PROMPTS, GREEDY))


def _engine(model, **kwargs):
    return Engine(*model, max_num_seqs=3, max_model_len=64, **kwargs)


@pytest.mark.parametrize(
    ("size", "scan_layers"),
    [(2, True), (4, False), *(pytest.param(*row, marks=pytest.mark.full) for row in ((2, False), (4, True)))],
)  # fmt: skip
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


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SamplingParams(temperature=0.0), marks=pytest.mark.full),
        SamplingParams(temperature=1.0, top_k=20, seed=3),
    ],
    ids=["greedy", "at random"],
)
def test_several_steps_a_program_give_the_same_tokens(tiny, settings):
    settings = dataclasses.replace(settings, max_tokens=8, ignore_eos=True)
    expected = _engine(tiny).generate(PROMPTS, settings)
    grouped = _engine(tiny, tensor_parallel=2, decode_steps=3).generate(PROMPTS, settings)
    assert tokens_of(grouped) == tokens_of(expected)


def test_the_likeliest_token_is_that_of_all_logits(tiny):
    """Of rows whose logits are all below 0, that of padding; with the largest on both devices; of NaN."""
    config = ModelParallel(tiny[0], 2).config
    assert config.vocab % 2, "there is no padding"
    rng = np.random.default_rng(0)
    table = np.abs(rng.standard_normal((config.vocab, config.hidden), np.float32))
    table[[3, -2]] = 9
    hidden = rng.standard_normal((4, config.hidden), np.float32)
    hidden[1], hidden[2], hidden[3] = -1, 1, np.nan
    mesh = Mesh(jax.devices()[:2], (config.mesh_axis,))
    likeliest = jax.shard_map(
        lambda table, hidden: vocabulary.likeliest(config, {"embed": table}, hidden),
        mesh=mesh,
        in_specs=(P(config.mesh_axis), P()),
        out_specs=P(),
        check_vma=False,
    )
    tokens = np.asarray(likeliest(np.pad(table, ((0, 1), (0, 0))), hidden))
    logits = hidden @ table.T
    assert (logits[1] < 0).all()
    np.testing.assert_array_equal(tokens, argmax(logits))
    assert tokens.tolist()[2:] == [3, -1]


@pytest.mark.parametrize("greedy", [True, False])
def test_only_logits_are_gathered(tiny, greedy):
    """Nothing of the cache's size goes from device to device, and the cache is not copied. Of logits, the largest will do."""
    config, _ = tiny
    engine = _engine(tiny, tensor_parallel=2)
    engine.generate(PROMPTS, GREEDY if greedy else SamplingParams(max_tokens=2))
    vocab = -(-config.vocab // 2) * 2
    expected = [] if greedy else [f"f32[3,{vocab}]"]
    for key, executable in engine._executables.items():
        text = executable.as_text()
        gathered = re.findall(r"= \(?(\w+\[.*?\]).* all-gather\(", text)
        assert gathered == expected, key
        assert not re.search(rf"\[3,{vocab}\]\S* all-reduce\(", text), key
        assert bool(re.search(r"f32\[2,2,3\]\S* all-reduce\(", text)) == greedy, key
        assert not re.search(r"all-to-all|collective-permute", text)
        cache = rf"{engine._allocator.num_pages},16,\d+,{config.head_dim}"
        assert re.search(rf"f32\[{cache}\]\S* custom-call", text), key
        assert not re.search(rf"f32\[{cache}\]\S* copy\(", text), key


@pytest.mark.gpu
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("decode_steps", [1, 3])
def test_two_gpus_give_the_tokens_of_one(tiny, decode_steps, scan_layers):
    if len(jax.devices("gpu")) < 2:
        pytest.skip("this machine has one GPU")
    one = _engine(tiny).generate(PROMPTS, GREEDY)
    two = _engine(tiny, tensor_parallel=2, decode_steps=decode_steps, scan_layers=scan_layers)
    # More than once: XLA launches calls one by one at first, records a graph, and replays that.
    for _ in range(2):
        assert tokens_of(two.generate(PROMPTS, GREEDY)) == tokens_of(one)
    assert two.custom_calls()["decode"]["all_reduce_fused_add_rms_norm"]


@pytest.mark.parametrize(
    ("size", "message"),
    [(3, "tensor_parallel=3 does not divide heads=4"), (0, "expected 1 to 8"), (99, "1 to 8")],
)
def test_impossible_sizes_are_refused(tiny, size, message):
    with pytest.raises(ValueError, match=message):
        _engine(tiny, tensor_parallel=size)
