"""The ops on eight devices: the results of one, and no device asks another for anything."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from jax.sharding import AxisType
from sharded import COLLECTIVES, DEVICES, check, compile_on, mesh_of, normal, paged_batch, run


def test_what_is_no_op_is_not_sharded() -> None:
    mesh = mesh_of(model=DEVICES)
    for function in (jnp.sin, ij.kv_heads, lambda x: x):
        with pytest.raises(
            ValueError, match=r"shard: .* is no op of intarsia\.jax, expected one of"
        ):
            ij.shard(function, mesh, heads="model")


def test_token_wise_ops_by_tokens() -> None:
    mesh = mesh_of(data=DEVICES)
    x, residual, weight = normal(16, 32), normal(16, 32), normal(32)
    rows = P("data")
    check(
        "fused_add_rms_norm",
        mesh,
        ij.fused_add_rms_norm,
        ij.shard(ij.fused_add_rms_norm, mesh, tokens="data"),
        {"x": (x, rows), "residual": (residual, rows), "weight": (weight, P())},
    )
    out, lse = normal(8, 4, 16), normal(4, 8)
    check(
        "merge_attn_states",
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
        "rotary_embedding",
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
    check("silu_and_mul", mesh, ij.silu_and_mul, sharded, {"x": (gate, both), "up": (up, both)})
    quantized = ij.shard(ij.silu_and_mul_quant, mesh, tokens="data", columns="model")
    (codes,) = run(
        mesh,
        quantized,
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
    check("rms_norm", mesh, ij.rms_norm, ops.rms_norm, {"x": (x, P()), "weight": (weight, P())})
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


def test_weights_in_codes_by_columns() -> None:
    mesh = mesh_of(model=DEVICES)
    tiles = 2 * DEVICES
    packed = np.random.default_rng(0).integers(0, 256, (tiles, 2, 4, 16, 4), np.uint8)
    scales, bias = normal(tiles, 2, 16), normal(16 * tiles)

    def layer(function):
        return lambda x, packed, scales, bias: function(
            x, packed, scales, bias=bias, format="u4b8", group=32
        )

    check(
        "linear_quantized",
        mesh,
        layer(ij.linear_quantized),
        layer(ij.shard(ij.linear_quantized, mesh, columns="model")),
        {
            "x": (normal(3, 64), P()),
            "packed": (packed, P("model")),
            "scales": (scales, P("model")),
            "bias": (bias, P("model")),
        },
    )
