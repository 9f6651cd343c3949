"""How a model's step is compiled and made ready, whoever wrote the model."""

from typing import Any

import jax

from intarsia import _environment

_GRAPHS = "xla_gpu_enable_command_buffer"
# XLA on the CPU widens weights in 16 or 8 bits to f32 in every step. In the order that it prefers, which is for programs
# with more parallel branches than a transformer, it begins with all of them, and so needs room for the
# whole model in f32, asked from the system anew each time.
_ON_CPUS: dict[str, str | bool] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


# XLA times products alone, on an idle GPU, and takes Triton for some. In a whole step of Llama-8B with 64 tokens and more
# cuBLASLt's are faster (docs/notebook/vllm.md).
_TRITON = "xla_gpu_enable_triton_gemm"
_TUNING = "xla_gpu_autotune_level"
_FEWEST_BY_CUBLAS = 64


def compile_step(
    lowered: jax.stages.Lowered, tokens: int = 1, *, to_run: bool = True
) -> jax.stages.Compiled:
    """Compiles a step of so many tokens with XLA's settings for transformers.

    to_run: else for its memory analysis alone: XLA times no kernels for it, for which its allocator would take memory and keep it.
    """
    devices = jax.devices()
    several_gpus = devices[0].platform == "gpu" and len(devices) > 1
    # An option goes before XLA_FLAGS, so what is asked for there is left alone.
    large = tokens >= _FEWEST_BY_CUBLAS or not to_run
    by_cublas = large and _TRITON not in _environment.xla_flags()
    products: dict[str, Any] = {_TRITON: False} if by_cublas else {}
    untuned: dict[str, Any] = {} if to_run else {_TUNING: 0}
    return lowered.compile(_ON_CPUS | products | untuned | (_graphs() if several_gpus else {}))


def _graphs() -> dict[str, str | bool]:
    """With jax 0.12: what XLA records in CUDA graphs by default, and its kernels for collectives.

    Those it would launch between graphs and on other streams: 8 us each, 9% of a decode step on two
    H200s (docs/notebook/two_gpus.md). An option replaces XLA's list, so it is given only where that list is known,
    and it goes before XLA_FLAGS, so a list given there is left alone.
    """
    known = (0, 12) <= jax.__version_info__ < (0, 13)
    if not known or _GRAPHS in _environment.xla_flags():
        return {}
    kinds = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,COLLECTIVES_KERNEL"
    return {_GRAPHS: kinds}


def warm_up_runs() -> int:
    """How often a compiled step runs before it is timed or served.

    The first run prepares kernels and buffers. On a GPU, XLA launches that one call by call, records
    the next as a graph, and replays it from then on.
    """
    return 1 if jax.devices()[0].platform == "cpu" else 3
