"""Which platforms are tested, and hypothesis' profiles."""

import gc
import importlib.util
import os
import shutil

# Before NumPy and torch are imported, here and in the processes that tests start. OpenBLAS' threads spin while they
# wait: on two cores the references' small matrix products took 20 times the CPU seconds.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Several processes of tests may share a GPU, and torch be in them.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# torch asks in three processes which vector instructions work, each time that inductor is there first; those the CPU lists do.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Half of compiling plain XLA's programs is optimizing, its newer emitters take twice the time of the older ones, and for each
# part of a program LLVM is set up anew. None has a part in ours. `make test-full` leaves all on.
FULL = os.environ.get("INTARSIA_TEST_FULL") == "1"
QUICK = not FULL and shutil.which("nvidia-smi") is None
if QUICK:
    _flags = ("--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1")
    os.environ["XLA_FLAGS"] = " ".join((*_flags, os.environ.get("XLA_FLAGS", ""))).strip()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
import running  # noqa: E402

# Devices enough for sharding; everything else runs on the first.
jax.config.update("jax_num_cpu_devices", 8)
if QUICK:  # JAX reads its flags when the backend starts; torch_xla in another process would not know this one
    with pytest.MonkeyPatch.context() as _patch:
        _patch.setenv("XLA_FLAGS", running.flags_of_jax())
        jax.devices("cpu")

_SETTINGS = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("default", max_examples=60, **_SETTINGS)
hypothesis.settings.register_profile("ci", max_examples=60, derandomize=True, **_SETTINGS)
hypothesis.settings.register_profile("thorough", max_examples=3000, **_SETTINGS)
# CI is what CI services set; --hypothesis-profile goes before it.
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


# What folders of tests need; a GPU machine that runs the ops' tests may lack it.
_NEEDED = {
    "models": ("gguf", "jinja2", "safetensors", "tokenizers", "tqdm"),
    "vllm_plugin": ("vllm",),
}
_missing = {
    folder: [name for name in names if importlib.util.find_spec(name) is None]
    for folder, names in _NEEDED.items()
}
collect_ignore = [folder for folder, names in _missing.items() if names]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torch-ops",
        action="append",
        default=[],
        metavar="LIBRARY",
        help="a compiled library of torch ops, such as vLLM's _C.abi3.so, for the tests of the bridge",
    )
    parser.addoption(
        "--mutants",
        type=int,
        default=400,
        metavar="N",
        help="how many broken model files the tests of the readers try",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Not in the header, which `-q` suppresses."""
    lines = [f"tests/{x} left out: no {', '.join(_missing[x])}" for x in collect_ignore]
    for platform in running.PLATFORMS:
        reason = running.why_not(platform)
        if reason:
            lines.append(f"intarsia on {platform}: not tested, {reason}")
        else:
            kinds = sorted({device.device_kind for device in jax.devices(platform)})
            lines.append(f"intarsia on {platform}: tested on {', '.join(kinds)}")
    for line in lines:
        terminalreporter.write_line(line)


def pytest_collection_finish() -> None:
    """The modules stay; the garbage collector need not look at them each time, nor after every 700 new objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = running.why_not("gpu")
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))
