"""The packaged models on a GPU: transformers' tokens in f32, nearly its probabilities in bf16."""

import jax
import numpy as np
import pytest
from intarsia.models import Engine, SamplingParams, load_model, perplexity

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("name", ["smollm2", "gemma3"])]

# 18 or 30 layers, each of which rounds to 8 bits a few times.
BF16_LOGPROBS_ERROR = 3e-2


@pytest.fixture(autouse=True)
def on_gpu():
    """Everything in the test is on the GPU."""
    with jax.default_device(jax.devices("gpu")[0]):
        yield


@pytest.fixture
def path(request, name):
    """The model's file, or a skip."""
    return request.getfixturevalue(f"{name}_path")


@pytest.fixture
def sequences(request, name):
    """What transformers generated."""
    return request.getfixturevalue({"smollm2": "recorded", "gemma3": "recorded_gemma3"}[name])


def test_tokens_are_those_of_transformers_in_f32(path, sequences):
    prompts = [sequence["prompt_ids"] for sequence in sequences]
    longest = max(map(len, prompts))
    engine = Engine(*load_model(path), max_num_seqs=5, max_model_len=longest + 32)
    completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24))
    for completion, sequence in zip(completions, sequences, strict=True):
        assert completion.tokens == sequence["tokens"][:24]


def test_bf16_and_8_bit_caches_stay_near_f32(path, name, recorded_passages):
    passage = recorded_passages[name]
    logprobs = {}
    for dtype, cache in (
        ("float32", "auto"),
        ("bfloat16", "auto"),
        ("bfloat16", "fp8_e4m3"),
        ("bfloat16", "fp8_e5m2"),
    ):
        engine = Engine(
            *load_model(path, dtype=dtype),
            max_num_seqs=1,
            max_model_len=len(passage["ids"]) + 1,
            kv_cache_dtype=cache,
        )
        logprobs[dtype, cache] = engine.prompt_logprobs([passage["ids"]])[0]
    exact, rounded = logprobs["float32", "auto"], logprobs["bfloat16", "auto"]
    assert exact.mean(dtype=np.float64) == pytest.approx(passage["mean_logprob"], abs=1e-4)
    assert 0 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < BF16_LOGPROBS_ERROR
    perplexities = {key: perplexity([values]) for key, values in logprobs.items()}
    print(perplexities)
    of_bf16 = perplexities["bfloat16", "auto"]
    assert perplexities["bfloat16", "fp8_e4m3"] == pytest.approx(of_bf16, rel=1e-2)
    assert perplexities["bfloat16", "fp8_e5m2"] == pytest.approx(of_bf16, rel=8e-2)
