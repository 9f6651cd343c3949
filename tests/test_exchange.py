"""all_reduce_fused_add_rms_norm: XLA's way anywhere, and the kernel on two GPUs or more."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import support
from hypothesis import given, settings
from hypothesis import strategies as st
from intarsia import _native
from intarsia.jax import (
    Exchange,
    all_reduce_fused_add_rms_norm,
    fused_add_rms_norm,
    make_exchange,
)
from jax.sharding import PartitionSpec as P
from sharded import mesh_of

OP = "all_reduce_fused_add_rms_norm"
AXIS = "model"
rng = np.random.default_rng(0)


def operands(ranks: int, rows: int, n: int, dtype=np.float32, weight_dtype=None):
    """Each rank's part of the sum [ranks, rows, n], the residual and the weight."""
    parts, residual = (
        rng.standard_normal(shape).astype(dtype) for shape in ((ranks, rows, n), (rows, n))
    )
    weight = rng.standard_normal(n).astype(weight_dtype or dtype)
    return parts, residual, weight


def spread(mesh, exchange: Exchange | None = None, times: int = 1, **keywords):
    """The function of all parts: what it gives on each device, `times` calls of which each adds to the last."""
    specs = jax.tree.map(lambda x: x.sharding.spec, exchange)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(AXIS), P(), P(), specs),
        out_specs=P(AXIS),
        check_vma=False,
    )
    def on_each(part, residual, weight, exchange):
        call = functools.partial(
            all_reduce_fused_add_rms_norm, axis_name=AXIS, exchange=exchange, **keywords
        )
        for _ in range(times):
            out, residual = call(part[0], residual, weight)
        return out[None], residual[None]

    return lambda *arrays: on_each(*arrays, exchange)


def expected(parts, residual, weight, times: int = 1, eps: float = 1e-6):
    """In f64, but for the roundings of the sum and of the residual."""
    dtype = residual.dtype
    total = parts.astype(np.float64).sum(axis=0).astype(dtype)
    for _ in range(times):
        residual = (total.astype(np.float64) + residual).astype(dtype)
    wide = residual.astype(np.float64)
    rstd = 1 / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps)
    return wide * rstd * weight.astype(np.float64), residual


def assert_near(got, want, dtype, roundings: int = 1) -> None:
    """Equal on all devices, and near the reference; `roundings` of the few numbers of a short row may fall on one side."""
    name = {v: k for k, v in support.DTYPES.items()}[dtype]
    for on_devices, one in zip(got, want, strict=True):
        for result in np.asarray(on_devices):
            np.testing.assert_array_equal(result, on_devices[0])
            assert support.relative_error(result, one) <= roundings * support.TOLERANCE[name]


# ---------------------------------------------------------------------------- anywhere


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_xlas_way(ranks):
    arrays = operands(ranks, 5, 96)
    got = jax.jit(spread(mesh_of(model=ranks), eps=1e-3))(*arrays)
    assert_near(got, expected(*arrays, eps=1e-3), np.float32)


def test_devices_that_are_no_gpus_have_no_exchange():
    assert make_exchange(mesh_of(model=2), AXIS, columns=64, dtype=np.float32) is None
    library = _native.main_library()
    if library.manifest["cuda"] is None:
        with pytest.raises(NotImplementedError, match="built without CUDA"):
            library.enable_peer_access([0, 1])


def fake_exchange(mesh, rows: int, packs: int, ranks: int | None = None) -> Exchange:
    """Has the form of one, for what only traces programs for GPUs."""
    sharding = jax.NamedSharding(mesh, P(AXIS))
    ranks = ranks or mesh.size
    addresses = np.zeros((mesh.size * (ranks + 1), 2), np.int32)
    inbox = np.full((mesh.size * (2 * ranks + 1), rows, packs, 4), -1, np.int32)
    return Exchange(*(jax.device_put(x, sharding) for x in (addresses, inbox)))


def test_a_program_for_cpus_sums_by_xla():
    mesh = mesh_of(model=2)
    arrays = operands(2, 4, 64)
    got = jax.jit(spread(mesh, fake_exchange(mesh, 4, 16)))(*arrays)
    assert_near(got, expected(*arrays), np.float32)


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "is_ours"),
    [
        (4, 64, np.float32, True),
        (4, 128, ml_dtypes.bfloat16, True),
        (1, 8, ml_dtypes.bfloat16, True),
        (5, 64, np.float32, False),  # more rows than there is room for
        (4, 68, np.float32, False),  # longer ones
        (4, 60, ml_dtypes.bfloat16, False),  # not whole packs
    ],
)
def test_what_a_program_for_gpus_does(rows, n, dtype, is_ours):
    mesh = mesh_of(model=2)
    function = jax.jit(spread(mesh, fake_exchange(mesh, 4, 16)))
    traced = function.trace(*operands(2, rows, n, dtype))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert (f"intarsia.{OP}" in text) == is_ours
    assert ("all_reduce" in text.replace(OP, "")) != is_ours


