"""What becomes of a server with ranks on two hosts when something fails: docs/scaling.md has the table that `-s` prints."""

import re
import threading
import time

import psutil
import pytest
from vllm_faults import BOUND, HEARTBEAT, lose, worker
from vllm_hosts import hosts
from vllm_running import FEW_PROGRAMS, family, recorded, started_on

pytestmark = pytest.mark.full

MODEL = "llama"
START = 20
OPTIONS = {
    "tensor_parallel_size": 2,
    "additional_config": FEW_PROGRAMS | {"heartbeat_timeout": HEARTBEAT},
}
LOST_SERVER = "the JAX distributed service detected fatal errors"  # in the words of JAX
TOKENS = [sequence["tokens"] for sequence in recorded(MODEL)]


@pytest.fixture
def made():
    """Two hosts."""
    with hosts(2) as both:
        yield both


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
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with started_on(made, model(MODEL), first, **OPTIONS) as servers:
        servers[0].wait_until_ready()
        port = servers[0].port
        lose(
            servers,
            lambda: worker(servers[1]).kill(),
            "killed process",
            says={0: r"this rank lost rank 1 at \S+:|rank 1 at \S+ sent no heartbeat"},
        )
    with started_on(made, model(MODEL), second, **OPTIONS | {"port": port}) as servers:
        servers[0].wait_until_ready()
        usual, slowest = answer(servers[0]), 0.0
        other = worker(servers[1])
        slow = threading.Thread(target=slow_for, args=(other, 2 * HEARTBEAT))
        slow.start()
        while slow.is_alive():
            slowest = max(slowest, answer(servers[0]))
        print(f"\nslow rank: answers take up to {slowest:.1f} s instead of {usual:.1f}")
        lose(
            servers,
            other.suspend,
            "stopped rank",
            says={0: rf"rank 1 at \S+ sent no heartbeat for {HEARTBEAT} s"},
            resume=other.resume,
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

    with started_on(made, model(MODEL), first, **OPTIONS) as servers:
        servers[0].wait_until_ready()
        with started_on(made, model(MODEL), second, **OPTIONS) as others:
            assert all(other.process.wait(timeout=5 * BOUND) for other in others)
            assert re.search(r"rank 0 at \S+ cannot listen on \S+:29501", others[0].log())
            assert re.search(r"rank 1 at \S+ met another run", others[1].log())
        answer(servers[0])
        says = {0: rf"rank 1 at \S+ sent no heartbeat for {HEARTBEAT} s"}
        lose(servers, lose_power, "killed node", says=says)


def test_the_host_with_the_server_is_gone(made, model, tmp_path):
    """Clients have lost who answers; what is left on the other host ends."""
    if made[0].namespace is None:
        pytest.skip("no network namespaces: a host cannot be cut off")
    with started_on(made, model(MODEL), tmp_path, **OPTIONS) as servers:
        servers[0].wait_until_ready()
        left = family(servers[1].process.pid)
        start = time.monotonic()
        made[0].cut()
        for process in family(servers[0].process.pid):
            process.kill()
        servers[1].process.wait(timeout=BOUND)
        ended = time.monotonic() - start
        _, left = psutil.wait_procs(left, timeout=BOUND)
        assert left == []
        assert re.search(LOST_SERVER, servers[1].log()), servers[1].log()[-4000:]
        gone = time.monotonic() - start
        print(
            f"\nthe server's host: the other had ended after {ended:.1f} s, all of it after {gone:.1f} s"
        )


def test_a_partition_during_the_start(made, model, tmp_path):
    if made[0].namespace is None:
        pytest.skip("no network namespaces: a host cannot be cut off")
    made[1].cut()
    soon = FEW_PROGRAMS | {"start_timeout": START}
    options = OPTIONS | {"additional_config": soon}
    with started_on(made, model(MODEL), tmp_path, **options) as servers:
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
