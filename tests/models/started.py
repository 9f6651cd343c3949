"""`intarsia generate` in several processes that tests start, and how these end."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import running

BOUND = 120  # s, of a machine that has other things to do
PROMPTS = ("the", "hello 123", "12")
LONG = ("--tensor-parallel", "2", "--max-tokens", "400", "--max-model-len", "500")
# What each sets for process I of two, whose first is on HOST.
LAUNCHERS = {
    "slurm": "SLURM_JOB_ID=7 SLURM_STEP_NODELIST=HOST SLURM_NTASKS=2 SLURM_PROCID=I SLURM_LOCALID=I",
    "ompi": "OMPI_MCA_orte_hnp_uri=1531576320.0;tcp://HOST:34911 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=I "
    "OMPI_COMM_WORLD_LOCAL_RANK=I",
}
COMMAND = "import sys; from intarsia.cli import main; sys.exit(main())"


@contextlib.contextmanager
def starting() -> Iterator[Callable[..., subprocess.Popen]]:
    """A function that starts a Python process; ends what is left of them."""
    with contextlib.ExitStack() as stack:

        def begin(*command: str, **environment: str) -> subprocess.Popen:
            usual = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
            usual["XLA_FLAGS"] = running.flags_of_jax()
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | usual | environment,
            )
            stack.callback(_end, process)
            return process

        yield begin


def free_address() -> str:
    """Where a coordinator may listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def arguments(model: Path | str) -> list[str]:
    """Of the command that all of them are to run, and one process beside them."""
    texts = [flag for text in PROMPTS for flag in ("--prompt", text)]
    settings = ["--no-chat-template", "--quantize", "none", "--max-tokens", "8"]
    return ["generate", "--model", str(model), *settings, *texts]


def place(
    address: str, count: int, index: int, launcher: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """The flags, and what a launcher sets in their stead."""
    if launcher:
        host, port = address.split(":")
        said = LAUNCHERS[launcher].replace("HOST", host).replace("=I", f"={index}")
        environment = dict(row.split("=") for row in said.split())
        # JAX's choice of a port may be taken on this machine.
        return ["--distributed"], environment | {"JAX_COORDINATOR_PORT": port}
    if count == 1:
        return [], {}
    flags = ["--coordinator-address", address, "--num-processes", str(count)]
    return [*flags, "--process-id", str(index)], {}


def ends(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Their exit statuses, and what they printed."""
    found = []
    for process in processes:
        out, err = process.communicate(timeout=BOUND)
        found.append((process.returncode, out, err))
    return found


def said(err: str) -> list[str]:
    """The lines of the command itself."""
    return [line for line in err.splitlines() if line.startswith("intarsia generate: ")]


def wait_for(processes: list[subprocess.Popen], text: str) -> None:
    """Waits until process 0 has printed a text."""
    deadline, seen, pipe = time.monotonic() + BOUND, b"", processes[0].stderr.fileno()
    while text.encode() not in seen:
        assert time.monotonic() < deadline and processes[0].poll() is None, seen
        if select.select([pipe], [], [], 1)[0]:
            seen += os.read(pipe, 4096)


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
