"""The ops' gradients against finite differences of the f64 references and against autodiff of plain XLA."""

import functools
import zlib
from collections.abc import Callable

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


Name = tuple[str, str]  # case, dtype
Gradients = dict[
    Name, list[np.ndarray | None]
]  # by operand, in spec order; None for indices and absent ones


def gradients(calls: dict[Name, tuple[Callable, list, list]]) -> Gradients:
    """Of a function, its operands and cotangents each: all in one program, since compiling takes most of the time."""
    found: Gradients = {}
    for wide in (False, True):
        some = {k: v for k, v in calls.items() if running.has_wide_indices(v[1]) == wide}

        def program(floats: dict, cotangents: dict, some=some) -> dict:
            return {
                name: pull(function, operands, floats[name], cotangents[name])
                for name, (function, operands, _) in some.items()
            }

        floats = {k: [x for x in operands if is_float(x)] for k, (_, operands, _) in some.items()}
        with jax.enable_x64(wide):
            results = jax.jit(program)(floats, {k: v[2] for k, v in some.items()})
        for name, (_, operands, _) in some.items():
            arrays = iter(results[name])
            found[name] = [np.asarray(next(arrays)) if is_float(x) else None for x in operands]
    return found


def pull(function: Callable, operands: list, floats: list, cotangents: list) -> tuple:
    """The cotangents of the operands that are no indices."""

    def of_floats(*floats):
        given = iter(floats)
        every = [next(given) if is_float(x) else x for x in operands]
        return tuple(y for y in function(*every) if is_float(y))

    return jax.vjp(of_floats, *floats)[1](tuple(cotangents))


def norm(arrays: list[np.ndarray]) -> float:
    """What errors are measured by. Where a gradient is the difference of larger terms, cotangents count too."""
    return float(np.sqrt(sum(np.sum(running.as_f64(x) ** 2) for x in arrays)))


def in_every_run(op: str) -> tuple[Name, ...]:
    """What is compared with plain XLA's: the slope of the reference is that of every case."""
    return tuple(("example", dtype) for dtype in support.DTYPES)


def in_test_full(op: str) -> tuple[Name, ...]:
    return tuple((case, "f32") for case in support.cases(op, "ci") if case != "example")


@functools.cache
def ours(op: str, platform: str) -> Gradients:
    def call(attributes: dict) -> Callable:
        return lambda *xs: ij.call(op, xs, **attributes)

    calls = {name: make(op, *name) for name in (*in_every_run(op), *in_test_full(op))}
    with jax.default_device(jax.devices(platform)[0]):
        return gradients({k: (call(how), xs, gs) for k, (xs, how, gs) in calls.items()})


def beyond_plain(op: str) -> set[str]:
    return {*support.cases(op, "beyond_plain"), *support.cases(op, "beyond_autodiff")}


@functools.cache
def plain(op: str, names: tuple[Name, ...]) -> Gradients:
    """Autodiff's, in f32 throughout: in a narrower type it would round at every step."""

    def call(attributes: dict) -> Callable:
        return lambda *xs: support.op_module(op).plain_xla(*xs, **attributes)

    calls = {}
    for name in names:
        if name[0] not in beyond_plain(op):
            operands, attributes, cotangents = make(op, *name)
            wide = [x.astype(np.float32) if is_float(x) else x for x in operands]
            calls[name] = call(attributes), wide, [g.astype(np.float32) for g in cotangents]
    return gradients(calls)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_gradient_is_the_slope_of_the_reference(op: str, case: str) -> None:
    """Along random directions, by central differences in f64."""
    operands, attributes, cotangents = make(op, case, "f32")
    found = ours(op, "cpu")[case, "f32"]
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


@pytest.mark.parametrize(
    ("op", "case", "dtype", "platform"),
    [
        pytest.param(*row.values, marks=[*row.marks, *marks])
        for op in OPS
        for names, marks in ((in_every_run(op), []), (in_test_full(op), [pytest.mark.full]))
        for name in names
        for row in running.on_its_platforms(op, *name)
    ],
)
def test_gradient_is_that_of_plain_xla(op: str, case: str, dtype: str, platform: str) -> None:
    if case in beyond_plain(op):
        return
    operands, _, cotangents = make(op, case, dtype)
    found = ours(op, platform)[case, dtype]
    names = in_every_run(op) if case == "example" else in_test_full(op)
    want = plain(op, names)[case, dtype]
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

    found = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True))(*operands[:4])
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
        return jax.jit(jax.jacrev(jax.grad(lambda x: jnp.sum(norm(x) ** 3))))(x)

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

    want = jax.jit(jax.grad(alone))(x)
    got, (codes, scales, key_cache) = jax.jit(jax.grad(loss, has_aux=True))(x)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    plain = ij.dynamic_scaled_fp8_quant(x)
    assert np.asarray(codes).tobytes() == np.asarray(plain[0]).tobytes()
    assert np.array_equal(scales, plain[1]) and np.array_equal(key_cache[0, 1], x[0])
    remat = jax.jit(jax.grad(jax.checkpoint(lambda x: loss(x)[0])))(x)
    np.testing.assert_allclose(remat, want, rtol=1e-5)

    def of_one(x):
        return (
            jnp.sum(ij.rms_norm(x) ** 3)
            + ij.static_scaled_fp8_quant(jax.lax.stop_gradient(x), jnp.ones(1))
            .astype(jnp.float32)
            .sum()
        )

    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(of_one)))(x), want, rtol=1e-5)


def test_a_number_of_numpy_is_an_attribute_in_x64_mode() -> None:
    with jax.enable_x64(True):
        x = jnp.ones((1, 4), jnp.float32)
        for limit in (0.1, np.float64(0.1)):
            gated = lambda x, limit=limit: ij.silu_and_mul_with_clamp(x, limit=limit).sum()  # noqa: E731
            assert jax.grad(gated)(x).dtype == jnp.float32
