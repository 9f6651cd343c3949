"""How a model's step is compiled and made ready, whoever wrote the model."""

import os

import jax

_GRAPHS = "xla_gpu_enable_command_buffer"
# XLA on the CPU widens weights in 16 or 8 bits to f32 in every step. In the order that it prefers, which is for programs
# with more parallel branches than a transformer, it begins with all of them, and so needs room for the
# whole model in f32, asked from the system anew each time.
_ON_CPUS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def compile_step(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a step."""
    on_gpus = _on_gpus() if jax.devices()[0].platform == "gpu" else {}
    return lowered.compile(_ON_CPUS | on_gpus)


def _on_gpus() -> dict[str, str]:
    """What a CUDA graph holds: XLA's list and, from 0.12 on, its kernels for collectives.

    Those it would launch between graphs and on other streams: 8 us each, a tenth of a decode step on two
    H200s (docs/facts.md).
    """
    if jax.__version_info__ < (0, 12) or _GRAPHS in os.environ.get("XLA_FLAGS", ""):
        return {}
    kinds = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,COLLECTIVES_KERNEL"
    return {_GRAPHS: kinds}


def warm_up_runs() -> int:
    """How often a compiled step runs before it is timed or served.

    The first run prepares kernels and buffers. On a GPU, XLA launches that one call by call, records
    the next as a graph, and replays it from then on.
    """
    return 1 if jax.devices()[0].platform == "cpu" else 3
