"""Replicas and the servers in front of them: which of them is gone.

vLLM watches the processes of its own host. A message to a host that is lost waits in a queue of ZeroMQ's, and so does the client
who asked. Here an engine's connections to servers have ZeroMQ's heartbeats (https://rfc.zeromq.org/spec/37/), which its threads
send whatever Python does. A connection that breaks is told to both ends, and each does what vLLM does when it loses a process of
its own.
"""

import asyncio
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import zmq
from vllm import envs
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreRequestType
from zmq.utils.monitor import recv_monitor_message

from intarsia.processes import Limits
from intarsia.vllm import hosts
from intarsia.vllm.replacing import replace

logger = init_logger("vllm.intarsia.replicas")

_BEATS = 3
"""Heartbeats in the time after which one that is silent counts as gone."""
_LONGEST = 6553
"""Seconds that a heartbeat's message can say: tenths of a second in 16 bits (ZMTP 3.1, `PING`)."""
_SECONDS_TO_STOP = 3
"""How long an engine whose server is gone waits for vLLM to stop it: a server that is stopped goes first."""
_SECONDS_TO_END = 10
"""How long its step may go on then, and its ranks may take to end (intarsia/processes/endings.py)."""
_SECONDS_TO_ASK = 2
"""For a server to find which engine has no connection any more."""
_SECONDS_TO_LOOK = 0.2
"""Between looks at what replicas do while they start."""
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Each is told before the end of a connection that never stood."""
_start_seconds = 0
"""See `watch_engines`."""


def heartbeats(limit: int) -> dict[int, int]:
    """ZeroMQ's options, in ms, with which both ends of a connection give it up after `limit` seconds of silence.

    Raises:
      ValueError: A heartbeat cannot say so long a time.
    """
    if limit > _LONGEST:
        raise ValueError(
            f"intarsia-vllm: heartbeat_timeout is {limit} s, expected at most {_LONGEST} with --data-parallel-size"
        )
    every = 1000 * limit // _BEATS
    return {
        zmq.HEARTBEAT_IVL: every,
        zmq.HEARTBEAT_TIMEOUT: 1000 * limit - every,
        zmq.HEARTBEAT_TTL: 1000 * limit,  # for the other end, which needs no options
    }


def when_broken(socket: zmq.Socket, then: Callable[[], None]) -> None:
    """Calls a function, in a thread of its own, whenever one of a socket's connections that stood breaks."""
    address = f"inproc://intarsia-{id(socket)}"
    socket.monitor(address, zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED | _FAILED)
    # Not `get_monitor_socket`, which makes one for asyncio where the socket's context is for it.
    events = zmq.Context.shadow(socket.context.underlying).socket(zmq.PAIR)
    events.connect(address)

    def watch() -> None:
        failed = 0
        with contextlib.closing(events), contextlib.suppress(zmq.ZMQError):  # the process ends
            while (event := recv_monitor_message(events)["event"]) != zmq.EVENT_MONITOR_STOPPED:
                if event & _FAILED:
                    failed += 1
                elif failed:
                    failed -= 1
                else:
                    then()

    threading.Thread(target=watch, daemon=True, name="IntarsiaReplicas").start()


# ---------------------------------------------------------------------------- engines


@functools.cache
def watch_servers() -> None:
    """Has each engine of several end when a server in front of it is gone. For processes of engines."""
    from vllm.v1.engine import core

    here = threading.local()

    def make_zmq_socket(ctx: zmq.Context, path: str, kind: int, *args: Any, **given: Any) -> Any:
        engine = getattr(here, "engine", None)
        if engine is None or kind != zmq.DEALER:
            return make(ctx, path, kind, *args, **given)
        limit = hosts.limits(engine.vllm_config).heartbeat
        for option, value in heartbeats(limit).items():
            ctx.setsockopt(option, value)  # of the sockets that it makes
        socket = make(ctx, path, kind, *args, **given)
        when_broken(socket, lambda: _end_engine(engine, path, limit))
        return socket

    def process_input_sockets(engine: Any, *args: Any, **given: Any) -> None:
        if engine.has_coordinator:
            here.engine = engine
        run(engine, *args, **given)

    make = replace(core, "make_zmq_socket", make_zmq_socket)
    run = replace(core.EngineCoreProc, "process_input_sockets", process_input_sockets)


def _end_engine(engine: Any, server: str, limit: int) -> None:
    deadline = time.monotonic() + _SECONDS_TO_STOP
    while time.monotonic() < deadline:
        if engine.shutdown_state:
            return
        time.sleep(0.1)
    logger.error(
        "intarsia-vllm: replica %d ends, since the server at %s is gone, or sent no heartbeat for %d s",
        engine.engine_index,
        server,
        limit,
    )
    # What an executor says that has lost a rank.
    engine.input_queue.put_nowait((EngineCoreRequestType.EXECUTOR_FAILED, b""))
    time.sleep(_SECONDS_TO_END)
    os._exit(1)


# ---------------------------------------------------------------------------- servers


def watch_engines(limits: Limits) -> None:
    """Has each server in front of several engines end when one of them is gone. For processes of servers.

    Args:
      limits: `start` is for engines on other hosts to connect, for which vLLM has no limit.

    Raises:
      ValueError: The limit of heartbeats is too long for them.
    """
    global _start_seconds
    heartbeats(limits.heartbeat)  # now, and not in an engine that has loaded the model
    _start_seconds = limits.start
    _replace_those_of_servers()


