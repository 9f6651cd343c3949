"""Tensor parallelism: a process for each device, as vLLM has them, and one XLA program over all.

vLLM's workers each hold their rank's share of the weights and of the KV heads. To JAX the shares are one array, stacked
along the first axis, and a step is a `shard_map` over it whose body is what vLLM's layers do on a rank.
"""

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding, PartitionSpec

from intarsia.processes import Limits, Place, Processes, addresses, join

AXIS = "tp"
"""The mesh's axis of ranks."""
_FAREWELL_SECONDS = 2
"""How long a rank that ends waits for the others to end (intarsia/processes/endings.py). vLLM kills a worker that takes more
than 5 (VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS)."""
_processes: Processes | None = None
"""The ranks, if there are several."""
_addresses: list[str] = []
"""Theirs, if they are on several hosts."""


def see_only(device: torch.device) -> None:
    """Gives JAX a worker's own GPU, before it touches any: else it would take memory on each that it sees.

    Both torch and XLA count the GPUs that CUDA shows to the process, so that one index means one GPU to them, whatever
    is in CUDA_VISIBLE_DEVICES. A CPU is JAX's own affair.
    """
    if device.type == "cuda":
        jax.config.update("jax_cuda_visible_devices", str(device.index))


def initialize(
    rank: int,
    gather: Callable[[Any], list[Any]],
    address: str,
    limits: Limits,
    say: Callable[[str], None],
) -> Processes:
    """Makes the ranks' JAX processes one, before any of them touches a device.

    Args:
      rank: This process's.
      gather: Gives every rank what each calls it with.
      address: Where this one listens.
      limits: How long they wait for each other.
      say: Logs why a rank ends.
    """
    global _processes
    with addresses.reserved_port(address) if rank == 0 else nullcontext(0) as port:
        met = gather((address, port))
        several = len({host for host, _ in met}) > 1
        _addresses[:] = [host for host, _ in met] if several else []
        names = [f"rank {i}" + several * f" at {host}" for i, (host, _) in enumerate(met)]
        _processes = join(
            Place(addresses.host_port(*met[0]), len(met), rank),
            limits,
            listen=address,
            say=say,
            names=names,
            port_known=True,
        )
    _processes.rest()
    return _processes


def mark(text: str) -> None:
    """Says what this rank does, for the case that it gets no further."""
    if _processes is not None:
        _processes.mark(text)


def rest() -> None:
    """Says that this rank has nothing to do."""
    if _processes is not None:
        _processes.rest()


def blame(error: Exception) -> str:
    """The ranks of the host that an error of a collective names; empty if it names none."""
    if _processes is None:
        return ""
    text, own = str(error), _processes.index
    there = [i for i, host in enumerate(_addresses) if i != own and f"[{host}]" in text]
    return " or ".join(f"rank {i} at {_addresses[i]}" for i in there)


def leave() -> None:
    """Ends this rank's part."""
    global _processes
    if _processes is not None:
        processes, _processes = _processes, None
        processes.leave(_FAREWELL_SECONDS)


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

    def meet(self) -> None:
        """Returns when every rank has called it."""
        from vllm.distributed import get_tp_group

        if self.size > 1:
            get_tp_group().barrier()

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
