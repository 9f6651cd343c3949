"""`intarsia.jax.grouped_matmul` against NumPy in f64 and `jax.lax.ragged_dot`, and as part of JAX's transformations."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, INDEX_DTYPES, SEEDS, check
from hypothesis import given
from hypothesis import strategies as st
from jax import P, export, lax
from sharded import DEVICES, mesh_of, normal

OP, GRADIENT = "grouped_matmul", "grouped_matmul_weight_gradient"
# Around registers, blocks of rows and tiles of columns.
ROWS = st.one_of(st.integers(0, 40), st.sampled_from([127, 129, 300]))
COLUMNS = st.one_of(st.integers(0, 70), st.sampled_from([513, 1030]))
HOSTILE = (-(2**31), -5, 0, 3, 2**31 - 1)


@st.composite
def routings(draw, m: int):
    """Sizes, how many groups are at hand, and which is the first of them."""
    e = draw(st.integers(0, 6))
    kind = draw(st.sampled_from(["some", "hostile", "one"]))
    rng = np.random.default_rng(draw(SEEDS))
    if kind == "some":
        sizes = rng.multinomial(m, np.ones(e + 1) / (e + 1))[:e]
    elif kind == "hostile":
        sizes = rng.choice(HOSTILE, e)
    else:
        sizes = np.where(np.arange(e) == e // 2, m, 0)
    dtype = draw(INDEX_DTYPES)
    offset = draw(st.none() | st.integers(-3, e + 3) | st.sampled_from(HOSTILE))
    groups = e if offset is None else draw(st.integers(0, e))
    return sizes.astype(dtype), groups, None if offset is None else np.array([offset], dtype)


@st.composite
def products(draw):
    rng, t = np.random.default_rng(draw(SEEDS)), support.DTYPES[draw(DTYPES)]
    m, k, n = draw(ROWS), draw(COLUMNS), draw(COLUMNS)
    sizes, g, offset = draw(routings(m))
    rows, mx = None, m
    if draw(st.booleans()):
        mx = draw(st.integers(0, 20))
        rows = rng.integers(-2, mx + 2, m).astype(draw(INDEX_DTYPES))
    transposed = draw(st.booleans())
    w = rng.standard_normal((g, n, k) if transposed else (g, k, n)).astype(t)
    bias = rng.standard_normal((g, n)).astype(t) if draw(st.booleans()) else None
    out_dtype = draw(st.sampled_from(["auto", "f32"]))
    x = rng.standard_normal((mx, k)).astype(t)
    attributes = {"transposed": transposed, "out_dtype": out_dtype}
    return [x, w, sizes, offset, rows, bias], attributes


@running.on_each_platform
@given(call=products())
def test_any_groups(platform, call) -> None:
    check(OP, *call, platform)


@st.composite
def contractions(draw):
    rng, t = np.random.default_rng(draw(SEEDS)), support.DTYPES[draw(DTYPES)]
    m, k, n = draw(ROWS), draw(COLUMNS), draw(COLUMNS)
    sizes, g, offset = draw(routings(m))
    x, d_out = (rng.standard_normal((m, columns)).astype(t) for columns in (k, n))
    attributes = {} if offset is None or g == 0 else {"num_groups": g}
    return [x, d_out, sizes, offset], attributes


@running.on_each_platform
@given(call=contractions())
def test_any_weight_gradient(platform, call) -> None:
    check(GRADIENT, *call, platform)


@running.on_each_platform
@pytest.mark.parametrize("sizes", [(300, 0, 0), (2**31 - 1,) * 3, (-7, 2**31 - 1, 5)])
def test_sizes_that_do_not_fit_reach_nothing_else(sizes, platform) -> None:
    """All rows are the first group's that has room for them, whatever follows."""
    x, w = normal(40, 32), normal(3, 32, 16)
    with jax.default_device(jax.devices(platform)[0]):
        out = jax.jit(ij.grouped_matmul)(x, w, np.array(sizes, np.int32))
    first = 1 if sizes[0] < 0 else 0
    running.check(OP, np.asarray(out), x.astype(np.float64) @ w[first].astype(np.float64))


def parts(seed: int, m: int = 40, k: int = 24, n: int = 20, sizes=(7, 0, 21, 5)):
    draw = np.random.default_rng(seed)
    x, w = (draw.standard_normal(s, np.float32) for s in ((m, k), (len(sizes), k, n)))
    return x, w, np.array(sizes, np.int32)


