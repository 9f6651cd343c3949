"""all_reduce_fused_add_rms_norm: XLA's way anywhere, and the kernel on two GPUs or more."""

import functools

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import recordings
import running
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


def spread(mesh, times: int = 1, check_vma: bool = False, **keywords):
    """The jitted function of an exchange or None, all parts, residual and weight: what each device gets.

    `times` calls, of which each adds to what the last one gave.
    """
    every = P(mesh.axis_names)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(every, P(AXIS), P(), P()),
        out_specs=every,
        check_vma=check_vma,
    )
    def on_each(exchange, part, residual, weight):
        call = functools.partial(
            all_reduce_fused_add_rms_norm, axis_name=AXIS, exchange=exchange, **keywords
        )
        for _ in range(times):
            out, residual = call(part[0], residual, weight)
        return out[None], residual[None]

    return on_each


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
    got = spread(mesh_of(model=ranks), eps=1e-3)(None, *arrays)
    assert_near(got, expected(*arrays, eps=1e-3), np.float32)


def test_devices_that_are_no_gpus_have_no_exchange():
    assert make_exchange(mesh_of(model=2), AXIS, columns=64, dtype=np.float32) is None
    library = _native.main_library()
    if library.manifest["cuda"] is None:
        with pytest.raises(NotImplementedError, match="built without CUDA"):
            library.enable_peer_access([0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(axis="data"), r"axis is 'data', expected one of \('model',\)"),
        (dict(columns=0), "columns is 0, expected at least 1"),
        (dict(max_rows=0), "max_rows is 0, expected at least 1"),
    ],
)
def test_impossible_exchanges_are_refused(change, message):
    with pytest.raises(ValueError, match=f"make_exchange: {message}"):
        make_exchange(mesh_of(model=2), **dict(axis=AXIS, columns=64, dtype=np.float32) | change)


def fake_exchange(mesh, rows: int, packs: int, axis: str = AXIS) -> Exchange:
    """Has the form of one, for what only traces programs for GPUs."""
    sharding = jax.NamedSharding(mesh, P(mesh.axis_names))
    ranks = mesh.shape[axis]
    addresses = np.zeros((mesh.size * (ranks + 1), 2), np.int32)
    inbox = np.full((mesh.size * (2 * ranks + 1), rows, packs, 4), -1, np.int32)
    return Exchange(*(jax.device_put(x, sharding) for x in (addresses, inbox)), axis)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("others", [{}, {"data": 2}])
def test_a_program_for_cpus_sums_by_xla(others, check_vma):
    mesh = mesh_of(**others, model=2)
    arrays = operands(2, 4, 64)
    function = spread(mesh, times=2, check_vma=check_vma)
    got = function(fake_exchange(mesh, 4, 16), *arrays)
    assert_near(got, expected(*arrays, times=2), np.float32)


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
    traced = spread(mesh).trace(fake_exchange(mesh, 4, 16), *operands(2, rows, n, dtype))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert (f"intarsia.{OP}" in text) == is_ours
    assert ("all_reduce" in text.replace(OP, "")) != is_ours


def test_a_program_for_gpus_is_exported():
    mesh = mesh_of(model=2)
    arguments = fake_exchange(mesh, 4, 16), *operands(2, 4, 64)
    exported = jax.export.export(
        spread(mesh), platforms=["cuda"], disabled_checks=ij.export_exemptions()
    )(*arguments)
    assert f"intarsia.{OP}" in exported.mlir_module()


def test_gradients_are_those_of_the_sum():
    mesh = mesh_of(model=2)
    arrays = operands(2, 3, 32)

    def by_hand(parts, residual, weight):
        return fused_add_rms_norm(parts.sum(axis=0), residual, weight)[0].sum()

    def ours(*arrays):
        return spread(mesh)(None, *arrays)[0][0].sum()

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
        with pytest.raises(ValueError, match=f"fused_add_rms_norm: {message}"):
            x, residual, weight = (np.ones(shape, np.float32) for shape in shapes.values())
            spread(mesh).trace(exchange, np.stack([x, x]), residual, weight)


