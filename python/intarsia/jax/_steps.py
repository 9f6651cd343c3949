"""How a model's step is compiled and made ready, whoever wrote the model."""

import jax


def compile_step(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a step.

    XLA on the CPU widens weights in 16 or 8 bits to f32 in every step. In the order that it prefers,
    which is for programs with more parallel branches than a transformer, it begins with all of them,
    and so needs room for the whole model in f32, asked from the system anew each time.
    """
    return lowered.compile({"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"})


def warm_up_runs() -> int:
    """How often a compiled step runs before it is timed or served.

    The first run prepares kernels and buffers. On a GPU, XLA launches that one call by call, records
    the next as a graph, and replays it from then on.
    """
    return 1 if jax.devices()[0].platform == "cpu" else 3
