"""KV caches: which layers share arrays, what they see, and how blocks are zeroed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import caches as kv
from intarsia.vllm.parallel import Ranks
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.float32)


def sliding(**changes: object) -> SlidingWindowSpec:
    form = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    return SlidingWindowSpec(**(form | {"sliding_window": 32} | changes))


def config(second) -> KVCacheConfig:
    """Two groups of two layers each, which vLLM lays over one another."""
    page = FULL.page_size_bytes
    layers = (["a0", "a1"], ["b0", "b1"])
    tensors = [KVCacheTensor(2 * page * 9, names, page * 9, page) for names in layers]
    groups = [KVCacheGroupSpec(*x) for x in zip(layers, (FULL, second), strict=True)]
    return KVCacheConfig(9, tensors, groups)


def test_groups_share_pools() -> None:
    plan = kv.CachePlan(config(sliding()), {"c": "b1"})
    assert {name: layer.pool for name, layer in plan.layers.items()} == {
        "a0": "a0",
        "a1": "a1",
        "b0": "a0",
        "b1": "a1",
        "c": "a1",
    }
    pools = plan.allocate(Ranks(1))
    assert {k: (x.shape, y.shape) for k, (x, y) in pools.items()} == {
        name: ((9, 16, 2, 64),) * 2 for name in ("a0", "a1")
    }
    types = jax.tree.map(lambda x: (x.shape, x.dtype), plan.abstract(Ranks(1)))
    assert types == jax.tree.map(lambda x: (x.shape, x.dtype), pools)


def test_layers_to_compile_for_share_nothing() -> None:
    specs = {"a0": FULL, "b0": sliding(), "a1": FULL}
    plan = kv.CachePlan(kv.one_block_each(specs), {"c": "b0"})
    assert list(plan.pools) == ["a0", "a1", "b0"]
    assert plan.layers["c"].pool == "b0" and plan.num_blocks == 1


def test_pages_of_another_form_are_views() -> None:
    plan = kv.CachePlan(config(sliding(block_size=32, num_kv_heads=1)), {})
    pools = plan.allocate(Ranks(1))
    caches = kv.TracedCaches(plan, pools)
    key, value = caches.read("b0")
    assert key.shape == (9, 32, 1, 64)
    caches.write("b0", (key.at[3, 17, 0, 5].set(1), value))
    assert caches.read("a0")[0].shape == (9, 16, 2, 64)
    assert float(caches.read("a0")[0].reshape(9, -1)[3, 17 * 64 + 5]) == 1
    assert not caches.read("a0")[1].any() and not caches.read("a1")[0].any()


def test_layers_of_one_group_have_specs_of_their_own() -> None:
    """As vLLM gives them for layers that differ in heads; a layer that reads another's cache is in the group, too."""
    wide = dataclasses.replace(FULL, num_kv_heads=4)
    specs = {"a": FULL, "b": wide}
    group = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=specs)
    starts = {"a": 0, "b": 9 * FULL.page_size_bytes}
    tensors = [
        KVCacheTensor(9 * group.page_size_bytes, [name], 0, spec.page_size_bytes, starts[name])
        for name, spec in specs.items()
    ]
    groups = [KVCacheGroupSpec(["a", "b", "c"], group)]
    plan = kv.CachePlan(KVCacheConfig(9, tensors, groups), {"c": "b"})
    assert {name: (layer.pool, layer.page) for name, layer in plan.layers.items()} == {
        "a": ("a", (16, 2, 64)),
        "b": ("b", (16, 4, 64)),
        "c": ("b", (16, 4, 64)),
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (sliding(head_size=128), "expected pages of one size"),
        (sliding(head_size=128, dtype=torch.bfloat16), "expected pages of one size"),
        (sliding(page_size_padded=1 << 20), "padded pages"),
        (sliding(head_size_v=32), "expected full or sliding attention"),
    ],
)
def test_what_does_not_fit_is_refused(spec, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        kv.CachePlan(config(spec), {})


def test_blocks_are_zeroed() -> None:
    draw = np.random.default_rng(0)
    pool = draw.normal(size=(100, 4, 1, 8)).astype(np.float32)
    pools = {"a": (jnp.asarray(pool), jnp.asarray(-pool))}
    ids = list(range(0, 99, 1))
    for chunk in kv.chunks(ids):
        pools = kv.zero_blocks(pools, jnp.asarray(chunk))
    assert not pools["a"][0][:99].any()
    np.testing.assert_array_equal(pools["a"][0][99], pool[99])
    np.testing.assert_array_equal(pools["a"][1][99], -pool[99])