@running.on_each_platform
@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("wanted", [None, jnp.float32])
def test_stands_in_for_ragged_dot(dtype, wanted, platform) -> None:
    x, w, sizes = parts(1)
    x, w = (a.astype(support.DTYPES[dtype]) for a in (x, w))
    with jax.default_device(jax.devices(platform)[0]):
        got = ij.grouped_matmul(x, w, sizes, lax.Precision.HIGHEST, wanted)
        want = lax.ragged_dot(x, w, sizes, lax.Precision.HIGHEST, wanted)
    assert got.dtype == want.dtype and got.shape == want.shape
    least = {"f32": 1e-5, "f16": 1e-3, "bf16": 1e-2}[dtype]
    running.check(OP, np.asarray(got), np.asarray(want).astype(np.float64), least=least)


SIZES = {
    "balanced": (10, 10, 10, 10),
    "zipf": (19, 10, 6, 5),
    "one takes all": (0, 0, 40, 0),
    "sum below m": (7, 0, 21, 5),
    "none": (0, 0, 0, 0),
}


@running.on_each_platform
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients_are_those_of_ragged_dot(transposed, sizes, platform) -> None:
    x, w, sizes = parts(2, sizes=sizes)
    weight = np.asarray(w.swapaxes(1, 2)) if transposed else w

    def ours(x, w):
        return ij.grouped_matmul(x, w, sizes, transposed=transposed)

    def xlas(x, w):
        return lax.ragged_dot(x, w, sizes, lax.Precision.HIGHEST)

    def value_and_gradients(function, x, w):
        out, pull = jax.vjp(function, x, w)
        return out, *pull(jnp.cos(out))

    with jax.default_device(jax.devices(platform)[0]):
        out, d_x, d_w = jax.jit(lambda *a: value_and_gradients(ours, *a))(x, weight)
        want = jax.jit(lambda *a: value_and_gradients(xlas, *a))(x, w)
    d_w = d_w.swapaxes(1, 2) if transposed else d_w
    for got, wanted in zip((out, d_x, d_w), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert not np.asarray(d_w)[sizes == 0].any()


def dense(x, w, sizes, rows=None, bias=None, offset=0):
    """The same by one-hot products of jax.numpy."""
    m = x.shape[0] if rows is None else rows.shape[0]
    ends = np.cumsum(sizes)
    group = np.searchsorted(ends, np.arange(m), side="right")
    group = np.where(group < len(sizes), group - offset, -1)
    weights = jax.nn.one_hot(group, w.shape[0], dtype=jnp.float32)
    if rows is not None:
        weights = weights * ((rows >= 0) & (rows < x.shape[0]))[:, None]
        x = x[np.clip(rows, 0, x.shape[0] - 1)]
    out = jnp.einsum("mk,gkn,mg->mn", x, w, weights, precision="highest")
    return out if bias is None else out + jnp.matmul(weights, bias, precision="highest")


@running.on_each_platform
@pytest.mark.parametrize("offset", [None, 1, 3])
def test_gradients_with_rows_bias_and_offset(offset, platform) -> None:
    x, w, sizes = parts(3)
    w = w[: 4 if offset is None else 2]
    rows = np.random.default_rng(4).integers(-1, 12, 40).astype(np.int32)
    bias, x = normal(w.shape[0], 20), x[:11]
    group_offset = None if offset is None else np.array([offset], np.int32)

    def ours(x, w, bias):
        out = ij.grouped_matmul(x, w, sizes, group_offset=group_offset, rows=rows, bias=bias)
        return (out**2).sum()

    def wanted(x, w, bias):
        return (dense(x, w, sizes, rows, bias, offset or 0) ** 2).sum()

    with jax.default_device(jax.devices(platform)[0]):
        got = jax.jit(jax.value_and_grad(ours, (0, 1, 2)))(x, w, bias)
        want = jax.jit(jax.value_and_grad(wanted, (0, 1, 2)))(x, w, bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2), got, want)


@pytest.mark.parametrize("offset", [None, 1])
def test_second_derivatives(offset) -> None:
    x, w, sizes = parts(3)
    w = w[: 4 if offset is None else 2]
    rows = np.random.default_rng(4).integers(-1, 12, 40).astype(np.int32)
    at = {} if offset is None else {"group_offset": np.array([offset], np.int32)}
    floats = x[:11], w, normal(w.shape[0], 20)
    got = running.second_derivatives(
        lambda x, w, bias: ij.grouped_matmul(x, w, sizes, rows=rows, bias=bias, **at), floats
    )
    want = running.second_derivatives(
        lambda x, w, bias: dense(x, w, sizes, rows, bias, offset or 0), floats
    )
    for second, expected in zip(got, want, strict=True):
        assert support.relative_error(second, expected) < 1e-3


