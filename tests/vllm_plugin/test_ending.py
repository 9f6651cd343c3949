"""How a client hears that a server ends by its operator's will, and what is left."""

import asyncio
import os
import signal
import time
import types

import pytest

pytest.importorskip("vllm")

import psutil
from intarsia.vllm import ending
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm_running import FEW_PROGRAMS, Server, begun, family, serving


def test_an_open_answer_ends_though_its_task_is_cancelled_first():
    """Which of the two is first is the event loop's choice: here the engines' end is never heard of."""
    ending.tell_clients()

    async def end():
        server = object.__new__(AsyncLLM)
        server.engine_core = types.SimpleNamespace(shutdown=lambda timeout: None)
        server.output_handler = asyncio.create_task(asyncio.Event().wait())
        server.output_processor = object.__new__(OutputProcessor)
        answer = RequestOutputCollector(RequestOutputKind.DELTA, "answer")
        server.output_processor.request_states = {"answer": types.SimpleNamespace(queue=answer)}
        await asyncio.to_thread(server.shutdown, timeout=0)
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(answer.get(), 10)
        assert server.output_handler.cancelled()

    asyncio.run(end())


@pytest.mark.full
@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["terminal", "supervisor"])
def test_a_server_that_ends_aborts_its_answers(model, tmp_path, kill):
    """A terminal sends SIGINT to every process of its group, a supervisor SIGTERM to the server alone."""
    signals = {os.killpg: signal.SIGINT, os.kill: signal.SIGTERM}
    with (
        serving(model("llama"), tmp_path / "log", additional_config=FEW_PROGRAMS) as server,
        server.client() as client,
    ):
        stream = begun(client)
        kill(server.process.pid, signals[kill])
        reasons = [choice.finish_reason for part in stream for choice in part.choices]
        assert reasons[-1] == "abort"
        server.process.wait(timeout=60)
        assert "Traceback" not in server.log()


@pytest.mark.full
@pytest.mark.parametrize("said", ["Initializing a V1 LLM engine", "XLA program"])
def test_ctrl_c_during_the_start_needs_no_traceback(model, tmp_path, said):
    """It is heard when the engine is ready."""
    server = Server(model("llama"), tmp_path / "log", additional_config=FEW_PROGRAMS)
    everything = family(server.process.pid)
    try:
        server.wait_until_it_says(said, seconds=120)
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(timeout=100) != 0
        assert "Ctrl-C ended the start" in server.log()
        assert "Traceback" not in server.log()
    finally:
        psutil.wait_procs(everything, timeout=60)
        server.stop()


@pytest.mark.full
def test_ctrl_c_ends_all_ranks_of_a_server_in_the_middle_of_an_answer(model, tmp_path):
    options = {"tensor_parallel_size": 2, "additional_config": FEW_PROGRAMS}
    with serving(model("llama"), tmp_path / "log", **options) as server:
        everything = family(server.process.pid)
        with server.client() as client:
            stream = begun(client)
            start = time.monotonic()
            os.killpg(server.process.pid, signal.SIGINT)
            server.breaks_off(stream)  # or ends, as an answer that was aborted
            known = time.monotonic() - start
            server.process.wait(timeout=60)
        ended = time.monotonic() - start
        _, left = psutil.wait_procs(everything, timeout=60)
        assert left == []
        print(
            f"\nCtrl-C: the client knew after {known:.1f} s; the server had ended after {ended:.1f} s"
        )
