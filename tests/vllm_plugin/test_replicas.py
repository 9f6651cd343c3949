"""Replicas and their servers, without models: who hears when one of them is gone, and how soon."""

import asyncio
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import pytest

pytest.importorskip("vllm")

import zmq
import zmq.asyncio
from intarsia.processes import Limits
from intarsia.vllm import replicas
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.utils import CoreEngine, CoreEngineLaunch
from vllm.v1.serial_utils import MsgpackEncoder

LIMIT = 2
STARTED = 240  # s for a process that imports vLLM on a busy machine
HALF = """
import sys, time
import zmq
kind, address, options = getattr(zmq, sys.argv[1]), sys.argv[2], eval(sys.argv[3])
socket = zmq.Context().socket(kind)
for option, value in options.items():
    socket.setsockopt(option, value)
socket.bind(address) if kind == zmq.ROUTER else socket.connect(address)
if kind == zmq.DEALER:
    socket.send(b"here")
socket.recv_multipart()
time.sleep(600)
"""


def other_end(kind, address, options):
    """A process that has the other end of a connection."""
    return subprocess.Popen(
        [sys.executable, "-c", HALF, kind, address, repr({int(k): v for k, v in options.items()})]
    )


@pytest.fixture
def context():
    with zmq.Context() as made:
        made.setsockopt(zmq.RCVTIMEO, 60_000)
        yield made


@pytest.fixture
def address():
    """Not in tmp_path, which may be longer than the 107 characters of a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"ipc://{folder}/socket"


@pytest.fixture
def said(monkeypatch):
    """What is logged."""
    lines = []
    monkeypatch.setattr(replicas.logger, "error", lambda text, *args: lines.append(text % args))
    return lines


def broken(socket):
    """Set when a connection of the socket breaks."""
    event = threading.Event()
    replicas.when_broken(socket, event.set)
    return event


def test_a_limit_that_no_heartbeat_can_say_is_refused():
    """Before an engine starts. libzmq takes what fits into 16 bits of tenths of a second."""
    with zmq.Context() as context:
        for option, value in replicas.heartbeats(6553).items():
            context.setsockopt(option, value)
            assert context.socket(zmq.DEALER).getsockopt(option) == value
    text = "heartbeat_timeout is 6554 s, expected at most 6553 with --data-parallel-size"
    with pytest.raises(ValueError, match=text):
        replicas.watch_engines(Limits(heartbeat=6554))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_hears_of_an_engine(context, address, fault):
    """By what the engine's end of the connection asks for."""
    server = context.socket(zmq.ROUTER)
    server.bind(address)
    event = broken(server)
    engine = other_end("DEALER", address, replicas.heartbeats(LIMIT))
    try:
        identity, _ = server.recv_multipart()
        server.send_multipart((identity, b"there"))
        assert not event.wait(2 * LIMIT)
        start = time.monotonic()
        engine.send_signal(fault)
        assert event.wait(10 * LIMIT)
        assert fault == signal.SIGKILL or time.monotonic() - start > LIMIT / 2
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_hears_of_its_server(context, address, fault):
    server = other_end("ROUTER", address, {})
    try:
        engine = context.socket(zmq.DEALER)
        for option, value in replicas.heartbeats(LIMIT).items():
            engine.setsockopt(option, value)
        engine.connect(address)
        event = broken(engine)
        engine.send(b"here")
        assert not event.wait(2 * LIMIT)
        server.send_signal(fault)
        assert event.wait(10 * LIMIT)
    finally:
        server.kill()
        server.wait()


def test_a_connection_that_never_stood_is_no_fault(context, tmp_path):
    """Such as one to a port that another program has, or to a server that is not there yet."""
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        engine = context.socket(zmq.DEALER)
        event = broken(engine)
        engine.connect(f"tcp://127.0.0.1:{other.getsockname()[1]}")
        for _ in range(3):
            other.accept()[0].close()
        assert not event.wait(1)


class Client:
    """What of vLLM's client the watch touches."""

    def __init__(self, socket, config, count):
        self.input_socket, self.vllm_config = socket, config
        self.encoder = MsgpackEncoder()
        self.engine_ranks_managed = list(range(count))
        self.core_engines = [rank.to_bytes(2, "little") for rank in range(count)]
        self.resources = types.SimpleNamespace(engine_dead=False, engine_manager="its own engines")
        self._finalizer = types.SimpleNamespace(alive=True)
        self.ended = threading.Event()

    def shutdown(self):
        self.ended.set()


