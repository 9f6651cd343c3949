"""Which of a host's addresses vLLM's ranks listen at, and how long they wait for each other.

On one host all meet at the loopback device. Between hosts, vLLM takes whatever address its way to the internet has, or all;
torch's gloo what the host's name resolves to, and torch's store all. Here they take the one on the way to --master-addr.
"""

import datetime
import importlib
import ipaddress
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from vllm import envs
from vllm.config import ParallelConfig, VllmConfig

from intarsia import _environment
from intarsia.processes import Limits, addresses
from intarsia.processes.place import differing
from intarsia.vllm import settings

# torch.distributed has a function of that name, too.
_rendezvous = importlib.import_module("torch.distributed.rendezvous")

LOOPBACK = "127.0.0.1"
_DISTRIBUTED_SECONDS = 600
"""For torch's messages between ranks, where nothing is said: torch's 1800 for gloo is longer than anybody waits."""
_OF_A_STEP = 0.9
"""Of vLLM's limit for a step: ranks are to say where they are before vLLM ends them."""
_SETTINGS = {"start_timeout": "start", "heartbeat_timeout": "heartbeat"}
"""In --additional-config, and of `Limits`."""
_RUN, _RANK = "intarsia/run", "intarsia/rank/"
"""In torch's store: what ranks have in common, and which have come."""


def limits(config: VllmConfig) -> Limits:
    """How long ranks wait for each other."""
    given = settings.additional(config)
    chosen = {field: given[name] for name, field in _SETTINGS.items() if name in given}
    step = max(1, int(_OF_A_STEP * envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS))
    return Limits(**chosen | {"stall": step})


def choose(parallel: ParallelConfig) -> None:
    """Decides for this process, and those it starts, what to listen at.

    Raises:
      ValueError: The address is all of them, or one that other hosts cannot reach.
    """
    meets = {"--master-addr": parallel.master_addr} if parallel.nnodes > 1 else {}
    if parallel.data_parallel_size > 1:
        meets["--data-parallel-address"] = parallel.data_parallel_master_ip
    for option, address in meets.items():
        addresses.refuse_all_interfaces(f"intarsia-vllm: {option}", address)
    if parallel.data_parallel_size_local < parallel.data_parallel_size:  # some are on other hosts
        servers = (parallel.data_parallel_master_ip, parallel.data_parallel_rpc_port)
        option = f"--data-parallel-address {servers[0]}"
        _refuse_loopback(option, servers[0], addresses.facing(servers), "give an IP address")
    if parallel.nnodes == 1:
        return
    master = (parallel.master_addr, parallel.master_port)
    own = _environment.vllm_host() or addresses.facing(master)
    addresses.refuse_all_interfaces("intarsia-vllm: VLLM_HOST_IP", own)
    option = f"--master-addr {parallel.master_addr}"
    _refuse_loopback(option, parallel.master_addr, own, "give an IP address, or VLLM_HOST_IP")
    _environment.listen_at(own, interface_of(own))
    if parallel.distributed_timeout_seconds is None:
        parallel.distributed_timeout_seconds = _DISTRIBUTED_SECONDS
    if parallel.cpu_distributed_timeout_seconds is None:
        parallel.cpu_distributed_timeout_seconds = parallel.distributed_timeout_seconds


def own_address(parallel: ParallelConfig) -> str:
    """Where this process listens for ranks on other hosts, if there are any, else for those on this one."""
    if parallel.use_ray:
        import ray

        return ray.util.get_node_ip_address()
    if parallel.nnodes_within_dp == 1:
        return LOOPBACK
    return _environment.vllm_host() or LOOPBACK


def interface_of(address: str) -> str:
    """The name of the network interface that has an address, or its network.

    Raises:
      ValueError: There is none.
    """
    wanted = ipaddress.ip_address(address)
    for name, rows in psutil.net_if_addrs().items():
        for row in rows:
            if row.family in (socket.AF_INET, socket.AF_INET6) and _has(row, wanted):
                return name
    raise ValueError(
        f"intarsia-vllm: {address} is none of this host's addresses; VLLM_HOST_IP names one"
    )


def _has(row: Any, wanted: Any) -> bool:
    own = ipaddress.ip_address(row.address.partition("%")[0])
    # Each address of 127.0.0.0/8 is this host's.
    return own == wanted or (
        own.is_loopback and wanted.is_loopback and own.version == wanted.version
    )


