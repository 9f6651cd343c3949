"""The ops' gradients against finite differences of the f64 references and against autodiff of plain XLA."""

import zlib

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from intarsia import _dtypes
from intarsia.jax import _grad

OPS = sorted(op for op in running.LIBRARY.ops if f"intarsia.{op}" in _grad._gradients)
CASES = [(op, case) for op in OPS for case in support.cases(op, "ci")]
# Of a gradient, in the Frobenius norm: it is summed from rounded results and cotangents.
TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}


def make(op: str, case: str, dtype: str) -> tuple[list, dict, list]:
    """Operands, attributes, and a cotangent for each result that is no integer."""
    rng = np.random.default_rng(zlib.crc32(f"{op} {case} {dtype}".encode()))
    module = support.op_module(op)
    operands, attributes = module.arguments(
        rng, support.DTYPES[dtype], **support.cases(op, "ci")[case]
    )
    results = running.LIBRARY.infer(op, [running.tensor(x) for x in operands], attributes)
    cotangents = [
        rng.standard_normal(row.shape).astype(_dtypes.numpy_dtype(row.dtype))
        for row in results
        if row is not None and not row.workspace and not row.dtype.startswith("i")
    ]
    return operands, attributes, cotangents


def is_float(x: np.ndarray | jax.Array | None) -> bool:
    return x is not None and not np.issubdtype(x.dtype, np.integer)


def gradients(function, operands: list, cotangents: list) -> list[np.ndarray | None]:
    """By operand, in spec order; None for indices and absent ones."""
    at = [i for i, x in enumerate(operands) if is_float(x)]

    def of_floats(*floats):
        every = list(operands)
        for i, x in zip(at, floats, strict=True):
            every[i] = x
        return tuple(y for y in function(*every) if is_float(y))

    def pull(floats, cotangents):
        return jax.vjp(of_floats, *floats)[1](tuple(cotangents))

    with running.wide_indices(operands):
        found = jax.jit(pull)([operands[i] for i in at], cotangents)
    every = [None] * len(operands)
    for i, x in zip(at, found, strict=True):
        every[i] = np.asarray(x)
    return every


def norm(arrays: list[np.ndarray]) -> float:
    """What errors are measured by. Where a gradient is the difference of larger terms, cotangents count too."""
    return float(np.sqrt(sum(np.sum(running.as_f64(x) ** 2) for x in arrays)))


def ours(op: str, operands: list, attributes: dict, cotangents: list) -> list[np.ndarray | None]:
    return gradients(lambda *xs: ij.call(op, xs, **attributes), operands, cotangents)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_gradient_is_the_slope_of_the_reference(op: str, case: str) -> None:
    """Along random directions, by central differences in f64."""
    operands, attributes, cotangents = make(op, case, "f32")
    found = ours(op, operands, attributes, cotangents)
    wide = [running.as_f64(x) for x in operands]
    reference = support.op_module(op).reference
    rng = np.random.default_rng(1)

    def loss(every: list) -> float:
        results = filter(is_float, reference(*every, **attributes))
        return sum(
            float(np.sum(np.where(np.isfinite(y), y, 0) * running.as_f64(g)))
            for y, g in zip(results, cotangents, strict=True)
        )

    for i, gradient in enumerate(found):
        if gradient is None:
            continue
        assert gradient.shape == operands[i].shape and gradient.dtype == operands[i].dtype
        for _ in range(3):
            direction = rng.standard_normal(wide[i].shape)
            step = 1e-5
            ends = []
            for sign in (1, -1):
                moved = list(wide)
                moved[i] = wide[i] + sign * step * direction
                ends.append(loss(moved))
            slope = (ends[0] - ends[1]) / (2 * step)
            got = float(np.sum(gradient.astype(np.float64) * direction))
            size = np.linalg.norm(gradient.astype(np.float64)) + 0.1 * norm(cotangents)
            assert abs(got - slope) <= 2e-5 * size, (i, got, slope)


def in_test_full(row):
    return pytest.param(*row.values, marks=[*row.marks, pytest.mark.full])


@pytest.mark.parametrize(
    ("op", "case", "dtype", "platform"),
    [
        # The slope of the reference, above, is that of every case.
        row if case == "example" else in_test_full(row)
        for op, case in CASES
        for row in running.on_its_platforms(op, case, "f32")
    ]
    + [
        row
        for op in OPS
        for dtype in ("f16", "bf16")
        for row in running.on_its_platforms(op, "example", dtype)
    ],
)
def test_gradient_is_that_of_plain_xla(op: str, case: str, dtype: str, platform: str) -> None:
    if case in {*support.cases(op, "beyond_plain"), *support.cases(op, "beyond_autodiff")}:
        return
    operands, attributes, cotangents = make(op, case, dtype)
    with jax.default_device(jax.devices(platform)[0]):
        found = ours(op, operands, attributes, cotangents)
    # In f32 throughout: in a narrower type autodiff would round at every step.
    wide = [x.astype(np.float32) if is_float(x) else x for x in operands]
    plain = support.op_module(op).plain_xla
    want = gradients(
        lambda *xs: plain(*xs, **attributes), wide, [g.astype(np.float32) for g in cotangents]
    )
    for i, (gradient, expected) in enumerate(zip(found, want, strict=True)):
        if expected is not None:
            assert gradient.dtype == operands[i].dtype
            size = norm([expected]) + 0.1 * norm(cotangents)
            error = norm([running.as_f64(gradient) - expected]) / size if size else 0.0
            assert error <= TOLERANCE[dtype], f"operand {i} is off by {error:.1e}"


