"""`intarsia.jax.fused_experts` against NumPy in f64, and as part of JAX's transformations."""

import functools
import itertools

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, INDEX_DTYPES, LEAD, SEEDS, check
from hypothesis import given
from hypothesis import strategies as st
from jax import P, export, lax
from sharded import DEVICES, mesh_of, normal

OP = "fused_experts"
ACTIVATIONS = ("silu", "gelu_tanh", "swigluoai")
HOSTILE = (-(2**31), -1, 2**31 - 1)


@st.composite
def layers(draw):
    rng, t = np.random.default_rng(draw(SEEDS)), support.DTYPES[draw(DTYPES)]
    lead, k, e = draw(LEAD), draw(st.integers(0, 5)), draw(st.integers(0, 9))
    n, i = (draw(st.one_of(st.integers(0, 40), st.sampled_from([64, 129]))) for _ in range(2))

    def some(*shape):
        return rng.standard_normal(shape).astype(t)

    known, expert_map = e, None
    if draw(st.booleans()):
        known = draw(st.integers(0, 12))
        expert_map = rng.choice([*HOSTILE, *range(e), e], known).astype(draw(INDEX_DTYPES))
    ids = rng.choice([*HOSTILE, *range(known), known], (*lead, k)).astype(draw(INDEX_DTYPES))
    w1_bias = some(e, 2 * i) if draw(st.booleans()) else None
    w2_bias = some(e, n) if draw(st.booleans()) else None
    shares = rng.uniform(0.1, 1, (*lead, k)).astype(draw(st.sampled_from([np.float32, t])))
    operands = [some(*lead, n), some(e, 2 * i, n), some(e, n, i), shares, ids]
    attributes = {
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "limit": draw(st.sampled_from([7.0, 0.75])),
        "alpha": draw(st.sampled_from([1.702, 0.5])),
        "apply_router_weight_on_input": draw(st.booleans()),
    }
    return [*operands, w1_bias, w2_bias, expert_map], attributes


@running.on_each_platform
@given(call=layers())
def test_any_layer(platform, call) -> None:
    check(OP, *call, platform)


def layer(seed: int, t: int = 12, n: int = 24, i: int = 16, e: int = 6, k: int = 2):
    """x, w1, w2, weights and ids."""
    draw = np.random.default_rng(seed)
    shapes = (t, n), (e, 2 * i, n), (e, n, i)
    x, w1, w2 = (draw.standard_normal(s, np.float32) / s[-1] ** 0.5 for s in shapes)
    ids = np.argsort(draw.random((t, e or k)), axis=-1)[:, :k].astype(np.int32)
    return x, w1, w2, draw.uniform(0.2, 1, (t, k)).astype(np.float32), ids


def in_f64(*operands, **attributes) -> np.ndarray:
    """The reference of the right operands, wide."""
    wide = [running.as_f64(a) if a is not None and a.dtype.kind == "f" else a for a in operands]
    return support.op_module(OP).reference(*wide, **attributes)[0]


@running.on_each_platform
def test_equal_shares_of_a_cut_layer_are_the_layer(platform) -> None:
    """A dense MLP cut into 8 experts of a part of its columns each, all chosen with weight 1/8, w2 times 8."""
    draw = np.random.default_rng(1)
    n, i, cuts = 64, 192, 8
    x, gate, up, down = (
        draw.standard_normal(s) for s in ((9, n), (i, n), (i, n), (n, i))
    )  # fmt: skip
    want = (lambda g, u: (g / (1 + np.exp(-g)) * u) @ down.T)(x @ gate.T, x @ up.T)
    w1 = np.concatenate([a.reshape(cuts, -1, n) for a in (gate, up)], axis=1)
    w2 = cuts * down.reshape(n, cuts, -1).swapaxes(0, 1)
    operands = [a.astype(np.float32) for a in (x, w1, w2)]
    with jax.default_device(jax.devices(platform)[0]):
        _, ids = ij.topk_router(jnp.zeros((9, cuts)), top_k=cuts)
        out = ij.fused_experts(*operands, jnp.full((9, cuts), 1 / cuts), ids)
    running.check(OP, np.asarray(out), want)


