"""The paged KV caches: JAX arrays that every step takes, donated, and gives back.

vLLM plans them as regions of one allocation. Layers of different KV cache groups (full and sliding attention) can be given
the same region, since a block belongs to one group at a time. Here they share a pair of arrays, their `pool`.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from intarsia import _dtypes
from intarsia.vllm.compat import dtype_name
from intarsia.vllm.parallel import Ranks

KvCache = tuple[jax.Array, jax.Array]
Pools = dict[str, KvCache]
"""A pair of arrays (keys, values), each [blocks, block size, KV heads, head size], by the name of their first layer.

A state of a layer without keys and values is a page, too: the array of keys has its first numbers."""

_BLOCKS_AT_ONCE = 64
"""How many blocks a program zeroes."""


class LayerCache(NamedTuple):
    """Where a layer's keys and values are, and how the layer sees a pool's pages."""

    pool: str
    page: tuple[int, ...]
    """Block size, KV heads, head size; of a layer with a state how many numbers either array has for it."""
    dtype: Any


class CachePlan:
    """Which layers there are, and which pools they share.

    Args:
      config: vLLM's.
      shared_layers: layers that read another layer's cache, by name.
    """

    def __init__(self, config: KVCacheConfig, shared_layers: Mapping[str, str]):
        specs = _layer_specs(config, shared_layers)
        first_at: dict[int, str] = {}
        self.layers: dict[str, LayerCache] = {}
        self.num_blocks = config.num_blocks
        for tensor in config.kv_cache_tensors:
            for i, name in enumerate(tensor.layers):
                pool = first_at.setdefault(tensor.offset + i * tensor.layer_stride, name)
                self.layers[name] = _layer_cache(name, pool, specs[name])
        for name, layer in self.layers.items():
            first = self.layers[layer.pool]
            if math.prod(layer.page) != math.prod(first.page) or layer.dtype != first.dtype:
                raise NotImplementedError(
                    f"KV cache: layer {name} has pages of {layer.page} {layer.dtype} where {layer.pool} has "
                    f"{first.page} {first.dtype}, expected pages of one size"
                )
        self.layers |= {name: self.layers[target] for name, target in shared_layers.items()}

    @property
    def pools(self) -> dict[str, LayerCache]:
        """The pools, by name."""
        return {name: layer for name, layer in self.layers.items() if layer.pool == name}

    def shape(self, pool: str) -> tuple[int, ...]:
        """The shape of either array of a pool."""
        return (self.num_blocks, *self.layers[pool].page)

    def allocate(self, ranks: Ranks) -> Pools:
        """Empty caches."""

        def zeros(name: str, layer: LayerCache) -> jax.Array:
            return ranks.stacked(jnp.zeros(self.shape(name), layer.dtype))

        # Two arrays, never one twice: both are donated.
        return {name: (zeros(name, x), zeros(name, x)) for name, x in self.pools.items()}

    def abstract(self, ranks: Ranks) -> Any:
        """The types of what `allocate` returns."""
        return {
            name: (ranks.abstract(self.shape(name), layer.dtype),) * 2
            for name, layer in self.pools.items()
        }


def one_block_each(specs: Mapping[str, Any]) -> KVCacheConfig:
    """A configuration of layers that share nothing, to compile for before there is memory for caches."""
    groups: dict[Any, list[str]] = {}
    for name, spec in specs.items():
        groups.setdefault(spec, []).append(name)
    tensors, start = [], 0
    for spec, names in groups.items():
        page = spec.page_size_bytes
        tensors.append(KVCacheTensor(0, names, layer_stride=page, block_stride=page, offset=start))
        start += page * len(names)
    return KVCacheConfig(1, tensors, [KVCacheGroupSpec(x, spec) for spec, x in groups.items()])


def _layer_specs(config: KVCacheConfig, shared_layers: Container[str]) -> dict[str, Any]:
    """The spec of each layer that has a cache of its own; a group's can be one for all its layers, or a collection."""
    specs = {}
    for group in config.kv_cache_groups:
        spec = group.kv_cache_spec
        for name in group.layer_names:
            # vLLM's runner adds the others to the groups, and nothing for them to the collections.
            if name not in shared_layers:
                collection = isinstance(spec, UniformTypeKVCacheSpecs)
                specs[name] = spec.kv_cache_specs[name] if collection else spec
    return specs


def _layer_cache(name: str, pool: str, spec: Any) -> LayerCache:
    if isinstance(spec, MambaSpec):
        return LayerCache(pool, _page_of_a_state(name, spec), _dtype(spec.dtypes[0]))
    supported = type(spec) in (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
    if not supported or isinstance(spec, MLAAttentionSpec) or spec.head_size_v != spec.head_size:
        raise NotImplementedError(
            f"KV cache: layer {name} has {spec}, expected full or sliding attention with heads of one size"
        )
    if spec.page_size_padded is not None:
        raise NotImplementedError(f"KV cache: layer {name} has padded pages, expected none")
    page = (spec.block_size, spec.num_kv_heads, spec.head_size)
    return LayerCache(pool, page, _dtype(spec.dtype))


def _page_of_a_state(name: str, spec: MambaSpec) -> tuple[int]:
    """Half of a page's numbers."""
    pair = 2 * spec.dtypes[0].itemsize
    odd = any(dtype.itemsize % spec.dtypes[0].itemsize for dtype in spec.dtypes)
    if odd or spec.page_size_bytes % pair:
        raise NotImplementedError(
            f"KV cache: layer {name} has {spec}, expected pages and states of whole pairs of {spec.dtypes[0]}"
        )
    return (spec.page_size_bytes // pair,)


def _dtype(dtype: Any) -> Any:
    """NumPy's."""
    return _dtypes.numpy_dtype(_dtypes.name_of(dtype_name(dtype)))


class TracedCaches:
    """The caches while a step is traced: what a layer writes, the layers after it see."""

    def __init__(self, plan: CachePlan, pools: Pools):
        self._plan, self.pools = plan, dict(pools)

    def read(self, layer: str) -> KvCache:
        """The caches that a layer sees."""
        where = self._plan.layers[layer]
        # A change of shape only, within each page.
        return tuple(x.reshape(x.shape[0], *where.page) for x in self.pools[where.pool])

    def write(self, layer: str, cache: KvCache) -> None:
        """Replaces them."""
        where = self._plan.layers[layer]
        page = self._plan.layers[where.pool].page
        self.pools[where.pool] = tuple(x.reshape(x.shape[0], *page) for x in cache)


def chunks(ids: Sequence[int]) -> Iterable[list[int]]:
    """Block ids as many at a time as a program takes, the last ones filled up by ids that do not exist."""
    for start in range(0, len(ids), _BLOCKS_AT_ONCE):
        chunk = list(ids[start : start + _BLOCKS_AT_ONCE])
        yield chunk + [-1] * (_BLOCKS_AT_ONCE - len(chunk))


def zero_blocks(pools: Pools, ids: jax.Array) -> Pools:
    """Zeroes blocks; negative ids are skipped."""
    # JAX counts negative indices from the end.
    return jax.tree.map(
        lambda x: x.at[jnp.where(ids < 0, x.shape[0], ids)].set(0, mode="drop"), pools
    )
