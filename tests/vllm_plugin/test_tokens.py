"""Models give the tokens and log-probabilities that vLLM's own CPU backend gives, as they were recorded."""

import numpy as np
import pytest
import vllm_models
import vllm_running
from vllm_running import engine, greedy, logprobs, recorded, tokens


def test_the_models_are_those_that_were_recorded(model):
    entries = vllm_running.RECORDED["models"]
    recorded_digests = {entry["model"]: entry["weights"] for entry in entries}
    digests = {name: vllm_models.digest(model(name)) for name in vllm_models.MODELS}
    assert digests == recorded_digests, "NumPy or gguf gives other weights: record anew"


_NORMS = {"qwen3": 1, "gemma3_text": 1 + 2 * 4}
"""A step's norms that are by themselves, of models that norm each head; others have the last one alone. Norms behind a sum are the
sum's."""


def check_attention(llm, name: str) -> None:
    """Each layer norms heads, turns them and writes to the cache by one op, besides what attends."""
    layers = llm.llm_engine.model_config.hf_config.num_hidden_layers
    expected = {"rms_norm": _NORMS.get(name, 1), "rotary_embedding_and_cache": layers}
    attending = ("norm", "rotary", "cache")
    [programs] = llm.collective_rpc("xla_programs")
    steps = [ops for program, ops in programs["custom_calls"].items() if " step of " in program]
    assert len(steps) > 2
    for ops in steps:
        found = {op: n for op, n in ops.items() if any(word in op for word in attending)}
        found.pop("fused_add_rms_norm")
        assert found == expected


@pytest.mark.parametrize("name", vllm_models.MODELS)
def test_greedy_tokens_and_logprobs(model, name):
    expected = recorded(name)
    with engine(model(name)) as llm:
        sampling = greedy(max_tokens=vllm_models.MAX_TOKENS, logprobs=2)
        requests = llm.generate(vllm_models.PROMPTS, sampling, use_tqdm=False)
        assert tokens(requests) == [sequence["tokens"] for sequence in expected]
        np.testing.assert_allclose(
            logprobs(requests), [sequence["logprobs"] for sequence in expected], atol=1e-3
        )
        check_attention(llm, name)


def test_bf16(model):
    """Two choices that are equal but for rounding may go either way; up to there tokens are the same."""
    expected, told = recorded(vllm_models.SMOLLM2, "bfloat16"), recorded(vllm_models.SMOLLM2)
    with engine(model(vllm_models.SMOLLM2), dtype="bfloat16") as llm:
        sampling = greedy(max_tokens=vllm_models.MAX_TOKENS, logprobs=2)
        requests = llm.generate(vllm_models.PROMPTS, sampling, use_tqdm=False)
        for got, want in zip(tokens(requests), expected, strict=True):
            clear = [margin > 0.3 for margin in want["margins"]]
            steps = [*clear, False].index(False)
            assert got[:steps] == want["tokens"][:steps]
        # And all steps, by what bf16 thinks of the tokens of f32.
        tokenizer = llm.get_tokenizer()
        prompts = [tokenizer(text).input_ids for text in vllm_models.PROMPTS]
        texts = [
            {"prompt_token_ids": ids + sequence["tokens"]}
            for ids, sequence in zip(prompts, told, strict=True)
        ]
        scored = llm.generate(texts, greedy(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
        for request, sequence in zip(scored, told, strict=True):
            tail = request.prompt_logprobs[-vllm_models.MAX_TOKENS :]
            got = [step[t].logprob for t, step in zip(sequence["tokens"], tail, strict=True)]
            np.testing.assert_allclose(got, sequence["logprobs"], atol=0.3)
            assert np.mean(np.abs(np.subtract(got, sequence["logprobs"]))) < 0.06


def test_engines_of_one_process_share_no_tensors(model):
    """vLLM gives models alike one rotary embedding, which each traces with weights of its own."""
    llama = model("llama")
    expected = [sequence["tokens"] for sequence in recorded("llama")[:2]]
    prompts = vllm_models.PROMPTS[:2]
    with (
        engine(llama, enforce_eager=True) as first,
        engine(llama, enforce_eager=True) as second,
    ):
        for llm in (first, second, first):
            assert tokens(llm.generate(prompts, greedy(), use_tqdm=False)) == expected
        # Neither is what was traced left in the model, which is asked for its weights again.
        first.collective_rpc("reload_weights")
        assert tokens(first.generate(prompts, greedy(), use_tqdm=False)) == expected
