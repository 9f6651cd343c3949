"""Faults of several processes: which line and status each ends with, how soon, and what a new start does."""

import os
import signal
import socket
import subprocess
import threading
import time
from types import SimpleNamespace

import jax
import pytest
import started
from intarsia import cli
from intarsia.processes import Limits, endings, print_line, progress


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)]
)
def test_a_process_that_dies_or_hangs_ends_all(generate, how) -> None:
    processes = [generate(2, i, *started.LONG, "--heartbeat-timeout", "4") for i in range(2)]
    started.wait_for(processes, "compiling")
    processes[1].send_signal(how)
    begin = time.monotonic()
    [(status, _, err)] = started.ends(processes[:1])
    seconds = time.monotonic() - begin
    print(f"\n{how.name}: known after {seconds:.1f} s")
    assert seconds < 30
    line = "process 0 of 2: ended, since process 1 sent no heartbeat for 4 s"
    assert (status, started.said(err)) == (1, [f"intarsia generate: {line}"])
    processes[1].send_signal(signal.SIGCONT)
    assert processes[1].wait(started.BOUND) != 0


@pytest.mark.full
def test_without_its_coordinator_a_process_ends(generate) -> None:
    processes = [generate(2, i, *started.LONG, "--heartbeat-timeout", "4") for i in range(2)]
    started.wait_for(processes, "compiling")
    processes[0].kill()
    begin = time.monotonic()
    [(status, _, err)] = started.ends(processes[1:])
    seconds = time.monotonic() - begin
    print(f"\ncoordinator: known after {seconds:.1f} s")
    assert seconds < 30 and status != 0
    assert "leader" in err or "process 1 of 2" in err


@pytest.mark.full
@pytest.mark.parametrize("killed", [0, 1])
def test_a_new_start_after_a_fault_gives_the_tokens(generate, one_process, killed) -> None:
    """At the same address and at once, while what is left of the old run still waits for the one that was killed."""
    old = [generate(2, i, *started.LONG, "--heartbeat-timeout", "4") for i in range(2)]
    started.wait_for(old, "compiling")
    old[killed].kill()
    if killed:
        old[0].wait(started.BOUND)  # it has the address as long as it lives
    ends = started.ends([generate(2, i, "--tensor-parallel", "2") for i in range(2)])
    assert [end[:2] for end in ends] == [(0, one_process), (0, "")], ends
    assert all(status != 0 for status, _, _ in started.ends(old))


@pytest.mark.full
def test_a_slow_process_delays_all_and_changes_no_token(generate, one_process) -> None:
    """From its compilation on it runs a tenth of the time."""
    processes = [generate(2, i, "--tensor-parallel", "2") for i in range(2)]
    started.wait_for(processes, "compiling")
    deadline = time.monotonic() + started.BOUND
    while processes[0].poll() is None:
        assert time.monotonic() < deadline, "process 0 has not ended"
        processes[1].send_signal(signal.SIGSTOP)
        time.sleep(0.45)
        processes[1].send_signal(signal.SIGCONT)
        time.sleep(0.05)
    ends = started.ends(processes)
    assert [end[:2] for end in ends] == [(0, one_process), (0, "")], ends


def test_an_error_of_one_process_is_everyones(start, tiny_model, address, tmp_path) -> None:
    """The same command in two folders, of which one lacks the model."""
    command = f"import os; os.chdir(os.environ['FOLDER']); {started.COMMAND}"
    (empty := tmp_path / "empty").mkdir()
    begin = time.monotonic()
    processes = []
    for i, folder in enumerate((tiny_model.parent, empty)):
        flags, _ = started.place(address, 2, i)
        arguments = [*started.arguments(tiny_model.name), *flags, "--tensor-parallel", "2"]
        processes.append(start("-c", command, *arguments, FOLDER=str(folder)))
    processes[1].wait(started.BOUND)
    ended = time.monotonic()
    ends = started.ends(processes)
    assert time.monotonic() - begin < 60
    print(f"\nan error: known {time.monotonic() - ended:.1f} s after the process had ended")
    text = f"model '{tiny_model.name}' is neither"
    assert ends[0][0] == 1 and ends[1][0] == 2
    [said], [own] = started.said(ends[0][2]), started.said(ends[1][2])
    assert f"process 0 of 2: ended, since process 1 failed: {text}" in said
    assert f"process 1 of 2: {text}" in own