@running.on_each_platform
def test_is_the_ops_that_it_fuses(platform) -> None:
    """Sorted by hand, two grouped products and the activation between them: on the CPU the same bits."""
    x, w1, w2, weights, ids = (
        a.astype(support.DTYPES["bf16"]) if a.ndim == 3 or a.shape[-1] == 24 else a
        for a in layer(2)
    )  # fmt: skip
    k = ids.shape[1]
    order = np.argsort(ids.reshape(-1), kind="stable").astype(np.int32)
    sizes = np.bincount(ids.reshape(-1), minlength=len(w1)).astype(np.int32)
    with jax.default_device(jax.devices(platform)[0]):
        got = jax.jit(ij.fused_experts)(x, w1, w2, weights, ids)
        rows = jnp.asarray(order // k)
        hidden = ij.grouped_matmul(x, w1, sizes, rows=rows, transposed=True)
        down = ij.grouped_matmul(ij.silu_and_mul(hidden), w2, sizes, transposed=True)
    terms = np.zeros(down.shape, np.float32)
    terms[order] = np.asarray(down).astype(np.float32)
    want = np.zeros(x.shape, np.float32)
    for j in range(k):
        want += weights[:, j : j + 1] * terms.reshape(*ids.shape, -1)[:, j]
    if platform == "cpu":
        np.testing.assert_array_equal(got, want.astype(got.dtype))
    else:  # whose products have other tiles where they apply the activation themselves
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=2**-8, atol=1e-6)


@running.on_each_platform
def test_experts_of_several_devices_sum_to_all(platform) -> None:
    """Each part by a map, and by ids that count from its first expert on."""
    x, w1, w2, weights, ids = layer(3)
    biases = normal(6, 32), normal(6, 24)
    with jax.default_device(jax.devices(platform)[0]):
        whole = ij.fused_experts(x, w1, w2, weights, ids, *biases)
        by_map, by_ids = 0, 0
        for first in (0, 2, 4):
            part = slice(first, first + 2)
            here = np.full(6, -1, np.int32)
            here[part] = 0, 1
            local = w1[part], w2[part], weights
            of_part = [b[part] for b in biases]
            by_map += ij.fused_experts(x, *local, ids, *of_part, expert_map=here)
            by_ids += ij.fused_experts(x, *local, ids - first, *of_part)
    np.testing.assert_allclose(by_map, whole, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(by_map, by_ids)


@running.on_each_platform
def test_ids_of_nobody_reach_nothing(platform) -> None:
    """Whatever their weights: NaN in a weight, or in an expert that nobody has, stays there."""
    x, w1, w2, weights, ids = layer(4)
    ids[ids == 3] = -1
    ids[0], weights[0] = (2**31 - 1, -(2**31)), np.nan
    w1[3], w2[3] = np.nan, np.nan
    with jax.default_device(jax.devices(platform)[0]):
        out = np.asarray(jax.jit(ij.fused_experts)(x, w1, w2, weights, ids))
    assert not out[0].any() and np.isfinite(out).all()
    w1[3], w2[3] = 0, 0
    running.check(OP, out[1:], in_f64(x, w1, w2, weights, ids)[1:])


@pytest.mark.parametrize(
    ("t", "n", "i", "e", "k"), [(2**33, 0, 4, 3, 0), (5, 0, 4, 2**40, 2), (5, 4, 0, 2**40, 2), (5, 4, 4, 0, 2)]
)  # fmt: skip
def test_what_has_no_elements_may_be_of_any_size(t: int, n: int, i: int, e: int, k: int) -> None:
    shapes = (t, n), (e, 2 * i, n), (e, n, i), (t, k)
    operands = [np.zeros(shape, np.float32) for shape in shapes]
    ids = np.zeros((t, k), np.int32)
    (out,) = running.run_native(OP, [*operands, ids, None, None, None], {})
    assert out.shape == (t, n) and not out.any()


def test_long_prompts_take_several_passes() -> None:
    """Memory for half of the tokens, or for fewer: the same sums. Less than one token takes is refused."""
    operands = [*layer(5, t=33, e=4), None, None, None]
    want = in_f64(*operands)
    tensors = [running.tensor(x) for x in operands]
    _, whole = running.LIBRARY.infer(OP, tensors, {})

    def run(share: int) -> np.ndarray:
        out = np.full(want.shape, np.nan, np.float32)
        memory = np.full((1, whole.shape[1] // share), np.nan, np.float32)
        results = [running.tensor(x) for x in (out, memory)]
        running.LIBRARY.call(OP, "Host", tensors, {}, results)
        return out

    for share in (2, 8):
        running.check(OP, run(share), want)
    with pytest.raises(ValueError, match=r"fused_experts: workspace has .* for one token"):
        run(33)


def sparse(fraction: float, x, w1, w2, weights, ids):
    """ids of which some are nobody's."""
    ids = np.where(np.random.default_rng(6).random(ids.shape) < fraction, -1, ids)
    return x, w1, w2, weights, ids


def dense(x, w1, w2, weights, ids, w1_bias, w2_bias, activation, on_input):
    """All experts for all tokens, in jax.numpy."""
    shares = jax.nn.one_hot(ids, w1.shape[0]) * weights[..., None]
    before, behind = (shares, (ids[..., None] == jnp.arange(w1.shape[0])) * 1.0)
    before, behind = (before, behind) if on_input else (behind, shares)
    x = jnp.einsum("tn,tke->tekn", x, before)
    hidden = jnp.einsum("tekn,ein->teki", x, w1, precision="highest") + w1_bias[:, None]
    if activation == "swigluoai":
        gate, up = jnp.minimum(hidden[..., ::2], 7), jnp.clip(hidden[..., 1::2], -7, 7)
        gated = gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)
    else:
        gate, up = jnp.split(hidden, 2, -1)
        gated = (jax.nn.silu if activation == "silu" else jax.nn.gelu)(gate) * up
    down = jnp.einsum("teki,eni->tekn", gated, w2, precision="highest") + w2_bias[:, None]
    return jnp.einsum("tekn,tke->tn", down, behind)


def _gradients():
    """In every run all kinds of experts, and nothing along each axis of one kind."""
    for activation, on_input in itertools.product(ACTIVATIONS, (False, True)):
        usual = activation == "silu" and not on_input
        for sizes in ({}, *({axis: 0} for axis in "tniek")):
            marks = [pytest.mark.full] if sizes and not usual else []
            yield pytest.param(activation, on_input, sizes, marks=marks)


@pytest.mark.parametrize(("activation", "on_input", "sizes"), _gradients(), ids=str)
def test_gradients(activation: str, on_input: bool, sizes: dict[str, int]) -> None:
    x, w1, w2, weights, ids = sparse(0.2, *layer(7, **sizes))
    floats = x, w1, w2, weights, normal(*w1.shape[:2]), normal(*w2.shape[:2])
    attributes = {"activation": activation, "apply_router_weight_on_input": on_input}

    def ours(x, w1, w2, weights, *biases):
        return jnp.sin(ij.fused_experts(x, w1, w2, weights, ids, *biases, **attributes)).sum()

    def wanted(x, w1, w2, weights, *biases):
        return jnp.sin(dense(x, w1, w2, weights, ids, *biases, activation, on_input)).sum()

    every = tuple(range(len(floats)))
    got = jax.jit(jax.value_and_grad(ours, every))(*floats)
    want = jax.jit(jax.value_and_grad(wanted, every))(*floats)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2), got, want)


