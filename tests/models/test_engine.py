"""Generation: the tokens of transformers, and the same tokens however they are batched."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from intarsia._steps import compile_step, warm_up_runs
from intarsia.models import (
    KV_CACHE_DTYPES,
    Engine,
    SamplingParams,
    load_model,
    reference,
)
from intarsia.models.schedule import PageAllocator, make_request

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LENGTHS = (5, 33, 1, 16, 48)


@pytest.fixture(scope="module")
def prompts():
    """Ragged prompts: one token, a page exactly, and across pages."""
    rng = np.random.default_rng(2)
    return [rng.integers(2, 258, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def make_engine(tiny):
    """Returns a function that builds an engine for the tiny model."""

    def make(**kwargs):
        return Engine(*tiny, **({"max_num_seqs": 5, "max_model_len": 64} | kwargs))

    return make


@pytest.fixture(scope="module")
def engine(make_engine):
    """An engine for five sequences; shared, since compiling takes most of these tests' time."""
    return make_engine()


@pytest.fixture(scope="module")
def greedy_tokens(engine, prompts):
    """What the tiny model says greedily."""
    return tokens_of(engine.generate(prompts, GREEDY))


def tokens_of(completions):
    return [completion.tokens for completion in completions]


@pytest.mark.parametrize("count", [24, pytest.param(48, marks=pytest.mark.full)])
def test_tokens_are_those_of_transformers(smollm2, recorded, count):
    engine = Engine(*smollm2, max_num_seqs=5, max_model_len=128)
    completions = engine.generate(
        [sequence["prompt_ids"] for sequence in recorded],
        SamplingParams(temperature=0.0, max_tokens=count),
    )
    for completion, sequence in zip(completions, recorded, strict=True):
        assert completion.tokens == sequence["tokens"][:count]
    assert engine.stats.decode_tokens == (count - 1) * 5
    assert engine.stats.prefill_tokens == sum(len(s["prompt_ids"]) for s in recorded)


@pytest.mark.full
def test_scanned_layers_give_the_tokens_of_transformers(smollm2, recorded):
    engine = Engine(*smollm2, max_num_seqs=5, max_model_len=128, scan_layers=True)
    completions = engine.generate(
        [sequence["prompt_ids"] for sequence in recorded],
        SamplingParams(temperature=0.0, max_tokens=32),
    )
    for completion, sequence in zip(completions, recorded, strict=True):
        assert completion.tokens == sequence["tokens"][:32]


def test_first_logits_are_those_of_transformers(smollm2, recorded, monkeypatch):
    # Margins of the recorded greedy choices are 0.01 and more; the logits are far closer.
    seen = []

    def spy(logits):
        jax.debug.callback(seen.append, logits)
        return jnp.argmax(logits, axis=1).astype(jnp.int32)

    monkeypatch.setattr("intarsia.models.vocabulary.argmax", spy)
    engine = Engine(*smollm2, max_num_seqs=5, max_model_len=64, scan_layers=True)
    engine.generate(
        [sequence["prompt_ids"] for sequence in recorded],
        SamplingParams(temperature=0.0, max_tokens=1),
    )
    jax.effects_barrier()
    logits = np.asarray(seen[2 * warm_up_runs()])  # After both steps' warm-up.
    for row, sequence in zip(logits, recorded, strict=True):
        first = sequence["first_logits"]
        np.testing.assert_array_equal(np.argsort(-row)[:5], first["ids"])
        np.testing.assert_allclose(row[first["ids"]], first["values"], atol=5e-4)


@pytest.mark.full
def test_reference_gives_the_tokens_of_transformers(smollm2, recorded):
    prompts = [sequence["prompt_ids"] for sequence in recorded]
    result = reference.generate(*smollm2, prompts, 32)
    assert result.tokens == [sequence["tokens"][:32] for sequence in recorded]


def test_a_batch_gives_what_each_prompt_gives_alone(make_engine, prompts, greedy_tokens):
    alone = make_engine(max_num_seqs=1, prefill_tokens=64)
    for prompt, tokens in zip(prompts, greedy_tokens, strict=True):
        assert tokens_of(alone.generate([prompt], GREEDY)) == [tokens]
    assert len(set(map(tuple, greedy_tokens))) == 5


def test_engine_and_reference_agree(tiny, engine, prompts):
    completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12))
    assert tokens_of(completions) == reference.generate(*tiny, prompts, 12).tokens