def forms():
    """Calls of each form, as functions of arrays."""
    x, w, sizes = parts(5)
    rows = np.array([0, 3, -1, 39, 40, 7, 7, *range(33)], np.int32)
    bias = normal(4, 20)
    offset, local = np.array([1], np.int32), w[:2]
    return {
        "plain": (ij.grouped_matmul, (x, w, sizes)),
        "hostile": (ij.grouped_matmul, (x, w, np.array([-4, 9, 2**31 - 1, 2**31 - 1], np.int32))),
        "offset": (lambda *a: ij.grouped_matmul(*a[:3], group_offset=a[3]), (x, local, sizes, offset)),
        "rows": (lambda *a: ij.grouped_matmul(*a[:3], rows=a[3], bias=a[4]), (x, w, sizes, rows, bias)),
    }  # fmt: skip


@pytest.mark.parametrize("form", ["plain", "hostile", "offset", "rows"])
def test_xlas_version_computes_the_same(form: str, monkeypatch) -> None:
    """On a platform that lacks the op, values and gradients are XLA's."""
    function, arrays = forms()[form]

    def loss(x, w, *others):
        return (function(x, w, *others) ** 2).sum()

    run = jax.value_and_grad(loss, (0, 1))
    ours = jax.jit(run)(*arrays)
    exporter = export.export(jax.jit(run), platforms=["tpu"])
    assert "@intarsia." not in exporter(*arrays).mlir_module()
    from intarsia.jax import _grouped

    monkeypatch.setattr(_grouped, "_product", _grouped._by_xla)
    monkeypatch.setattr(_grouped, "_weight_product", _grouped._weights_by_xla)
    _grouped._function.cache_clear()
    xlas = jax.jit(lambda *a: run(*a))(*arrays)
    _grouped._function.cache_clear()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), ours, xlas)


def test_vmap_is_the_calls_one_by_one() -> None:
    xs, ws = normal(3, 20, 16), normal(3, 4, 16, 8)
    sizes = np.array([[5, 0, 9, 6], [20, 0, 0, 0], [1, 2, 3, 4]], np.int32)
    for axes in [(0, 0, 0), (0, None, 0), (None, 0, None), (None, None, 0)]:
        given = [a if axis == 0 else a[0] for a, axis in zip((xs, ws, sizes), axes, strict=True)]
        got = jax.jit(jax.vmap(ij.grouped_matmul, axes))(*given)
        for i in range(3):
            member = [a[i] if axis == 0 else a for a, axis in zip(given, axes, strict=True)]
            np.testing.assert_array_equal(got[i], ij.grouped_matmul(*member))
    of_gradients = jax.jit(jax.vmap(jax.grad(lambda w, x, s: ij.grouped_matmul(x, w, s).sum())))
    assert of_gradients(ws, xs, sizes).shape == ws.shape


