"""How a model's step is compiled and made ready, whoever wrote the model."""

import collections
import re
from typing import Any

import jax

from intarsia import _environment

_GRAPHS = "xla_gpu_enable_command_buffer"
# XLA on the CPU widens weights in 16 or 8 bits to f32 in every step. In the order that it prefers, which is for programs
# with more parallel branches than a transformer, it begins with all of them, and so needs room for the
# whole model in f32, asked from the system anew each time.
_ON_CPUS: dict[str, Any] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


# XLA times products alone, on an idle GPU, and takes Triton for some. In a whole step of Llama-8B with 64 tokens and more
# cuBLASLt's are faster (docs/notebook/vllm.md).
_TRITON = "xla_gpu_enable_triton_gemm"
_TUNING = "xla_gpu_autotune_level"
_FEWEST_BY_CUBLAS = 64
_CALL = re.compile(r'custom_call_target="intarsia\.(\w+)"')
# What a chain calls (src/ffi/chain.h). XLA quotes the text twice in a program for a GPU.
_CHAINED_OP = re.compile(r'\bop_(\d+) = \\?"(\w+)')
_CHAINED_CALLS = re.compile(r'\bprogram = \\?"([^"\\]*)')


def compile_step(
    lowered: jax.stages.Lowered, tokens: int = 1, *, to_run: bool = True
) -> jax.stages.Compiled:
    """Compiles a step of so many tokens with XLA's settings for transformers.

    to_run: else for its memory analysis alone: XLA times no kernels for it, for which its allocator would take memory and keep it.
    """
    devices = jax.devices()
    options = options_of_step(
        devices[0].platform,
        tokens,
        to_run=to_run,
        several=len(devices) > 1,
        flags=_environment.xla_flags(),
    )
    return lowered.compile(options)


def options_of_step(
    platform: str, tokens: int, *, to_run: bool = True, several: bool = False, flags: str = ""
) -> dict[str, Any]:
    """XLA's options for a step.

    Args:
        platform: What it runs on, `cpu` or `gpu`.
        tokens: How many it computes.
        to_run: Else it is compiled for its memory analysis alone.
        several: Whether there is more than one device.
        flags: XLA_FLAGS. An option goes before them, so one that is asked for there is left alone.
    """
    if platform == "cpu":
        options = dict(_ON_CPUS)
    elif platform == "gpu":
        # Without tuning XLA takes Triton for every product, where the program that runs has mostly cuBLASLt's.
        without_triton = tokens >= _FEWEST_BY_CUBLAS or not to_run
        options = {_TRITON: False} if without_triton else {}
        options |= _graphs() if several else {}
    else:
        options = {}
    options = {name: value for name, value in options.items() if name not in flags}
    # Whoever sets how programs are tuned means those that run.
    return options if to_run or platform != "gpu" else options | {_TUNING: 0}


def custom_calls(text: str) -> dict[str, int]:
    """Counts the library's calls in a compiled program's text, by name, those in chains among them: `{"rms_norm": 1, ...}`."""
    counts: collections.Counter[str] = collections.Counter()
    for line in text.splitlines():
        for name in _CALL.findall(line):
            counts.update(_chained(line) if name == "chain" else [name])
    return dict(sorted(counts.items()))


def _chained(line: str) -> list[str]:
    names = dict(_CHAINED_OP.findall(line))
    (program,) = _CHAINED_CALLS.findall(line)
    return [names[call.split()[0]] for call in program.split(";") if call.strip()]


def _graphs() -> dict[str, Any]:
    """With jax 0.12: what XLA records in CUDA graphs by default, and its kernels for collectives.

    Those it would launch between graphs and on other streams: 8 us each, 9% of a decode step on two
    H200s (docs/notebook/two_gpus.md). An option replaces XLA's list, so it is given only where that list is known.
    """
    if not (0, 12) <= jax.__version_info__ < (0, 13):
        return {}
    kinds = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,COLLECTIVES_KERNEL"
    return {_GRAPHS: kinds}


def on_gpu() -> bool:
    """Whether steps run on a GPU."""
    return jax.devices()[0].platform == "gpu"


def warm_up_runs() -> int:
    """How often a compiled step runs before it is timed or served.

    The first run prepares kernels and buffers. On a GPU, XLA launches that one call by call, records
    the next as a graph, and replays it from then on.
    """
    return 1 if jax.devices()[0].platform == "cpu" else 3