@pytest.mark.parametrize("prefill_tokens", [16, pytest.param(32, marks=pytest.mark.full)])
def test_prompts_in_chunks_give_what_whole_ones_give(
    make_engine, prompts, greedy_tokens, prefill_tokens
):
    chunked = make_engine(prefill_tokens=prefill_tokens)
    assert tokens_of(chunked.generate(prompts, GREEDY)) == greedy_tokens
    assert chunked.stats.prefill_tokens == sum(LENGTHS)


def test_scanned_layers_give_what_unrolled_ones_give(make_engine, prompts, greedy_tokens):
    scanned = make_engine(scan_layers=True)
    assert tokens_of(scanned.generate(prompts, GREEDY)) == greedy_tokens


def test_more_prompts_than_rows_take_turns(make_engine, prompts, greedy_tokens):
    in_turn = make_engine(max_num_seqs=2, num_pages=6)
    assert tokens_of(in_turn.generate(prompts, GREEDY)) == greedy_tokens
    assert in_turn._allocator.num_free == 6


def test_sliding_window_changes_what_long_prompts_see(
    write_directory, hf_config, tiny_weights, prompts, greedy_tokens
):
    window = {"architectures": ["MistralForCausalLM"], "sliding_window": 8}
    config, params = load_model(write_directory(hf_config | window, tiny_weights))
    engine = Engine(config, params, max_num_seqs=5, max_model_len=64)
    completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12))
    assert tokens_of(completions) == reference.generate(config, params, prompts, 12).tokens
    assert tokens_of(completions) != greedy_tokens


def test_biases_of_qwen2(write_directory, hf_config, tiny_weights, prompts):
    rng = np.random.default_rng(3)
    for layer in range(2):
        for name in "qkv":
            stem = f"model.layers.{layer}.self_attn.{name}_proj"
            rows = tiny_weights[f"{stem}.weight"].shape[0]
            tiny_weights[f"{stem}.bias"] = rng.standard_normal(rows).astype(np.float32)
    qwen2 = {"architectures": ["Qwen2ForCausalLM"]}
    config, params = load_model(write_directory(hf_config | qwen2, tiny_weights))
    engine = Engine(config, params, max_num_seqs=5, max_model_len=64)
    completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12))
    assert tokens_of(completions) == reference.generate(config, params, prompts, 12).tokens


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.full)])
def test_half_precision_stays_near_full(
    write_directory, hf_config, tiny_weights, prompts, greedy_tokens, dtype
):
    config, params = load_model(write_directory(hf_config, tiny_weights), dtype=dtype)
    half = Engine(config, params, max_num_seqs=5, max_model_len=64).generate(prompts, GREEDY)
    first = [h[0] == f[0] for h, f in zip(tokens_of(half), greedy_tokens, strict=True)]
    assert sum(first) >= 4


@pytest.mark.parametrize(
    "kv_cache_dtype", ["fp8_e4m3", pytest.param("fp8_e5m2", marks=pytest.mark.full)]
)
def test_8_bit_cache_under_both_kinds_of_layers_and_in_the_reference(
    tiny, make_engine, prompts, greedy_tokens, kv_cache_dtype
):
    engine = make_engine(kv_cache_dtype=kv_cache_dtype)
    tokens = tokens_of(engine.generate(prompts, GREEDY))
    assert {array.dtype for pair in engine._caches for array in pair} == {
        jnp.dtype(KV_CACHE_DTYPES[kv_cache_dtype])
    }
    assert tokens != greedy_tokens  # The tiny model is sensitive: random, with wide weights.
    scanned = make_engine(kv_cache_dtype=kv_cache_dtype, scan_layers=True)
    assert tokens_of(scanned.generate(prompts, GREEDY)) == tokens
    config, params = tiny
    endless = dataclasses.replace(config, eos_ids=())
    expected = reference.generate(endless, params, prompts, 12, kv_cache_dtype=kv_cache_dtype)
    assert tokens == expected.tokens


def test_completions_end_at_the_end_token(tiny, prompts, greedy_tokens):
    config, params = tiny
    end = greedy_tokens[1][4]
    config = dataclasses.replace(config, eos_ids=(end,))
    stopping = Engine(config, params, max_num_seqs=5, max_model_len=64)
    completions = stopping.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12))
    for completion, reach in zip(completions, greedy_tokens, strict=True):
        stops = end in reach
        assert completion.finish_reason == ("stop" if stops else "length")
        assert completion.tokens == (reach[: reach.index(end) + 1] if stops else reach)
    assert completions[1].finish_reason == "stop"


