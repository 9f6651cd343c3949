"""Replicas of a model: who balances requests among them, and what becomes of servers and clients when one is gone."""

import contextlib
import time

import pytest
from vllm_faults import HEARTBEAT, lose
from vllm_hosts import hosts
from vllm_running import FEW_PROGRAMS, Server, recorded, serving_on

pytestmark = pytest.mark.full

MODEL = "llama"
TOKENS = [sequence["tokens"] for sequence in recorded(MODEL)]
LIMITS = {"additional_config": FEW_PROGRAMS | {"heartbeat_timeout": HEARTBEAT}}
GONE = rf"this server ends, since replica 1 is gone, or sent no heartbeat for {HEARTBEAT} s"


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_replica_on_the_same_host_is_lost(model, tmp_path, fault):
    """With an API server a replica, as vLLM has them by default."""
    options = LIMITS | {"data_parallel_size": 2, "api_server_count": 2, "max_model_len": 2048}
    with hosts(1) as made, serving_on(made, model(MODEL), tmp_path, **options) as servers:
        assert servers[0].tokens() == TOKENS
        programs = servers[0].metrics()["intarsia_xla_programs_total"]
        assert programs == servers[0].log().count("XLA program: ") > 0
        [replica] = servers[0].children("VLLM::EngineCore_DP1")
        lose(
            servers,
            replica.kill if fault == "killed" else replica.suspend,
            f"{fault} replica",
            says={0: GONE if fault == "stopped" else f"EngineCore_DP1 died unexpectedly|{GONE}"},
            clients=[0, 1, 0, 1],
            lost=1,
            tokens=2000,
            resume=(lambda: None) if fault == "killed" else replica.resume,
        )


def test_a_host_with_a_replica_is_cut_off(model, tmp_path):
    """Each side ends what it has: no process is left, and none is told by anybody outside."""
    with hosts(2) as made:
        if made[0].namespace is None:
            pytest.skip("no network namespaces: a host cannot be cut off")
        options = LIMITS | {"data_parallel_size": 2}
        with serving_on(made, model(MODEL), tmp_path, **options) as servers:
            lose(
                servers,
                made[1].cut,
                "host of a replica cut off",
                says={0: GONE, 1: r"replica 1 ends, since the server at tcp://\S+ is gone"},
                clients=[0, 1],
                lost=1,
            )


def test_hybrid_balancing(model, tmp_path):
    """Each host's server has its own replicas, and goes on without the other host."""
    with hosts(2) as made, contextlib.ExitStack() as stack:
        if made[0].namespace is None:
            pytest.skip("no network namespaces: a host cannot be cut off")
        servers = []
        for i, host in enumerate(made):
            options = LIMITS | {
                "api_server_count": 1,
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_start_rank": 2 * i,
                "data_parallel_hybrid_lb": True,
                "data_parallel_address": made[0].address,
            }
            servers.append(Server(model(MODEL), tmp_path / f"log{i}", host, **options))
            stack.callback(servers[i].stop)
        for i, server in enumerate(servers):
            server.wait_until_ready()
            assert [server.tokens() for _ in range(2)] == [TOKENS] * 2
            assert server.busy() == {2 * i, 2 * i + 1}
        assert [host.listening_elsewhere() for host in made] == [set()] * 2
        start = time.monotonic()
        made[0].cut()  # with the coordinator
        assert servers[1].tokens() == TOKENS
        seconds = time.monotonic() - start
        print(f"\nhost of hybrid balancing cut off: the other answered after {seconds:.1f} s")
        while time.monotonic() < start + 2 * HEARTBEAT:  # what it hears late does not end it
            assert servers[1].tokens() == TOKENS


def test_external_balancing(model, tmp_path):
    """Servers of their own, one a host: whatever is in front takes those whose /health answers."""
    with hosts(2) as made, contextlib.ExitStack() as stack:
        servers = []
        for i, host in enumerate(made):
            servers.append(Server(model(MODEL), tmp_path / f"log{i}", host, **LIMITS))
            stack.callback(servers[i].stop)

        def answer():
            """From the first that is healthy, which goes to the end of the line."""
            server = next(server for server in line if server.is_healthy())
            line.append(line.pop(line.index(server)))
            assert server.tokens() == TOKENS
            return servers.index(server)

        for server in servers:
            server.wait_until_ready()
        line = [*servers]
        assert [answer() for _ in range(4)] == [0, 1, 0, 1]
        assert [server.busy() for server in servers] == [{0}, {0}]
        [engine] = servers[0].children("VLLM::EngineCore")
        lose(servers[:1], engine.kill, "server killed, of two", says={0: "EngineCore"})
        assert [answer() for _ in range(2)] == [1, 1]
