"""vLLM's platform: NVIDIA GPUs by XLA."""

import os
from typing import Any

from vllm.platforms.cuda import CudaPlatform

from intarsia.vllm.platforms import XlaCpuPlatform, XlaPlatform

# torch has weights and samples on the same GPU: XLA is to take what it needs, when it needs it, and may take almost all.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")


class XlaCudaPlatform(XlaPlatform, CudaPlatform):
    """Steps run by XLA on an NVIDIA GPU; torch samples there."""

    worker = "intarsia.vllm.worker.XlaGpuWorker"

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return CudaPlatform.is_pin_memory_available()

    @classmethod
    def support_deep_gemm(cls) -> bool:
        return False

    @classmethod
    def register_triton_kernel_overrides(cls) -> Any:
        # Not above: it asks which platform this is.
        from vllm.triton_utils import HAS_TRITON

        if not HAS_TRITON:
            XlaCpuPlatform.register_triton_kernel_overrides()
