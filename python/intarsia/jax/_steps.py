"""How a model's step is compiled and made ready, whoever wrote the model."""

import os

import jax

_GRAPHS = "xla_gpu_enable_command_buffer"


def compile_step(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a step."""
    return lowered.compile(_options(jax.devices()[0].platform))


def _options(platform: str) -> dict[str, str]:
    """XLA's settings for a step on a platform."""
    if platform == "cpu":
        # XLA widens weights in 16 or 8 bits to f32 in every step. In the order that it prefers, which is for
        # programs with more parallel branches than a transformer, it begins with all of them, and so needs
        # room for the whole model in f32, asked from the system anew each time.
        return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if jax.__version_info__ >= (0, 12) and _GRAPHS not in os.environ.get("XLA_FLAGS", ""):
        # XLA's list and, from 0.12 on, its kernels for collectives. It would launch those between graphs, on
        # other streams: 8 us each, 0.5 ms a step of Llama 3 8B on two H200s (docs/facts.md).
        kinds = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,COLLECTIVES_KERNEL"
        return {_GRAPHS: kinds}
    return {}


def warm_up_runs() -> int:
    """How often a compiled step runs before it is timed or served.

    The first run prepares kernels and buffers. On a GPU, XLA launches that one call by call, records
    the next as a graph, and replays it from then on.
    """
    return 1 if jax.devices()[0].platform == "cpu" else 3
