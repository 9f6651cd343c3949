"""Sums over GPUs through memory that they share, fused with the norm that follows (docs/adr/0013-exchange.md)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from intarsia import _native
from intarsia.jax import wire
from intarsia.jax._call import as_array, call
from intarsia.jax._platforms import with_fallback
from intarsia.jax._types import vary_alike

_NAME = "all_reduce_fused_add_rms_norm"
_PACK_BYTES = 16  # what a thread sends at once
# Each row goes to every other device, where an all-reduce of many rows would send it in two steps, a part to each.
_SENT_ROWS = 256


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["addresses", "inbox"], meta_fields=["axis"]
)
@dataclass(frozen=True)
class Exchange:
    """The inboxes of a mesh's devices, through which those of one axis hand each other rows.

    Both arrays are cut along their first axis, a part for each device: for `jax.shard_map` the spec of an exchange is
    `jax.P(mesh.axis_names)`. Programs write into the inboxes without saying so, and keep count in them. So:

    - Make an exchange an argument of the function that is jitted. What it closes over would be a constant of the
      program, with addresses that live no longer than the exchange.
    - Keep it for as long as such a program may run. Donate it to none, and take none from a program's results: the
      addresses are those of this very array.
    - Programs with collectives, these among them, must come to all devices in the same order, as they do when one
      thread calls them. In a program each call must depend on the one before.

    Attributes:
      addresses: i32; of a device [ranks + 1, 2], ranks being the size of the axis. The first 64 bits are for its own
        inbox, the others for those of the devices that it sums with.
      inbox: i32; of a device [2 * ranks + 1, max_rows, packs of 16 bytes, 4].
      axis: the mesh axis.
    """

    addresses: jax.Array
    inbox: jax.Array
    axis: str


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
      The inboxes; None where devices cannot write to each other's memory (they are no NVIDIA GPUs, belong to several
      processes, or have no path between them), or a row has more than 32 KB. `all_reduce_fused_add_rms_norm`
      takes that as well.

    Raises:
      ValueError: the mesh has no such axis, or a size is not positive.

    Example:
      >>> exchange = make_exchange(mesh, "model", columns=4096, dtype=jnp.bfloat16)
    """
    if axis not in mesh.shape:
        raise ValueError(f"make_exchange: axis is {axis!r}, expected one of {mesh.axis_names}")
    ranks = mesh.shape[axis]
    if max_rows is None:
        max_rows = _SENT_ROWS // max(ranks - 1, 1)
    for name, size in (("columns", columns), ("max_rows", max_rows)):
        if size < 1:
            raise ValueError(f"make_exchange: {name} is {size}, expected at least 1")
    packs = -(-columns * jnp.dtype(dtype).itemsize // _PACK_BYTES)
    part = (2 * ranks + 1, max_rows, packs, 4)
    devices = mesh.devices
    if not _kernel_takes_rows_of(part) or not _reach_each_other(list(devices.flat)):
        return None
    sharding = jax.NamedSharding(mesh, jax.P(mesh.axis_names))
    shape = (part[0] * devices.size, *part[1:])
    inbox = jax.jit(lambda: jnp.full(shape, -1, jnp.int32), out_shardings=sharding)()
    addresses = np.zeros((devices.size, ranks + 1), np.int64)
    own = {s.device: s.data.unsafe_buffer_pointer() for s in inbox.addressable_shards}
    along = mesh.axis_names.index(axis)
    for row, place in zip(addresses, np.ndindex(devices.shape), strict=True):
        peers = devices[(*place[:along], slice(None), *place[along + 1 :])]
        row[:] = [own[device] for device in (devices[place], *peers)]
    words = addresses.view(np.int32).reshape(-1, 2)
    return Exchange(jax.device_put(words, sharding), jax.block_until_ready(inbox), axis)


def all_reduce_fused_add_rms_norm(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    axis_name: str,
    exchange: Exchange | None = None,
    eps: float = 1e-6,
    rounding: wire.Rounding = "once",
) -> tuple[jax.Array, jax.Array]:
    """`fused_add_rms_norm` of the sum of x over a mesh axis: what ends a branch under tensor parallelism.

    `residual' = psum(x) + residual; out = rms_norm(residual') * weight`, where the sum is rounded to T. To be called
    within `jax.shard_map`. In a program for GPUs with an exchange, a call of up to its max_rows rows of whole 16 bytes
    is one kernel: each GPU writes its rows into the others' memory. Everything else is `lax.psum` and
    `fused_add_rms_norm`, as is what has to be differentiated: give that no exchange.

    Args:
      x: [..., n] T; this device's part of the sum.
      residual: [..., n] T; the residual stream, the same on all devices.
      weight: [n] T or f32; scale of each column; 1 if absent.
      axis_name: the mesh axis to sum over.
      exchange: this device's part of what `make_exchange` made for that axis.
      eps, rounding: as `fused_add_rms_norm` has them.

    T is one of f32, f16 and bf16.

    Returns:
      out: [..., n] T; normed rows, the same on all devices.
      residual: [..., n] T; psum(x) + residual. With an exchange both vary, in JAX's types, over all mesh axes that
        an operand varies over.

    Raises:
      ValueError: operands or settings do not fit, or the exchange is for another axis; the text says which.

    Source: vLLM's pass `fuse_allreduce_rms`.

    Example:
      >>> mesh = jax.sharding.Mesh(jax.devices()[:1], "model")
      >>> part, all_of_it = jax.P("model"), jax.P()
      >>> def end_branch(x, residual):
      ...     return all_reduce_fused_add_rms_norm(x[0], residual, axis_name="model")
      >>> end = jax.shard_map(end_branch, mesh=mesh, in_specs=(part, all_of_it), out_specs=all_of_it)
      >>> out, residual = jax.jit(end)(jnp.ones((1, 4, 64)), jnp.ones((4, 64)))
      >>> print(residual.max())
      2.0
    """
    settings = {"eps": eps, "rounding": rounding}
    operands = (x, residual) if weight is None else (x, residual, weight)
    arrays = tuple(as_array(f"{_NAME}: operand {i}", x) for i, x in enumerate(operands))
    if exchange is None:
        return _by_xla(axis_name, settings, *arrays)
    if exchange.axis != axis_name:
        raise ValueError(
            f"{_NAME}: exchange is for mesh axis {exchange.axis!r}, but axis_name is {axis_name!r}"
        )
    return _function(axis_name, tuple(settings.items()))(
        exchange.addresses, exchange.inbox, *arrays
    )


def _by_xla(
    axis_name: str, settings: Mapping[str, Any], x: jax.Array, *others: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return wire.fused_add_rms_norm(lax.psum(x, axis_name), *others, **settings)


def _without_exchange(
    addresses: jax.Array, inbox: jax.Array, *arrays: jax.Array, axis_name: str, **settings: Any
) -> tuple[jax.Array, jax.Array]:
    results = _by_xla(axis_name, settings, *arrays)
    out, added, *_ = vary_alike([*results, addresses, inbox, *arrays])
    assert out is not None and added is not None  # as results are
    return out, added


def _by_op(
    addresses: jax.Array,
    inbox: jax.Array,
    x: jax.Array,
    residual: jax.Array,
    *weight: jax.Array,
    axis_name: str,
    **settings: Any,
) -> tuple[jax.Array, jax.Array]:
    del axis_name  # the exchange is for it
    operands = (x, residual, weight[0] if weight else None, addresses, inbox)
    out, added = call(_NAME, operands, **settings)
    return out, added


_sum_and_norm = with_fallback(_NAME, _by_op, _without_exchange)


@functools.cache
def _function(
    axis_name: str, settings: tuple[tuple[str, Any], ...]
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The function of addresses, inbox, x, residual and perhaps a weight, with its rule for vmap."""
    keywords = {"axis_name": axis_name, **dict(settings)}
    by_xla = functools.partial(_without_exchange, **keywords)

    @jax.custom_batching.custom_vmap
    def run(*operands: jax.Array):
        if not _has_room(*operands[1:3]):
            return by_xla(*operands)
        return _sum_and_norm(*operands, **keywords)

    @run.def_vmap
    def batched(size: int, is_batched: Sequence[bool], *operands: jax.Array):
        if any((*is_batched[:2], *is_batched[4:])):  # which is refused, if it is the weight
            axes = [0 if b else None for b in is_batched]
            return jax.vmap(by_xla, axes, axis_size=size)(*operands), (True, True)
        # A batch of x is one more axis of rows.
        rows = (
            x if b else jnp.broadcast_to(x, (size, *x.shape))
            for x, b in zip(operands[2:4], is_batched[2:4], strict=True)
        )
        return run(*operands[:2], *rows, *operands[4:]), (True, True)

    run.__name__ = _NAME  # type: ignore[attr-defined]  # of the function that it wraps
    return run


def _has_room(inbox: jax.Array, x: jax.Array) -> bool:
    """Whether the rows fit into an inbox and are whole packs of it."""
    if x.ndim == 0:
        return False
    max_rows, packs = inbox.shape[1:3]
    row, rest = divmod(x.shape[-1] * x.dtype.itemsize, _PACK_BYTES)
    return rest == 0 and row <= packs and x.size <= max_rows * x.shape[-1]


def _kernel_takes_rows_of(inbox: tuple[int, ...]) -> bool:
    """Whether a device's inbox of this shape is for rows that are not too long."""
    row = _native.Tensor((1, inbox[2] * inbox[3]), "f32")
    addresses = _native.Tensor(((inbox[0] + 1) // 2, 2), "i32")
    try:
        _native.main_library().infer(
            _NAME, [row, row, None, addresses, _native.Tensor(inbox, "i32")], {}
        )
    except ValueError:
        return False
    return True


def _reach_each_other(devices: Sequence[jax.Device]) -> bool:
    here = jax.process_index()
    if any(d.process_index != here or "cuda" not in d.client.platform_version for d in devices):
        return False
    try:
        _native.main_library().enable_peer_access([d.local_hardware_id for d in devices])
    except NotImplementedError:
        return False
    return True