def test_completions_end_at_max_model_len(make_engine, prompts):
    engine = make_engine(max_model_len=50)
    completions = engine.generate(prompts, GREEDY)
    assert [len(tokens) for tokens in tokens_of(completions)] == [12, 12, 12, 12, 2]
    assert {completion.finish_reason for completion in completions} == {"length"}


def test_seeds_make_sampling_repeatable(engine, prompts):
    def generate(seed, order=(0, 1, 2, 3, 4)):
        settings = [
            SamplingParams(temperature=1.5, top_k=50, top_p=0.95, seed=seed + i, max_tokens=8)
            for i in order
        ]
        completions = tokens_of(engine.generate([prompts[i] for i in order], settings))
        return [completions[order.index(i)] for i in range(5)]

    assert generate(11) == generate(11)
    assert generate(11) == generate(11, order=(3, 1, 4, 0, 2))
    assert generate(11) != generate(500)


def test_greedy_and_sampled_requests_share_a_batch(engine, prompts, greedy_tokens):
    sampled = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=12, ignore_eos=True)
    mixed = engine.generate(prompts, [GREEDY, sampled, GREEDY, sampled, GREEDY])
    assert tokens_of(mixed)[::2] == greedy_tokens[::2]


def test_streamed_tokens_are_those_of_generate(engine, prompts, greedy_tokens):
    streamed = [[] for _ in prompts]
    for output in engine.stream(prompts, GREEDY):
        streamed[output.index].append(output.token)
        assert (output.finish_reason is not None) == (len(streamed[output.index]) == 12)
    assert streamed == greedy_tokens
    assert engine.stats.compile_seconds < 0.1  # Not the first call: nothing is left to compile.


def test_an_abandoned_stream_gives_its_pages_back(engine, prompts, greedy_tokens):
    stream = engine.stream(prompts, GREEDY)
    next(stream)
    stream.close()
    assert engine._allocator.num_free == engine._allocator.num_pages
    assert tokens_of(engine.generate(prompts, GREEDY)) == greedy_tokens


def test_two_streams_share_an_engine(make_engine, prompts, greedy_tokens):
    engine = make_engine(num_pages=40)
    outputs = zip(engine.stream(prompts, GREEDY), engine.stream(prompts, GREEDY), strict=True)
    streamed = [[] for _ in prompts]
    for one, other in outputs:
        assert one == other
        streamed[one.index].append(one.token)
    assert streamed == greedy_tokens


def test_too_small_a_cache_is_refused_before_anything_runs(make_engine, prompts):
    engine = make_engine(num_pages=3)
    message = "prompt 4 with 48 tokens and up to 12 new ones needs 4 pages of 16 slots, got 3 of 3"
    with pytest.raises(MemoryError, match=message):
        engine.generate(prompts, GREEDY)
    assert len(engine.generate(prompts[:2], GREEDY)[1].tokens) == 12


def test_allocator_counts_pages():
    allocator = PageAllocator(4)
    request = make_request(0, [1] * 17, GREEDY, stop_ids=(), max_model_len=64)
    assert request.num_pages == 2  # 17 tokens and the 11 new ones that are fed.
    allocator.allocate(request)
    assert len(set(request.pages)) == 2
    other = make_request(1, [1] * 40, GREEDY, stop_ids=(), max_model_len=64)
    with pytest.raises(MemoryError, match="needs 4 pages of 16 slots, got 2 of 4"):
        allocator.allocate(other)
    allocator.release(request)
    allocator.allocate(other)
    assert allocator.num_free == 0


@pytest.mark.parametrize("length", [0, 64])
def test_prompts_that_do_not_fit(engine, length):
    message = f"prompt 0 has {length} tokens, expected 1 to 63: max_model_len is 64, completion"
    with pytest.raises(ValueError, match=message):
        engine.generate([[5] * length])


@pytest.mark.parametrize("length", [-1, 0, 1, 10**6])
def test_lengths_that_no_model_has(make_engine, length):
    message = f"max_model_len is {length}, expected 2 to [0-9]+, the model's own limit"
    with pytest.raises(ValueError, match=message):
        make_engine(max_model_len=length)


