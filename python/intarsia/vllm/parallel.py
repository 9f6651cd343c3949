"""Tensor parallelism: a process for each device, as vLLM has them, and one XLA program over all.

vLLM's workers each hold their rank's share of the weights and of the KV heads. To JAX the shares are one array, stacked
along the first axis, and a step is a `shard_map` over it whose body is what vLLM's layers do on a rank.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding, PartitionSpec

AXIS = "tp"
"""The mesh's axis of ranks."""


def initialize(size: int, rank: int, local_rank: int, broadcast: Callable[[Any], Any]) -> None:
    """Makes the ranks' JAX processes one, before any of them touches a device.

    Args:
      size: ranks, all on this host.
      rank: this process's.
      local_rank: the index of its GPU, of no meaning on a CPU.
      broadcast: gives every rank what rank 0 calls it with.
    """
    import socket

    port = 0
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    port = broadcast(port)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        num_processes=size,
        process_id=rank,
        local_device_ids=[local_rank] if torch.cuda.is_available() else None,
    )


class Ranks:
    """The ranks that run a step together; with one of them, everything is as it is."""

    def __init__(self, size: int):
        self.size = size
        self._mesh = jax.make_mesh((size,), (AXIS,)) if size > 1 else None

    def stacked(self, tree: Any) -> Any:
        """This rank's arrays as parts of arrays over all ranks. A scalar counts as the same on each."""
        return jax.tree.map(self._stack, tree) if self._mesh else tree

    def own(self, array: jax.Array) -> jax.Array:
        """This rank's part."""
        return array.addressable_data(0) if self._mesh else array

    def spread(self, function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
        """The function of a rank's arrays, run on each rank's parts of `args` and of others like them."""
        if self._mesh is None:
            return function
        specs = jax.tree.map(_spec, args)
        # Every rank gathers the same logits, but JAX takes what was gathered for varying.
        return jax.shard_map(
            function,
            mesh=self._mesh,
            in_specs=specs,
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )

    def agree(self, program: str) -> None:
        """Raises on each rank whose program, as text, is not rank 0's: together they would wait forever, or be wrong."""
        from vllm.distributed import get_tp_group

        own = hashlib.sha256(program.encode()).hexdigest()
        if get_tp_group().broadcast_object(own, src=0) != own:
            raise NotImplementedError(
                "tensor parallelism: this model's layers compute something else on each rank, expected one program for all"
            )

    def abstract(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """An array as `stacked` would return it, without data."""
        if self._mesh is None:
            return jax.ShapeDtypeStruct(shape, dtype)
        return jax.ShapeDtypeStruct(
            self._whole(shape), dtype, sharding=NamedSharding(self._mesh, _spec(shape))
        )

    def _stack(self, array: jax.Array) -> jax.Array:
        sharding = NamedSharding(self._mesh, _spec(array))
        # An array that came from torch may name its device otherwise.
        part = jax.device_put(array, jax.local_devices()[0])
        return jax.make_array_from_single_device_arrays(
            self._whole(array.shape), sharding, [jnp.asarray(part)]
        )

    def _whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] * self.size, *shape[1:]) if shape else ()


def _spec(array: Any) -> PartitionSpec:
    shape = getattr(array, "shape", array)
    return PartitionSpec(AXIS) if shape else PartitionSpec()