def test_the_exchange_of_another_axis_is_refused():
    mesh = mesh_of(data=2, model=2)
    exchange = fake_exchange(mesh, 4, 16, axis="data")
    with pytest.raises(ValueError, match="exchange is for mesh axis 'data', but axis_name is 'mod"):
        spread(mesh).trace(exchange, *operands(2, 4, 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(x=(7, 64), residual=(7, 64)),
            "x has 7 rows, expected at most the inbox's max_rows=6",
        ),
        (
            dict(x=(6, 62), residual=(6, 62)),
            "x has rows of 248 bytes, expected a multiple of 16 up",
        ),
        (dict(x=(6, 68), residual=(6, 68)), "x has rows of 272 bytes, .* up to 256"),
        (
            dict(x=(1, 8196), residual=(1, 8196), inbox=(5, 6, 9999, 4)),
            "x has rows of 32784 bytes, .* up to 32768",
        ),
        (
            dict(inbox=(4, 6, 16, 4)),
            r"inbox has 2\*ranks\+1=4 but addresses has ranks=2, expected 5",
        ),
        (dict(addresses=(1, 2), inbox=(1, 6, 16, 4)), "addresses has ranks=0, expected at least 1"),
    ],
)
def test_the_kernels_bounds(change, message):
    shapes = dict(x=(6, 64), residual=(6, 64), addresses=(3, 2), inbox=(5, 6, 16, 4)) | change
    types = [
        _native.Tensor(shape, "i32" if name in ("addresses", "inbox") else "f32")
        for name, shape in shapes.items()
    ]
    with pytest.raises(ValueError, match=f"{OP}: {message}"):
        _native.main_library().infer(OP, [*types[:2], None, *types[2:]], {})


@pytest.mark.parametrize("room", [8, 4])
@pytest.mark.parametrize("mapped", ["rows", "x"])
def test_vmap(mapped, room):
    mesh = mesh_of(model=2)
    each = [operands(2, 4, 64) for _ in range(2)]
    axes = {"rows": (0, 0, None), "x": (0, None, None)}[mapped]
    each = [
        tuple(
            one if axis == 0 else first for one, first, axis in zip(x, each[0], axes, strict=True)
        )
        for x in each
    ]
    batch = [
        np.stack(arrays) if axis == 0 else arrays[0]
        for arrays, axis in zip(zip(*each, strict=True), axes, strict=True)
    ]
    exchange = fake_exchange(mesh, room, 16)
    mapping = jax.jit(jax.vmap(spread(mesh), (None, *axes)))
    text = mapping.trace(exchange, *batch).lower(lowering_platforms=("cuda",)).as_text()
    assert (f"intarsia.{OP}" in text) == (room == 8)
    outs, residuals = mapping(exchange, *batch)
    for got, arrays in zip(zip(outs, residuals, strict=True), each, strict=True):
        assert_near(got, expected(*arrays), np.float32)


# ---------------------------------------------------------------------------- on GPUs


@functools.cache
def gpus(ranks: int, others: int = 1):
    """A mesh, and an exchange for up to 300 rows of 16 KB."""
    devices = jax.devices("gpu")[: ranks * others]
    if len(devices) < ranks * others:
        pytest.skip(f"this machine has fewer than {ranks * others} GPUs")
    try:
        _native.main_library().enable_peer_access([d.local_hardware_id for d in devices])
    except NotImplementedError as e:
        pytest.skip(str(e))
    mesh = mesh_of(devices, data=others, model=ranks)
    exchange = make_exchange(mesh, AXIS, columns=4096, dtype=np.float32, max_rows=300)
    assert exchange is not None
    return mesh, exchange


def text_of(function, *arguments) -> str:
    return function.lower(*arguments).as_text()


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "others"), [(1, 1), (2, 1), (4, 1), (2, 2)])
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 300),
    packs=st.integers(1, 1024),
    dtype=st.sampled_from(list(support.DTYPES.values())),
    f32_weight=st.booleans(),
    rounding=st.sampled_from(["once", "before_weight"]),
    times=st.integers(1, 3),
)
def test_against_f64(ranks, others, rows, packs, dtype, f32_weight, rounding, times):
    """One exchange for all: rows of different lengths and numbers one after the other."""
    mesh, exchange = gpus(ranks, others)
    n = packs * 16 // np.dtype(dtype).itemsize
    arrays = operands(ranks, rows, n, dtype, np.float32 if f32_weight else None)
    function = spread(mesh, times, rounding=rounding)
    assert f"intarsia.{OP}" in text_of(function, exchange, *arrays)
    want, roundings = expected(*arrays, times), 1 + (rounding == "before_weight")
    for _ in range(3):  # by itself, recorded in a graph, and from it
        assert_near(function(exchange, *arrays), want, dtype, roundings)


