"""Several processes with JAX's distributed runtime: the tokens of one, a part of the file each, and ends in bounded time."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import support
from intarsia import cli

BOUND = 120  # s, of a machine that has other things to do
PROMPTS = ("the", "hello 123", "12")
LONG = ("--tensor-parallel", "2", "--max-tokens", "400", "--max-model-len", "500")
DIVISIONS = [
    (2, "--tensor-parallel 2"),
    (2, "--data-parallel 2"),
    pytest.param(4, "--tensor-parallel 4", marks=pytest.mark.full),
    pytest.param(4, "--tensor-parallel 2 --data-parallel 2", marks=pytest.mark.full),
]
# What each sets for process I of two, whose first is on HOST.
LAUNCHERS = {
    "slurm": "SLURM_JOB_ID=7 SLURM_STEP_NODELIST=HOST SLURM_NTASKS=2 SLURM_PROCID=I SLURM_LOCALID=I",
    "ompi": "OMPI_MCA_orte_hnp_uri=1531576320.0;tcp://HOST:34911 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=I "
    "OMPI_COMM_WORLD_LOCAL_RANK=I",
}
COMMAND = "import sys; from intarsia.cli import main; sys.exit(main())"
LIBRARY = """
import dataclasses, json, sys
from pathlib import Path
from intarsia.models import Engine, ModelParallel, SamplingParams, load_model, weights
from intarsia.models.lazy import LazyArray
from intarsia.processes import Limits, Place, join

path, address, count, index = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
processes = join(Place(address, count, index), Limits(start=60, heartbeat=10))
read = []

def counted(array):
    read.append(array.nbytes)
    return array

def opened(path, open=weights.open_checkpoint):
    checkpoint = open(path)
    def lazy(name):
        array = checkpoint.lazy(name)
        return LazyArray(array.shape, lambda index: counted(array[index]))
    return dataclasses.replace(checkpoint, read=lambda name: counted(checkpoint.read(name)), lazy=lazy)

weights.open_checkpoint = opened
parallel = ModelParallel(opened(path).config, count)
config, params = load_model(path, parallel=parallel)
processes.meet("loaded")
engine = Engine(config, params, parallel=parallel, max_num_seqs=2, max_model_len=64)
sampling = SamplingParams(temperature=1.0, top_k=20, seed=3, max_tokens=8, ignore_eos=True)
tokens = [x.tokens for x in engine.generate([[5, 9, 200], [7]], sampling)]
try:
    engine.generate([[5]], SamplingParams(temperature=1.0))
except ValueError as error:
    refused = str(error)
print(json.dumps([sum(read), tokens, refused, index]))
processes.finish()
"""
# bench/decode.py with a small model; tells its tokens on stderr at the end.
BENCH = """
import dataclasses, json, sys
sys.path.insert(0, sys.argv.pop(1))
import decode

