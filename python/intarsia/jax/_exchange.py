"""Sums over GPUs through memory that they share, fused with the norm that follows (docs/adr/0013-exchange.md)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from intarsia import _native
from intarsia.jax._call import as_array, call
from intarsia.jax._ops import fused_add_rms_norm
from intarsia.jax._types import vary_alike

_NAME = "all_reduce_fused_add_rms_norm"
_PACK_BYTES = 16  # what a thread sends at once
_MAX_ROW_BYTES = 4 * 512 * _PACK_BYTES  # four packs a thread
# Each row goes to every other device, where an all-reduce of many rows would send it in two steps, a part to each.
_SENT_ROWS = 256


class Exchange(NamedTuple):
    """The inboxes of a mesh's devices, through which those of one axis hand each other rows.

    Both arrays are cut along their first axis, a part for each device: within `jax.shard_map` their specs are
    `x.sharding.spec`. A device's part is i32; ranks is the size of the mesh axis. A program writes to the inboxes
    without saying so, and keeps count in them: give them to no more than one program at a time, to none
    as a donation, and in a program to calls of which each depends on the one before.

    Attributes:
      addresses: [ranks + 1, 2]; of the device's own inbox, then of those of the devices that it sums with.
      inbox: [2 * ranks + 1, max_rows, packs, 4]
    """

    addresses: jax.Array
    inbox: jax.Array


def make_exchange(
    mesh: jax.sharding.Mesh, axis: str, *, columns: int, dtype: Any, max_rows: int | None = None
) -> Exchange | None:
    """Inboxes for rows [max_rows, columns] of a dtype, sent between the devices of a mesh axis.

    Args:
      mesh: the devices.
      axis: the mesh axis to sum over.
      columns, dtype: of the longest rows.
      max_rows: how many rows a call may have; default: 256 on two devices, and fewer on more, since a row goes to all.

    Returns:
      The inboxes; None where devices cannot write to each other's memory: they are no NVIDIA GPUs, belong to several
      processes, or have no path between them. `all_reduce_fused_add_rms_norm` takes that as well.

    Example:
      >>> exchange = make_exchange(mesh, "model", columns=4096, dtype=jnp.bfloat16)
    """
    devices = mesh.devices
    if not _reach_each_other(list(devices.flat)):
        return None
    ranks = mesh.shape[axis]
    max_rows = max_rows or _SENT_ROWS // max(ranks - 1, 1)
    packs = -(-columns * jnp.dtype(dtype).itemsize // _PACK_BYTES)
    shape = ((2 * ranks + 1) * devices.size, max_rows, packs, 4)
    sharding = jax.NamedSharding(mesh, jax.P(mesh.axis_names))
    inbox = jax.jit(lambda: jnp.full(shape, -1, jnp.int32), out_shardings=sharding)()
    addresses = np.zeros((devices.size, ranks + 1), np.int64)
    own = {s.device: s.data.unsafe_buffer_pointer() for s in inbox.addressable_shards}
    along = mesh.axis_names.index(axis)
    for row, place in zip(addresses, np.ndindex(devices.shape), strict=True):
        peers = devices[(*place[:along], slice(None), *place[along + 1 :])]
        row[:] = [own[device] for device in (devices[place], *peers)]
    words = addresses.view(np.int32).reshape(-1, 2)
    return Exchange(jax.device_put(words, sharding), jax.block_until_ready(inbox))


def all_reduce_fused_add_rms_norm(
    x: jax.Array,
    residual: jax.Array,
    weight: jax.Array | None = None,
    *,
    axis_name: str,
    exchange: Exchange | None = None,
    **settings: Any,
) -> tuple[jax.Array, jax.Array]:
    """`fused_add_rms_norm` of the sum of x over a mesh axis: what ends a branch under tensor parallelism.

    `residual' = psum(x) + residual; out = rms_norm(residual') * weight`, where the sum is rounded to T. To be called
    within `jax.shard_map`. In a program for GPUs with an exchange, calls of up to its max_rows rows are one
    kernel, in which each GPU writes its rows into the others' memory. Everything else, more rows or an
    exchange for shorter ones, is `lax.psum` and `fused_add_rms_norm`, as is what has to be differentiated: give
    that no exchange.

    Args:
      x: [..., n] T; this device's part of the sum.
      residual: [..., n] T; the residual stream, the same on all devices.
      weight: [n] T or f32; scale of each column; 1 if absent.
      axis_name: the mesh axis to sum over.
      exchange: this device's part of what `make_exchange` made for that axis.
      settings: `eps` and `rounding`, as `fused_add_rms_norm` has them.

    T is one of f32, f16 and bf16.

    Returns:
      out: [..., n] T; normed rows, the same on all devices.
      residual: [..., n] T; psum(x) + residual. In JAX's types both vary over the axis.

    Raises:
      ValueError: operands or settings do not fit; the text says which.

    Source: vLLM's fusion of all-reduce and norm (`fuse_allreduce_rms`).

    Example:
      >>> out, residual = all_reduce_fused_add_rms_norm(x, residual, weight, axis_name="model", exchange=exchange)
    """
    x = as_array(f"{_NAME}: x", x)

    def by_xla(x: jax.Array, residual: jax.Array, *weight: jax.Array) -> tuple[jax.Array, ...]:
        results = fused_add_rms_norm(lax.psum(x, axis_name), residual, *weight, **settings)
        return tuple(vary_alike([*results, x])[:2])

    def by_exchange(x: jax.Array, residual: jax.Array, *weight: jax.Array) -> tuple[jax.Array, ...]:
        operands = (x, residual, weight[0] if weight else None, *exchange)
        return call(_NAME, operands, **settings)

    weights = () if weight is None else (weight,)
    if exchange is None or not _has_room(exchange, x):
        return by_xla(x, residual, *weights)
    ranks, size = exchange.addresses.shape[0] - 1, lax.axis_size(axis_name)
    if ranks != size:
        raise ValueError(
            f"{_NAME}: exchange is for {ranks} devices, but mesh axis {axis_name!r} has {size}"
        )
    return lax.platform_dependent(x, residual, *weights, cuda=by_exchange, default=by_xla)


def _has_room(exchange: Exchange, x: jax.Array) -> bool:
    """Whether the rows fit into an inbox and are whole packs of it."""
    if x.ndim == 0:
        return False
    max_rows, packs = exchange.inbox.shape[1:3]
    row, rest = divmod(x.shape[-1] * x.dtype.itemsize, _PACK_BYTES)
    fits = row <= packs and row * _PACK_BYTES <= _MAX_ROW_BYTES
    return rest == 0 and fits and x.size <= max_rows * x.shape[-1]


def _reach_each_other(devices: Sequence[jax.Device]) -> bool:
    here = jax.process_index()
    if any(d.process_index != here or "cuda" not in d.client.platform_version for d in devices):
        return False
    try:
        _native.main_library().enable_peer_access([d.local_hardware_id for d in devices])
    except NotImplementedError:
        return False
    return True