def _refuse_loopback(option: str, given: str, own: str, remedy: str) -> None:
    """Raises ValueError for an address of this host that was not asked for, and that no other host reaches."""
    asked_for = given == "localhost" or _is_loopback(given)
    if _is_loopback(own) and not asked_for:
        raise ValueError(
            f"intarsia-vllm: {option} means {own} on this host, which no other host reaches: {remedy}"
        )


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def run_of(config: VllmConfig) -> dict[str, str]:
    """What all ranks of a run have in common, as text: enough to tell runs apart whose programs or results differ."""
    of, cache, parallel, scheduler = (
        config.model_config,
        config.cache_config,
        config.parallel_config,
        config.scheduler_config,
    )
    overrides = of.hf_overrides if isinstance(of.hf_overrides, dict) else {}
    additional = {k: v for k, v in (config.additional_config or {}).items() if k not in _SETTINGS}
    values = {
        "model": of.model,
        "revision": of.revision,
        "hf_overrides": sorted(overrides.items()),
        "additional_config": sorted(additional.items()),
        "dtype": of.dtype,
        "quantization": of.quantization,
        "max_model_len": of.max_model_len,
        "seed": of.seed,
        "kv_cache_dtype": cache.cache_dtype,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "expert_parallel": parallel.enable_expert_parallel,
        "nnodes": parallel.nnodes,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
    }
    return {name: str(value) for name, value in values.items()}


@contextmanager
def meeting(
    parallel: ParallelConfig, rank: int, limit: int, run: Mapping[str, str]
) -> Iterator[None]:
    """Has torch's store, while ranks on several hosts meet at it, listen at --master-addr alone, and wait so long.

    Args:
      run: What all ranks have in common; one that has something else is of another run.

    Raises:
      OSError: Its port is in use, or another run's.
      TimeoutError: Nobody listens there, or not all come.
    """
    if parallel.use_ray or parallel.nnodes_within_dp == 1:
        yield
        return
    deadline = addresses.Deadline(limit)
    host, port = parallel.master_addr, parallel.master_port
    name = f"intarsia-vllm: rank {rank} at {own_address(parallel)}"
    if rank == 0:
        try:
            holder = addresses.listening(host, port)
        except OSError as error:
            raise OSError(
                f"{name} cannot listen on {addresses.host_port(host, port)} (--master-addr, --master-port): {error.strerror}"
            ) from None
    else:
        addresses.connected(name, (host, port), deadline).close()
    make = _rendezvous.TCPStore

    def make_there(**given: Any) -> Any:
        usual = given["timeout"]
        given |= {"timeout": _left(deadline), "wait_for_workers": False}
        if given["is_master"]:
            given["master_listen_fd"] = holder.detach()
        store = make(**given)
        _enter(store, f"{name} met another run at {addresses.host_port(host, port)}", rank, run)
        _wait_for_all(store, name, given["world_size"], deadline)
        store.set_timeout(usual)
        return store

    _rendezvous.TCPStore = make_there
    try:
        yield
    finally:
        _rendezvous.TCPStore = make


def _enter(store: Any, met_another: str, rank: int, run: Mapping[str, str]) -> None:
    """Tells the others that a rank has come, if it is of their run: rank 0's."""
    if rank == 0:
        store.set(_RUN, json.dumps(dict(run)))
    if differ := differing(json.loads(store.get(_RUN)), run):
        raise OSError(
            f"{met_another}, which differs in {', '.join(differ)}: give each run a --master-port, and all its hosts the "
            "same options"
        )
    if store.add(f"{_RANK}{rank}", 1) > 1:
        raise OSError(
            f"{met_another}, which has a rank {rank}, or it was started twice: give each run a --master-port"
        )


def _wait_for_all(store: Any, name: str, count: int, deadline: addresses.Deadline) -> None:
    keys = {f"{_RANK}{rank}": f"rank {rank}" for rank in range(count)}
    try:
        store.wait([*keys], _left(deadline))
    except torch.distributed.DistStoreError:
        missing = [called for key, called in keys.items() if not store.check([key])]
        raise TimeoutError(
            f"{name}: fewer than {count} ranks came within {deadline.seconds} s; missing: {', '.join(missing)}"
        ) from None


def _left(deadline: addresses.Deadline) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(deadline.left, 1))