@pytest.mark.parametrize("on_input", [False, True])
def test_second_derivatives(on_input: bool) -> None:
    x, w1, w2, weights, ids = sparse(0.2, *layer(7))
    floats = x, w1, w2, weights, normal(*w1.shape[:2]), normal(*w2.shape[:2])

    def ours(x, w1, w2, weights, *biases):
        options = {"activation": "silu", "apply_router_weight_on_input": on_input}
        return ij.fused_experts(x, w1, w2, weights, ids, *biases, **options)

    def wanted(x, w1, w2, weights, *biases):
        return dense(x, w1, w2, weights, ids, *biases, "silu", on_input)

    got, want = (running.second_derivatives(f, floats) for f in (ours, wanted))
    for second, expected in zip(got, want, strict=True):
        assert support.relative_error(second, expected) < 1e-3


def test_vmap_is_one_call() -> None:
    x, w1, w2, weights, ids = layer(8)
    parts = [a.reshape(3, 4, -1) for a in (x, weights, ids)]

    def experts(x, weights, ids):
        return ij.fused_experts(x, w1, w2, weights, ids)

    got = jax.jit(jax.vmap(experts))(*parts)
    np.testing.assert_array_equal(got.reshape(x.shape), experts(x, weights, ids))
    assert str(jax.make_jaxpr(jax.vmap(experts))(*parts)).count("ffi_call[") == 1
    with pytest.raises(NotImplementedError, match=r"fused_experts: w1 .* is shared"):
        jax.vmap(lambda w1: ij.fused_experts(x, w1, w2, weights, ids))(np.stack([w1, w1]))