def test_a_server_says_which_replica_it_lost_and_ends(address, said):
    config = types.SimpleNamespace(additional_config={"heartbeat_timeout": LIMIT})

    async def serve():
        with zmq.asyncio.Context() as context, zmq.Context() as theirs:
            server = context.socket(zmq.ROUTER)
            server.bind(address)
            client = Client(server, config, 2)
            engines = []
            for identity in client.core_engines:
                engines.append(theirs.socket(zmq.DEALER))
                engines[-1].setsockopt(zmq.IDENTITY, identity)
                engines[-1].connect(address)
                engines[-1].send(b"here")
                await server.recv_multipart()
            replicas._watch_connections(client)
            stray = theirs.socket(zmq.DEALER)
            stray.connect(address)
            stray.send(b"here")
            await server.recv_multipart()
            stray.close(linger=0)
            assert not await asyncio.to_thread(client.ended.wait, 1)
            engines[1].close(linger=0)
            assert await asyncio.to_thread(client.ended.wait, 10)
            assert client.resources.engine_dead
            # The other was asked by a message that means nothing.
            kind, _ = engines[0].recv_multipart()
            assert kind == EngineCoreRequestType.ABORT.value

    asyncio.run(serve())
    [line] = said
    assert "this server ends, since replica 1 is gone, or sent no heartbeat for 2 s" in line


ENGINE = """
import queue, sys, threading, types
from vllm.v1.engine import EngineCoreReadyResponse, core
from intarsia.vllm import replicas

replicas.watch_servers()
replicas.watch_servers()  # as often as vLLM asks for plugins
replicas._SECONDS_TO_STOP = replicas._SECONDS_TO_END = 1
config = types.SimpleNamespace(additional_config={"heartbeat_timeout": 2})
engine = types.SimpleNamespace(
    engine_index=1, has_coordinator=True, vllm_config=config, shutdown_state=0, tensor_ipc_receiver=None,
    input_queue=queue.Queue(), _make_ready_response=lambda: "ready",
)
arguments = (engine, [sys.argv[1]], None, b"1", threading.Event())
threading.Thread(target=core.EngineCoreProc.process_input_sockets, args=arguments, daemon=True).start()
print(engine.input_queue.get()[0].name, flush=True)
threading.Event().wait()
"""


def test_an_engine_ends_when_its_server_is_gone(context, address):
    """As it does when its executor fails, and in bounded time if its step does not end."""
    server = context.socket(zmq.ROUTER)
    server.bind(address)
    command = [sys.executable, "-W", "ignore", "-c", ENGINE, address]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert server.poll(STARTED * 1000), "the engine did not connect"
        server.recv_multipart()
        server.close(linger=0)
        told = engine.communicate(timeout=STARTED)[0].decode()
    finally:
        engine.kill()
    assert engine.returncode == 1
    assert f"replica 1 ends, since the server at {address} is gone" in told
    assert "EXECUTOR_FAILED" in told


def test_a_replica_that_never_comes_is_not_waited_for_long(context, address, said):
    """vLLM alone waits for it without end."""
    from vllm.v1.engine import utils

    replicas.watch_engines(Limits(start=1))
    socket = context.socket(zmq.ROUTER)
    socket.bind(address)
    engines = [CoreEngine(0, local=True), CoreEngine(1, local=False)]
    engines[0].state = type(engines[0].state).READY
    parallel = types.SimpleNamespace(
        data_parallel_size_local=1, data_parallel_hybrid_lb=False, data_parallel_external_lb=False
    )
    launch = CoreEngineLaunch(None, None, None, None)
    told = queue.Queue()

    def wait():
        try:
            utils.wait_for_engine_startup(socket, engines, parallel, False, None, launch)
        except RuntimeError as error:
            told.put(error)

    threading.Thread(target=wait, daemon=True).start()
    assert "'replica 1': None" in str(told.get(timeout=20))
    [line] = said
    assert "replica 1 did not connect within 1 s (start_timeout)" in line
