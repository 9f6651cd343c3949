"""Log-probabilities of prompts: transformers', however they are chunked, and with an 8-bit cache."""

import json
import re

import numpy as np
import pytest
import support
from intarsia import cli
from intarsia.models import (
    KV_CACHE_DTYPES,
    Engine,
    SamplingParams,
    Tokenizer,
    load_model,
    perplexity,
)

LENGTHS = (33, 2, 48, 1)


@pytest.fixture(scope="module")
def prompts():
    """Ragged prompts; one has nothing to predict."""
    rng = np.random.default_rng(5)
    return [rng.integers(2, 258, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def logprobs(tiny, prompts):
    """Of the tiny model, all prompts in one chunk."""
    return Engine(*tiny, max_num_seqs=4, max_model_len=64).prompt_logprobs(prompts)


on_each_packaged_model = pytest.mark.parametrize(
    "name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.full)]
)


@on_each_packaged_model
def test_a_passage_is_as_likely_as_in_transformers(request, recorded_passages, name):
    passage = recorded_passages[name]
    engine = Engine(
        *request.getfixturevalue(name), max_num_seqs=1, max_model_len=len(passage["ids"]) + 1
    )
    [logprobs] = engine.prompt_logprobs([passage["ids"]])
    assert logprobs.mean(dtype=np.float64) == pytest.approx(passage["mean_logprob"], abs=1e-4)


@on_each_packaged_model
def test_passages_are_tokenized_as_in_transformers(request, recorded_passages, name):
    tokenizer = request.getfixturevalue(f"{name}_tokenizer")
    text = json.loads((support.ROOT / "tests" / "data" / "passage.json").read_text())["text"]
    assert tokenizer.encode(text) == recorded_passages[name]["ids"]


def test_there_is_one_for_each_token_but_the_first(logprobs):
    assert [len(values) for values in logprobs] == [length - 1 for length in LENGTHS]
    assert all((values < 0).all() for values in logprobs)


def test_probabilities_of_all_tokens_add_up_to_one(tiny, prompts):
    config, _ = tiny
    engine = Engine(*tiny, max_num_seqs=32, max_model_len=64)
    last = [[*prompts[0], token] for token in range(config.vocab)]
    probabilities = np.exp([values[-1] for values in engine.prompt_logprobs(last)])
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    assert probabilities.max() > 2 / config.vocab


@pytest.mark.parametrize(
    "settings",
    [{"prefill_tokens": 16}, {"max_num_seqs": 1}, {"num_pages": 4}, {"scan_layers": True}],
    ids=str,
)
def test_chunks_and_turns_change_nothing(tiny, prompts, logprobs, settings):
    engine = Engine(*tiny, **({"max_num_seqs": 4, "max_model_len": 64} | settings))
    for got, expected in zip(engine.prompt_logprobs(prompts), logprobs, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)
    assert engine._allocator.num_free == engine._allocator.num_pages


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def in_bf16(request):
    """A packaged model's name, configuration and weights in bf16."""
    path = request.getfixturevalue(f"{request.param}_path")
    return request.param, *load_model(path, dtype="bfloat16")


@pytest.mark.full
def test_8_bit_caches_cost_little(in_bf16, recorded_passages):
    name, config, params = in_bf16
    ids = recorded_passages[name]["ids"]
    perplexities = {}
    for dtype in KV_CACHE_DTYPES:
        engine = Engine(
            config, params, max_num_seqs=1, max_model_len=len(ids) + 1, kv_cache_dtype=dtype
        )
        perplexities[dtype] = perplexity(engine.prompt_logprobs([ids]))
    assert perplexities["fp8_e4m3"] == pytest.approx(perplexities["auto"], rel=1e-2)
    assert perplexities["fp8_e5m2"] == pytest.approx(perplexities["auto"], rel=8e-2)
    assert len(set(perplexities.values())) == 3


@pytest.mark.full
def test_text_from_an_8_bit_cache_is_one_that_the_model_could_have_chosen(in_bf16, request):
    name, config, params = in_bf16
    sequences = request.getfixturevalue({"smollm2": "recorded", "gemma3": "recorded_gemma3"}[name])
    prompts = [sequence["prompt_ids"] for sequence in sequences[:4]]
    settings = {"max_num_seqs": 4, "max_model_len": max(map(len, prompts)) + 33}
    exact = Engine(config, params, **settings)
    likelihoods = []
    for engine in (exact, Engine(config, params, **settings, kv_cache_dtype="fp8_e4m3")):
        completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=32))
        texts = [[*p, *c.tokens] for p, c in zip(prompts, completions, strict=True)]
        logprobs = exact.prompt_logprobs(texts)
        new = [values[len(p) - 1 :] for p, values in zip(prompts, logprobs, strict=True)]
        likelihoods.append(np.concatenate(new).mean())
    assert likelihoods[1] == pytest.approx(likelihoods[0], abs=0.1)


def test_perplexity_is_of_all_tokens_alike():
    halves = [np.log(np.full(3, 0.5)), np.log(np.full(1, 0.125))]
    assert perplexity(halves) == pytest.approx((0.5**3 * 0.125) ** (-1 / 4))


def test_prompts_that_do_not_fit(tiny):
    engine = Engine(*tiny, max_num_seqs=1, max_model_len=32)
    with pytest.raises(
        ValueError, match="prompt 0 has 32 tokens, expected 1 to 31: max_model_len is 32"
    ):
        engine.prompt_logprobs([[5] * 32])


def test_unknown_cache_dtype(tiny):
    with pytest.raises(ValueError, match=r"'fp4', expected one of auto, fp8_e4m3, fp8_e5m2"):
        Engine(*tiny, kv_cache_dtype="fp4")


def test_the_command_scores_a_file_in_pieces(write_gguf, tiny_weights, tiny, tmp_path, capsys):
    path = write_gguf(tiny_weights, chat_template=None)
    text = tmp_path / "text.txt"
    text.write_bytes(b"the 123\r\n" * 20)
    args = ["perplexity", str(text), "--model", str(path), "--dtype", "float32", "--context", "50"]
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    tokens = Tokenizer.from_path(path).encode(text.read_bytes().decode())
    pieces = [tokens[i : i + 50] for i in range(0, len(tokens), 50)]
    assert len(pieces) > 2
    engine = Engine(*tiny, max_num_seqs=1, max_model_len=64)
    expected = perplexity(engine.prompt_logprobs(pieces))
    got, count = re.match(r"perplexity ([\d.]+) of (\d+) tokens \(", out).groups()
    assert float(got) == pytest.approx(expected, rel=1e-3)
    assert int(count) == len(tokens) - len(pieces)
    assert "KV cache in float32" in out


def test_the_command_says_what_is_wrong(write_gguf, tiny_weights, tmp_path, capsys):
    model = str(write_gguf(tiny_weights))
    text = tmp_path / "text.txt"
    text.write_text("t")
    assert cli.main(["perplexity", str(text), "--model", model]) == 2
    assert "text has 1 tokens, expected 2 or more" in capsys.readouterr().err
    assert cli.main(["perplexity", str(text), "--model", model, "--context", "1"]) == 2
    assert "--context is 1, expected 2 to 511 for this model" in capsys.readouterr().err
    assert cli.main(["perplexity", str(tmp_path / "none"), "--model", model]) == 2
    assert "none" in capsys.readouterr().err
