"""Collectives between ranks: XLA's within a program, torch's without."""

import jax
import torch
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from intarsia.vllm.compat import is_traced
from intarsia.vllm.layers import call_jax
from intarsia.vllm.parallel import AXIS


class XlaCommunicator(DeviceCommunicatorBase):
    """What vLLM's layers call to add up or to collect shares."""

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        if not is_traced(input_):
            return super().all_reduce(input_)
        return call_jax(lambda x: jax.lax.psum(x, AXIS), input_)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if not is_traced(input_):
            return super().all_gather(input_, dim)
        axis = dim % input_.ndim
        return call_jax(lambda x: jax.lax.all_gather(x, AXIS, axis=axis, tiled=True), input_)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        if not is_traced(input_):
            return super().reduce_scatter(input_, dim)
        axis = dim % input_.ndim
        return call_jax(
            lambda x: jax.lax.psum_scatter(x, AXIS, scatter_dimension=axis, tiled=True), input_
        )

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        # A program is the same on every rank: each gets what one asked for.
        if not is_traced(input_):
            return super().gather(input_, dst, dim)
        return self.all_gather(input_, dim)
