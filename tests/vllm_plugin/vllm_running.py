"""Engines and servers of vLLM on our plugin; `make test-vllm` has what they need."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import support
import vllm_models

if importlib.util.find_spec("vllm") is None:
    pytest.skip("no vLLM; make test-vllm has an environment with one", allow_module_level=True)
_PLUGINS = importlib.metadata.entry_points(group="vllm.platform_plugins")
if not any(plugin.value.startswith("intarsia.") for plugin in _PLUGINS):
    pytest.skip("vLLM without our plugin", allow_module_level=True)

RECORDED = json.loads((support.ROOT / "tests" / "data" / "vllm_tokens.json").read_text())
# As small as the tests allow: the fewer shapes there are, the fewer programs are compiled.
SIZES = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "kv_cache_memory_bytes": 32 << 20,  # 728 tokens of SmolLM2
}
# Sizes of the programs for a model that takes long to compile: these and the largest.
FEW_PROGRAMS = {"request_buckets": [1], "token_buckets": [32]}


def recorded(model: str, dtype: str = "float32") -> list[dict[str, Any]]:
    """What vLLM's own CPU backend made of each of `vllm_models.PROMPTS`."""
    [entry] = [m for m in RECORDED["models"] if (m["model"], m["dtype"]) == (model, dtype)]
    return entry["sequences"]


def inspect_here(patch: pytest.MonkeyPatch) -> None:
    """Has vLLM ask this process what a model's class can do. It would start one, which takes half a minute."""
    from vllm.model_executor.models import registry
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # first, or ours replaces it again when it is loaded (forks.inspect_models)
    patch.setattr(registry, "_run_in_subprocess", lambda function: function())


@contextlib.contextmanager
def engine(model: Path, **changes: Any) -> Iterator[Any]:
    """A `vllm.LLM` whose engine core is in this process, where vLLM is imported only once."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        inspect_here(patch)
        llm = LLM(str(model), **{"dtype": "float32"} | SIZES | changes)
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            cleanup_dist_env_and_memory()


def greedy(**changes: Any) -> Any:
    """Sampling parameters that leave nothing to chance."""
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True} | changes)


def tokens(requests: Sequence[Any]) -> list[list[int]]:
    """The tokens of each request's first completion."""
    return [list(request.outputs[0].token_ids) for request in requests]


def logprobs(requests: Sequence[Any]) -> list[list[float]]:
    """The log-probabilities of those tokens."""
    return [
        [step[token].logprob for token, step in zip(c.token_ids, c.logprobs, strict=True)]
        for c in (request.outputs[0] for request in requests)
    ]


