"""Which of several processes this is, and what each has to do: decided, or refused, before any of them starts."""

import contextlib
import itertools
import json
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import started
from intarsia import cli
from intarsia.cli import _processes
from intarsia.processes import Limits, Place, addresses, detect_place, door, join


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--num-processes 2", "missing: --coordinator-address, --process-id"),
        ("--data-parallel 2", "--data-parallel is 2, expected 1: there is one process"),
        (
            "--coordinator 10.0.0.1 --num-processes 2 --process-id 0",
            "'10.0.0.1', expected HOST:PORT",
        ),
        (
            "--coordinator h:² --num-processes 2 --process-id 0",
            "the coordinator is 'h:²', expected HOST:PORT",
        ),
        ("--coordinator h:1 --num-processes 2 --process-id 2", "the process is 2, expected 0 to 1"),
        ("--coordinator h:1 --num-processes 0 --process-id 0", "is 0, expected 1 or more"),
        (
            "--coordinator h:1 --num-processes 3 --process-id 0 --data-parallel 2",
            "expected a divisor of 3",
        ),
        (
            "--coordinator h:1 --num-processes 2 --process-id 0 --stall-timeout 0",
            "stall limit is 0 s",
        ),
        ("--distributed --process-id 0", "--distributed finds --process-id by itself"),
        ("--distributed", "JAX finds no Slurm, Open MPI or Kubernetes job"),
    ],
)
def test_flags_that_do_not_fit(write_gguf, tiny_weights, capsys, flags, text) -> None:
    model = str(write_gguf(tiny_weights))
    assert cli.main(["generate", "--model", model, *flags.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("intarsia generate: ") and text in error and error.count("\n") == 1


def test_several_processes_do_not_share_stdin(capsys) -> None:
    assert cli.main(["perplexity", "-", "--coordinator", "h:1", "--num-processes", "2"]) == 2
    assert "the text is -, expected a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (
            "SLURM_JOB_ID=7 SLURM_STEP_NODELIST=node[3-4] SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0",
            Place("node3:61447", 2, 1, [0]),
        ),
        (
            "OMPI_MCA_orte_hnp_uri=1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 OMPI_COMM_WORLD_SIZE=2 "
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0",
            Place("10.96.0.1:62624", 2, 1, [0]),
        ),
    ],
)
def test_places_of_launchers(monkeypatch: pytest.MonkeyPatch, variables, place) -> None:
    for row in variables.split():
        monkeypatch.setenv(*row.split("="))
    assert detect_place() == place
    assert Place("[::1]:5", 1, 0).address == ("::1", 5)


# A cluster's Python packages, of which JAX asks what environment variables do not tell.
PACKAGES = {
    "kubernetes": """
from types import SimpleNamespace as Row

class ApiException(Exception):
    status, reason = 403, "Forbidden"

def listed(*rows):
    return Row(items=list(rows))

own = Row(kind="Job", controller=True)
meta = Row(name="run-1-x", labels={"job-name": "run"}, owner_references=[own])
pod = Row(metadata=meta, spec=Row(subdomain="pods"))
job = Row(metadata=Row(name="run", labels={}), spec=Row(parallelism=2))

class CoreV1Api:
    def list_namespaced_pod(self, namespace, field_selector):
        if namespace != "models":
            raise ApiException
        return listed(pod) if field_selector.startswith("status.podIP=127.") else listed()

class BatchV1Api:
    def read_namespaced_job(self, name, namespace):
        return {("run", "models"): job}[name, namespace]

config = Row(load_incluster_config=lambda: None)
client = Row(CoreV1Api=CoreV1Api, BatchV1Api=BatchV1Api, exceptions=Row(ApiException=ApiException))
""",
    "mpi4py": """
class Communicator:
    def __init__(self, rank):
        self.Get_rank, self.Get_size = lambda: rank, lambda: 2

    def bcast(self, value, root):
        return "node3:61447" if value == "None" and root == 0 else value

    def Split_type(self, kind):
        return Communicator({"shared": 0}[kind])

class MPI:
    COMM_WORLD, COMM_TYPE_SHARED = Communicator(1), "shared"
""",
}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lets one of `PACKAGES` be imported."""

    def put(name: str) -> None:
        (tmp_path / f"{name}.py").write_text(PACKAGES[name])
        monkeypatch.syspath_prepend(tmp_path)

    yield put
    for name in PACKAGES:
        sys.modules.pop(name, None)


def test_a_pod_of_a_job_finds_its_place(monkeypatch: pytest.MonkeyPatch, package) -> None:
    """An indexed Job behind a headless service: by the API what is the job's, by a variable which pod this is."""
    from jax._src.clusters import K8sCluster

    variables = {"HOSTNAME": "localhost", "KUBERNETES_SERVICE_HOST": "192.0.2.1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # The first is a file of a pod, the others keep what they find, and the last name is the service's to resolve.
    monkeypatch.setattr(K8sCluster, "_namespace", lambda: "models")
    for name in ("_pod", "_job", "_controller"):
        uncached = getattr(K8sCluster, name).__func__.__wrapped__
        monkeypatch.setattr(K8sCluster, name, classmethod(uncached))
    asked = []
    address = socket.gethostbyname("localhost")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: asked.append(name) or address)
    package("kubernetes")
    with pytest.raises(RuntimeError, match='completionMode: "Indexed"'):
        detect_place()
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert detect_place() == Place("run-0.pods:55527", 2, 1, None)
    assert "run-0.pods" in asked  # until the first pod is there
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "29400")
    assert detect_place().address == ("run-0.pods", 29400)