@pytest.mark.gpu
def test_a_copy_of_the_inbox_is_known_for_one():
    """A program that closes over the exchange has a copy of it: the kernel counts in the inbox itself all the same."""
    mesh, exchange = gpus(2)
    arrays = operands(2, 16, 1024)
    closed = jax.jit(lambda *arrays: spread(mesh)(exchange, *arrays))
    want = expected(*arrays)
    for function in (closed, functools.partial(spread(mesh), exchange), closed):
        assert_near(function(*arrays), want, np.float32)


@pytest.mark.gpu
def test_programs_in_flight():
    """Programs with different numbers of rows, one behind the other on the devices before the host has seen any."""
    mesh, exchange = gpus(2)
    function = spread(mesh, times=2)
    calls = [operands(2, rows, 1024) for rows in (3, 200, 16, 1, 64)]
    for _ in range(3):
        results = [function(exchange, *arrays) for arrays in calls]
        for got, arrays in zip(results, calls, strict=True):
            assert_near(got, expected(*arrays, times=2), np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(support.DTYPES.values()))
def test_nan_and_minus_zero_go_across(dtype):
    """Words of ones are what says that nothing has come: no NaN may be taken for it."""
    mesh, exchange = gpus(2)
    words = np.uint32 if dtype == np.float32 else np.uint16
    parts, residual, weight = operands(2, 4, 64, dtype)
    parts.view(words)[:, 1] = ~words(0)
    parts[:, 2], residual[2] = -0.0, -0.0
    parts.view(words)[1, 3] = ~words(0)
    results = spread(mesh)(exchange, parts, residual, weight)
    out, added = (np.asarray(x).astype(np.float32) for x in results)
    assert np.isnan(out[:, [1, 3]]).all()
    assert np.isfinite(out[:, [0, 2]]).all()
    assert np.signbit(added[:, 2]).all()


@pytest.mark.gpu
def test_a_loop_of_many_calls():
    """Every call takes the other half of the inbox; a loop's body is one call, an odd number of times."""
    mesh, exchange = gpus(2)
    parts, residual, weight = operands(2, 16, 1024)
    parts, residual = np.round(4 * parts), np.round(residual)  # sums of these are exact
    every = P(mesh.axis_names)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(every, P(AXIS), P(), P()),
        out_specs=every,
        check_vma=False,
    )
    def loop(exchange, part, residual, weight):
        def body(_, residual):
            return all_reduce_fused_add_rms_norm(
                part[0], residual, weight, axis_name=AXIS, exchange=exchange
            )[1]

        return jax.lax.fori_loop(0, 1001, body, residual)[None]

    for got in np.asarray(loop(exchange, parts, residual, weight)):
        np.testing.assert_array_equal(got, 1001 * parts.sum(axis=0) + residual)


@pytest.mark.gpu
@pytest.mark.parametrize("path", sorted(recordings.FOLDER.glob(f"*/{OP}.npz")), ids=str)
def test_what_was_exported_still_runs(path):
    """A program of one GPU, with the exchange of one in the place of the recorded addresses."""
    recording = recordings.Recording.load(path)
    x, residual, weight, _, inbox = recording.operands
    mesh = mesh_of(jax.devices("gpu")[:1], model=1)
    exchange = make_exchange(mesh, AXIS, columns=x.shape[1], dtype=x.dtype, max_rows=inbox.shape[1])
    assert exchange.inbox.shape == inbox.shape
    with jax.default_device(mesh.devices.flat[0]):
        program = jax.jit(recording.exported().call)
        for _ in range(3):
            got = program(x, residual, weight, exchange.addresses, exchange.inbox)
            for result, want in zip(got, recording.results, strict=True):
                running.check(OP, np.asarray(result), want.astype(np.float64))
