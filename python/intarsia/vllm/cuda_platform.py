"""vLLM's platform: NVIDIA GPUs by XLA.

Not derived from vLLM's own for CUDA, whose module loads vLLM's compiled ops: a vLLM without them is enough.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from vllm.platforms.interface import DeviceCapability
from vllm.utils.import_utils import import_pynvml

from intarsia import _environment
from intarsia.vllm.platforms import XlaPlatform

# torch has weights and samples on the same GPU: XLA is to take what it needs, when it needs it, and may take almost all.
_environment.share_gpu_memory()

_nvml = import_pynvml()
_OLDEST = (8, 0)
"""Compute capability that our kernels are built for, at least."""


def _jax_has_cuda() -> bool:
    """Whether JAX has a plugin for CUDA. With no plugin at all there is no `jax_plugins` to look into."""
    return find_spec("jax_plugins") is not None and any(
        find_spec(f"jax_plugins.xla_{cuda}") for cuda in ("cuda13", "cuda12")
    )


@contextmanager
def _nvml_device(physical_id: int) -> Iterator[Any]:
    """A device by NVML, which makes no CUDA context: vLLM's API server asks, too."""
    _nvml.nvmlInit()
    try:
        yield _nvml.nvmlDeviceGetHandleByIndex(physical_id)
    finally:
        _nvml.nvmlShutdown()


class XlaCudaPlatform(XlaPlatform):
    """Steps run by XLA on an NVIDIA GPU; torch samples there."""

    device_name = device_type = "cuda"
    dispatch_key = "CUDA"
    dist_backend = "nccl"
    ray_device_key = "GPU"
    # A GPU has one number to Ray, vLLM, torch and JAX only if each process sees all.
    ray_noset_device_env_vars: ClassVar[list[str]] = ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]
    device_control_env_var = "CUDA_VISIBLE_DEVICES"
    worker = "intarsia.vllm.worker.XlaWorker"

    @classmethod
    def device_control_id_to_physical_device_id(cls, device_id: str) -> int:
        if device_id.isdigit():
            return int(device_id)
        _nvml.nvmlInit()  # a UUID
        try:
            return _nvml.nvmlDeviceGetIndex(_nvml.nvmlDeviceGetHandleByUUID(device_id))
        finally:
            _nvml.nvmlShutdown()

    @classmethod
    @cache
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        with _nvml_device(cls.visible_device_id_to_physical_device_id(device_id)) as device:
            return DeviceCapability(*_nvml.nvmlDeviceGetCudaComputeCapability(device))

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        with _nvml_device(cls.device_id_to_physical_device_id(device_id)) as device:
            return _nvml.nvmlDeviceGetName(device)

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        with _nvml_device(cls.device_id_to_physical_device_id(device_id)) as device:
            return _nvml.nvmlDeviceGetUUID(device)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        with _nvml_device(cls.device_id_to_physical_device_id(device_id)) as device:
            return int(_nvml.nvmlDeviceGetMemoryInfo(device).total)

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return torch.cuda.memory_allocated(device)

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:
        return bool(torch.cuda.get_device_properties(device_id).is_integrated)

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return torch.cuda.get_device_properties(device_id).multi_processor_count

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.cuda.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.cuda.manual_seed_all(seed)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        if not _jax_has_cuda():
            raise RuntimeError(
                "intarsia-vllm: there is an NVIDIA GPU, but JAX has no plugin for it: install jax[cuda13], or set "
                "JAX_PLATFORMS=cpu"
            )
        super().check_and_update_config(vllm_config)

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        capability = cls.get_device_capability()
        if tuple(capability) < _OLDEST:
            raise ValueError(
                f"intarsia-vllm: {cls.get_device_name()} has compute capability {capability.as_version_str()}, "
                f"expected {_OLDEST[0]}.{_OLDEST[1]} or newer"
            )

    @classmethod
    def supports_fp8(cls) -> bool:
        return tuple(cls.get_device_capability()) >= (8, 9)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return True

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        # Not above: it asks which platform this is.
        from vllm.triton_utils import HAS_TRITON

        if not HAS_TRITON:
            super().register_triton_kernel_overrides()
