"""What is asked of vLLM and overridden is said in its log; what vLLM takes by default is not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from intarsia.vllm import settings
from jax._src import xla_bridge
from vllm.config import CompilationMode, CUDAGraphMode, ParallelConfig
from vllm_running import FEW_PROGRAMS, SIZES


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What goes to the log, by level, each time; vLLM's logger says it once."""
    told = SimpleNamespace(warnings=[], infos=[])
    logger = SimpleNamespace(
        warning_once=lambda text, *args: told.warnings.append(text % args),
        info_once=lambda text, *args: told.infos.append(text % args),
    )
    monkeypatch.setattr(settings, "logger", logger)
    return told


@pytest.mark.parametrize(
    "options", [{}, {"enforce_eager": True}, {"optimization_level": 2}], ids=str
)
def test_defaults_are_no_wishes(configured, said, options):
    compilation = configured(**options).compilation_config
    assert said.warnings == []
    assert compilation.mode == CompilationMode.NONE
    assert compilation.cudagraph_mode == CUDAGraphMode.NONE


@pytest.mark.parametrize(
    "options", [{}, {"optimization_level": 0}, {"compilation_config": {"mode": 3}}], ids=str
)
def test_what_was_said_once_and_filled_in_is_no_wish(configured, said, options):
    configuration = configured(**options)
    said.warnings.clear()
    settings.replace_compilation(configuration)
    assert said.warnings == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"optimization_level": 0}, ["--optimization-level 0 "]),
        ({"compilation_config": {"mode": 3}}, ["mode=VLLM_COMPILE ", "mode=NONE"]),
        ({"compilation_config": {"backend": "inductor"}}, ["backend=inductor ", "backend=eager"]),
        (
            {"compilation_config": {"cudagraph_mode": "FULL", "compile_sizes": [1]}},
            [
                "--compilation-config ",
                "compile_sizes=[1]",
                "cudagraph_mode=FULL",
                "cudagraph_mode=NONE",
            ],
        ),
        ({"cudagraph_capture_sizes": [1, 2]}, ["cudagraph_capture_sizes=[1, 2] "]),
        ({"max_cudagraph_capture_size": 64}, ["max_cudagraph_capture_size=64 "]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wish_that_is_overridden_is_named(configured, said, options, expected):
    compilation = configured(**options).compilation_config
    [warning] = said.warnings
    assert all(part in warning for part in ["has no effect", *expected])
    assert compilation.mode == CompilationMode.NONE
    assert compilation.cudagraph_mode == CUDAGraphMode.NONE
    assert compilation.cudagraph_capture_sizes == []
    assert compilation.custom_ops == ["all"], "our layers would be off"


def test_custom_ops_are_the_users(configured, said):
    wish = ["all", "-silu_and_mul"]
    configuration = configured(compilation_config={"custom_ops": wish})
    assert configuration.compilation_config.custom_ops == wish
    assert said.warnings == []


def test_a_cpu_schedules_synchronously(configured, said):
    assert not configured(async_scheduling=True).scheduler_config.async_scheduling
    assert "a CPU runs" in said.infos[-1] and said.warnings == []


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
def test_processes_are_spawned(monkeypatch, said, options, begun, device, version, spawned):
    """But for an only engine, before JAX has threads: it is forked, as vLLM does it."""
    helpers = {"_release_libgomp_threads": None} if version == 33 else {}
    monkeypatch.setattr(settings, "system_utils", SimpleNamespace(**helpers))
    monkeypatch.setattr(settings, "current_platform", SimpleNamespace(device_type=device))
    name = "VLLM_WORKER_MULTIPROC_METHOD"
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: begun)
    monkeypatch.delenv(name, raising=False)
    parallel = ParallelConfig(**options)
    settings.replace_start_of_processes(parallel)
    assert os.environ.get(name) == ("spawn" if spawned else None) and said.warnings == []
    monkeypatch.setenv(name, "fork")
    settings.replace_start_of_processes(parallel)
    assert os.environ[name] == ("spawn" if spawned else "fork")
    overridden = [f"intarsia-vllm: {name}=fork has no effect, spawn is used"]
    assert said.warnings == (overridden if spawned else [])


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
    if not hasattr(settings.system_utils, "_release_libgomp_threads"):
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