def test_mpi4py_is_asked_where_it_is_named(package) -> None:
    package("mpi4py")
    with pytest.raises(ValueError, match="JAX finds no Slurm, Open MPI or Kubernetes job"):
        detect_place()
    assert detect_place("mpi4py") == Place("node3:61447", 2, 1, [0])


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0", "0x0", "0.0", "[::ffff:0.0.0.0]"])
def test_nothing_meets_or_listens_at_all_interfaces(host: str) -> None:
    with pytest.raises(ValueError, match=r"the coordinator is .*, which is all interfaces"):
        Place(f"{host}:29400", 2, 0)
    with pytest.raises(ValueError, match=r"the address to listen at is .*, which is all interf"):
        join(Place("127.0.0.1:29400", 2, 0), listen=host)


def test_a_name_of_all_interfaces_is_not_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a line of /etc/hosts may have it."""
    look_up = socket.getaddrinfo
    names = {"everywhere": "0.0.0.0"}

    def found(host: str, *args, **given):
        return look_up(host if given.get("flags") else names.get(host, host), *args, **given)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(ValueError, match=r"everywhere is 0\.0\.0\.0, which is all interfaces"):
        addresses.listening("everywhere", 0)


def opened(count: int, **run: str) -> Place:
    """Of process 0, whose door is open, and whose coordinator has port 1234."""
    first = Place(started.free_address(), count, 0, run=run)
    kept = door.keep(door.listen("process 0", first.address), first, 1234)
    assert kept.missing() == [*range(1, count)]
    return first


def ask(place: Place, seconds: int = 5) -> int:
    return door.ask(f"process {place.index}", place, addresses.Deadline(seconds))


def test_a_door_lets_each_process_of_its_run_in_once() -> None:
    first = opened(3, prompt="a", seed="1")
    for said in (b"GET / HTTP/1.1\n", b"[" * 10000 + b"\n"):
        with socket.create_connection(first.address) as stranger:
            stranger.sendall(said)
            assert stranger.recv(64) == b""
    for run, names in (
        ({"prompt": "b", "seed": "1"}, "prompt"),
        ({"seed": "2", "more": ""}, "more, prompt, seed"),
        ({}, "prompt, seed"),
    ):
        with pytest.raises(
            OSError, match=f"process 2: met another run at .*, which differs in {names}:"
        ):
            ask(replace(first, index=2, run=run))
    with pytest.raises(OSError, match=r"the run at .* has 3 processes, expected 4"):
        ask(replace(first, index=3, count=4))
    for index in (1, 2):
        assert ask(replace(first, index=index)) == 1234
        with pytest.raises(
            OSError,
            match=f"met another run at .*, which has a process {index}, or it was started twice:",
        ):
            ask(replace(first, index=index))


def test_a_process_whose_answer_was_lost_asks_again() -> None:
    first = opened(2)
    for token, answer in (("a", b"port 1234\n"), ("a", b"port 1234\n"), ("b", b"taken\n")):
        with socket.create_connection(first.address) as connection:
            connection.sendall(f"{json.dumps([1, 2, {}, token])}\n".encode())
            assert connection.recv(64) == answer


@contextlib.contextmanager
def answering(*answers: bytes):
    """The place of process 1, where something closes each connection after the next of these, and then repeats the last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                for said in itertools.chain(answers, itertools.repeat(answers[-1])):
                    with listener.accept()[0] as connection:
                        asked.append(connection.recv(1 << 14))
                        connection.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        yield Place(f"127.0.0.1:{listener.getsockname()[1]}", 2, 1), asked
        listener.shutdown(socket.SHUT_RDWR)


def test_a_door_that_does_not_answer_is_asked_until_the_limit() -> None:
    with answering(b"", b"po", b"port 7\n") as (place, asked):
        assert ask(place) == 7
    assert len(asked) == 3 and len({*asked}) == 1
    with (
        answering(b"") as (place, _),
        pytest.raises(TimeoutError, match=r"within 1 s: what listens there does not answer$"),
    ):
        ask(place, 1)


@pytest.mark.parametrize("said", [b"SSH-2.0\r\n", b"port SSH\n", b"port 0\n", b"port 70000\n"])
def test_something_else_at_the_doors_port_is_told_apart(said) -> None:
    with (
        answering(said) as (place, _),
        pytest.raises(OSError, match=r"no coordinator at .*: something else listens there$"),
    ):
        ask(place)


def test_a_line_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a part of it comes."""
    monkeypatch.setattr(door, "_SECONDS", 0.5)
    first = opened(2)
    begin = time.monotonic()
    with socket.create_connection(first.address) as stranger, pytest.raises(OSError):
        while time.monotonic() < begin + 5:
            stranger.sendall(b"x")
            time.sleep(0.1)
    assert time.monotonic() < begin + 3


def test_a_door_stays_open_where_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    first, start, failed = opened(2), threading.Thread.start, []

    def fail_once(thread: threading.Thread) -> None:
        if not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    assert ask(replace(first, index=1)) == 1234 and failed


def test_limits() -> None:
    with pytest.raises(ValueError, match="the heartbeat limit is 0 s, expected 1 or more"):
        Limits(heartbeat=0)


@pytest.mark.parametrize("count", range(2, 9))
def test_prompts_are_divided_without_rest(count) -> None:
    for replicas in range(1, count + 1):
        shares = [_processes.Share(None, replicas, i).of(range(count)) for i in range(replicas)]
        assert [x for share in shares for x in share] == [*range(count)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    with pytest.raises(
        ValueError, match=f"--data-parallel is {count + 1}, expected at most {count}"
    ):
        _processes.Share(None, count + 1, 0).of(range(count))
