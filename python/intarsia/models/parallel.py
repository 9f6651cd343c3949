"""Tensor parallelism: a model's weights and KV heads spread over the devices of a mesh.

Every device runs the same step (`jax.shard_map`) on its share of the heads, of the feed-forward
layer's columns and of the vocabulary, as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): two
sums over the devices a block, one for the embedding, and one gathering, of logits or of the largest of
each device. XLA's collectives do it, but that GPUs make the sums of few rows themselves (`intarsia.jax.make_exchange`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.tree_util import DictKey, GetAttrKey

from intarsia.jax import kv_cache_sharding, kv_heads, make_exchange
from intarsia.models.config import ModelConfig
from intarsia.models.weights import Params

_AXIS = "tensor"
EXCHANGE = "exchange"  # in `Params`
# The axis of each role's array that is spread, seen from the last one; other roles have a copy on
# every device. Layers may be stacked in front.
_SPREAD_AXES = {
    "embed": -2,
    "lm_head": -2,
    "wqkv": -2,
    "bqkv": -1,
    "wo": -1,
    "w_gate_up": -2,
    "w_down": -1,
}


class TensorParallel:
    """How a model is spread over `size` devices, the first ones of JAX's default platform.

    Attributes:
        size: The number of devices N.
        config: The hyperparameters of one device's share. KV heads have a copy on N / hk devices
            where there are fewer of them than devices.

    Raises:
        ValueError: There are fewer devices, or heads or columns cannot be divided among them.
    """

    def __init__(self, config: ModelConfig, size: int) -> None:
        devices = jax.devices()
        if not 1 <= size <= len(devices):
            raise ValueError(f"tensor_parallel is {size}, expected 1 to {len(devices)} (devices)")
        h, hk, m = config.heads, config.kv_heads, config.intermediate
        for what, count in (("heads", h), ("intermediate", m)):
            if count % size:
                sizes = [n for n in range(1, h + 1) if h % n == 0 and m % n == 0]
                raise ValueError(
                    f"tensor_parallel={size} does not divide {what}={count}; this model takes "
                    + ", ".join(map(str, sizes))
                )
        self.size = size
        self._whole = config
        self._mesh = Mesh(np.array(devices[:size]), (_AXIS,))
        self.config = dataclasses.replace(
            config,
            heads=h // size,
            kv_heads=kv_heads(hk, self._mesh, _AXIS) // size,
            intermediate=m // size,
            mesh_axis=_AXIS,
        )

    def cache_sharding(self, stacked: bool) -> NamedSharding:
        """Of a cache [p, s, hk, d] of all devices' KV heads, copies counted; or [l, p, s, hk, d]."""
        return kv_cache_sharding(self._mesh, _AXIS, layers=stacked)

    def place(self, params: Params) -> Params:
        """Spreads weights as `load_model` gives them, each device's rows side by side."""

        def put(path: tuple[Any, ...], array: jax.Array) -> jax.Array:
            array = self._side_by_side(_role(path), array)
            return jax.device_put(array, NamedSharding(self._mesh, _spec(path, array)))

        return jax.tree.map_with_path(put, params)

    def exchange(self, dtype: Any) -> Params:
        """What `forward` sums rows of the residual stream through, if devices can write to each other's memory."""
        made = make_exchange(self._mesh, _AXIS, columns=self.config.hidden, dtype=dtype)
        return {} if made is None else {EXCHANGE: made}

    def copy(self, arrays: Any) -> Any:
        """Puts a copy of each array onto every device, so that no step has to."""
        return jax.device_put(arrays, NamedSharding(self._mesh, P()))

    def spread(self, step: Callable[..., Any], params: Params, caches: Any) -> Callable[..., Any]:
        """Makes a step that runs on every device: (params, caches, *rest) -> (caches, result)."""
        cache_specs = jax.tree.map(lambda array: array.sharding.spec, caches)
        param_specs = jax.tree.map_with_path(_spec, params)
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

    def _side_by_side(self, role: str, array: jax.Array) -> jax.Array:
        """Reorders rows so that an equal part of them is what one device needs."""
        whole, n = self._whole, self.size
        if role in ("wqkv", "bqkv"):
            h, hk, d = whole.heads, whole.kv_heads, whole.head_dim
            heads = array.reshape(h + 2 * hk, d, *array.shape[1:])
            query, key, value = jnp.split(heads, (h, h + hk))
            copies = kv_heads(hk, self._mesh, _AXIS) // hk
            parts = [query, *(jnp.repeat(x, copies, axis=0) for x in (key, value))]
            parts = [x.reshape(n, -1, *array.shape[1:]) for x in parts]
            return jnp.concatenate(parts, axis=1).reshape(-1, *array.shape[1:])
        if role == "w_gate_up":
            parts = [half.reshape(n, -1, *array.shape[1:]) for half in jnp.split(array, 2)]
            return jnp.concatenate(parts, axis=1).reshape(array.shape)
        if role in ("embed", "lm_head"):
            return jnp.pad(array, ((0, -len(array) % n), (0, 0)))
        return array


def _role(path: tuple[Any, ...]) -> str:
    """The name in `Params` of an array, or of the quantised weight that it is a part of."""
    return [key.key for key in path if isinstance(key, DictKey)][-1]


def _spec(path: tuple[Any, ...], array: jax.Array) -> P:
    if _role(path) == EXCHANGE:
        return P(_AXIS)
    axis = _SPREAD_AXES.get(_role(path))
    # A quantised weight's scale runs along its output channels, the last axis but one of the codes.
    if path[-1] == GetAttrKey("scale"):
        axis = -1 if axis == -2 else None
    return P() if axis is None else P(*[None] * (array.ndim + axis), _AXIS)
