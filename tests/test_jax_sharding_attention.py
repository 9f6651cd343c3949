"""Attention and cache writes on eight devices, by heads: as on one, and no device asks another for anything."""

import re

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
from intarsia_src.core import cache_layout
from jax import P
from sharded import (
    COLLECTIVES,
    DEVICES,
    LAYOUTS,
    check,
    compile_on,
    how,
    mesh_of,
    normal,
    paged_batch,
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_paged_attention_by_heads(layout: str) -> None:
    mesh = mesh_of(model=DEVICES)
    query, caches, lens, table = paged_batch(16, 8, layout)
    starts = np.arange(4, dtype=np.int32)

    def attend(function):
        return lambda q, kv, lens, table, starts: function(
            q, kv, lens, table, starts, 2, return_lse=True, sliding_window=6, **how(layout)
        )

    out, lse = check(
        "paged_attention",
        mesh,
        attend(ij.paged_attention),
        attend(ij.shard(ij.paged_attention, mesh, heads="model")),
        {
            "query": (query, P(None, "model")),
            "kv_cache": (caches, ij.kv_cache_sharding(mesh, "model", layout=layout).spec),
            "seqused_k": (lens, P()),
            "block_table": (table, P()),
            "cu_seqlens_q": (starts, P()),
        },
    )
    assert out.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(None, "model")), 3)
    assert lse.sharding.is_equivalent_to(jax.NamedSharding(mesh, P("model")), 2)


