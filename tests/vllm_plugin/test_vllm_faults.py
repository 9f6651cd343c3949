"""What becomes of a server with ranks on two hosts when something fails: docs/scaling.md has the table that `-s` prints."""

import re
import signal
import time

import psutil
import pytest
import vllm_models
from vllm_nodes import family, hosts
from vllm_running import FEW_PROGRAMS, nodes, recorded

pytestmark = pytest.mark.full

MODEL = "llama"
HEARTBEAT, START = 10, 20
OPTIONS = {
    "tensor_parallel_size": 2,
    "additional_config": FEW_PROGRAMS | {"heartbeat_timeout": HEARTBEAT},
}
BOUND = 180  # s, of a machine that has other things to do


@pytest.fixture
def made():
    """Two hosts."""
    with hosts(2) as both:
        yield both


def stream(client, tokens=400):
    """An answer that goes on, its first token there."""
    answer = client.completions.create(
        model="model",
        prompt=vllm_models.PROMPTS[1],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(answer))
    return answer


def serves(server):
    """Whether the tokens are those that they should be."""
    with server.client() as client:
        answer = client.completions.create(
            model="model",
            prompt=list(vllm_models.PROMPTS),
            max_tokens=vllm_models.MAX_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
    return [c.token_ids for c in answer.choices] == [s["tokens"] for s in recorded(MODEL)]


def worker(server):
    """The one rank of a host."""
    [found] = [p for p in family(server.process.pid) if "VLLM::Worker" in " ".join(p.cmdline())]
    return found


def lose(servers, fault, what, *, says, resume=lambda: None):
    """Has a fault happen in the middle of an answer: the client hears of it, both hosts' servers end, and say of whom."""
    everything = [process for server in servers for process in family(server.process.pid)]
    with servers[0].client() as client:
        answer = stream(client)
        start = time.monotonic()
        fault()
        servers[0].wait_for_the_end(answer, BOUND)
    known = time.monotonic() - start
    assert re.search(says, servers[0].log()), servers[0].log()[-4000:]
    resume()
    _, left = psutil.wait_procs(everything, timeout=BOUND)
    assert left == []
    print(f"\n{what}: client and operator knew after {known:.1f} s")


def test_a_rank_dies_and_one_stops_after_a_new_start(made, model, tmp_path):
    """The new start is at once, on the same ports."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with nodes(made, model(MODEL), first, **OPTIONS) as servers:
        servers[0].wait_until_ready()
        port = servers[0].port
        lose(
            servers,
            lambda: worker(servers[1]).kill(),
            "killed process",
            says=r"this rank lost rank 1 at \S+:|rank 1 at \S+ sent no heartbeat",
        )
    with nodes(made, model(MODEL), second, **OPTIONS | {"port": port}) as servers:
        servers[0].wait_until_ready()
        assert serves(servers[0])
        stopped = worker(servers[1])
        lose(
            servers,
            stopped.suspend,
            "stopped rank",
            says=rf"rank 1 at \S+ sent no heartbeat for {HEARTBEAT} s",
            resume=lambda: stopped.send_signal(signal.SIGCONT),
        )


def test_a_port_in_use_and_a_host_that_is_gone(made, model, tmp_path):
    if made[0].namespace is None:
        pytest.skip("no network namespaces: a host cannot be cut off")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    def lose_power():
        made[1].cut()
        for process in family(servers[1].process.pid):
            process.kill()

    with nodes(made, model(MODEL), first, **OPTIONS) as servers:
        servers[0].wait_until_ready()
        with nodes(made, model(MODEL), second, **OPTIONS) as others:
            assert all(other.process.wait(timeout=5 * BOUND) for other in others)
            assert re.search(r"rank 0 at \S+ cannot listen on \S+:29501", others[0].log())
            assert re.search(r"rank 1 at \S+ met another run", others[1].log())
        assert serves(servers[0])
        says = rf"rank 1 at \S+ sent no heartbeat for {HEARTBEAT} s"
        lose(servers, lose_power, "killed node", says=says)


def test_a_partition_during_the_start(made, model, tmp_path):
    if made[0].namespace is None:
        pytest.skip("no network namespaces: a host cannot be cut off")
    made[1].cut()
    soon = FEW_PROGRAMS | {"start_timeout": START}
    options = OPTIONS | {"additional_config": soon}
    with nodes(made, model(MODEL), tmp_path, **options) as servers:
        everything = []
        deadline = time.monotonic() + 5 * BOUND
        while any(server.process.poll() is None for server in servers):
            assert time.monotonic() < deadline, servers[0].log()[-4000:]
            everything += [p for s in servers for p in family(s.process.pid) if p not in everything]
            time.sleep(1)
        assert all(server.process.returncode for server in servers)
        assert f"within {START} s" in servers[1].log()
        assert "1/2 clients joined" in servers[0].log()
        _, left = psutil.wait_procs(everything, timeout=BOUND)
        assert left == []
