"""`vllm serve` with SmolLM2, as its clients see it: API server and engine core are processes of their own."""

import re
import threading
import time

import pytest
import vllm_models
from vllm_running import FEW_PROGRAMS, complete, recorded, serving

openai = pytest.importorskip("openai")  # of vLLM

SHORT, STORY, CODE, LONG = vllm_models.PROMPTS
EXPECTED = [sequence["tokens"] for sequence in recorded(vllm_models.SMOLLM2)]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(model(vllm_models.SMOLLM2), log, additional_config=FEW_PROGRAMS) as running:
        yield running


def test_the_start_warns_of_nothing(server):
    """The first test: what is logged until a server answers that was asked for nothing unusual."""
    warned = re.compile(r"WARNING|ERROR|Warning: |^[WE]\d{4} |Traceback")
    # torch 2.14 to vLLM 0.33, before a platform is asked for: three names that are to change.
    early = re.compile(r"torch/(_opaque_base|_library/opaque_object)\.py:\d+\] .* is deprecated")
    lines = [line for line in server.log().splitlines() if warned.search(line)]
    # Of the machine, and for its owner to raise.
    unforeseen = [line for line in lines if not early.search(line) and "ulimit" not in line]
    assert unforeseen == []


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def answers(client) -> bool:
    """Whether the server still gives what it should."""
    return complete(client, STORY).choices[0].token_ids == EXPECTED[1]


def wait_for(condition, seconds=30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_completions(client):
    answer = complete(client, logprobs=1)
    assert [choice.token_ids for choice in answer.choices] == EXPECTED
    told = recorded(vllm_models.SMOLLM2)
    for choice, sequence in zip(answer.choices, told, strict=True):
        assert choice.logprobs.token_logprobs == pytest.approx(sequence["logprobs"], abs=1e-3)
    assert answer.usage.completion_tokens == 4 * 24


def test_chat_while_a_second_client_streams(server, client):
    chunks, begun = [], threading.Event()

    def stream():
        with server.client() as second:
            for chunk in complete(second, STORY, max_tokens=100, stream=True):
                chunks.append(chunk.choices[0])
                begun.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert begun.wait(60)
    answer = client.chat.completions.create(
        model="model", messages=QUESTION, temperature=0, max_tokens=16
    )
    assert thread.is_alive(), "the chat was to happen while the other client streams"
    thread.join(60)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    whole = complete(client, STORY, max_tokens=100).choices[0]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) > 50


def test_metrics_count(server, client):
    before = server.metrics()
    complete(client, LONG, max_tokens=5)
    complete(client, LONG, max_tokens=5)
    wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 0)
    after = server.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["vllm:generation_tokens_total"] == 10
    assert grown["vllm:request_success_total"] == 2
    assert grown["vllm:prefix_cache_hits_total"] >= 192
    assert after["vllm:kv_cache_usage_perc"] == 0


def test_metrics_count_programs(server):
    counts = server.metrics()
    assert counts["intarsia_xla_programs_total"] == server.log().count("XLA program: ")
    assert counts["intarsia_xla_programs_late_total"] == 0


def test_a_schema_binds_a_streamed_chat(client):
    schema = {"type": "object", "properties": {"n": {"enum": [7, 77]}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    stream = client.chat.completions.create(
        model="model",
        messages=[{"role": "user", "content": "Choose a number."}],
        temperature=0,
        max_tokens=32,
        response_format=form,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text.replace(" ", "").replace("\n", "") in ('{"n":7}', '{"n":77}')


def test_a_client_that_goes_away_is_forgotten(server, client):
    with server.client() as second:
        stream = complete(second, STORY, max_tokens=400, stream=True)
        next(iter(stream))
        assert server.metrics()["vllm:num_requests_running"] == 1
        stream.close()
    wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 0)
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert answers(client)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 10**9}, "cannot be greater than max_model_len=512"),
        ({"max_tokens": -1}, "max_tokens must be at least 1"),
        ({"prompt": "weave " * 5000}, "maximum context length is 512"),
        ({"prompt": [10**7]}, "out of vocabulary"),
        ({"logprobs": 10**4}, "logprobs"),
        ({"extra_body": {"prompt_embeds": ""}}, "--enable-prompt-embeds"),
    ],
    ids=["max_tokens", "negative", "prompt", "token", "logprobs", "embeddings"],
)
def test_an_absurd_request_is_refused(client, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        complete(client, **{"prompt": SHORT} | options)
    assert answers(client)


def test_a_full_cache_makes_requests_wait(server, client):
    """Twelve requests of up to 150 tokens, where there is room for 8 requests and 728 tokens."""
    before = server.metrics()["vllm:num_preemptions_total"]
    prompts = [f"{n}. {STORY}" for n in range(12)]
    together = [choice.token_ids for choice in complete(client, prompts, max_tokens=130).choices]
    assert server.metrics()["vllm:num_preemptions_total"] > before
    assert all(len(ids) == 130 for ids in together)
    for n in (0, 5, 11):
        assert complete(client, prompts[n], max_tokens=130).choices[0].token_ids == together[n]
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0


def test_nothing_was_compiled_while_serving(server):
    assert "was compiled while serving" not in server.log()
    assert server.log().count("XLA program: decode step") == 2


def test_an_engine_that_is_killed_ends_the_server(server, client):
    """The last test of this server: in the middle of a step of its only worker."""
    [core] = server.children("VLLM::EngineCore")
    server.lose(core, complete(client, STORY, max_tokens=400, stream=True))
    assert "EngineDeadError" in server.log() or "died unexpectedly" in server.log()
    with pytest.raises(openai.APIConnectionError):
        complete(client, SHORT)
