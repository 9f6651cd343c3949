"""What becomes of a server with ranks on two hosts when something fails: docs/scaling.md has the table that `-s` prints."""

import re
import threading
import time

import psutil
import pytest
from vllm_faults import BOUND, HEARTBEAT, cut_off, lose, worker
from vllm_hosts import hosts
from vllm_running import FEW_PROGRAMS, family, recorded, serving_on, started_on

pytestmark = pytest.mark.full

MODEL = "llama"
START = 20
OPTIONS = {
    "tensor_parallel_size": 2,
    "additional_config": FEW_PROGRAMS | {"heartbeat_timeout": HEARTBEAT},
}
SILENT = rf"rank 1 at \S+ sent no heartbeat for {HEARTBEAT} s"
NO_COORDINATOR = (
    "the JAX distributed service detected fatal errors"  # JAX's words, for it was with rank 0
)
TOKENS = [sequence["tokens"] for sequence in recorded(MODEL)]


@pytest.fixture
def made():
    """Two hosts."""
    with hosts(2) as both:
        yield both


@pytest.fixture
def apart(made):
    """Two hosts that can be cut off."""
    if made[0].namespace is None:
        pytest.skip("no network namespaces: a host cannot be cut off")
    return made


def lose_power(host, server):
    """What a host does not do as it goes: it ends no connection."""
    host.cut()
    for process in family(server.process.pid):
        process.kill()


def answer(server):
    """Seconds for the answers that there should be."""
    start = time.monotonic()
    assert server.tokens() == TOKENS
    return time.monotonic() - start


def slow_for(process, seconds):
    """Has a process run for a tenth of the time, and never stop for long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        process.suspend()
        time.sleep(0.9)
        process.resume()
        time.sleep(0.1)


def test_a_rank_dies_and_one_is_slow_and_stops_after_a_new_start(made, model, tmp_path):
    """The new start is at once, on the same ports."""
    with serving_on(made, model(MODEL), tmp_path / "first", **OPTIONS) as servers:
        port = servers[0].port
        lose(
            servers,
            lambda: worker(servers[1]).kill(),
            "killed process",
            says={0: r"this rank lost rank 1 at \S+:|rank 1 at \S+ sent no heartbeat"},
        )
    options = OPTIONS | {"port": port}
    with serving_on(made, model(MODEL), tmp_path / "second", **options) as servers:
        usual, slowest = answer(servers[0]), 0.0
        other = worker(servers[1])
        slow = threading.Thread(target=slow_for, args=(other, 2 * HEARTBEAT))
        slow.start()
        while slow.is_alive():
            slowest = max(slowest, answer(servers[0]))
        print(f"\nslow rank: answers take up to {slowest:.1f} s instead of {usual:.1f}")
        lose(servers, other.suspend, "stopped rank", says={0: SILENT}, resume=other.resume)


def test_the_first_rank_dies_and_its_host_is_cut_off_after_a_new_start(apart, model, tmp_path):
    """With rank 0 goes the coordinator; a host that is cut off lives, and ends what it has."""
    with serving_on(apart, model(MODEL), tmp_path / "first", **OPTIONS) as servers:
        port = servers[0].port
        lose(
            servers,
            lambda: worker(servers[0]).kill(),
            "killed rank 0",
            says={0: "VllmWorker-0 died unexpectedly", 1: NO_COORDINATOR},
        )
    options = OPTIONS | {"port": port}
    with serving_on(apart, model(MODEL), tmp_path / "second", **options) as servers:
        answer(servers[0])
        cut_off(servers, apart[0].cut, "cut off the server", says={0: SILENT, 1: NO_COORDINATOR})


def test_a_port_in_use_and_a_host_that_is_gone(apart, model, tmp_path):
    with serving_on(apart, model(MODEL), tmp_path / "first", **OPTIONS) as servers:
        with started_on(apart, model(MODEL), tmp_path / "second", **OPTIONS) as others:
            assert all(other.process.wait(timeout=5 * BOUND) for other in others)
            assert re.search(r"rank 0 at \S+ cannot listen on \S+:29501", others[0].log())
            assert re.search(r"rank 1 at \S+ met another run", others[1].log())
        answer(servers[0])
        lose(
            servers,
            lambda: lose_power(apart[1], servers[1]),
            "killed node",
            says={0: SILENT},
        )


def test_the_host_with_the_server_is_gone_and_comes_back(apart, model, tmp_path):
    """Clients have lost who answers; what is left on the other host ends, and a new start serves."""
    with serving_on(apart, model(MODEL), tmp_path / "first", **OPTIONS) as servers:
        port = servers[0].port
        cut_off(
            servers,
            lambda: lose_power(apart[0], servers[0]),
            "killed node of the server",
            says={1: NO_COORDINATOR},
        )
    apart[0].mend()
    options = OPTIONS | {"port": port}
    with serving_on(apart, model(MODEL), tmp_path / "second", **options) as servers:
        answer(servers[0])


def test_a_partition_during_the_start(apart, model, tmp_path):
    apart[1].cut()
    soon = FEW_PROGRAMS | {"start_timeout": START}
    options = OPTIONS | {"additional_config": soon}
    with started_on(apart, model(MODEL), tmp_path, **options) as servers:
        everything = []
        deadline = time.monotonic() + 5 * BOUND
        while any(server.process.poll() is None for server in servers):
            assert time.monotonic() < deadline, servers[0].log()[-4000:]
            everything += [p for s in servers for p in family(s.process.pid) if p not in everything]
            time.sleep(1)
        assert all(server.process.returncode for server in servers)
        assert f"within {START} s" in servers[1].log()
        assert "fewer than 2 ranks came within" in servers[0].log()
        _, left = psutil.wait_procs(everything, timeout=BOUND)
        assert left == []
