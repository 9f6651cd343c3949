"""What ranks on several hosts listen at, and how long they wait: decided before any of them starts."""

import json
import os
import re
import socket
import time

import pytest

pytest.importorskip("vllm")
pytest.importorskip("psutil")

import torch
from intarsia.processes import Limits
from intarsia.vllm import hosts
from vllm.config import ParallelConfig
from vllm.utils.network_utils import get_distributed_init_method
from vllm_running import free_port


@pytest.fixture
def environment(monkeypatch):
    """Sets variables, and takes back what the code sets."""
    for name in ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    return monkeypatch


def two_hosts(**options):
    return ParallelConfig(
        tensor_parallel_size=2, nnodes=2, distributed_executor_backend="mp", **options
    )


@pytest.mark.parametrize(
    ("given", "master", "own"),
    [
        (None, "127.0.0.1", "127.0.0.1"),
        (None, "localhost", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.1", "127.0.0.2"),
    ],
)
def test_ranks_listen_where_they_face_the_master(environment, given, master, own):
    if given:
        environment.setenv("VLLM_HOST_IP", given)
    parallel = two_hosts(master_addr=master)
    hosts.choose(parallel)
    assert os.environ["VLLM_HOST_IP"] == own
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert hosts.own_address(parallel) == own
    assert parallel.distributed_timeout_seconds == parallel.cpu_distributed_timeout_seconds == 600


def test_one_host_stays_on_loopback(environment):
    environment.setenv("VLLM_HOST_IP", "192.0.2.1")
    parallel = ParallelConfig(tensor_parallel_size=2, distributed_executor_backend="mp")
    hosts.choose(parallel)
    assert hosts.own_address(parallel) == "127.0.0.1"
    assert "GLOO_SOCKET_IFNAME" not in os.environ


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0.0.0.0", "VLLM_HOST_IP is 0.0.0.0, which is all interfaces"),
        ("::", "VLLM_HOST_IP is ::, which is all interfaces"),
        ("192.0.2.1", "192.0.2.1 is none of this host's addresses"),
    ],
)
def test_addresses_that_are_refused(environment, given, message):
    environment.setenv("VLLM_HOST_IP", given)
    with pytest.raises(ValueError, match=re.escape(message)):
        hosts.choose(two_hosts(master_addr="127.0.0.1"))


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_no_run_meets_at_all_interfaces(environment, address):
    with pytest.raises(ValueError, match=f"--master-addr is {address}, which is all interfaces"):
        hosts.choose(two_hosts(master_addr=address))
    replicas = ParallelConfig(data_parallel_size=2, data_parallel_master_ip=address)
    with pytest.raises(ValueError, match="--data-parallel-address is"):
        hosts.choose(replicas)


def test_a_name_that_means_loopback_is_refused(environment):
    """As Debian writes a host's own name into /etc/hosts."""
    environment.setattr(hosts.addresses, "facing", lambda address: "127.0.1.1")
    with pytest.raises(ValueError, match=r"--master-addr host0 means 127\.0\.1\.1 on this host"):
        hosts.choose(two_hosts(master_addr="host0"))


def replicas(local, address):
    """Of four on hosts that share no replica."""
    return ParallelConfig(
        data_parallel_size=4, data_parallel_size_local=local, data_parallel_master_ip=address
    )


@pytest.mark.parametrize("local", [0, 2])
def test_replicas_on_other_hosts_do_not_meet_at_loopback(environment, local):
    """A server whose host has no replica would wait there for all of them."""
    environment.setattr(hosts.addresses, "facing", lambda address: "127.0.1.1")
    message = (
        r"--data-parallel-address host0 means 127\.0\.1\.1 on this host, .*: give an IP address$"
    )
    with pytest.raises(ValueError, match=message):
        hosts.choose(replicas(local, "host0"))