def test_a_reader_that_has_enough_ends_all(generate) -> None:
    processes = [generate(2, i, *started.LONG) for i in range(2)]
    processes[0].stdout.readline()
    processes[0].stdout.close()
    ends = started.ends(processes)
    assert [(status, started.said(err)) for status, _, err in ends] == [(0, []), (0, [])], ends


def test_a_line_that_nobody_reads_is_no_error(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        print_line("why the process ends")


def test_only_an_error_of_a_collective_waits_for_word_of_another(monkeypatch) -> None:
    slept, own = [], object.__new__(endings.Endings)
    own._limits = Limits(heartbeat=7)
    monkeypatch.setattr(endings.time, "sleep", slept.append)
    monkeypatch.setattr(endings.Endings, "_end", lambda *args, **given: None)
    own.fail(ValueError("/models/NCCL/x.gguf is no file"), 2)
    assert not slept
    own.fail(jax.errors.JaxRuntimeError("Gloo AllReduce failed"), 1)
    assert slept == [12]


@pytest.mark.full
def test_nobody_comes(generate, address) -> None:
    """There is no coordinator; there is one and nobody else; something else has its port."""
    [(status, _, err)] = started.ends([generate(2, 1, "--start-timeout", "1")])
    assert status == 2 and err.count("\n") == 1
    assert f"process 1 of 2: no coordinator at {address} within 1 s: " in err
    elsewhere = ["--coordinator-address", "192.0.2.1:29400", "--start-timeout", "2"]
    text = "process 0 of 2: the coordinator cannot listen on 192.0.2.1:29400: Cannot assign requested address"
    _check_refusals([generate(2, 0, *elsewhere)], [text])
    [(status, _, err)] = started.ends([generate(4, 0, "--start-timeout", "2")])
    assert status == 1 and err == (
        "intarsia generate: process 0 of 4: fewer than 4 processes connected to the coordinator at "
        f"{address} within 2 s; missing: process 1, process 2, process 3\n"
    )
    nowhere = ["--coordinator-address", "nowhere.invalid:29400", "--num-processes", "2"]
    [(status, _, err)] = started.ends([generate(2, 1, *nowhere, "--start-timeout", "1")])
    assert status == 2 and err.count("\n") == 1
    assert "process 1 of 2: no coordinator at nowhere.invalid:29400 within 1 s: " in err
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as stranger:
        lost = generate(2, 1, "--start-timeout", "2")
        stranger.accept()[0].close()
        texts = [
            f"process 0 of 2: the coordinator cannot listen on {address}: Address already in use: "
            "another run may be there; give each run a port",
            f"process 1 of 2: no coordinator at {address} within 2 s: what listens there does not answer",
        ]
        _check_refusals([generate(2, 0), lost], texts)


@pytest.mark.full
def test_another_run_at_a_port_in_use_is_turned_away(generate, address, one_process) -> None:
    """JAX's coordinator would take its process 1 for a restart, and end the first run; or for the first run's, if it comes first."""
    processes = [generate(2, 0, *started.LONG)]
    early = [generate(2, 1), generate(3, 2, *started.LONG)]
    texts = [
        f"process 1 of 2: met another run at {address}, which differs in max_model_len, max_tokens, tensor_parallel: "
        "give each run a port, and all its processes the same command",
        f"process 2 of 3: the run at {address} has 2 processes, expected 3",
    ]
    _check_refusals(early, texts)
    processes.append(generate(2, 1, *started.LONG))
    started.wait_for(processes, "compiling")
    texts = [
        f"process 0 of 2: the coordinator cannot listen on {address}: Address already in use: "
        "another run may be there; give each run a port",
        f"process 1 of 2: met another run at {address}, which has a process 1, or it was started twice: "
        "give each run a port, and start each of its processes once",
    ]
    _check_refusals([generate(2, i, *started.LONG) for i in range(2)], texts)
    ends = started.ends(processes)
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert all(text in ends[0][1] for text in one_process.replace(" [...]", "").splitlines())


@pytest.mark.parametrize(
    ("bind", "text"),
    [
        (
            "0.0.0.0:29400",
            "the host of {} is 0.0.0.0, which is all interfaces, expected one address of a host",
        ),
        ("29400", "{} is '29400', expected HOST:PORT"),
        ("127.0.0.1:0", "{} is '127.0.0.1:0', expected HOST:PORT"),
        ("127.0.0.1:99999", "{} is '127.0.0.1:99999', expected HOST:PORT"),
    ],
    ids=["everywhere", "port", "any", "large"],
)
def test_where_the_coordinator_may_not_listen(monkeypatch, capsys, address, bind, text) -> None:
    flags, _ = started.place(address, 2, 0)
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", bind)
    assert cli.main(["generate", *flags]) == 2
    [line] = started.said(capsys.readouterr().err)
    assert line == f"intarsia generate: {text.format('JAX_COORDINATOR_BIND_ADDRESS')}"


def _check_refusals(processes: list[subprocess.Popen], texts: list[str]) -> None:
    ends = [(status, started.said(err)) for status, _, err in started.ends(processes)]
    assert ends == [(2, [f"intarsia generate: {text}"]) for text in texts]


@pytest.mark.full
def test_a_process_that_gets_no_further_says_so(start, address) -> None:
    script = """
import sys, time
from intarsia.processes import Limits, Place, join
index = int(sys.argv[2])
processes = join(Place(sys.argv[1], 2, index), Limits(stall=2))
if index:
    processes.stage("asleep")
    time.sleep(100)
processes.meet("awake")
"""
    ends = started.ends([start("-c", script, address, str(i)) for i in range(2)])
    text = "no progress for 2 s; process 0 is at 'awake', process 1 is at 'asleep'"
    assert [status for status, _, _ in ends] == [1, 1]
    assert f"process 1 of 2: {text}\n" in ends[1][2]
    assert f"process 0 of 2: ended, since process 1 failed: {text}\n" in ends[0][2]


@pytest.mark.full
def test_an_error_in_the_context_ends_all_and_its_end_waits(start, address) -> None:
    script = """
import sys, time
from intarsia.processes import Place, join
with join(Place(sys.argv[1], 2, int(sys.argv[2])), names=["first", "second"]) as processes:
    processes.meet("begun")
    if sys.argv[2] == "1":
        time.sleep(1)
        if sys.argv[3] == "fails":
            raise LookupError("of this one")
        if sys.argv[3].isdigit():
            sys.exit(int(sys.argv[3]))
print("over")
"""
    both = [start("-c", script, address, str(i), "ends") for i in range(2)]
    assert [end[:2] for end in started.ends(both)] == [(0, "over\n")] * 2
    both = [start("-c", script, address, str(i), "0") for i in range(2)]
    assert [end[:2] for end in started.ends(both)] == [(0, "over\n"), (0, "")]
    ends = started.ends([start("-c", script, address, str(i), "3") for i in range(2)])
    assert [end[:2] for end in ends] == [(1, ""), (3, "")]
    ends = started.ends([start("-c", script, address, str(i), "fails") for i in range(2)])
    assert [end[:2] for end in ends] == [(1, "")] * 2
    assert "first of 2: ended, since second failed: of this one\n" in ends[0][2]
    assert "LookupError: of this one\n" in ends[1][2]
    assert "second of 2: of this one\n" in ends[1][2]


@pytest.mark.full
def test_processes_that_wait_at_different_meetings_say_so(start, address) -> None:
    """And not those of which one is late, or has met the others and goes on."""
    script = """
import sys, time
from intarsia.processes import Limits, Place, join
index = int(sys.argv[2])
processes = join(Place(sys.argv[1], 2, index), Limits(stall=3))
if index:
    for _ in range(5):
        time.sleep(1)
        processes.progress()
processes.meet("first")
if index:
    for _ in range(5):
        time.sleep(1)
        processes.progress()
processes.meet("second" if index else "last")
"""
    ends = started.ends([start("-c", script, address, str(i)) for i in range(2)])
    text = "no progress for 3 s: processes wait for each other; process 0 at '2/last', process 1 at '2/second'"
    assert [status for status, _, _ in ends] == [1, 1]
    assert all(text in err for _, _, err in ends), ends


def test_the_store_has_the_newest_of_what_two_threads_tell() -> None:
    """Of which the first is held up on its way there."""
    told, held, go = [], threading.Event(), threading.Event()

    def put(what: str, text: str) -> None:
        if "old" in text:
            held.set()
            go.wait(10)
        told.append(text)

    own = progress.Progress(SimpleNamespace(put=put))
    own.mark("old")
    first = threading.Thread(target=own.tell)
    first.start()
    held.wait(10)
    own.mark("new")
    second = threading.Thread(target=own.tell)
    second.start()
    second.join(0.5)
    go.set()
    first.join()
    second.join()
    assert "new" in told[-1]