def test_shard_map_with_experts_on_each_device() -> None:
    """Each device has some groups' matrices and all rows; the sum over devices is the whole."""
    mesh = mesh_of(model=DEVICES)
    x, w, sizes = parts(6, sizes=(3,) * (2 * DEVICES))

    def loss(x, w):
        @jax.shard_map(mesh=mesh, in_specs=(P(), P("model")), out_specs=P())
        def spread(x, w):
            offset = lax.axis_index("model")[None] * w.shape[0]
            return lax.psum(ij.grouped_matmul(x, w, sizes, group_offset=offset), "model")

        return jnp.sin(spread(x, w)).sum()

    def whole(x, w):
        return jnp.sin(ij.grouped_matmul(x, w, sizes)).sum()

    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, w)
    want = jax.jit(jax.value_and_grad(whole, (0, 1)))(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


def test_export_with_its_gradient() -> None:
    x, w, sizes = parts(7)
    step = jax.jit(jax.grad(lambda w, x, s: ij.grouped_matmul(x, w, s).sum()))
    exporter = export.export(
        step, platforms=["cpu", "cuda"], disabled_checks=ij.export_exemptions()
    )
    restored = export.deserialize(exporter(w, x, sizes).serialize())
    np.testing.assert_array_equal(restored.call(w, x, sizes), step(w, x, sizes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w": normal(3, 5, 7)}, r"grouped_matmul: w has k=5 but x has k=6"),
        ({"w": normal(6, 7)}, r"grouped_matmul: w has shape \[6, 7\], expected .*g k n"),
        ({"group_sizes": np.ones(4, np.int32)}, r"grouped_matmul: group_sizes has g=4 but w has g=3"),
        ({"group_sizes": np.ones(3, np.float32)}, r"grouped_matmul: group_sizes has dtype f32"),
        ({"w": normal(3, 6, 7).astype(np.float16)}, r"grouped_matmul: w has dtype f16"),
        ({"bias": normal(7)}, r"grouped_matmul: bias has shape \[7\], expected \[g n\]"),
        ({"preferred_element_type": jnp.bfloat16}, r"preferred_element_type is bfloat16, expected"),
    ],
)  # fmt: skip
def test_wrong_calls(arguments, message: str) -> None:
    right = {"x": normal(4, 6), "w": normal(3, 6, 7), "group_sizes": np.ones(3, np.int32)}
    with pytest.raises(ValueError, match=message):
        ij.grouped_matmul(**(right | arguments))


def test_the_bare_op_names_the_function_with_a_gradient() -> None:
    x, w, sizes = parts(8)
    with pytest.raises(NotImplementedError, match=r"intarsia.jax.grouped_matmul has one"):
        jax.grad(lambda x: ij.wire.grouped_matmul(x, w, sizes).sum())(x)


@running.on_each_platform
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_products_scattered_with_weights(dtype, weighted, platform) -> None:
    """Some to a row that nobody else has, many to one, and two to none."""
    x, w, sizes = parts(5)
    x, w = (a.astype(support.DTYPES[dtype]) for a in (x, w))
    owners = np.array([-1, 9, *np.arange(38) ** 2 % 9], np.int32)
    gates = np.random.default_rng(6).random(40, np.float32) if weighted else None
    x[0] = np.nan  # of which no row of the result gets anything
    call = jax.jit(ij.grouped_matmul, static_argnames="num_out_rows")
    with jax.default_device(jax.devices(platform)[0]):
        got = call(x, w, sizes, out_rows=owners, out_weights=gates, num_out_rows=9)
    products = np.zeros((40, w.shape[2]))
    for i, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        products[end - size : end] = x[end - size : end].astype(np.float64) @ w[i].astype(float)
    want = np.zeros((9, w.shape[2]))
    for product, owner, gate in zip(
        products, owners, np.ones(40) if gates is None else gates, strict=True
    ):
        if 0 <= owner < 9:
            want[owner] += gate * product
    assert got.dtype == x.dtype
    running.check(OP, np.asarray(got), want)


def test_gradients_of_scattered_products() -> None:
    x, w, sizes = parts(7)
    owners = jnp.array(np.arange(40) % 7 - 1)
    gates = normal(40)

    def of(scatter):
        loss = lambda *floats: (scatter(*floats) ** 3).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1, 2)))(x, w, gates)

    def ours(x, w, gates):
        return ij.grouped_matmul(x, w, sizes, out_rows=owners, out_weights=gates, num_out_rows=6)

    def xlas(x, w, gates):
        products = lax.ragged_dot(x, w, sizes, lax.Precision.HIGHEST) * gates[:, None]
        return jnp.zeros((6, 20)).at[jnp.where(owners < 0, 6, owners)].add(products, mode="drop")

    for got, want in zip(of(ours), of(xlas), strict=True):
        assert support.relative_error(np.asarray(got), np.asarray(want)) < 1e-5


def test_scattered_products_under_vmap_and_shard_map() -> None:
    x, w, sizes = parts(8)
    owners, gates = np.arange(40, dtype=np.int32) % 6, normal(DEVICES, 40)

    @jax.jit
    def each(gates):
        return ij.grouped_matmul(x, w, sizes, out_rows=owners, out_weights=gates, num_out_rows=6)

    want = np.stack([each(own) for own in gates])
    np.testing.assert_allclose(jax.vmap(each)(gates), want, rtol=1e-5, atol=1e-5)
    sharded = jax.shard_map(
        lambda own: each(own[0])[None], mesh=mesh_of(x=DEVICES), in_specs=P("x"), out_specs=P("x")
    )
    np.testing.assert_array_equal(jax.jit(sharded)(gates), want)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_out_rows": 4}, "num_out_rows is given without out_rows"),
        ({"out_weights": np.ones(40)}, "out_weights is given without out_rows"),
        ({"out_rows": np.zeros(40, np.int32)}, "num_out_rows is None, expected a number of rows"),
        ({"out_rows": np.zeros(40, np.int32), "num_out_rows": 2.5}, "num_out_rows is 2.5, expected a number of rows"),
        ({"out_rows": np.zeros(40, np.int32), "num_out_rows": 2**40}, "num_out_rows is 1099511627776, expected"),
        ({"out_rows": np.zeros(39, np.int32), "num_out_rows": 4}, r"out_rows is int32\[39\], expected int32 or int64 \[40\]"),
        ({"out_rows": np.zeros(40, np.int8), "num_out_rows": 200}, r"out_rows is int8\[40\], expected int32 or int64 \[40\]"),
        ({"out_rows": np.zeros(40, np.uint32), "num_out_rows": 4}, r"out_rows is uint32\[40\], expected int32 or int64"),
        (
            {"out_rows": np.zeros(40, np.int32), "out_weights": np.zeros(40, np.int32), "num_out_rows": 4},
            r"out_weights is int32\[40\], expected floating \[40\]",
        ),
    ],
)  # fmt: skip
def test_wrong_scatters(options, text) -> None:
    x, w, sizes = parts(9)
    with pytest.raises(ValueError, match=f"grouped_matmul: {text}"):
        ij.grouped_matmul(x, w, sizes, **options)