def test_gradients_are_those_of_the_sum():
    mesh = mesh_of(model=2)
    arrays = operands(2, 3, 32)

    def by_hand(parts, residual, weight):
        return fused_add_rms_norm(parts.sum(axis=0), residual, weight)[0].sum()

    def ours(parts, residual, weight):
        return spread(mesh)(parts, residual, weight)[0][0].sum()

    want, got = (jax.grad(f)(*map(jnp.asarray, arrays)) for f in (by_hand, ours))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(residual=(4, 32)), "residual has n=32 but x has n=64"),
        (dict(weight=(63,)), "weight has n=63 but x has n=64"),
    ],
)
def test_wrong_calls_are_refused(change, message):
    shapes = dict(x=(4, 64), residual=(4, 64), weight=(64,)) | change
    mesh = mesh_of(model=2)
    for exchange in (None, fake_exchange(mesh, 4, 16)):
        with pytest.raises(ValueError, match=message):
            x, residual, weight = (np.ones(shape, np.float32) for shape in shapes.values())
            jax.jit(spread(mesh, exchange)).trace(np.stack([x, x]), residual, weight)


def test_the_exchange_of_another_axis_is_refused():
    mesh = mesh_of(model=2)
    exchange = fake_exchange(mesh, 4, 16, ranks=4)
    with pytest.raises(ValueError, match="exchange is for 4 devices, but mesh axis 'model' has 2"):
        jax.jit(spread(mesh, exchange)).trace(*operands(2, 4, 64))


def test_vmap():
    mesh = mesh_of(model=2)
    exchange = fake_exchange(mesh, 8, 16)
    each = [operands(2, 4, 64)[:2] for _ in range(2)]
    weight = operands(2, 4, 64)[2]
    batch = [np.stack(arrays) for arrays in zip(*each, strict=True)]
    outs, residuals = jax.jit(jax.vmap(spread(mesh, exchange), (0, 0, None)))(*batch, weight)
    for got, arrays in zip(zip(outs, residuals, strict=True), each, strict=True):
        assert_near(got, expected(*arrays, weight), np.float32)


# ---------------------------------------------------------------------------- on GPUs


@functools.cache
def gpus(ranks: int):
    if len(jax.devices("gpu")) < ranks:
        pytest.skip(f"this machine has fewer than {ranks} GPUs")
    mesh = mesh_of(jax.devices("gpu")[:ranks], model=ranks)
    exchange = make_exchange(mesh, AXIS, columns=4096, dtype=np.float32, max_rows=300)
    if exchange is None:
        pytest.skip("these GPUs cannot reach each other's memory")
    return mesh, exchange


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 4])
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 300),
    packs=st.integers(1, 1024),
    dtype=st.sampled_from(list(support.DTYPES.values())),
    f32_weight=st.booleans(),
    rounding=st.sampled_from(["once", "before_weight"]),
    times=st.integers(1, 3),
)
def test_against_f64(ranks, rows, packs, dtype, f32_weight, rounding, times):
    """One exchange for all: rows of different lengths and numbers one after the other."""
    mesh, exchange = gpus(ranks)
    n = packs * 16 // np.dtype(dtype).itemsize
    arrays = operands(ranks, rows, n, dtype, np.float32 if f32_weight else None)
    function = jax.jit(spread(mesh, exchange, times, rounding=rounding))
    assert f"intarsia.{OP}" in function.lower(*arrays).as_text()
    want, roundings = expected(*arrays, times), 1 + (rounding == "before_weight")
    for _ in range(3):  # by itself, recorded in a graph, and from it
        assert_near(function(*arrays), want, dtype, roundings)


@pytest.mark.gpu
def test_nan_and_minus_zero_go_across():
    """Words of ones are what says that nothing has come: no NaN may be taken for it."""
    mesh, exchange = gpus(2)
    for dtype, ones in ((np.float32, np.uint32), (ml_dtypes.bfloat16, np.uint16)):
        parts, residual, weight = operands(2, 3, 64, dtype)
        parts.view(ones)[:, 1] = ~ones(0)
        parts[:, 2], residual[2] = -0.0, -0.0
        out, added = map(np.asarray, jax.jit(spread(mesh, exchange))(parts, residual, weight))
        assert np.isnan(out[:, 1].astype(np.float32)).all()
        assert np.isfinite(out[:, [0, 2]].astype(np.float32)).all()
        assert np.signbit(added[:, 2].astype(np.float32)).all()


@pytest.mark.gpu
def test_a_loop_of_many_calls():
    """Every call takes the other half of the inbox; a loop's body is one call, an odd number of times."""
    mesh, exchange = gpus(2)
    parts, residual, weight = operands(2, 16, 1024)
    parts, residual = np.round(4 * parts), np.round(residual)  # sums of these are exact

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(AXIS), P(), P(), jax.tree.map(lambda x: x.sharding.spec, exchange)),
        out_specs=P(AXIS),
        check_vma=False,
    )
    def loop(part, residual, weight, exchange):
        def body(_, residual):
            return all_reduce_fused_add_rms_norm(
                part[0], residual, weight, axis_name=AXIS, exchange=exchange
            )[1]

        return jax.lax.fori_loop(0, 1001, body, residual)[None]

    got = np.asarray(jax.jit(loop)(parts, residual, weight, exchange))
    np.testing.assert_array_equal(got[0], 1001 * parts.sum(axis=0) + residual)
    np.testing.assert_array_equal(got[1], got[0])
