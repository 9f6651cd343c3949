"""The ops on eight devices: the results of one, and no device asks another for anything."""

import re

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
from jax import P
from jax.sharding import AxisType

from attention import operands as attention

DEVICES = 8
# One without a name among them.
LAYOUTS = [*attention.layout_names(), "p 2 hk s d"]
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)")
rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def how(layout: str) -> dict[str, str]:
    """What a caller must say of a layout: nothing where the cache's form does."""
    return {} if layout in attention.layout_names() and layout != "HND" else {"layout": layout}


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=kinds, devices=jax.devices("cpu")[:DEVICES]
    )


def compile_on(mesh, function, operands: dict[str, tuple], donate: tuple[int, ...] = ()):
    """The compiled function and its arrays, each placed as its spec says."""
    arrays = [
        jax.tree.map(lambda x, s=spec: jax.device_put(x, jax.NamedSharding(mesh, s)), value)
        for value, spec in operands.values()
    ]
    return jax.jit(function, donate_argnums=donate).lower(*arrays).compile(), arrays


def run(mesh, sharded, operands: dict[str, tuple]) -> list:
    """The results of a sharded function, asserting that its devices do not talk to each other."""
    compiled, arrays = compile_on(mesh, sharded, operands)
    text = compiled.as_text()
    assert "intarsia." in text and not COLLECTIVES.search(text), COLLECTIVES.findall(text)
    return jax.tree.leaves(compiled(*arrays))


def check(mesh, function, sharded, operands: dict[str, tuple]) -> list:
    """Asserts that a sharded function gives what the plain one gives on one device."""
    got = run(mesh, sharded, operands)
    want = jax.tree.leaves(function(*(value for value, _ in operands.values())))
    for result, expected in zip(got, want, strict=True):
        running.check("paged_attention", np.asarray(result), np.asarray(expected, np.float64))
    return got


def paged_batch(h: int, hk: int, layout: str = "NHD"):
    b, page, pages = 3, 4, 12
    shapes = attention.cache_shapes(layout, pages, page, hk, 16)
    caches = tuple(normal(*shape) for shape in shapes if shape)
    table = rng.permutation(pages)[: b * 3].reshape(b, 3).astype(np.int32)
    lens = np.array([5, 12, 1], np.int32)
    return normal(b, h, 16), caches if len(caches) == 2 else caches[0], lens, table


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
        at = next(i for i, x in enumerate(attention.cache_axes(layout, False)) if "hk" in x)
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
    want_out, want_caches = step(ij)(
        positions, query, key, value, jax.tree.map(np.array, full), slots, lens, table, starts
    )
    running.check("paged_attention", np.asarray(out), np.asarray(want_out, np.float64))
    for got, want in zip(jax.tree.leaves(caches), jax.tree.leaves(want_caches), strict=True):
        running.check(
            "paged_attention", np.asarray(got), spread(np.asarray(want)).astype(np.float64)
        )


def test_token_wise_ops_by_tokens() -> None:
    mesh = mesh_of(data=DEVICES)
    x, residual, weight = normal(16, 32), normal(16, 32), normal(32)
    rows = P("data")
    check(
        mesh,
        ij.fused_add_rms_norm,
        ij.shard(ij.fused_add_rms_norm, mesh, tokens="data"),
        {"x": (x, rows), "residual": (residual, rows), "weight": (weight, P())},
    )
    out, lse = normal(8, 4, 16), normal(4, 8)
    check(
        mesh,
        ij.merge_attn_states,
        ij.shard(ij.merge_attn_states, mesh, tokens="data"),
        {
            "prefix_out": (out, rows),
            "prefix_lse": (lse, P(None, "data")),
            "suffix_out": (2 * out, rows),
            "suffix_lse": (lse + 1, P(None, "data")),
        },
    )


def test_tokens_and_heads_over_two_axes() -> None:
    mesh = mesh_of(data=2, model=4)
    positions = np.arange(6, dtype=np.int32)
    angles = normal(16, 8)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    heads = P("data", "model")

    def turn(function):
        return lambda positions, q, table, k: function(positions, q, table, k, head_size=16)

    check(
        mesh,
        turn(ij.rotary_embedding),
        turn(ij.shard(ij.rotary_embedding, mesh, tokens="data", heads="model")),
        {
            "positions": (positions, P("data")),
            "query": (normal(6, 8 * 16), heads),
            "table": (table, P()),
            "key": (normal(6, 4 * 16), heads),
        },
    )


def test_gated_activations_by_columns() -> None:
    mesh = mesh_of(data=2, model=4)
    gate, up = normal(4, 24), normal(4, 24)
    both = P("data", "model")
    sharded = ij.shard(ij.silu_and_mul, mesh, tokens="data", columns="model")
    check(mesh, ij.silu_and_mul, sharded, {"x": (gate, both), "up": (up, both)})
    quantised = ij.shard(ij.silu_and_mul_quant, mesh, tokens="data", columns="model")
    (codes,) = run(
        mesh,
        quantised,
        {"x": (gate, both), "scale": (np.ones(1, np.float32), P()), "up": (up, both)},
    )
    want = np.asarray(ij.silu_and_mul_quant(gate, np.ones(1, np.float32), up))
    np.testing.assert_array_equal(np.asarray(codes), want)
    with pytest.raises(
        ValueError, match="silu_and_mul: has no columns that mesh axis 'model' could"
    ):
        sharded(gate)
    with pytest.raises(
        ValueError, match="rms_norm: has no columns that mesh axis 'model' could cut"
    ):
        ij.shard(ij.rms_norm, mesh, columns="model")(gate)


