"""A worker's profiler: JAX's trace, for torch's own knows nothing of XLA's programs."""

import os
from typing import Any

import jax
from vllm.config import ProfilerConfig
from vllm.logger import init_logger
from vllm.profiler.wrapper import WorkerProfiler

logger = init_logger("vllm.intarsia.profiler")


class JaxProfiler(WorkerProfiler):
    """vLLM's, which counts steps, and warns of what the tracer raises: one rank's error would leave the others' answers unread.

    Args:
      config: vLLM's --profiler-config.
    """

    def __init__(self, config: ProfilerConfig):
        super().__init__(config)
        self._root = self._folder = config.torch_profiler_dir

    def set_output_name(self, worker_name: str) -> None:
        """The folder of the next trace: JAX names one by host and second, so of two ranks' in one folder one would be left."""
        if not self._active:
            self._folder = os.path.join(self._root, worker_name)

    def start(self, **steps: Any) -> None:
        if self._active:
            logger.warning("intarsia-vllm: /start_profile: a profile is running, which goes on")
        super().start(**steps)

    def stop(self) -> None:
        if not self._active:
            logger.warning("intarsia-vllm: /stop_profile: no profile is running")
        super().stop()

    def _start(self) -> None:
        jax.profiler.start_trace(self._folder)

    def _stop(self) -> None:
        jax.profiler.stop_trace()