@functools.cache
def _replace_those_of_servers() -> None:
    from vllm.v1.engine import core_client, utils

    def start_engine_core_monitor(client: Any) -> None:
        start(client)
        if client.vllm_config.parallel_config.data_parallel_size > 1:
            _watch_connections(client)

    def wait_for_engine_startup(
        handshake_socket: zmq.Socket, engines: Sequence[Any], *args: Any
    ) -> None:
        [launch] = [x for x in args if isinstance(x, utils.CoreEngineLaunch)]
        with _overdue(engines, utils.CoreEngineState) as overdue:
            launch.watched_frontend_processes = [*launch.watched_frontend_processes, overdue]
            wait(handshake_socket, engines, *args)

    start = replace(core_client.MPClient, "start_engine_core_monitor", start_engine_core_monitor)
    wait = replace(utils, "wait_for_engine_startup", wait_for_engine_startup)


def _watch_connections(client: Any) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    limit = hosts.limits(client.vllm_config).heartbeat
    mine = weakref.ref(client)
    socket = zmq.Socket.shadow(client.input_socket)  # without asyncio
    when_broken(socket, lambda: _end_server(mine(), loop, limit))


def _end_server(client: Any, loop: asyncio.AbstractEventLoop | None, limit: int) -> None:
    """As vLLM's own monitor of processes does it."""
    if client is None or _ends(client):
        return
    gone = None if loop is None else _ask(client, loop)
    if gone == [] or _ends(client):  # it was no engine's connection, or the server is being stopped
        return
    logger.error(
        "intarsia-vllm: this server ends, since %s is gone, or sent no heartbeat for %d s",
        _called(gone) if gone else "a replica",
        limit,
    )
    client.resources.engine_dead = True
    if client.resources.engine_manager is None:
        # One of several servers, which the process that started them watches by their exit status.
        threading.Thread(target=_fail_at_the_end, name="IntarsiaReplicasEnd").start()
    client.shutdown()


def _called(ranks: Iterable[int]) -> str:
    return " and ".join(f"replica {rank}" for rank in ranks)


def _ends(client: Any) -> bool:
    return client.resources.engine_dead or not client._finalizer.alive


def _ask(client: Any, loop: asyncio.AbstractEventLoop) -> list[int] | None:
    """Which engines are gone, by the loop whose thread may use the socket; None if it does not answer."""
    # It may be busy, or have closed the socket.
    with contextlib.suppress(TimeoutError, RuntimeError, zmq.ZMQError):
        asked = asyncio.run_coroutine_threadsafe(_unreachable(client), loop)
        return asked.result(2 * _SECONDS_TO_ASK)
    return None


async def _unreachable(client: Any) -> list[int]:
    """The engines for which ZeroMQ takes no message."""
    deadline = time.monotonic() + _SECONDS_TO_ASK
    socket = zmq.Socket.shadow(client.input_socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    nothing = (EngineCoreRequestType.ABORT.value, *client.encoder.encode([]))
    gone: list[int] = []
    try:
        # The word that a connection broke may be here before the socket has dropped it.
        while not gone and time.monotonic() < deadline:
            for rank, identity in zip(
                client.engine_ranks_managed, client.core_engines, strict=True
            ):
                try:
                    socket.send_multipart((identity, *nothing), zmq.NOBLOCK)
                except zmq.ZMQError as error:
                    if error.errno == zmq.EHOSTUNREACH:
                        gone.append(rank)
            await asyncio.sleep(0.1)
    finally:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
    return gone


def _fail_at_the_end() -> None:
    threading.main_thread().join()
    os._exit(1)


# ---------------------------------------------------------------------------- the start


class _Overdue:
    """Replicas that did not come, to vLLM another process whose end it watches for while it starts."""

    exitcode = None

    def __init__(self) -> None:
        self.name = "replicas on other hosts"
        self.sentinel, self._end = os.pipe()

    def tell(self, name: str) -> None:
        self.name = name
        os.write(self._end, b"x")

    def close(self) -> None:
        os.close(self.sentinel)
        os.close(self._end)


@contextlib.contextmanager
def _overdue(engines: Sequence[Any], states: Any) -> Iterator[_Overdue]:
    limit, ready = _start_seconds, envs.VLLM_ENGINE_READY_TIMEOUT_S
    bounds = {
        states.NEW: (limit, f"did not connect within {limit} s (start_timeout)"),
        states.CONNECTED: (ready, f"not ready within {ready} s (VLLM_ENGINE_READY_TIMEOUT_S)"),
    }
    # Since when an engine has been seen in a state: each has its time from the one before.
    since: dict[tuple[bytes, Any], float] = {}
    over = threading.Event()
    told = _Overdue()

    def watch() -> None:
        while not over.wait(_SECONDS_TO_LOOK):
            now = time.monotonic()
            for state, (seconds, what) in bounds.items():
                waiting = [e for e in engines if not e.local and e.state == state]
                late = [
                    e for e in waiting if now - since.setdefault((e.identity, state), now) > seconds
                ]
                if not late:
                    continue
                name = _called(int.from_bytes(e.identity, "little") for e in late)
                logger.error("intarsia-vllm: %s %s", name, what)
                told.tell(name)
                return

    watcher = threading.Thread(target=watch, daemon=True, name="IntarsiaReplicasStart")
    watcher.start()
    try:
        yield told
    finally:
        over.set()
        watcher.join()
        told.close()