shape = {"hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "intermediate": 128, "vocab": 256}
whole, stream, told = decode.llama3_8b, decode.Engine.stream, {}
decode.llama3_8b = lambda layers: dataclasses.replace(whole(layers), **shape)

def heard(self, *args):
    for output in stream(self, *args):
        told.setdefault(output.index, []).append(output.token)
        yield output

decode.Engine.stream = heard
decode.main()
print("told", json.dumps([told[i] for i in sorted(told)]), file=sys.stderr)
"""


@pytest.fixture
def model(write_gguf, tiny_weights) -> Path:
    """The tiny model's file."""
    return write_gguf(tiny_weights)


@pytest.fixture
def address():
    """Where a coordinator may listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def start():
    """Starts a Python process; ends what is left of them."""
    with contextlib.ExitStack() as stack:

        def begin(*command: str, **environment: str) -> subprocess.Popen:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ
                | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
                | environment,
            )
            stack.callback(_end, process)
            return process

        yield begin


@pytest.fixture
def generate(start, model, address):
    """Starts `intarsia generate` as one of several processes, placed by flags or as by a launcher."""

    def begin(
        count: int, index: int, *arguments: str, launcher: str | None = None, **environment: str
    ) -> subprocess.Popen:
        texts = [flag for text in PROMPTS for flag in ("--prompt", text)]
        settings = ["--model", str(model), "--no-chat-template", "--quantize", "none", *texts]
        place = ["--coordinator-address", address, "--num-processes", str(count), "--process-id"]
        place = [*place, str(index)] if count > 1 else []
        if launcher:
            place, (host, port) = ["--distributed"], address.split(":")
            said = LAUNCHERS[launcher].replace("HOST", host).replace("=I", f"={index}")
            environment |= dict(row.split("=") for row in said.split())
            environment["JAX_COORDINATOR_PORT"] = port  # JAX's choice may be taken on this machine
        command = ["-c", COMMAND, "generate", *settings, *place, "--max-tokens", "8"]
        return start(*command, *arguments, **environment)

    return begin


@pytest.fixture
def one_process(model, capsys) -> str:
    """What one process prints: this one, which takes less time than another."""
    texts = [flag for text in PROMPTS for flag in ("--prompt", text)]
    command = ["generate", "--model", str(model), "--no-chat-template", "--quantize", "none"]
    assert cli.main([*command, *texts, "--device", "cpu", "--max-tokens", "8"]) == 0
    return capsys.readouterr().out


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def _ends(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Their exit statuses, and what they printed."""
    ends = []
    for process in processes:
        out, err = process.communicate(timeout=BOUND)
        ends.append((process.returncode, out, err))
    return ends


def _said(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("intarsia generate: ")]


@pytest.mark.parametrize(
    ("count", "arguments"),
    [*DIVISIONS, (2, "--tensor-parallel 4 --decode-steps 3")],
)
def test_tokens_are_those_of_one_process(generate, one_process, count, arguments) -> None:
    ends = _ends([generate(count, i, *arguments.split()) for i in range(count)])
    assert [status for status, _, _ in ends] == [0] * count, ends
    assert ends[0][1] == one_process
    assert all(out == "" for _, out, _ in ends[1:])
    assert all("device " not in err and "loading" not in err for _, _, err in ends[1:])


@pytest.mark.parametrize("launcher", ["slurm", pytest.param("ompi", marks=pytest.mark.full)])
def test_a_launchers_variables_are_a_place(generate, one_process, launcher) -> None:
    arguments = ("--tensor-parallel", "2")
    ends = _ends([generate(2, i, *arguments, launcher=launcher) for i in range(2)])
    assert [end[:2] for end in ends] == [(0, one_process), (0, "")], ends


@pytest.mark.gpu
@pytest.mark.parametrize("division", ["--tensor-parallel", "--data-parallel"])
def test_a_process_a_gpu_gives_the_tokens_of_a_cpu(generate, division) -> None:
    if len(jax.devices("gpu")) < 2:
        pytest.skip("this machine has one GPU")
    arguments = (division, "2", "--dtype", "float32")
    own = [{"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": str(i)} for i in range(2)]
    [(status, expected, err)] = _ends([generate(1, 0)])
    assert status == 0 and len(expected.splitlines()) > len(PROMPTS), err
    ends = _ends([generate(2, i, *arguments, **own[i]) for i in range(2)])
    assert [end[:2] for end in ends] == [(0, expected), (0, "")], ends


def test_perplexity_is_that_of_one_process(start, model, address, capsys, tmp_path) -> None:
    (tmp_path / "text").write_text("hello the world 123 " * 6)
    command = ["perplexity", str(tmp_path / "text"), "--model", str(model), "--context", "32"]
    command += ["--quantize", "none"]
    assert cli.main([*command, "--device", "cpu"]) == 0
    expected = capsys.readouterr().out
    flags = ["--coordinator", address, "--num-processes", "2", "--data-parallel", "2"]
    ends = _ends([start("-c", COMMAND, *command, *flags, "--process-id", str(i)) for i in range(2)])
    assert [end[:2] for end in ends] == [(0, expected), (0, "")]


@pytest.mark.parametrize(("count", "arguments"), DIVISIONS)
def test_the_benchmark_decodes_the_tokens_of_one_process(start, address, count, arguments) -> None:
    sizes = ["--layers", "2", "--sequences", "4", "--context", "24", "--new-tokens", "8"]
    command = ["-c", BENCH, str(support.ROOT / "bench"), *sizes]
    [(status, _, err)] = _ends([start(*command)])
    assert status == 0, err
    expected = _told(err)
    assert len(expected) == 4 and all(len(tokens) == 8 for tokens in expected)
    place = ["--coordinator-address", address, "--num-processes", str(count), *arguments.split()]
    ends = _ends([start(*command, *place, "--process-id", str(i)) for i in range(count)])
    assert [status for status, _, _ in ends] == [0] * count, ends
    replicas = 2 if "data" in arguments else 1
    firsts = ends[:: count // replicas]
    assert [tokens for _, _, err in firsts for tokens in _told(err)] == expected
    assert ("all-reduce" in ends[0][1]) == ("tensor" in arguments)
    assert (f", {replicas} times: decode step" in ends[0][1]) == (replicas > 1)
    assert all(out == "" for _, out, _ in ends[1:])


def _told(err: str) -> list[list[int]]:
    [line] = [line for line in err.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))


def test_a_process_reads_its_part(start, model, address, tiny_weights) -> None:
    """Of matrices half, but that two devices have an even number of rows of the vocabulary; vectors whole."""
    ends = _ends([start("-c", LIBRARY, str(model), address, "2", str(i)) for i in range(2)])
    assert [status for status, _, _ in ends] == [0, 0], ends
    said = [json.loads(out.splitlines()[-1]) for _, out, _ in ends]
    whole = sum(array.nbytes for array in tiny_weights.values())
    vectors = sum(array.nbytes for array in tiny_weights.values() if array.ndim == 1)
    row = tiny_weights["model.embed_tokens.weight"][0].nbytes
    half = vectors + (whole - vectors) / 2
    assert sum(read for read, *_ in said) == pytest.approx(2 * half, abs=2 * row)
    assert all(read == pytest.approx(half, abs=row) for read, *_ in said)
    assert said[0][1] == said[1][1] and len(said[0][1][0]) == 8
    assert said[0][2] == "prompt 0: seed is None, expected the same number in each process"


def _wait_for(processes: list[subprocess.Popen], text: str) -> None:
    """Waits until process 0 has printed a text."""
    deadline, seen, pipe = time.monotonic() + BOUND, b"", processes[0].stderr.fileno()
    while text.encode() not in seen:
        assert time.monotonic() < deadline and processes[0].poll() is None, seen
        if select.select([pipe], [], [], 1)[0]:
            seen += os.read(pipe, 4096)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_ends_all(generate, how) -> None:
    processes = [generate(2, i, *LONG, "--heartbeat-timeout", "4") for i in range(2)]
    _wait_for(processes, "compiling")
    processes[1].send_signal(how)
    begin = time.monotonic()
    [(status, _, err)] = _ends(processes[:1])
    seconds = time.monotonic() - begin
    print(f"\n{how.name}: known after {seconds:.1f} s")
    assert seconds < 30
    line = "process 0 of 2: ended, since process 1 sent no heartbeat for 4 s"
    assert (status, _said(err)) == (1, [f"intarsia generate: {line}"])
    processes[1].send_signal(signal.SIGCONT)
    assert processes[1].wait(BOUND) != 0


def test_without_its_coordinator_a_process_ends(generate) -> None:
    processes = [generate(2, i, *LONG, "--heartbeat-timeout", "4") for i in range(2)]
    _wait_for(processes, "compiling")
    processes[0].kill()
    begin = time.monotonic()
    [(status, _, err)] = _ends(processes[1:])
    seconds = time.monotonic() - begin
    print(f"\ncoordinator: known after {seconds:.1f} s")
    assert seconds < 30 and status != 0
    assert "leader" in err or "process 1 of 2" in err


def test_an_error_of_one_process_is_everyones(generate, tmp_path) -> None:
    begin = time.monotonic()
    both, other = ["--tensor-parallel", "2"], ["--model", str(tmp_path / "nosuch.gguf")]
    processes = [generate(2, 0, *both), generate(2, 1, *both, *other)]
    processes[1].wait(BOUND)
    ended = time.monotonic()
    ends = _ends(processes)
    assert time.monotonic() - begin < 60
    print(f"\nan error: known {time.monotonic() - ended:.1f} s after the process had ended")
    text = f"model '{tmp_path}/nosuch.gguf' is neither"
    assert ends[0][0] == 1 and ends[1][0] == 2
    [said], [own] = _said(ends[0][2]), _said(ends[1][2])
    assert f"process 0 of 2: ended, since process 1 failed: {text}" in said
    assert f"process 1 of 2: {text}" in own


def test_nobody_comes(generate, address) -> None:
    """There is no coordinator; there is one and nobody else; something else has its port."""
    [(status, _, err)] = _ends([generate(2, 1, "--start-timeout", "1")])
    assert status == 2 and err.count("\n") == 1
    assert f"process 1 of 2: no coordinator at {address} within 1 s: " in err
    [(status, _, err)] = _ends([generate(2, 0, "--start-timeout", "2")])
    assert status == 1 and err == (
        "intarsia generate: process 0 of 2: fewer than 2 processes connected to the coordinator at "
        f"{address} within 2 s\n"
    )
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as stranger:
        lost = generate(2, 1)
        stranger.accept()[0].close()
        ends = _ends([generate(2, 0), lost])
    texts = (
        f"the coordinator cannot listen on {address}: Address already in use",
        f"no coordinator at {address}: something else listens there",
    )
    said = [[f"intarsia generate: process {i} of 2: {text}"] for i, text in enumerate(texts)]
    assert [(status, _said(err)) for status, _, err in ends] == [(2, line) for line in said]


def test_another_run_at_a_port_in_use_is_turned_away(generate, address, one_process) -> None:
    """JAX's coordinator would take its process 1 for a restart, and end the first run."""
    processes = [generate(2, i, *LONG) for i in range(2)]
    _wait_for(processes, "compiling")
    ends = _ends([generate(2, 0), generate(2, 1), generate(3, 2)])
    assert [status for status, _, _ in ends] == [2, 2, 2], ends
    texts = [
        f"process 0 of 2: the coordinator cannot listen on {address}: Address already in use",
        f"process 1 of 2: met another run at {address}, which has a process 1: give each run a port",
        f"process 2 of 3: the run at {address} has 2 processes, expected 3",
    ]
    assert [_said(err) for _, _, err in ends] == [[f"intarsia generate: {text}"] for text in texts]
    ends = _ends(processes)
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert all(text in ends[0][1] for text in one_process.replace(" [...]", "").splitlines())


def test_addresses_that_are_listened_at(start, address) -> None:
    """Never all interfaces: neither the coordinator's port nor gloo's."""
    script = """
import sys, jax, jax.numpy as jnp
from jax.experimental import multihost_utils
from intarsia.processes import Place, join
index = int(sys.argv[2])
processes = join(Place(sys.argv[1], 2, index), listen=f"127.0.0.{2 + index}" if index else None)
multihost_utils.process_allgather(jnp.ones(1))
inodes = set()
import os
for fd in os.listdir("/proc/self/fd"):
    try:
        inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            print("listens", fields[1].split(":")[0][-8:])
processes.finish()
"""
    ends = _ends([start("-c", script, address, str(i)) for i in range(2)])
    assert [status for status, _, _ in ends] == [0, 0], ends
    found = [{*re.findall(r"listens (\w+)", out)} for _, out, _ in ends]
    assert found == [{"0100007F"}, {"0300007F"}]


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
    ends = _ends([start("-c", script, address, str(i)) for i in range(2)])
    text = "no progress for 2 s; process 0 is at 'awake', process 1 is at 'asleep'"
    assert [status for status, _, _ in ends] == [1, 1]
    assert f"process 1 of 2: {text}\n" in ends[1][2]
    assert f"process 0 of 2: ended, since process 1 failed: {text}\n" in ends[0][2]
