"""Tensor parallelism: two ranks, each a process with its share of heads, serve what one does."""

import contextlib
import time

import pytest

pytest.importorskip("psutil")

import psutil
from vllm_running import FEW_PROGRAMS, begun, complete, recorded, serving

MODEL = "gemma3_text"
"""Sliding windows, whose layers share caches with the others; norms of heads; an embedding that is the output's, too."""


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("parallel") / "log"
    options = {"tensor_parallel_size": 2, "additional_config": FEW_PROGRAMS}
    with serving(model(MODEL), log, **options) as running:
        yield running


def test_two_ranks_give_the_tokens_of_one(server):
    expected = recorded(MODEL)
    with server.client() as client:
        answer = complete(client, logprobs=1)
    assert [choice.token_ids for choice in answer.choices] == [s["tokens"] for s in expected]
    for choice, sequence in zip(answer.choices, expected, strict=True):
        assert choice.logprobs.token_logprobs == pytest.approx(sequence["logprobs"], abs=1e-3)


def test_both_ranks_run_the_programs(server):
    assert len(server.children("VLLM::Worker")) == 2
    for rank in (0, 1):
        said = [line for line in server.log().splitlines() if f"Worker_TP{rank}" in line]
        [largest] = [line for line in said if "decode step of 8 tokens" in line]
        assert "4 paged_attention" in largest


def test_a_worker_that_is_killed_ends_the_server(server):
    """The last test of this server: rank 1 dies in the middle of a step, and then nobody is left who could kill rank 0."""
    rank_0, rank_1 = server.children("VLLM::Worker")
    [engine_core] = server.children("VLLM::EngineCore")
    with server.client() as client:
        stream = begun(client)
        start = time.monotonic()
        rank_1.kill()
        # Whichever comes first, and of whichever rank: vLLM looks for its workers, or rank 0 loses its connection to rank 1.
        server.wait_until_it_says("died unexpectedly", "Gloo all-reduce failed")
        with contextlib.suppress(psutil.NoSuchProcess):
            engine_core.kill()
        server.wait_for_the_end(stream, since=start)
    _, alive = psutil.wait_procs([rank_0, rank_1], timeout=30)
    assert alive == []
