"""vLLM's entry points, which the distribution `intarsia-vllm` carries.

They run in every process that imports vLLM, most of which never touch a device: JAX is not imported here.
"""

import sys

from intarsia import _environment


def platform() -> str:
    """Of the group `vllm.platform_plugins`: the class of the platform to use.

    On a machine with an NVIDIA GPU that is the GPU, unless JAX_PLATFORMS or CUDA_VISIBLE_DEVICES says otherwise.
    """
    from intarsia.vllm import log_filters

    log_filters.leave_out()
    name = "cuda_platform.XlaCudaPlatform" if _wants_cuda() else "platforms.XlaCpuPlatform"
    return f"intarsia.vllm.{name}"


def register() -> None:
    """Of the group `vllm.general_plugins`: our layers, and our providers of vLLM's IR.

    vLLM's configuration names the providers, and is checked wherever it is unpickled.
    """
    from vllm.platforms import current_platform

    from intarsia.vllm import forks, metrics
    from intarsia.vllm.platforms import XlaPlatform

    if isinstance(current_platform, XlaPlatform):
        current_platform.import_ir_kernels()
        forks.inspect_models()
        metrics.serve_counts()
        # An engine's own process has it. Ranks do without: it would take a second to import.
        if "vllm.v1.engine.core" in sys.modules:
            from intarsia.vllm import replicas

            replicas.watch_servers()


def _wants_cuda() -> bool:
    platforms = _environment.jax_platforms()
    if platforms and not platforms & {"cuda", "gpu"}:
        return False
    return not _environment.hides_gpus() and _has_nvidia_gpu()


def _has_nvidia_gpu() -> bool:
    """By NVML, which makes no CUDA context."""
    from vllm.utils.import_utils import import_pynvml

    pynvml = import_pynvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return pynvml.nvmlDeviceGetCount() > 0
    finally:
        pynvml.nvmlShutdown()
