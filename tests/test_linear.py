"""`intarsia.jax.linear` against NumPy in f64, and as part of JAX's transformations."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, SEEDS
from hypothesis import given
from hypothesis import strategies as st
from jax import P, export
from sharded import DEVICES, check, mesh_of, normal

rng = np.random.default_rng(0)
# Around the widths of panels, registers and tiles: 1, 2, ... 32 rows, blocks of 128 rows and of 512 columns.
ROWS = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 100, 127, 128, 129, 300]))
COLUMNS = st.one_of(st.integers(0, 70), st.sampled_from([511, 512, 513, 600, 1030]))


def reference(*operands: np.ndarray) -> np.ndarray:
    return support.op_module("linear").reference(*map(running.as_f64, operands))[0]


def draw(seed: int, dtype, m: int, n: int, k: int, with_bias: bool) -> list[np.ndarray]:
    sizes = {"m": m, "n": n, "k": k, "bias": with_bias}
    drawn = support.op_module("linear").arguments(np.random.default_rng(seed), dtype, **sizes)[0]
    return [x for x in drawn if x is not None]


def assert_near(got: np.ndarray, want: np.ndarray) -> None:
    running.check("linear", np.asarray(got), want)


@given(ROWS, COLUMNS, COLUMNS, DTYPES, st.booleans(), st.sampled_from(["auto", "f32"]), SEEDS)
def test_any_size_is_right(m, n, k, dtype, with_bias, out_dtype, seed) -> None:
    operands = draw(seed, support.DTYPES[dtype], m, n, k, with_bias)
    attributes = {"out_dtype": out_dtype}
    (out,) = running.run_native("linear", operands, attributes)
    assert out.dtype == (np.float32 if out_dtype == "f32" else operands[0].dtype)
    running.check_against_reference("linear", operands, attributes, [out])


@running.on_each_platform
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_leading_axes_in_a_program(dtype: str, platform: str) -> None:
    x, w, bias = draw(1, support.DTYPES[dtype], 12, 40, 96, True)
    with jax.default_device(jax.devices(platform)[0]):
        x, w, bias = map(jnp.asarray, (x, w, bias))
        out = jax.jit(ij.linear)(x.reshape(2, 3, 2, 96), w, bias)
        assert out.shape == (2, 3, 2, 40) and out.dtype == x.dtype
        assert_near(out.reshape(12, 40), reference(*map(np.asarray, (x, w, bias))))
        assert_near(ij.linear(x[0], w), reference(np.asarray(x), np.asarray(w))[0])  # without jit


def test_rows_beyond_what_is_packed_at_a_time() -> None:
    x, w = rng.standard_normal((5000, 1024), np.float32), rng.standard_normal((3, 1024), np.float32)
    (out,) = running.run_native("linear", [x, w], {})
    assert_near(out, reference(x, w))


@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("k", [1, 63, 576, 4095, 4096, 4097, 4113, 9000])
def test_a_row_alone_over_long_and_odd_sums(dtype: str, k: int) -> None:
    operands = draw(k, support.DTYPES[dtype], 1, 21, k, True)
    (out,) = running.run_native("linear", operands, {})
    running.check_against_reference("linear", operands, {}, [out])


def test_a_rounding_once() -> None:
    """Sums that T cannot hold on the way: 2048 + 1 - 2048 in f16, where 2049 is no number."""
    x = np.array([[2048, 1, -2048]], np.float16)
    (out,) = running.run_native("linear", [x, np.ones((1, 3), np.float16)], {})
    assert out.item() == 1.0
    bias = np.array([-2048], np.float16)
    (out,) = running.run_native("linear", [x[:, :2], np.ones((1, 2), np.float16), bias], {})
    assert out.item() == 1.0


@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("m", [1, 3, 8, 16, 40])
def test_what_is_not_finite_stays_in_its_row_and_column(dtype: str, m: int) -> None:
    x, w = draw(2, support.DTYPES[dtype], m, 21, 35, False)
    x[m // 2, 34], w[20, 3], w[4, 0] = np.nan, np.nan, np.inf
    (out,) = running.run_native("linear", [x, w], {})
    want = reference(x, w)
    assert np.isnan(want).sum() == 21 + m - 1
    assert_near(out, want)


def test_an_empty_sum_is_the_bias() -> None:
    x, w, bias = np.ones((3, 0), np.float32), np.ones((5, 0), np.float32), normal(5)
    np.testing.assert_array_equal(ij.linear(x, w, bias), np.tile(bias, (3, 1)))
    np.testing.assert_array_equal(ij.linear(x, w), np.zeros((3, 5)))


def test_a_program_for_cpus_has_one_call_and_one_for_gpus_none() -> None:
    x, w = normal(8, 64), normal(32, 64)
    text = jax.jit(ij.linear).trace(x, w).lower(lowering_platforms=("cpu",)).compile().as_text()
    assert text.count('custom_call_target="intarsia.linear"') == 1
    assert "conditional" not in text and " dot(" not in text
    lowered = jax.jit(ij.linear).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    assert "intarsia." not in lowered and lowered.count("stablehlo.dot_general") == 1


@pytest.mark.parametrize(("dtype", "calls"), [("f32", 0), ("bf16", 1)])
def test_one_row_in_f32_is_left_to_xla(dtype: str, calls: int) -> None:
    x, w = draw(3, support.DTYPES[dtype], 1, 32, 64, False)
    program = jax.jit(ij.linear).lower(x, w).compile()
    assert program.as_text().count('custom_call_target="intarsia.linear"') == calls
    assert_near(np.asarray(program(x, w)), reference(x, w))


def test_vmap_of_rows_and_of_weights() -> None:
    x, w, bias = normal(4, 3, 64), normal(4, 10, 64), normal(4, 10)
    of_rows = jax.jit(jax.vmap(ij.linear, in_axes=(1, None, None), out_axes=1))
    want = reference(x.reshape(12, 64), w[0], bias[0]).reshape(4, 3, 10)
    assert_near(of_rows(x, w[0], bias[0]), want)
    assert "intarsia.linear" in of_rows.lower(x, w[0], bias[0]).compile().as_text()
    of_weights = jax.vmap(ij.linear)(x, w, bias)
    assert_near(of_weights, np.stack([reference(*each) for each in zip(x, w, bias, strict=True)]))
    of_biases = jax.vmap(ij.linear, in_axes=(None, None, 0))(x[0], w[0], bias)
    assert_near(of_biases, np.stack([reference(x[0], w[0], b) for b in bias]))


@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_are_those_of_the_formula(dtype: str, with_bias: bool) -> None:
    operands = draw(3, support.DTYPES[dtype], 6, 10, 33, with_bias)
    d_out = rng.standard_normal((6, 10)).astype(support.DTYPES[dtype])
    _, pull = jax.vjp(ij.linear, *operands)
    x, w = (a.astype(np.float64) for a in operands[:2])
    d = d_out.astype(np.float64)
    want = [d @ w, d.T @ x, d.sum(0)]
    got = pull(jnp.asarray(d_out))
    assert len(got) == len(operands)
    for gradient, expected, operand in zip(got, want, operands, strict=False):
        assert gradient.dtype == operand.dtype
        assert_near(gradient, expected)


def test_gradients_under_vmap_and_with_leading_axes() -> None:
    x, w, bias = normal(4, 2, 3, 16), normal(5, 16), normal(5)

    def loss(function):
        return lambda x, w, b: (jax.vmap(lambda x: function(x, w, b))(x) ** 2).sum()

    got = jax.grad(loss(ij.linear), (0, 1, 2))(x, w, bias)
    want = jax.grad(loss(lambda x, w, b: x @ w.T + b), (0, 1, 2))(x, w, bias)
    for gradient, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-4)


def test_second_derivatives() -> None:
    floats = normal(4, 16), normal(5, 16), normal(5)
    got = running.second_derivatives(ij.linear, floats)
    want = running.second_derivatives(lambda x, w, bias: x @ w.T + bias, floats)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), got, want)
    each = jax.vmap(
        lambda x: jax.jacrev(jax.grad(lambda x: (ij.linear(x, floats[1]) ** 2).sum()))(x)
    )
    np.testing.assert_allclose(
        each(floats[0])[0], 2 * floats[1].T @ floats[1], rtol=1e-4, atol=1e-4
    )


def test_on_several_devices() -> None:
    mesh = mesh_of(model=DEVICES)
    x, w, bias = normal(16, 64), normal(24, 64), normal(24)
    columns = P(None, "model")
    of_columns = {"x": (x, P()), "w": (w, P("model")), "bias": (bias, P("model"))}
    check("linear", mesh, ij.linear, ij.shard(ij.linear, mesh, columns="model"), of_columns)
    of_rows = {"x": (x, P("model")), "w": (w, P()), "bias": (bias, P())}
    check("linear", mesh, ij.linear, ij.shard(ij.linear, mesh, tokens="model"), of_rows)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(columns, columns), out_specs=P())
    def parts(x, w):  # a row-parallel layer
        return jax.lax.psum(ij.linear(x, w), "model")

    assert_near(parts(x, w), reference(x, w))

    def loss(w):  # a weight that is one for all devices: its gradient is the sum over them
        local = jax.shard_map(
            ij.linear, mesh=mesh, in_specs=(P("model"), P()), out_specs=P("model")
        )
        return local(x, w).sum()

    assert_near(jax.jit(jax.grad(loss))(w), np.tile(x.astype(np.float64).sum(0), (24, 1)))


def test_export_for_one_platform_and_for_several() -> None:
    x, w, bias = normal(4, 32), normal(7, 32), normal(7)
    for platforms in (["cpu"], ["cpu", "cuda"]):
        exporter = export.export(
            jax.jit(ij.linear), platforms=platforms, disabled_checks=ij.export_exemptions()
        )
        restored = export.deserialize(exporter(x, w, bias).serialize())
        assert_near(restored.call(x, w, bias), reference(x, w, bias))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((normal(4, 5), normal(3, 6)), r"linear: w has k=6 but x has k=5"),
        ((normal(4, 5), normal(5)), r"linear: w has shape \[5\], expected \[n k\]"),
        ((normal(4, 5), normal(3, 5), normal(4)), r"linear: bias has n=4 but w has n=3"),
        ((np.float32(1), normal(3, 5)), r"linear: x has shape \[\]"),
        ((normal(4, 5), normal(3, 5).astype(np.float16)), r"linear: w has dtype f16"),
        ((np.ones((4, 5), np.int32), normal(3, 5)), r"linear: x has dtype i32"),
    ],
)
def test_wrong_calls(operands, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ij.linear(*operands)


def test_wrong_result_dtype() -> None:
    with pytest.raises(ValueError, match=r"linear: .*out_dtype is .*f16.*, expected"):
        ij.linear(normal(4, 5), normal(3, 5), out_dtype="f16")
