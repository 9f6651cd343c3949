"""Tensor parallelism: a process for each device, as vLLM has them, and one XLA program over all.

vLLM's workers each hold their rank's share of the weights and of the KV heads. To JAX the shares are one array, stacked
along the first axis, and a step is a `shard_map` over it whose body is what vLLM's layers do on a rank.
"""

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.extend.backend import register_backend_factory
from jax.sharding import NamedSharding, PartitionSpec

_HOST = "127.0.0.1"
"""Where ranks meet: all of them are on one host, and nothing that they listen on asks who connects."""
AXIS = "tp"
"""The mesh's axis of ranks."""
_FAREWELL_SECONDS = 5
"""How long a rank that ends waits for the others to end. JAX would give one that is dead 5 minutes, in which nothing but
SIGKILL ends the rank that waits: it would outlive a server that is gone."""


def see_only(device: torch.device) -> None:
    """Gives JAX a worker's own GPU, before it touches any: else it would take memory on each that it sees.

    Both torch and XLA count the GPUs that CUDA shows to the process, so that one index means one GPU to them, whatever
    is in CUDA_VISIBLE_DEVICES. A CPU is JAX's own affair.
    """
    if device.type == "cuda":
        jax.config.update("jax_cuda_visible_devices", str(device.index))


def initialize(size: int, rank: int, broadcast: Callable[[Any], Any]) -> None:
    """Makes the ranks' JAX processes one, before any of them touches a device.

    Args:
      size: ranks, all on this host.
      rank: this process's.
      broadcast: gives every rank what rank 0 calls it with.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # As JAX registers it, but for the address of gloo's sockets.
    register_backend_factory("cpu", _cpu_client, priority=0, fail_quietly=False)
    with _reserved_port() if rank == 0 else nullcontext(0) as reserved:
        address = f"{_HOST}:{broadcast(reserved)}"
        jax.distributed.initialize(
            address,
            num_processes=size,
            process_id=rank,
            coordinator_bind_address=address,
            cluster_detection_method="deactivate",  # or Slurm's variables would choose a GPU
            shutdown_timeout_seconds=_FAREWELL_SECONDS,
        )


def _cpu_client() -> Any:
    """JAX's client of the CPU, its collectives on the loopback device alone.

    Where JAX makes gloo, it names no host, and gloo's sockets then listen on whatever address the host's name resolves to.
    """
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax

    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=_HOST
    )
    return xla_bridge.make_cpu_client(collectives)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A port that stays free for JAX's coordinator, which ends the process where it finds its port taken.

    A socket that is bound, and does not listen, keeps the port from all but those of this user who set SO_REUSEPORT, as
    gRPC's servers do (https://grpc.github.io/grpc/core/group__grpc__arg__keys.html, `grpc.so_reuseport`); the coordinator is one.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((_HOST, 0))
        yield holder.getsockname()[1]


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