def test_dense_attention_by_heads_with_few_kv_heads() -> None:
    """Two KV heads on eight devices: each is given to four."""
    mesh = mesh_of(model=DEVICES)
    q, k, v = normal(9, 16, 16), normal(9, 2, 16), normal(9, 2, 16)
    starts = np.array([0, 4, 9], np.int32)

    def attend(function):
        return lambda q, k, v, starts: function(
            q, k, v, starts, cu_seqlens_k=starts, is_causal=True
        )

    check(
        "flash_attn_varlen",
        mesh,
        attend(ij.flash_attn_varlen),
        attend(ij.shard(ij.flash_attn_varlen, mesh, heads="model")),
        {"q": (q, P(None, "model")), "k": (k, P()), "v": (v, P()), "starts": (starts, P())},
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hk", [2, 8, 16])
def test_a_step_by_heads(hk: int, layout: str) -> None:
    """Rotation, cache write in place and attention, with one KV head or more, or a part of one, a device."""
    mesh = mesh_of(model=DEVICES)
    count = ij.kv_heads(hk, mesh, "model")
    assert count == max(hk, DEVICES)
    query, full, lens, table = paged_batch(16, hk, layout)
    query = normal(3, 16, 16)
    key, value = normal(3, hk, 16), normal(3, hk, 16)
    slots = (table[np.arange(3), (lens - 1) // 4] * 4 + (lens - 1) % 4).astype(np.int32)
    positions, starts = lens - 1, np.arange(4, dtype=np.int32)
    angles = normal(16, 8)
    table_of_angles = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)

    def step(ops):
        def run(positions, query, key, value, caches, slots, lens, table, starts):
            query, key = ops.rotary_embedding(positions, query, table_of_angles, key)
            caches = ops.reshape_and_cache_flash(key, value, caches, slots, **how(layout))
            return ops.paged_attention(query, caches, lens, table, starts, **how(layout)), caches

        return run

    def spread(cache):  # the cache of one device, for several: KV heads as often as they are needed
        at = next(i for i, x in enumerate(cache_layout.cache_axes(layout, False)) if "hk" in x)
        before, after = cache.shape[:at], cache.shape[at + 1 :]
        heads = cache.reshape(*before, hk, -1, *after)
        return np.repeat(heads, count // hk, axis=at).reshape(*before, -1, *after)

    kv_spec = P(None, "model") if hk >= DEVICES else P()
    operands = {
        "positions": (positions, P()),
        "query": (query, P(None, "model")),
        "key": (key, kv_spec),
        "value": (value, kv_spec),
        "caches": (
            jax.tree.map(spread, full),
            ij.kv_cache_sharding(mesh, "model", layout=layout).spec,
        ),
        "slots": (slots, P()),
        "lens": (lens, P()),
        "table": (table, P()),
        "starts": (starts, P()),
    }
    ops = ij.ShardedOps(mesh, heads="model")
    compiled, arrays = compile_on(mesh, step(ops), operands, donate=(4,))
    text = compiled.as_text()
    assert not COLLECTIVES.search(text)
    part = jax.tree.leaves(arrays[4])[0].addressable_shards[0].data.shape
    assert not re.search(rf"f32\[{','.join(map(str, part))}\]\S* copy\(", text)
    before = [
        c.addressable_shards[3].data.unsafe_buffer_pointer() for c in jax.tree.leaves(arrays[4])
    ]
    out, caches = compiled(*arrays)
    after = [c.addressable_shards[3].data.unsafe_buffer_pointer() for c in jax.tree.leaves(caches)]
    assert before == after
    want_out, want_caches = jax.jit(step(ij))(
        positions, query, key, value, jax.tree.map(np.array, full), slots, lens, table, starts
    )
    running.check("paged_attention", np.asarray(out), np.asarray(want_out, np.float64))
    for got, want in zip(jax.tree.leaves(caches), jax.tree.leaves(want_caches), strict=True):
        np.testing.assert_array_equal(np.asarray(got), spread(np.asarray(want)))


@pytest.mark.parametrize("normed", [False, True])
def test_a_product_of_q_k_and_v_by_heads(normed: bool) -> None:
    """By the ops that can be cut: its parts go to their devices, the caches stay where they are."""
    mesh = mesh_of(model=DEVICES)
    _, caches, _, _ = paged_batch(16, 8)
    positions, slots = np.arange(3, dtype=np.int32), np.array([5, 0, 17], np.int32)
    operands = positions, normal(3, 32, 16), normal(9, 16), caches, slots
    where = ij.kv_cache_sharding(mesh, "model")
    placed = {name: (x, P()) for name, x in zip("pqtcs", operands, strict=True)}
    placed["c"] = (caches, where.spec)
    norms = {"q_weight": normal(16), "k_weight": normal(16)} if normed else {}

    def step(function):
        return lambda *arrays: function(*arrays, num_heads=16, **norms)

    ops = ij.ShardedOps(mesh, heads="model")
    compiled, arrays = compile_on(mesh, step(ops.rotary_embedding_and_cache), placed)
    assert "all-gather" not in compiled.as_text()
    got, want = compiled(*arrays), step(ij.rotary_embedding_and_cache)(*operands)
    for result, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        tolerance = 1e-5 if normed else 0.0  # its sums are added in another order
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
    assert all(x.sharding.is_equivalent_to(where, 4) for x in got[1])
    with pytest.raises(ValueError, match="has no heads that mesh axis 'model' could cut"):
        step(ij.shard(ij.rotary_embedding_and_cache, mesh, heads="model"))(*operands)


@pytest.mark.parametrize("hk", [2, 8])
def test_ragged_paged_attention_by_heads(hk: int) -> None:
    mesh = mesh_of(model=DEVICES)
    count = ij.kv_heads(hk, mesh, "model")
    query, pages, lens, table = paged_batch(16, count, "combined")
    starts, num_seqs = np.arange(4, dtype=np.int32), np.array([3], np.int32)

    def attend(function):
        return lambda *arrays: function(*arrays, sm_scale=0.25, sliding_window=6)

    check(
        "paged_attention",
        mesh,
        attend(ij.ragged_paged_attention),
        attend(ij.ShardedOps(mesh, heads="model").ragged_paged_attention),
        {
            "q": (query, P(None, "model")),
            "kv_pages": (pages, ij.kv_cache_sharding(mesh, "model", layout="combined").spec),
            "kv_lens": (lens, P()),
            "page_indices": (table, P()),
            "cu_q_lens": (starts, P()),
            "num_seqs": (num_seqs, P()),
        },
    )


@pytest.mark.parametrize("layout", ["NHD", "packed"])
def test_cascade_attention_by_heads(layout: str) -> None:
    mesh = mesh_of(model=DEVICES)
    query, caches, lens, table = paged_batch(16, 8, layout)
    starts, prefix = np.arange(4, dtype=np.int32), np.array([3, 1], np.int32)
    sinks = normal(16)

    def attend(function):
        return lambda q, kv, prefix, length, lens, table, starts, sinks: function(
            q, kv, prefix, length, lens, table, starts, 2, sinks=sinks, return_lse=True
        )

    out, lse = check(
        "merge_attn_states",
        mesh,
        attend(ij.cascade_attention),
        attend(ij.shard(ij.cascade_attention, mesh, heads="model")),
        {
            "query": (query, P(None, "model")),
            "kv_cache": (caches, ij.kv_cache_sharding(mesh, "model", layout=layout).spec),
            "prefix_block_table": (prefix, P()),
            "prefix_len": (np.array([7], np.int32), P()),
            "seqused_k": (lens, P()),
            "block_table": (table, P()),
            "cu_seqlens_q": (starts, P()),
            "sinks": (sinks, P("model")),
        },
    )
    assert out.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(None, "model")), 3)
    assert lse.sharding.is_equivalent_to(jax.NamedSharding(mesh, P("model")), 2)
    with pytest.raises(ValueError, match="cascade_attention: has no tokens that mesh axis 'model'"):
        ij.shard(ij.cascade_attention, mesh, tokens="model")(
            query, caches, prefix, 7, lens, table, starts
        )


def test_within_a_shard_map_over_another_axis() -> None:
    """Each row of the mesh serves its own sequences; within it, heads are spread."""
    mesh = mesh_of(data=2, model=4)
    attend = ij.shard(ij.flash_attn_varlen, mesh, heads="model")
    q, k, v = normal(2, 6, 8, 16), normal(2, 6, 4, 16), normal(2, 6, 4, 16)
    starts = np.array([[0, 2, 6], [0, 5, 6]], np.int32)

    def of_row(q, k, v, starts):
        return attend(q[0], k[0], v[0], starts[0], cu_seqlens_k=starts[0])[None]

    rows = jax.shard_map(
        of_row, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    got = jax.jit(rows)(q, k, v, starts)
    for i in range(2):
        want = ij.flash_attn_varlen(q[i], k[i], v[i], starts[i], cu_seqlens_k=starts[i])
        running.check("flash_attn_varlen", np.asarray(got[i]), np.asarray(want, np.float64))


@pytest.mark.parametrize("kind", [float, np.float32, lambda x: np.array(x, np.float32)])
def test_numbers_are_taken_as_by_the_functions(kind) -> None:
    layer, scale = {float: 1, np.float32: np.int32(1)}.get(kind, np.array(1)), kind(2)
    mesh = mesh_of(model=2, devices=jax.devices("cpu")[:2])
    query, pages, lens, table = paged_batch(4, 2)
    starts, prefix = np.arange(4, dtype=np.int32), np.array([3, 1], np.int32)
    caches = tuple(jnp.stack([x, 2 * x]).astype(jnp.float8_e4m3fn) for x in pages)
    key, slots, batch = normal(3, 2, 16), np.arange(3, dtype=np.int32), (lens, table, starts)

    def same(function, *operands, **options):
        got = ij.shard(function, mesh, heads="model")(*operands, layer=layer, **options)
        want = function(*operands, layer=layer, **options)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), got, want)

    same(ij.reshape_and_cache_flash, key, key, caches, slots, v_scale=scale)
    same(ij.paged_attention, query, caches, *batch, np.array(2), k_scale=scale)
    same(ij.cascade_attention, query, caches, prefix, np.int64(7), *batch)
    same(ij.flash_attn_varlen, query, *caches, starts, seqused_k=lens, block_table=table)
    with pytest.raises(ValueError, match="num_seqs is 4, expected 0 to b=3"):
        same(ij.paged_attention, query, caches, *batch, np.int32(4))


def test_shard_map_without_jit() -> None:
    mesh = mesh_of(model=2, devices=jax.devices("cpu")[:2])
    q, k, starts = normal(4, 4, 16), normal(4, 2, 16), jnp.array([0, 1, 4])

    def dense(q, k):
        return ij.flash_attn_varlen(q, k, k, starts, cu_seqlens_k=starts)

    def cascade(q, k):
        pages, table = (k[None], k[None]), jnp.array([[0], [0]])
        return ij.cascade_attention(q, pages, jnp.array([0]), 2, jnp.array([2, 3]), table, starts)

    by_heads = P(None, "model")
    for function in (dense, cascade):
        each = jax.shard_map(function, mesh=mesh, in_specs=by_heads, out_specs=by_heads)
        np.testing.assert_array_equal(each(q, k), function(q, k))
    each = jax.shard_map(dense, mesh=mesh, in_specs=by_heads, out_specs=by_heads)
    got, want = (
        jax.grad(lambda q, k, f=f: (f(q, k) ** 2).sum(), (0, 1))(q, k) for f in (each, dense)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)
