"""Which of vLLM's processes are forked, and that they work."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from intarsia.vllm import forks
from jax._src import xla_bridge
from vllm.config import ParallelConfig
from vllm_running import FEW_PROGRAMS, SIZES


@pytest.mark.parametrize(
    ("options", "begun", "device", "version", "spawned"),
    [
        ({}, False, "cpu", 33, False),
        ({}, False, "cuda", 33, False),
        ({}, False, "cpu", 32, True),  # which has no answer to torch's threads
        ({}, False, "cuda", 32, False),  # as vLLM does it by itself
        ({}, True, "cpu", 33, True),
        ({"tensor_parallel_size": 2}, False, "cpu", 33, True),
        ({"data_parallel_size": 2}, False, "cpu", 33, True),
    ],
)
def test_processes_are_spawned(monkeypatch, options, begun, device, version, spawned):
    """But for an only engine, before JAX has threads: it is forked, as vLLM does it."""
    warnings = []
    warn = SimpleNamespace(warning_once=lambda text, *args: warnings.append(text % args))
    monkeypatch.setattr(forks, "logger", warn)
    helpers = {"_release_libgomp_threads": None} if version == 33 else {}
    monkeypatch.setattr(forks, "system_utils", SimpleNamespace(**helpers))
    monkeypatch.setattr(forks, "current_platform", SimpleNamespace(device_type=device))
    name = "VLLM_WORKER_MULTIPROC_METHOD"
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: begun)
    monkeypatch.delenv(name, raising=False)
    parallel = ParallelConfig(**options)
    forks.replace_start_of_processes(parallel)
    assert os.environ.get(name) == ("spawn" if spawned else None) and warnings == []
    monkeypatch.setenv(name, "fork")
    forks.replace_start_of_processes(parallel)
    assert os.environ[name] == ("spawn" if spawned else "fork")
    overridden = [f"intarsia-vllm: {name}=fork has no effect, spawn is used"]
    assert warnings == (overridden if spawned else [])


_FORKED = """
import json, multiprocessing, sys
import torch

torch.set_num_threads(2)
torch.randn(1 << 22).exp().sum()  # in parallel
from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], skip_tokenizer_init=True, **json.loads(sys.argv[2]))
engines = [type(process).__name__ for process in multiprocessing.active_children()]
sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
[request] = llm.generate([{"prompt_token_ids": [1, 2, 3]}], sampling, use_tqdm=False)
print(json.dumps([engines, request.outputs[0].token_ids]))
"""


def test_a_forked_engine_answers(model, tmp_path):
    """Although torch had threads: without vLLM's answer to that the engine hangs at its start."""
    if not hasattr(forks.system_utils, "_release_libgomp_threads"):
        pytest.skip("this vLLM's engines are spawned on CPUs")
    options = SIZES | {"dtype": "float32", "additional_config": FEW_PROGRAMS}
    command = [sys.executable, "-c", _FORKED, str(model("llama")), json.dumps(options)]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
    out = tmp_path / "out"
    with out.open("w") as stdout:
        process = subprocess.Popen(command, env=environment, stdout=stdout, start_new_session=True)
        try:
            assert process.wait(timeout=240) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in out.read_text().splitlines() if line.startswith("[[")]
    engines, tokens = json.loads(lines[-1])
    assert engines == ["ForkProcess"]
    assert len(tokens) == 8


_INSPECTED = """
import os, sys
from vllm.model_executor.models import registry
from intarsia.vllm import forks

spawned = registry._run_in_subprocess
forks.inspect_models()
forks.inspect_models()  # as each process's plugins do
ask = registry._run_in_subprocess
assert forks._spawned is spawned
me = os.getpid()
assert ask(lambda: (os.getppid(), os.getpid() != me)) == (me, True)

def fail():
    raise ValueError("of a class")

def end():
    os.write(2, b"last words")
    os._exit(0)

for function, told in ((fail, "of a class"), (lambda: os._exit(3), "exit status 3"), (end, "last words")):
    try:
        ask(function)
    except RuntimeError as error:
        assert told in str(error), error
    else:
        raise AssertionError(told)

import time
forks._PATIENCE = 1
forks._spawned = lambda function: "in time"
assert ask(lambda: time.sleep(60)) == "in time"
forks._spawned = spawned

import jax.numpy
jax.numpy.zeros(1)  # JAX's threads begin
forks._spawned = lambda function: "spawned"
assert ask(fail) == "spawned"
print("as it has to be")
"""


def test_models_are_inspected_in_a_fork():
    done = subprocess.run(
        [sys.executable, "-c", _INSPECTED], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.endswith("as it has to be\n"), done.stderr
