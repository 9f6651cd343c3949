"""What vLLM's engine does around a step goes on working: one engine with SmolLM2 for all tests."""

import dataclasses
import itertools
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import vllm_models
from vllm_running import FEW_PROGRAMS, SIZES, engine, greedy, logprobs, recorded, tokens

SHORT, STORY, CODE, LONG = vllm_models.PROMPTS
LAYERS = 30


@pytest.fixture(scope="module")
def smollm2(model):
    with engine(
        model(vllm_models.SMOLLM2), additional_config=FEW_PROGRAMS, disable_log_stats=False
    ) as llm:
        yield llm


def run(llm, prompts, sampling=None):
    return llm.generate(prompts, sampling or greedy(), use_tqdm=False)


def counted(llm, name: str) -> float:
    """One of vLLM's counters."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{name}")


def test_the_programs_are_made_of_our_ops(smollm2):
    [programs] = smollm2.collective_rpc("xla_programs")
    steps = {name: ops for name, ops in programs["custom_calls"].items() if " step of " in name}
    assert len(steps) == 4  # both sizes of each kind
    for name, ops in steps.items():
        attention = "paged_attention" if name.startswith("decode") else "flash_attn_varlen"
        products = 4 * LAYERS + name.startswith("decode")  # with the logits
        one_row = name.startswith("decode step of 1 ")  # whose products are XLA's
        assert ops == ({} if one_row else {"linear": products}) | {
            attention: LAYERS,
            "fused_add_rms_norm": 2 * LAYERS,
            "rms_norm": 1,
            "rotary_embedding_and_cache": LAYERS,
            "silu_and_mul": LAYERS,
        }


def test_requests_of_a_batch_do_not_touch_each_other(smollm2):
    """More than fit at a time, which come and go at different steps."""
    lengths = [3 + 5 * i % 22 for i in range(20)]
    prompts = [vllm_models.PROMPTS[i % 3] for i in range(20)]
    requests = run(smollm2, prompts, [greedy(max_tokens=n) for n in lengths])
    expected = [sequence["tokens"] for sequence in recorded(vllm_models.SMOLLM2)]
    assert tokens(requests) == [expected[i % 3][:n] for i, n in enumerate(lengths)]


def test_a_prefix_is_computed_once(smollm2):
    assert smollm2.reset_prefix_cache()
    first, again = run(smollm2, [LONG]), run(smollm2, [LONG])
    # The long prompt is more than one step's tokens: it came in chunks.
    assert len(first[0].prompt_token_ids) > SIZES["max_num_batched_tokens"]
    assert first[0].num_cached_tokens == 0
    assert again[0].num_cached_tokens == len(first[0].prompt_token_ids) // 16 * 16
    expected = [recorded(vllm_models.SMOLLM2)[3]["tokens"]]
    assert tokens(first) == tokens(again) == expected


def test_preempted_requests_go_on(smollm2):
    """Eight times 130 tokens are more than the cache holds."""
    prompts = [f"{n}. {STORY}" for n in range(8)]
    alone = tokens([*run(smollm2, prompts[:1], greedy(max_tokens=120))])
    before = counted(smollm2, "num_preemptions")
    together = run(smollm2, prompts, greedy(max_tokens=120))
    assert counted(smollm2, "num_preemptions") > before
    assert tokens(together)[:1] == alone
    assert tokens(run(smollm2, prompts[5:6], greedy(max_tokens=120))) == tokens(together)[5:6]


def test_penalties_keep_tokens_from_coming_twice(smollm2):
    [plain] = tokens(run(smollm2, [STORY], greedy(max_tokens=60)))
    assert len(set(plain)) < 60
    penalties = {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 100.0}
    [penalized] = tokens(run(smollm2, [STORY], greedy(max_tokens=60, **penalties)))
    assert len(set(penalized)) == 60


def test_a_seed_decides_what_is_sampled(smollm2):
    def requests(prompts, seeds):
        sampling = [greedy(temperature=1.0, top_p=0.95, seed=seed, max_tokens=16) for seed in seeds]
        return run(smollm2, prompts, sampling)

    def sample(prompts, seeds):
        return tokens(requests(prompts, seeds))

    [alone] = sample([STORY], [1])
    batch = sample([SHORT, STORY, STORY, CODE], [1, 1, 2, 3])
    assert batch[1] == alone
    assert batch[2] != alone
    # In chunks, where what is drawn after each but the last is discarded; then from the prefix cache.
    smollm2.reset_prefix_cache()
    in_chunks = requests([STORY, LONG, CODE], [1, 4, 2])
    assert in_chunks[1].num_cached_tokens == 0
    assert tokens(in_chunks)[1] == sample([LONG], [4])[0]


def test_logprobs_are_those_of_the_prompt_that_they_become(smollm2):
    [request] = run(smollm2, [STORY], greedy(max_tokens=8, logprobs=5))
    [completion] = request.outputs
    for step in completion.logprobs:
        entries = sorted(step.values(), key=lambda entry: entry.rank)
        assert [entry.rank for entry in entries] == [1, 2, 3, 4, 5]
        assert all(a.logprob >= b.logprob for a, b in itertools.pairwise(entries))
        assert sum(math.exp(entry.logprob) for entry in entries) <= 1 + 1e-5
    whole = {"prompt_token_ids": [*request.prompt_token_ids, *completion.token_ids]}
    [scored] = run(smollm2, [whole], greedy(max_tokens=1, prompt_logprobs=0))
    told = [
        step[token].logprob
        for token, step in zip(completion.token_ids, scored.prompt_logprobs[-8:], strict=True)
    ]
    np.testing.assert_allclose(told, logprobs([request])[0], atol=1e-4)


def test_prompt_logprobs_in_parts_are_those_of_whole_chunks(smollm2, monkeypatch):
    """LONG comes in chunks, and beside it STORY."""
    from intarsia.vllm import runner

    def told():
        requests = run(smollm2, [LONG, STORY], greedy(max_tokens=1, prompt_logprobs=2))
        steps = [step for request in requests for step in request.prompt_logprobs[1:]]
        return [(token, entry.logprob) for step in steps for token, entry in step.items()]

    in_parts = told()
    monkeypatch.delattr(runner.XlaGpuModelRunner, "_get_prompt_logprobs_dict")
    whole = told()
    assert [token for token, _ in in_parts] == [token for token, _ in whole]
    np.testing.assert_allclose([x for _, x in in_parts], [x for _, x in whole], atol=1e-4)


def test_several_completions_of_one_prompt(smollm2):
    [request] = run(smollm2, [STORY], greedy(n=3, temperature=0.8, seed=7, max_tokens=12))
    assert len({tuple(completion.token_ids) for completion in request.outputs}) == 3


def test_a_json_schema_binds_the_answer(smollm2):
    from vllm.sampling_params import StructuredOutputsParams

    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    sampling = greedy(
        max_tokens=60, ignore_eos=False, structured_outputs=StructuredOutputsParams(json=schema)
    )
    question = [{"role": "user", "content": "Describe a person in JSON."}]
    [request] = smollm2.chat(question, sampling, use_tqdm=False)
    said = json.loads(request.outputs[0].text)
    assert said.keys() == {"name", "age"}
    assert isinstance(said["name"], str) and len(said["name"]) <= 12
    assert 1 <= said["age"] <= 99


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": r"[1-9][0-9]{2}-[a-c]{4}"}, r"[1-9][0-9]{2}-[a-c]{4}"),
        ({"choice": ["a potter", "a smith"]}, "a (potter|smith)"),
        (
            {"grammar": 'root ::= pair ("; " pair)?\npair ::= [xy] " = " [0-9]'},
            "[xy] = [0-9](; [xy] = [0-9])?",
        ),
        ({"json_object": True}, r"\s*\{.*"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_grammar_binds_the_answer(smollm2, form, pattern):
    from vllm.sampling_params import StructuredOutputsParams

    options = {"max_tokens": 40, "ignore_eos": False}
    bound = greedy(structured_outputs=StructuredOutputsParams(**form), **options)
    [request, free] = run(smollm2, [STORY, STORY], [bound, greedy(**options)])
    assert re.fullmatch(pattern, request.outputs[0].text, re.DOTALL)
    assert not re.fullmatch(pattern, free.outputs[0].text, re.DOTALL), (
        "it would have said so anyway"
    )


def test_stop_strings_and_min_tokens(smollm2):
    [request] = run(smollm2, [SHORT], greedy(stop=["Paris"], ignore_eos=False))
    assert request.outputs[0].text == " "
    assert request.outputs[0].finish_reason == "stop"
    sampling = greedy(ignore_eos=False, min_tokens=20, max_tokens=20)
    assert len(tokens(run(smollm2, [SHORT], sampling))[0]) == 20


def test_a_request_that_cannot_fit_is_refused_and_the_next_one_answered(smollm2):
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="maximum context length is 512 tokens"):
        run(smollm2, [{"prompt_token_ids": [5] * 600}])
    assert tokens(run(smollm2, [SHORT])) == [recorded(vllm_models.SMOLLM2)[0]["tokens"]]


def test_weights_that_a_function_changes_are_served(smollm2):
    """Whether they have other storage, as after updates of reinforcement learning, or are changed in place."""

    def negated(model) -> None:
        for weight in model.parameters():
            weight.data = -weight.data

    def negated_and_failed(model) -> None:
        negated(model)
        raise ValueError("too late")

    def served():
        smollm2.reset_prefix_cache()
        return tokens(run(smollm2, [SHORT]))

    expected = [recorded(vllm_models.SMOLLM2)[0]["tokens"]]
    smollm2.apply_model(negated)
    assert served() != expected
    with pytest.raises(ValueError, match="too late"):
        smollm2.apply_model(negated_and_failed)
    assert served() == expected


def test_an_engine_that_was_put_to_sleep_wakes_up(smollm2, monkeypatch):
    """It keeps its memory, and says so. vLLM's own worker failed behind the paused scheduler, for good."""
    from intarsia.vllm import worker

    said = []
    warn = SimpleNamespace(warning=lambda text, *args: said.append(text % args))
    monkeypatch.setattr(worker, "logger", warn)
    expected = [recorded(vllm_models.SMOLLM2)[0]["tokens"]]
    for level in (0, 1, 2):
        smollm2.sleep(level)
        assert smollm2.llm_engine.is_sleeping()
        assert smollm2.wake_up() is True
        assert tokens(run(smollm2, [SHORT])) == expected
    smollm2.collective_rpc("discard", args=(("kv_cache",),))  # of `LLM.release_kv_cache_memory`
    assert tokens(run(smollm2, [SHORT])) == expected
    frees = "frees no memory; requests wait until wake_up"
    assert said == [
        *(f"intarsia-vllm: sleep of level {level} {frees}" for level in (1, 2)),
        f"intarsia-vllm: discarding kv_cache {frees}",
    ]