@pytest.mark.parametrize("name", ["max_num_seqs", "num_pages", "prefill_tokens", "decode_steps"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_one(make_engine, name, value):
    message = f"^engine: {name} is {value}, expected 1 or more$"
    with pytest.raises(ValueError, match=message):
        make_engine(**({"num_pages": 9} | {name: value}))


@pytest.mark.parametrize("token", [-1, 5000, 2**40])
def test_tokens_that_the_model_lacks(tiny, engine, token):
    message = f"^engine: prompt 1 has the token {token}, expected 0 to {tiny[0].vocab - 1}$"
    for call in (engine.generate, engine.prompt_logprobs):
        with pytest.raises(ValueError, match=message):
            call([[5], [100, token]])
    with pytest.raises(ValueError, match=r"^engine: prompt 0 is of float64, expected integers$"):
        engine.generate([[1.5]])
    with pytest.raises(ValueError, match=r"^engine: prompt 0 has 2 axes, expected 1, of tokens$"):
        engine.generate([[[1, 2]]])


def test_steps_are_compiled_for_their_number_of_tokens(make_engine, prompts, monkeypatch):
    tokens = []

    def spy(lowered, count):
        tokens.append(count)
        return compile_step(lowered, count)

    monkeypatch.setattr("intarsia.models.engine.compile_step", spy)
    engine = make_engine(max_num_seqs=3)
    engine.generate(prompts, SamplingParams(max_tokens=1))  # 103 tokens
    engine.prompt_logprobs(prompts[:2])
    assert tokens == [128, 3, 64]


def test_no_prompts_give_no_completions(engine):
    assert engine.generate([]) == []


@pytest.mark.parametrize(
    ("kv_cache_dtype", "of_hlo"), [("auto", "f32"), ("fp8_e4m3", "f8e4m3fn"), ("fp8", "f8e4m3fn")]
)
def test_steps_run_on_the_library_and_copy_no_cache(make_engine, prompts, kv_cache_dtype, of_hlo):
    engine = make_engine(kv_cache_dtype=kv_cache_dtype)
    engine.generate(prompts[:2], GREEDY)
    layers = 2
    calls = {
        "rms_norm": 1,
        "fused_add_rms_norm": 2 * layers,
        "rotary_embedding_and_cache": layers,
        "silu_and_mul": layers,
        "linear": 4 * layers + 1,
    }
    counted = engine.custom_calls()
    assert counted["prefill"] == calls | {"flash_attn_varlen": layers}
    assert counted["decode"] == calls | {"paged_attention": layers}
    cache = engine._caches[0][0]
    shape = f"{of_hlo}[{','.join(map(str, cache.shape))}]"
    for executable in engine._executables.values():
        assert shape in executable.as_text()
        copies = [
            line for line in executable.as_text().splitlines() if shape in line and " copy(" in line
        ]
        assert not copies


@pytest.mark.parametrize(
    "settings",
    [{"scan_layers": True}, {"max_num_seqs": 2}, pytest.param({}, marks=pytest.mark.full)],
    ids=str,
)
def test_several_steps_a_program_give_the_same_tokens(
    make_engine, prompts, greedy_tokens, settings
):
    """12 tokens are 1 of prefill and two and a half programs; with two rows, prompts wait for others to end."""
    grouped = make_engine(decode_steps=4, **settings)
    assert tokens_of(grouped.generate(prompts, GREEDY)) == greedy_tokens
    assert grouped.stats.decode_tokens == 11 * len(prompts)


def test_several_steps_a_program_stop_where_one_does(tiny, prompts, greedy_tokens):
    """With an end token, and limits, in the middle of a group."""
    config, params = tiny
    config = dataclasses.replace(config, eos_ids=(greedy_tokens[4][6],))
    sampling = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 2, 7, 12, 12)]
    one, grouped = (
        Engine(config, params, max_num_seqs=5, max_model_len=64, decode_steps=steps).generate(
            prompts, sampling
        )
        for steps in (1, 4)
    )
    assert grouped == one
    assert {completion.finish_reason for completion in grouped} == {"stop", "length"}


def test_several_steps_a_program_copy_no_cache(make_engine, prompts):
    grouped = make_engine(decode_steps=4)
    grouped.generate(prompts, GREEDY)
    [text] = [x.as_text() for key, x in grouped._executables.items() if key[0] == "decode"]
    cache = rf"f32\[{grouped._allocator.num_pages},16,2,16\]"
    assert re.search(rf"{cache}\S* custom-call", text)
    assert not re.search(rf"{cache}\S* copy\(", text)
