"""Tensor and expert parallelism: a model's weights and KV heads spread over the devices of a mesh.

Every device runs the same step (`jax.shard_map`) on the same tokens. Under tensor parallelism it has a share of the heads and of the
feed-forward layers' columns, as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053). Under expert parallelism it has some of the
experts whole, and all heads unless both are asked for. The vocabulary is spread in any case. So each block has two sums over the
devices, or one where all devices have all heads. The embedding has one more, and one gather collects logits, or each device's
largest. Since every device has every token, none travels to its experts: the sum brings back what they made of it. XLA's
collectives do all that, except that GPUs make the sums of few rows themselves (`intarsia.jax.make_exchange`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import DictKey, GetAttrKey

from intarsia._packing import PackedWeight
from intarsia.jax import kv_cache_sharding, kv_heads, make_exchange
from intarsia.models.config import ModelConfig
from intarsia.models.lazy import Index, LazyArray
from intarsia.models.linear import PackedMatrix
from intarsia.models.parallel_codes import (
    OF_CODES,
    check_experts,
    cut_matrix,
    spec_of_codes,
)
from intarsia.models.weights import Params

_AXIS = "devices"
EXCHANGE = "exchange"  # in `Params`
# The axis of each role's array that is spread, seen from the last one; other roles have a copy on
# every device. Layers may be stacked in front.
_OF_VOCABULARY = {"embed": -2, "lm_head": -2}
_OF_HEADS = {"wqkv": -2, "bqkv": -1, "sinks": -1, "wo": -1, "bo": -1}
_OF_COLUMNS = {
    "w_gate_up": -2,
    "w_down": -1,
    "experts_gate_up": -2,
    "experts_gate_up_bias": -1,
    "experts_down": -1,
    "experts_down_bias": -1,
}
_OF_EXPERTS = {
    "experts_gate_up": -3,
    "experts_gate_up_bias": -2,
    "experts_down": -3,
    "experts_down_bias": -2,
}


class ModelParallel:
    """How a model is spread over N devices, perhaps of several processes, all of which then make the same calls.

    Args:
        config: The hyperparameters of the whole model.
        tensor: Devices that heads and columns are divided among: N or 1.
        experts: Devices that experts are divided among, which are then whole: N or 1.
        devices: The N devices, and perhaps more; those of JAX's default platform if None.

    Attributes:
        heads: Devices that heads are divided among.
        config: The hyperparameters of one device's share. KV heads have a copy on N / hk devices
            where there are fewer of them than devices.

    Raises:
        ValueError: There are fewer devices; heads, columns or experts cannot be divided among them; or the model has no experts.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensor: int,
        experts: int = 1,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        devices = jax.devices() if devices is None else devices
        for what, size in (("tensor_parallel", tensor), ("expert_parallel", experts)):
            if not 1 <= size <= len(devices):
                raise ValueError(f"{what} is {size}, expected 1 to {len(devices)} (devices)")
        check_divides(config, tensor, experts)
        columns = 1 if experts > 1 else tensor
        self.heads = tensor
        self._whole = config
        self._size = max(tensor, experts)
        self._mesh = Mesh(np.array(devices[: self._size]), (_AXIS,))
        self._axes = _OF_VOCABULARY | (_OF_HEADS if tensor > 1 else {})
        self._axes |= _OF_EXPERTS if experts > 1 else _OF_COLUMNS
        hk = config.kv_heads
        self.config = dataclasses.replace(
            config,
            heads=config.heads // tensor,
            kv_heads=kv_heads(hk, self._mesh, _AXIS) // tensor if tensor > 1 else hk,
            intermediate=config.intermediate // columns,
            mesh_axis=_AXIS,
            heads_spread=tensor > 1,
        )

    @property
    def spans_processes(self) -> bool:
        """Whether some of the devices are another process's."""
        return any(d.process_index != jax.process_index() for d in self._mesh.devices.flat)

    def cache_sharding(self, stacked: bool) -> NamedSharding:
        """Of a cache [p, s, hk, d] of all devices' KV heads, copies counted; or [l, p, s, hk, d]."""
        if self.heads == 1:
            return NamedSharding(self._mesh, P())
        return kv_cache_sharding(self._mesh, _AXIS, layers=stacked)

    def place(self, params: Params) -> Params:
        """Spreads weights as `load_model` gives them, each device's rows side by side.

        What is lazy is read here, by each process for its own devices.

        Raises:
            ValueError: Weights are in codes whose tiles, blocks or groups would have to be cut.
        """

        def cut(path: tuple[Any, ...], weight: Any) -> Any:
            role = _role(path)
            if isinstance(weight, PackedWeight):
                return check_experts(role, weight, self._axes.get(role))
            if not isinstance(weight, PackedMatrix):
                return weight
            return cut_matrix(
                role, weight, self._axes.get(role), self._size, self._rows_side_by_side
            )

        def put(path: tuple[Any, ...], array: jax.Array | np.ndarray | LazyArray) -> jax.Array:
            sharding = NamedSharding(self._mesh, self._spec(path, array))
            if isinstance(array, LazyArray):
                return self._read(_role(path), array, sharding)
            if path[-1] in OF_CODES:
                return self._put(array, sharding)
            return self._put(self._side_by_side(_role(path), jnp.asarray(array)), sharding)

        return jax.tree.map_with_path(put, jax.tree.map_with_path(cut, params, is_leaf=_is_packed))

    def exchange(self, dtype: Any) -> Params:
        """What `forward` sums rows of the residual stream through, if devices can write to each other's memory."""
        made = make_exchange(self._mesh, _AXIS, columns=self.config.hidden, dtype=dtype)
        return {} if made is None else {EXCHANGE: made}

    def copy(self, arrays: Any) -> Any:
        """Puts a copy of each array onto every device, so that no step has to."""
        everywhere = NamedSharding(self._mesh, P())
        return jax.tree.map(lambda array: self._put(array, everywhere), arrays)

    def spread(self, step: Callable[..., Any], params: Params, caches: Any) -> Callable[..., Any]:
        """Makes a step that runs on every device: (params, caches, *rest) -> (caches, result)."""
        cache_specs = jax.tree.map(lambda array: array.sharding.spec, caches)
        param_specs = jax.tree.map_with_path(self._spec, params)
        on_each = jax.shard_map(
            lambda params, caches, rest: step(params, caches, *rest),
            mesh=self._mesh,
            in_specs=(param_specs, cache_specs, P()),
            out_specs=(cache_specs, P()),
            # Every device gathers the same logits and chooses the same tokens, but JAX takes what was
            # gathered for varying, and the result is to be one for all.
            check_vma=False,
        )
        return lambda params, caches, *rest: on_each(params, caches, rest)

    def _put(self, array: jax.Array | np.ndarray, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        # `device_put` would first compare the processes' arrays, in a collective for each.
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    def _read(self, role: str, array: LazyArray, sharding: NamedSharding) -> jax.Array:
        """Reads an array's parts for this process's devices, in the order of `_side_by_side`."""
        axis = self._axes.get(role)
        if axis is None:
            return self._put(np.asarray(array), sharding)
        shape = [1] * array.ndim
        shape[axis] = array.shape[axis]
        places = self._rows_side_by_side(role, shape)
        whole = list(array.shape)
        whole[axis] = len(places)

        def read(index: Index | None) -> np.ndarray:
            assert index is not None  # as it is of arrays
            return array.take(places[index[axis]], axis)

        return jax.make_array_from_callback(tuple(whole), sharding, read)

    def _rows_side_by_side(self, role: str, shape: Sequence[int]) -> np.ndarray:
        """Which index of an array's one axis that is not 1 lies where in the order of `_side_by_side`; -1: none."""
        numbers = jnp.arange(1, max(shape) + 1).reshape(shape)  # 0 stands for padding
        return np.asarray(self._side_by_side(role, numbers)).reshape(-1) - 1

    def _side_by_side(self, role: str, array: jax.Array) -> jax.Array:
        """Reorders an array so that an equal part of its spread axis is what one device needs."""
        whole, n = self._whole, self._size
        axis = self._axes.get(role)
        if axis is None:
            return array
        if role in ("wqkv", "bqkv"):
            h, hk, d = whole.heads, whole.kv_heads, whole.head_dim
            heads = array.reshape(h + 2 * hk, d, *array.shape[1:])
            query, key, value = jnp.split(heads, (h, h + hk))
            copies = kv_heads(hk, self._mesh, _AXIS) // hk
            parts = [query, *(jnp.repeat(x, copies, axis=0) for x in (key, value))]
            parts = [x.reshape(n, -1, *array.shape[1:]) for x in parts]
            return jnp.concatenate(parts, axis=1).reshape(-1, *array.shape[1:])
        if role == "bo" or (role == "experts_down_bias" and axis == -1):
            # Devices' shares are summed, so that the first alone adds the bias.
            return jnp.concatenate([array, *[jnp.zeros_like(array)] * (n - 1)], axis=-1)
        if "gate_up" in role and axis != _OF_EXPERTS.get(role) and whole.activation != "swigluoai":
            return self._gate_beside_up(array, axis=1 if whole.experts else 0)
        if role in ("embed", "lm_head"):
            return jnp.pad(array, ((0, -len(array) % n), (0, 0)))
        return array

    def _gate_beside_up(self, array: jax.Array, axis: int) -> jax.Array:
        """Each device's columns of the gate, and then those of up, where the array has all of the gate's first."""
        rows = jnp.moveaxis(array, axis, 0)
        parts = [half.reshape(self._size, -1, *rows.shape[1:]) for half in jnp.split(rows, 2)]
        return jnp.moveaxis(jnp.concatenate(parts, axis=1).reshape(rows.shape), 0, axis)

    def _spec(self, path: tuple[Any, ...], array: jax.Array | np.ndarray | LazyArray) -> P:
        if _role(path) == EXCHANGE:
            return P(_AXIS)
        axis = self._axes.get(_role(path))
        if path[-1] in OF_CODES:
            return spec_of_codes(path[-1].name, array, axis, _AXIS)
        # A quantized weight's scale runs along its output channels, the last axis but one of the codes.
        if path[-1] == GetAttrKey("scale"):
            axis = -1 if axis == -2 else None
        return P() if axis is None else P(*[None] * (array.ndim + axis), _AXIS)


def _check_tensor(config: ModelConfig, tensor: int, columns: int) -> None:
    """Raises ValueError unless heads divide among `tensor` devices, and columns among `columns`."""
    h, m = config.heads, config.intermediate
    for what, count, size in (("heads", h, tensor), ("intermediate", m, columns)):
        if count % size:
            sizes = [n for n in range(1, h + 1) if h % n == 0 and (m % n == 0 or columns == 1)]
            raise ValueError(
                f"tensor_parallel={tensor} does not divide {what}={count}; this model takes "
                + ", ".join(map(str, sizes))
            )


def check_divides(config: ModelConfig, tensor: int, experts: int) -> None:
    """Raises ValueError unless so many devices can share a model's heads and columns, or its experts."""
    if experts > 1:
        _check_experts(config, tensor, experts)
    _check_tensor(config, tensor, 1 if experts > 1 else tensor)


def _check_experts(config: ModelConfig, tensor: int, experts: int) -> None:
    """Raises ValueError unless a model's experts divide among that many devices."""
    if config.experts is None:
        raise ValueError(f"expert_parallel is {experts}, expected 1: this model has no experts")
    if tensor not in (1, experts):
        raise ValueError(
            f"tensor_parallel is {tensor}, expected 1 or {experts}, which expert_parallel is"
        )
    count = config.experts.count
    if count % experts:
        sizes = [n for n in range(1, count + 1) if count % n == 0]
        raise ValueError(
            f"expert_parallel={experts} does not divide experts={count}; this model takes "
            + ", ".join(map(str, sizes))
        )


def _is_packed(weight: Any) -> bool:
    return isinstance(weight, PackedMatrix | PackedWeight)


def _role(path: tuple[Any, ...]) -> str:
    """The name in `Params` of an array, or of the quantized weight that it is a part of."""
    return [key.key for key in path if isinstance(key, DictKey)][-1]