def test_nothing_was_compiled_while_serving(smollm2):
    """After all of the above."""
    run(smollm2, [SHORT, STORY, CODE, LONG] * 3)
    [programs] = smollm2.collective_rpc("xla_programs")
    assert programs["late"] == []
    assert programs["compilations"] == 0


def test_blocks_are_zeroed_and_not_copied(smollm2):
    """By vLLM's worker and runner, as its scheduler asks for it. It does so for models with states alone, and for copies
    where these have a prefix cache, which is refused: so the messages are made here."""
    from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
    from vllm.v1.core.sched.output import SchedulerOutput

    assert smollm2.reset_prefix_cache()
    expected = tokens(run(smollm2, [LONG]))
    pool = smollm2.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    cached = [block.block_id for block in pool.blocks if block.block_hash is not None]
    assert len(cached) > 10

    def ask(**what):
        message = dataclasses.replace(SchedulerOutput.make_empty(), **what)
        smollm2.collective_rpc("execute_model", args=(message,))

    def again():
        [request] = run(smollm2, [LONG])
        assert request.num_cached_tokens == len(request.prompt_token_ids) // 16 * 16
        return tokens([request])

    with pytest.raises(
        NotImplementedError, match=r"a step with kv_cache_block_copies .*, expected"
    ):
        ask(kv_cache_block_copies=[KVCacheBlockCopy(cached[0], cached[1])])
    assert again() == expected
    ask(new_block_ids_to_zero=cached)
    assert again() != expected
    # Nothing makes it known before that blocks will be zeroed: what is compiled late is told.
    [programs] = smollm2.collective_rpc("xla_programs")
    assert "copying of blocks" not in programs["custom_calls"]
    assert programs["late"] == ["zeroing of blocks"]
    assert programs["compilations"] >= 1