def test_the_forward_pass_is_the_op() -> None:
    """Differentiation changes no rounding."""
    rng = np.random.default_rng(0)
    x, residual = (rng.standard_normal((5, 64)).astype(support.DTYPES["bf16"]) for _ in range(2))
    plain = ij.fused_add_rms_norm(x, residual)
    differentiated, _ = jax.vjp(ij.fused_add_rms_norm, x, residual)
    for got, want in zip(differentiated, plain, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_positions_have_float0_tangents() -> None:
    operands, attributes, _ = make("rotary_embedding", "example", "f32")

    def loss(positions, query, table, key):
        turned, turned_key = ij.rotary_embedding(positions, query, table, key, **attributes)
        return jnp.sum(turned) + jnp.sum(turned_key)

    found = jax.grad(loss, argnums=(0, 1), allow_int=True)(*operands[:4])
    assert found[0].dtype == jax.dtypes.float0 and found[0].shape == operands[0].shape
    assert found[1].dtype == np.float32


def test_gradients_meet_vmap_scan_and_remat() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 16)).astype(np.float32)
    weight = 1 + 0.2 * rng.standard_normal(16).astype(np.float32)
    plain = support.op_module("rms_norm").plain_xla

    def deep(norm):
        def loss(x, weight):
            layers = jax.checkpoint(lambda x, _: (x + norm(x, weight), None))
            return jnp.sum(jnp.sin(jax.lax.scan(layers, x, length=3)[0]))

        return loss

    def each(norm):  # of one weight, for each member of a batch
        return jax.jit(jax.vmap(jax.grad(deep(norm), argnums=(0, 1)), in_axes=(0, None)))

    got, want = each(ij.rms_norm)(x, weight), each(lambda *xs: plain(*xs)[0])(x, weight)
    for gradient, expected in zip(got, want, strict=True):
        assert support.relative_error(gradient, expected) < 1e-5


def test_second_derivatives() -> None:
    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    plain = support.op_module("rms_norm").plain_xla

    def hessian(norm):
        return jax.jacrev(jax.grad(lambda x: jnp.sum(norm(x) ** 3)))(x)

    want = hessian(lambda x: plain(x)[0])
    assert support.relative_error(hessian(ij.rms_norm), want) < 1e-5


def test_what_has_no_gradient_says_so() -> None:
    k, cache = jnp.ones((2, 2, 8)), jnp.zeros((3, 4, 2, 8))
    slots = jnp.array([1, 2])

    def write(k):
        return jnp.sum(ij.reshape_and_cache_flash(k, k, (cache, cache), slots)[0])

    said = r"reshape_and_cache_flash: has no gradient; ops that have one are .*rms_norm.*stop_grad"
    with pytest.raises(NotImplementedError, match=said):
        jax.grad(write)(k)
    with pytest.raises(NotImplementedError, match=said):
        jax.jit(jax.grad(write))(k)
    assert not np.asarray(
        jax.grad(lambda k: write(jax.lax.stop_gradient(k)) + k.sum())(k) - 1
    ).any()


def test_what_has_no_gradient_runs_where_none_flows_back() -> None:
    """In the same function as what is differentiated, as a result beside the loss, and under vmap and remat."""
    x = np.random.default_rng(0).standard_normal((3, 2, 16)).astype(np.float32)
    cache, slots = jnp.zeros((3, 4, 2, 16)), jnp.array([1, 2])

    def loss(x):
        codes, scales = ij.dynamic_scaled_fp8_quant(x)
        key_cache, _ = ij.reshape_and_cache_flash(x[:2], x[:2], (cache, cache), slots)
        unused = ij.cascade_attention(
            x,
            (cache, cache),
            jnp.array([0]),
            4,
            jnp.array([4]),
            jnp.array([[1]]),
            jnp.array([0, 3]),
        )
        del unused
        seen = jax.lax.stop_gradient(key_cache.sum()) * 0
        return jnp.sum(ij.rms_norm(x) ** 3) + seen, (codes, scales, key_cache)

    def alone(x):
        return jnp.sum(ij.rms_norm(x) ** 3)

    want = jax.grad(alone)(x)
    got, (codes, scales, key_cache) = jax.jit(jax.grad(loss, has_aux=True))(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    plain = ij.dynamic_scaled_fp8_quant(x)
    assert np.asarray(codes).tobytes() == np.asarray(plain[0]).tobytes()
    assert np.array_equal(scales, plain[1]) and np.array_equal(key_cache[0, 1], x[0])
    remat = jax.grad(jax.checkpoint(lambda x: loss(x)[0]))(x)
    np.testing.assert_allclose(remat, want, rtol=1e-5)

    def of_one(x):
        return (
            jnp.sum(ij.rms_norm(x) ** 3)
            + ij.static_scaled_fp8_quant(jax.lax.stop_gradient(x), jnp.ones(1))
            .astype(jnp.float32)
            .sum()
        )

    np.testing.assert_allclose(jax.vmap(jax.grad(of_one))(x), want, rtol=1e-5)