def test_shard_map_with_experts_on_each_device() -> None:
    """Each device has some experts and all tokens; the sum over devices is the whole."""
    mesh = mesh_of(model=DEVICES)
    x, w1, w2, weights, ids = layer(9, e=2 * DEVICES)

    def loss(x, w1, w2, weights):
        @jax.shard_map(mesh=mesh, in_specs=(P(), P("model"), P("model"), P()), out_specs=P())
        def spread(x, w1, w2, weights):
            first = lax.axis_index("model") * w1.shape[0]
            return lax.psum(ij.fused_experts(x, w1, w2, weights, ids - first), "model")

        return jnp.sin(spread(x, w1, w2, weights)).sum()

    def whole(x, w1, w2, weights):
        return jnp.sin(ij.fused_experts(x, w1, w2, weights, ids)).sum()

    got = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(x, w1, w2, weights)
    want = jax.jit(jax.value_and_grad(whole, (0, 1, 2, 3)))(x, w1, w2, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), got, want)


def test_export_with_its_gradient() -> None:
    operands = layer(10)
    step = jax.jit(jax.grad(lambda w1, x, *a: ij.fused_experts(x, w1, *a).sum()))
    exporter = export.export(
        step, platforms=["cpu", "cuda"], disabled_checks=ij.export_exemptions()
    )
    x, w1, *others = operands
    restored = export.deserialize(exporter(w1, x, *others).serialize())
    np.testing.assert_array_equal(restored.call(w1, x, *others), step(w1, x, *others))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w1": normal(6, 33, 24)}, r"fused_experts: w1 has 2\*i=33, expected a multiple of 2"),
        ({"w2": normal(6, 24, 17)}, r"fused_experts: w2 has i=17 but w1 has .*i=16"),
        ({"w2": normal(5, 24, 16)}, r"fused_experts: w2 has e=5 but w1 has e=6"),
        ({"ids": np.zeros((12, 3), np.int32)}, r"fused_experts: ids has k=3 but weights has k=2"),
        ({"ids": np.zeros((11, 2), np.int32)}, r"fused_experts: ids "),
        ({"ids": np.zeros((12, 2), np.float32)}, r"fused_experts: ids has dtype f32"),
        ({"weights": np.ones((12, 2), np.float16)}, r"fused_experts: weights has dtype f16"),
        ({"w1_bias": normal(6, 16)}, r"fused_experts: w1_bias has "),
        ({"activation": "relu"}, r"fused_experts: activation is \"relu\", expected .*swigluoai"),
    ],
)
def test_wrong_calls(arguments, message: str) -> None:
    right = dict(zip(("x", "w1", "w2", "weights", "ids"), layer(11), strict=True))
    with pytest.raises(ValueError, match=message):
        ij.fused_experts(**(right | arguments))


def test_by_products_with_an_activation_of_ones_own() -> None:
    """What vLLM's plugin takes for activations that the op lacks: with one that it has, the op's numbers."""
    from intarsia.jax._experts import experts_by_products

    rng = np.random.default_rng(3)
    x, w1, w2 = (
        rng.standard_normal(s).astype(np.float32) for s in ((6, 16), (4, 24, 16), (4, 16, 12))
    )
    ids = rng.integers(-1, 5, (6, 2)).astype(np.int32)
    shares = rng.uniform(0.1, 1, (6, 2)).astype(np.float32)

    def activate(hidden: jax.Array) -> jax.Array:
        gate, up = jnp.split(hidden, 2, axis=-1)
        return jax.nn.silu(gate) * up

    got = jax.jit(functools.partial(experts_by_products, activate=activate))(x, w1, w2, shares, ids)
    np.testing.assert_allclose(got, ij.fused_experts(x, w1, w2, shares, ids), atol=1e-4)


def test_a_shared_expert_is_one_more_of_weight_1() -> None:
    """As docs/jax.md has it: behind the others, in every token's ids; or a dense MLP beside."""
    x, w1, w2, weights, ids = layer(21)
    e, t = len(w1) - 1, len(x)  # the last one is shared
    ids %= e
    more = np.full((t, 1), e, np.int32), np.ones((t, 1), np.float32)
    got = ij.fused_experts(x, w1, w2, np.append(weights, more[1], 1), np.append(ids, more[0], 1))
    dense = ij.silu_and_mul(x @ w1[e].T) @ w2[e].T
    want = ij.fused_experts(x, w1[:e], w2[:e], weights, ids) + dense
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)  # XLA's f32 is tf32 on a GPU