def complete(
    client: Any,
    prompt: str | Sequence[str] = vllm_models.PROMPTS,
    *,
    max_tokens: int = vllm_models.MAX_TOKENS,
    extra_body: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A greedy completion, by default the recorded ones; vLLM's own options stand in `extra_body`."""
    extra = {"ignore_eos": True, "return_token_ids": True} | dict(extra_body or {})
    return client.completions.create(
        model="model",
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        max_tokens=max_tokens,
        temperature=0,
        extra_body=extra,
        **options,
    )


def begun(client: Any, tokens: int = 400, replica: int = 0) -> Any:
    """A stream that goes on, its first token there; the replica is asked for by vLLM's header."""
    answer = complete(
        client,
        vllm_models.PROMPTS[1],
        max_tokens=tokens,
        stream=True,
        extra_headers={"X-data-parallel-rank": str(replica)},
    )
    next(iter(answer))
    return answer


def flags(options: Mapping[str, Any]) -> list[str]:
    """An engine's options as those of a command."""

    def said(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, dict) else value

    rows = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return [name if value is True else f"{name}={said(value)}" for name, value in rows]


def family(pid: int) -> list[Any]:
    """A process and its descendants, as psutil.Process; none if it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`vllm serve`, as a user starts it.

    Args:
      model: its directory.
      log: the file that gets what the server prints.
      at: the host that it runs on, of `vllm_hosts`; this one if None.
      changes: its options; True is a flag without a value.
    """

    def __init__(self, model: Path, log: Path, at: Any = None, **changes: Any):
        self.port = changes.get("port") or free_port()
        host = at.address if at else "127.0.0.1"
        self.address = f"http://{host}:{self.port}"
        self._log = log
        options = {"dtype": "float32", "host": host, "port": self.port} | SIZES | changes
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        with log.open("wb") as out:
            # A session of its own, so that whatever is left can be ended as one.
            command += ["--served-model-name=model", *flags(options)]
            self.process = subprocess.Popen(
                at.command(*command) if at else command,
                # A server asks for an engine of its own process, whatever `engine` above set for this one.
                env=os.environ
                | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
                | (at.environment() if at else {}),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self, seconds: float = 900) -> None:
        """Returns when the server answers."""
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            assert self.process.poll() is None, f"the server ended:\n{self.log()[-4000:]}"
            assert time.monotonic() < deadline, f"the server did not start:\n{self.log()[-4000:]}"
            time.sleep(0.2)

    def is_healthy(self) -> bool:
        """Whether /health says that the engine lives."""
        import httpx

        try:
            return httpx.get(f"{self.address}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def client(self) -> Any:
        """OpenAI's own client."""
        import openai

        return openai.OpenAI(
            base_url=f"{self.address}/v1", api_key="none", max_retries=0, timeout=120
        )

    def tokens(self) -> list[list[int]]:
        """Of the answers to `vllm_models.PROMPTS`."""
        with self.client() as client:
            return [choice.token_ids for choice in complete(client).choices]

    def busy(self) -> set[int]:
        """The engines that have answered requests."""
        import httpx

        served = re.findall(
            r'vllm:request_success_total{.*?engine="(\d)".*?} (\S+)',
            httpx.get(f"{self.address}/metrics").text,
        )
        return {int(engine) for engine, requests in served if float(requests)}

    def metrics(self) -> dict[str, float]:
        """What /metrics says, by name, without labels; counts of several labels are added up."""
        import httpx

        found: dict[str, float] = {}
        for line in httpx.get(f"{self.address}/metrics").text.splitlines():
            if line.startswith(("vllm:", "intarsia_")):
                name, value = re.split("[{ ]", line)[0], float(line.rsplit(" ", 1)[1])
                found[name] = found.get(name, 0) + value
        return found

    def children(self, title: str) -> list[Any]:
        """The server's descendants whose name begins so, as psutil.Process."""
        found = family(self.process.pid)
        return [child for child in found if " ".join(child.cmdline()).startswith(title)]

    def lose(self, process: Any, stream: Any) -> None:
        """Kills one of the processes in the middle of an answer: the client gets an error, and the server ends."""
        next(iter(stream))
        process.kill()
        self.wait_for_the_end(stream)

    def wait_for_the_end(self, stream: Any, since: float | None = None) -> None:
        """Returns when a server that has just lost a process has told the client of an answer, and ended.

        Args:
          stream: the answer.
          since: when the process was lost, as time.monotonic() says it; now if None.
        """
        start = time.monotonic() if since is None else since
        assert self.breaks_off(stream), "the answer was whole, expected an error"
        known = time.monotonic() - start
        assert known < 30, f"the client knew after {known:.1f} s, expected less than 30"
        assert self.process.wait(timeout=60) is not None
        ended = time.monotonic() - start
        print(
            f"\none host: the client knew after {known:.1f} s; the server had ended after {ended:.1f} s"
        )

    def breaks_off(self, stream: Any) -> bool:
        """Reads an answer to its end; whether that is an error that the server told."""
        import openai

        try:
            for _ in stream:
                pass
        except openai.APIError as error:
            assert not isinstance(error, openai.APITimeoutError), "only the client gave up"
            return True
        return False

    def wait_until_it_says(self, *texts: str, seconds: float = 30) -> None:
        """Returns when one of the texts is in the log."""
        deadline = time.monotonic() + seconds
        while not any(text in self.log() for text in texts):
            assert time.monotonic() < deadline, f"none of {texts} is in:\n{self.log()[-4000:]}"
            time.sleep(0.1)

    def log(self) -> str:
        """What the server has printed."""
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """Ends the server as an operator does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=90)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(model: Path, log: Path, **changes: Any) -> Iterator[Server]:
    """A server that answers, stopped at the end."""
    server = Server(model, log, **changes)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def started_on(
    made: Sequence[Any], model: Path, folder: Path, **changes: Any
) -> Iterator[list[Server]]:
    """A server with ranks on each of several hosts of `vllm_hosts`, not waited for; the first will answer.

    The folder, which is made if it is not there, gets what each host prints.
    """
    folder.mkdir(exist_ok=True)
    common = {"api_server_count": 1, "additional_config": FEW_PROGRAMS}
    if len(made) > 1:
        common |= {"nnodes": len(made), "master_addr": made[0].address}
    servers: list[Server] = []
    with contextlib.ExitStack() as stack:  # each is stopped, whatever comes of the others
        for i, host in enumerate(made):
            own = {"node_rank": i} if len(made) > 1 else {}
            if i:
                common |= {"headless": True, "api_server_count": 0}
            server = Server(model, folder / f"log{i}", host, **common | own | changes)
            stack.callback(server.stop)
            servers.append(server)
        yield servers


@contextlib.contextmanager
def serving_on(
    made: Sequence[Any], model: Path, folder: Path, **changes: Any
) -> Iterator[list[Server]]:
    """What `started_on` starts, once the first answers."""
    with started_on(made, model, folder, **changes) as servers:
        servers[0].wait_until_ready()
        yield servers