@pytest.mark.parametrize(
    ("local", "address", "means"),
    [
        (4, "host0", "127.0.1.1"),
        (2, "host0", "192.0.2.1"),
        (2, "127.0.0.1", "127.0.0.1"),
        (2, "localhost", "127.0.0.1"),
    ],
)
def test_replicas_meet_at_loopback_on_one_host_or_if_it_is_asked_for(
    environment, local, address, means
):
    environment.setattr(hosts.addresses, "facing", lambda address: means)
    hosts.choose(replicas(local, address))
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_limits_are_settings(configured, environment):
    environment.setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "50")
    config = configured(additional_config={"start_timeout": 7, "heartbeat_timeout": 5})
    assert hosts.limits(config) == Limits(start=7, heartbeat=5, stall=45)


def meet(parallel, rank, limit, **run):
    method = get_distributed_init_method(parallel.master_addr, parallel.master_port)
    with hosts.meeting(parallel, rank, limit, run):
        torch.distributed.init_process_group("gloo", method, world_size=2, rank=rank)


def test_a_port_in_use_is_named(environment):
    parallel = two_hosts(master_addr="127.0.0.1", master_port=free_port())
    hosts.choose(parallel)
    with (
        hosts.addresses.listening("127.0.0.1", parallel.master_port),
        pytest.raises(OSError, match=r"rank 0 at 127\.0\.0\.1 cannot listen on 127\.0\.0\.1:\d+"),
    ):
        meet(parallel, 0, 5)


@pytest.mark.parametrize(
    ("rank", "error"),
    [
        (1, r"rank 1 at 127\.0\.0\.1: no coordinator at 127\.0\.0\.1:\d+ within 2 s"),
        (0, r"rank 0 at 127\.0\.0\.1: fewer than 2 ranks came within 2 s; missing: rank 1"),
    ],
)
def test_a_host_that_never_comes_is_not_waited_for_long(environment, rank, error):
    parallel = two_hosts(master_addr="127.0.0.1", master_port=free_port())
    hosts.choose(parallel)
    start = time.monotonic()
    with pytest.raises(Exception, match=error):
        meet(parallel, rank, 2)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("changes", "error"),
    [({}, "has a rank 1, or it was started twice"), ({"model": "b"}, "differs in model: give")],
)
def test_a_rank_does_not_join_another_run(environment, changes, error):
    """Whose rank 0 holds the port that its own rank 0 was refused."""
    port = free_port()
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set("intarsia/run", json.dumps({"model": "a"}))
    if not changes:
        store.add("intarsia/rank/1", 1)
    parallel = two_hosts(master_addr="127.0.0.1", master_port=port)
    hosts.choose(parallel)
    with pytest.raises(OSError, match=rf"met another run at 127\.0\.0\.1:\d+, which {error}"):
        meet(parallel, 1, 5, **{"model": "a"} | changes)
    assert store.check(["intarsia/rank/1"]) is (not changes)  # its own rank 1 may still come


def test_what_ranks_have_in_common(configured):
    additional = {"token_buckets": [8], "start_timeout": 60}  # a limit of time may differ
    run = hosts.run_of(configured(max_num_seqs=3, additional_config=additional))
    assert all(type(value) is str for value in run.values())
    assert (run["dtype"], run["max_num_seqs"]) == ("torch.float32", "3")
    assert run["additional_config"] == "[('token_buckets', [8])]"


def test_rays_ranks_meet_at_rays_address(monkeypatch):
    """And at no other of the host, on GPUs as well."""
    pytest.importorskip("ray")
    from intarsia.vllm import ray_executor
    from intarsia.vllm.platforms import XlaCpuPlatform, XlaPlatform

    executors = [
        getattr(ray_executor, of.ray_executor)._worker for of in (XlaPlatform, XlaCpuPlatform)
    ]
    assert executors == [ray_executor.XlaRayWorkerProc, ray_executor.XlaCpuRayWorkerProc]
    monkeypatch.setattr(ray_executor.ray.util, "get_node_ip_address", lambda: "127.0.0.2")
    for kind in executors:
        rank = object.__new__(kind)
        rank._parallel_config = two_hosts(master_addr="127.0.0.1")
        host, port = rank.create_dist_init_method().removeprefix("tcp://").split(":")
        assert host == "127.0.0.2"
        socket.create_connection((host, int(port))).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)))
