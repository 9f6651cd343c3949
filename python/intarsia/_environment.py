"""The environment variables that the Python side reads or sets, and nothing else of ours does.

The library reads its own (`INTARSIA_CHECK`, `INTARSIA_LOG`, `INTARSIA_ISA`, `INTARSIA_ARCH`) in src/core/config.cc. When a variable is set is
up to the caller: those that others read once must be there before that.
"""

import os

PJRT_PLUGIN = "INTARSIA_PJRT_PLUGIN"
"""The path of the PJRT plugin behind ours. The library reads it, too (src/pjrt)."""


def held_back_to() -> str | None:
    """The compute capability whose kernels a GPU is held back to, as "80". The library reads the variable, too (src/core/config.cc)."""
    return os.environ.get("INTARSIA_ARCH") or None


def child(**variables: str) -> dict[str, str]:
    """The environment of a process to start: this one's, with these variables."""
    return os.environ | variables


# ---------------------------------------------------------------------------- of JAX and XLA


def xla_flags() -> str:
    return os.environ.get("XLA_FLAGS", "")


def jax_platforms() -> set[str]:
    """The platforms that JAX is held to; empty if it may choose."""
    return {*os.environ.get("JAX_PLATFORMS", "").split(",")} - {""}


def default_jax_to_cpu() -> None:
    """For JAX's import, where nothing says otherwise."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def share_gpu_memory() -> None:
    """Has JAX's client on a GPU take memory when it needs it, and at most almost all of it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")


def hides_gpus() -> bool:
    """Whether CUDA is told to see no GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def jax_coordinator() -> str | None:
    """Where JAX's processes meet, for a cluster whose own variables do not say it."""
    return os.environ.get("JAX_COORDINATOR_ADDRESS")


def jax_coordinator_bind() -> str | None:
    """The address at which JAX's coordinator listens."""
    return os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")


def quiet_xla_log() -> None:
    """For JAX's import: XLA's log says why it aborts, and no more."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


# ---------------------------------------------------------------------------- of torch_xla


def torch_xla_device() -> str | None:
    return os.environ.get("PJRT_DEVICE")


def asked_pjrt_plugin() -> str | None:
    return os.environ.get(PJRT_PLUGIN) or None


def chosen_pjrt_plugin() -> str:
    """What `choose_pjrt_plugin` chose."""
    return os.environ[PJRT_PLUGIN]


def choose_pjrt_plugin(path: str) -> None:
    os.environ[PJRT_PLUGIN] = path


# ---------------------------------------------------------------------------- of vLLM

WORKER_START = "VLLM_WORKER_MULTIPROC_METHOD"


def default_to_first_runner() -> None:
    """vLLM's second runner needs Triton. To be called before any configuration is made."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def default_to_plain_heads() -> None:
    """Our kernels have no form for a cache of latents. To be called before any configuration is made."""
    os.environ.setdefault("VLLM_MLA_DISABLE", "1")


def leave_humming_unbuilt() -> None:
    """Kernels that vLLM has for CUDA, and our layers replace: each process that imports them starts two that build or load them."""
    os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")


def let_engines_end() -> None:
    """Of a server that is told to end vLLM kills the engines at once, or after this, in which they tell clients what they have so far."""
    os.environ.setdefault("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "5")


def spawn_workers() -> str | None:
    """Has vLLM spawn its workers. Returns the other way that was asked for, if one was."""
    asked = os.environ.get(WORKER_START, "spawn")
    os.environ[WORKER_START] = "spawn"
    return None if asked == "spawn" else asked


def metrics_folder() -> str | None:
    """Where processes of a server keep counts for it (`keep_metrics_in`)."""
    return os.environ.get("INTARSIA_METRICS_FOLDER")


def keep_metrics_in(folder: str) -> None:
    """For this process and those that it starts."""
    os.environ["INTARSIA_METRICS_FOLDER"] = folder


def vllm_host() -> str | None:
    """The address of this host that vLLM was told to listen at, for other hosts."""
    return os.environ.get("VLLM_HOST_IP") or None


def listen_at(address: str, interface: str) -> None:
    """Has vLLM's queues listen at one address, and torch's gloo at the interface that has it, unless another is given."""
    os.environ["VLLM_HOST_IP"] = address
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