def test_an_op_without_the_axis_is_whole_everywhere() -> None:
    mesh = mesh_of(model=DEVICES)
    ops = ij.ShardedOps(mesh, heads="model", columns="model")
    x, weight = normal(5, 32), normal(32)
    check(mesh, ij.rms_norm, ops.rms_norm, {"x": (x, P()), "weight": (weight, P())})
    with pytest.raises(AttributeError, match="ShardedOps has no rms_nrom"):
        _ = ops.rms_nrom


def test_gradients_of_shared_weights_are_summed() -> None:
    mesh = mesh_of(data=DEVICES)
    x, weight = normal(16, 32), normal(32)
    norm = ij.shard(ij.rms_norm, mesh, tokens="data")

    def loss(function):
        return jax.jit(
            jax.grad(lambda x, weight: jnp.sum(function(x, weight) ** 2), argnums=(0, 1))
        )

    want = loss(ij.rms_norm)(x, weight)
    for got, expected in zip(loss(norm)(x, weight), want, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-4, atol=1e-4)


def test_gradients_of_shared_sinks_are_summed() -> None:
    mesh = mesh_of(data=4)
    q, k, v, sinks = normal(4, 6, 4, 16), normal(4, 6, 2, 16), normal(4, 6, 2, 16), normal(4)
    starts = np.array([0, 2, 6], np.int32)

    def attend(q, k, v, sinks):  # each member of the batch by itself
        return ij.flash_attn_varlen(q[0], k[0], v[0], starts, cu_seqlens_k=starts, sinks=sinks)[
            None
        ]

    rows = P("data")
    on_each = jax.shard_map(attend, mesh=mesh, in_specs=(rows, rows, rows, P()), out_specs=rows)

    def one_by_one(q, k, v, sinks):
        return jnp.concatenate([attend(q[i:], k[i:], v[i:], sinks) for i in range(4)])

    def slope(function):
        loss = lambda *xs: jnp.sum(function(*xs) ** 2)  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=(0, 3)))(q, k, v, sinks)

    for got, want in zip(slope(on_each), slope(one_by_one), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)


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
        running.check("paged_attention", np.asarray(got[i]), np.asarray(want, np.float64))


def test_sizes_that_do_not_divide() -> None:
    mesh = mesh_of(model=DEVICES)
    query, caches, lens, table = paged_batch(12, 4)
    starts = np.arange(4, dtype=np.int32)
    attend = ij.shard(ij.paged_attention, mesh, heads="model")
    with pytest.raises(
        ValueError, match="query has h=12, which 8 devices of mesh axis 'model' cannot"
    ):
        attend(query, caches, lens, table, starts)
    with pytest.raises(ValueError, match=r"key_cache has hk=4 for 8 devices; .*kv_heads"):
        attend(normal(3, 16, 16), caches, lens, table, starts)
    with pytest.raises(ValueError, match="8 devices of mesh axis 'model' cannot share 3 KV heads"):
        ij.kv_heads(3, mesh, "model")
    with pytest.raises(ValueError, match="rms_norm: x has 3 tokens, which 8 devices"):
        ij.shard(ij.rms_norm, mesh, tokens="model")(normal(3, 16))
    with pytest.raises(ValueError, match="paged_attention: has no tokens that mesh axis 'model'"):
        ij.shard(ij.paged_attention, mesh, tokens="model")(query, caches, lens, table, starts)


def test_a_sharding_in_the_type_is_refused() -> None:
    devices = jax.devices("cpu")[:DEVICES]
    mesh = jax.make_mesh((DEVICES,), ("model",), axis_types=(AxisType.Explicit,), devices=devices)
    x, weight = normal(16, 32), normal(32)
    with jax.set_mesh(mesh):
        rows = jax.device_put(x, jax.NamedSharding(mesh, P("model")))
        with pytest.raises(ValueError, match=r"rms_norm: x is sharded as .*intarsia\.jax\.shard"):
            jax.jit(ij.rms_norm).trace(rows)
        norm = jax.jit(ij.shard(ij.rms_norm, mesh, tokens="model"))
        want = np.asarray(ij.rms_norm(x, weight))
        for operand in (rows, x):  # already cut, or whole everywhere
            np.testing.assert_array_equal(np.asarray(norm(operand, weight)), want)
        assert jax.typeof(norm(rows, weight)).sharding.spec == P("model", None)


def test_the_search_for_talk_finds_it() -> None:
    """A bare call on sharded rows: XLA gathers them, and the tests above must be able to see it."""
    mesh = mesh_of(data=DEVICES)
    compiled, _ = compile_on(mesh, ij.rms_norm, {"x": (normal(16, 32), P("data"))})
    assert "all-gather" in COLLECTIVES.findall(compiled.as_text())
