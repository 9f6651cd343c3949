"""Drawn shapes, layouts and dtypes against the references in NumPy f64; attention has its own file."""

import ml_dtypes
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, INDEX_DTYPES, LEAD, SEEDS, WIDTHS, cache_layouts, check
from hypothesis import given
from hypothesis import strategies as st
from intarsia_src.core import cache_layout
from intarsia_src.core.operands import random_scale
from intarsia_src.norm import reference as norm_model

# ---------------------------------------------------------------------------- elementwise and rows


@running.on_each_platform
@given(dtype=DTYPES, shape=st.lists(st.integers(0, 9), max_size=5), seed=SEEDS)
def test_simple_add(platform, dtype, shape, seed):
    rng = np.random.default_rng(seed)
    operands = [rng.standard_normal(shape).astype(support.DTYPES[dtype]) for _ in range(2)]
    check("simple_add", operands, {}, platform)


@st.composite
def norms(draw, num_inputs):
    dtype = draw(DTYPES)
    rng = np.random.default_rng(draw(SEEDS))
    shape = (*draw(LEAD), draw(WIDTHS))
    spread = draw(st.sampled_from([1e-3, 1.0, 100.0]))
    inputs = [
        (spread * rng.standard_normal(shape)).astype(support.DTYPES[dtype])
        for _ in range(num_inputs)
    ]
    kind = draw(st.sampled_from([None, dtype, "f32"]))
    weight = None if kind is None else rng.uniform(-2, 2, shape[-1]).astype(support.DTYPES[kind])
    attributes = {
        "eps": draw(st.sampled_from([1e-6, 1e-5, 0.1])),
        "rounding": draw(st.sampled_from(["once", "before_weight"])),
    }
    return [*inputs, weight], attributes


@running.on_each_platform
@given(call=norms(1))
def test_rms_norm(platform, call):
    check("rms_norm", *call, platform)


@running.on_each_platform
@given(call=norms(2))
def test_fused_add_rms_norm(platform, call):
    check("fused_add_rms_norm", *call, platform)


@running.on_each_platform
@given(dtype=st.sampled_from(["f16", "bf16"]), fused=st.booleans(), seed=SEEDS)
def test_the_two_roundings_of_norms_differ(platform, dtype, fused, seed):
    rng = np.random.default_rng(seed)
    t = support.DTYPES[dtype]
    x, residual = (rng.standard_normal((16, 512)).astype(t) for _ in range(2))
    weight = rng.uniform(0.5, 2, 512).astype(t)
    models, got = {}, {}
    for rounding in ("once", "before_weight"):
        attributes = {"eps": 1e-5, "rounding": rounding}
        models[rounding] = norm_model.rounded(
            x, weight, 1e-5, rounding, residual if fused else None
        )
        op, operands = ("rms_norm", [x, weight])
        if fused:
            op, operands = ("fused_add_rms_norm", [x, residual, weight])
        got[rounding] = running.run_any(op, operands, attributes, platform)[0]
    for rounding, other in (("once", "before_weight"), ("before_weight", "once")):
        # f32 arithmetic puts a few elements on the other side of a tie.
        assert np.mean(got[rounding] == models[rounding]) > 0.99
        assert np.mean(got[rounding] == models[other]) < 0.9


GATED = pytest.mark.parametrize("op", ["gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"])


@st.composite
def gates(draw):
    dtype = draw(DTYPES)
    rng = np.random.default_rng(draw(SEEDS))
    shape = (*draw(LEAD), draw(WIDTHS))
    spread = draw(st.sampled_from([0.01, 1.0, 30.0, 200.0]))
    gate = (spread * rng.standard_normal(shape)).astype(support.DTYPES[dtype])
    up = rng.standard_normal(shape).astype(support.DTYPES[dtype])
    # Not only the far tail, of which the norm of an error would see nothing else.
    gate.flat[:1], up.flat[:1] = spread, 1
    return gate, up


@running.on_each_platform
@GATED
@given(call=gates())
def test_gated_activations(op, platform, call):
    gate, up = call
    apart = check(op, [gate, up], {}, platform)
    both = [np.concatenate([gate, up], axis=-1), None]
    together = check(op, both, {}, platform)
    assert apart[0].tobytes() == together[0].tobytes()


@running.on_each_platform
@GATED
@given(call=gates())
def test_gated_activations_are_the_unfused_pair(op, platform, call):
    gate, up = call
    (product,) = running.run_any(op, [gate, up], {}, platform)
    (activated,) = running.run_any(op, [gate, np.ones_like(up)], {}, platform)
    pair = (activated.astype(np.float32) * up.astype(np.float32)).astype(up.dtype)
    assert product.tobytes() == pair.tobytes()


@running.on_each_platform
@GATED
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_gated_activations_are_accurate_in_each_element(op, dtype, platform):
    """Also for negative gates, where 1 + erf and 1 + tanh would cancel."""
    gate = np.linspace(-9, 12, 40001).astype(support.DTYPES[dtype])
    (got,) = running.run_any(op, [gate, np.ones_like(gate)], {}, platform)
    (want,) = support.op_module(op).reference(gate.astype(np.float64), 1.0)
    limits = ml_dtypes.finfo(gate.dtype)
    rounding = float(limits.eps) / 2 * np.abs(want) + float(limits.smallest_subnormal) / 2
    assert (np.abs(got.astype(np.float64) - want) <= 1.01 * rounding + 3e-5 * np.abs(want)).all()


@running.on_each_platform
@GATED
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_gated_activations_at_the_ends(op, dtype, platform):
    """As torch has them, the NaN of -inf included."""
    most = float(ml_dtypes.finfo(support.DTYPES[dtype]).max)
    gate = np.array([np.inf, most, 0.0, -0.0, -most, -np.inf, np.nan], support.DTYPES[dtype])
    (got,) = running.run_any(op, [gate, np.ones_like(gate)], {}, platform)
    want = np.array([np.inf, most, 0.0, -0.0, -0.0, np.nan, np.nan])
    np.testing.assert_array_equal(got.astype(np.float64), want)
    np.testing.assert_array_equal(np.signbit(got)[:5], np.signbit(want)[:5])


# ---------------------------------------------------------------------------- rotary


@st.composite
def rotations(draw):
    dtype = draw(DTYPES)
    t = support.DTYPES[dtype]
    rng = np.random.default_rng(draw(SEEDS))
    d = draw(st.integers(2, 100))
    r = 2 * draw(st.integers(1, d // 2))
    max_position = draw(st.integers(1, 40))
    tokens = tuple(draw(st.lists(st.integers(0, 4), max_size=2)))
    # A few positions are outside the table.
    positions = rng.integers(-2, max_position + 2, tokens).astype(draw(INDEX_DTYPES))
    angle = rng.uniform(0, 7, (max_position, r // 2))
    kind = support.DTYPES[draw(DTYPES)]
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1).astype(kind)
    flat = draw(st.booleans())
    attributes = {
        "is_neox": draw(st.booleans()),
        "inverse": draw(st.booleans()),
        "rope_dim_offset": draw(st.integers(0, d - r)),
        "head_size": d if flat or draw(st.booleans()) else None,
    }

    def heads(count):
        shape = (*tokens, count * d) if flat else (*tokens, count, d)
        return rng.standard_normal(shape).astype(t)

    query = heads(draw(st.integers(1, 5)))
    key = heads(draw(st.integers(1, 3))) if draw(st.booleans()) else None
    return [positions, query, table, key], attributes


@running.on_each_platform
@given(call=rotations())
def test_rotary_embedding(platform, call):
    operands, attributes = call
    results = check("rotary_embedding", operands, attributes, platform)
    # What is not turned is copied, to the bit.
    positions, query, table, key = operands
    r, offset = table.shape[1], attributes["rope_dim_offset"]
    inside = (positions >= 0) & (positions < len(table))
    for x, y in zip((query, key), results, strict=False):
        d = attributes["head_size"] or x.shape[-1]
        heads = [
            a.reshape(*positions.shape, x.size // max(1, positions.size * d), d) for a in (x, y)
        ]
        kept = np.ones(heads[0].shape, bool)
        kept[inside, :, offset : offset + r] = False
        assert heads[0][kept].tobytes() == heads[1][kept].tobytes()


# ---------------------------------------------------------------------------- KV cache


def numbers_everywhere(rng, shape, dtype):
    """Of each size that the dtype has, both zeros, infinities and NaN among them."""
    f32 = (2.0 ** rng.uniform(-30, 30, shape) * rng.choice([-1, 1], shape)).astype(np.float32)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 2.0**-10], np.float32)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.1, rng.choice(odd, shape), f32).astype(dtype)


@st.composite
def cache_writes(draw):
    t = support.DTYPES[draw(DTYPES)]
    rng = np.random.default_rng(draw(SEEDS))
    pages, page = draw(st.integers(0, 5)), draw(st.integers(1, 17))
    hk, d = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    layout, layers = draw(cache_layouts())
    shapes = cache_layout.cache_shapes(layout, pages, page, hk, d, layers)
    stored, kv_cache_dtype = draw(
        st.sampled_from(
            [(t, "auto"), (cache_layout.FP8_CACHES["fp8_e4m3"], "auto"), (np.uint8, "fp8")]
            + [(cache_layout.FP8_CACHES[name], name) for name in ("fp8_e4m3", "fp8_e5m2")]
            + [(np.uint8, name) for name in ("fp8_e4m3", "fp8_e5m2")]
        )
    )
    caches = [
        None if s is None else rng.integers(0, 120, s).astype(np.uint8).astype(stored)
        for s in shapes
    ]
    tokens = draw(st.integers(0, 30))
    is_fp8 = np.dtype(stored).itemsize == 1
    key, value = (
        numbers_everywhere(rng, (tokens, hk, d), t)
        if is_fp8
        else rng.standard_normal((tokens, hk, d)).astype(t)
        for _ in range(2)
    )
    # Valid slots are written once each; the others are skipped.
    slots = rng.permutation(np.arange(-7, pages * page + 7))[: draw(st.integers(0, tokens))]
    slots = slots.astype(draw(INDEX_DTYPES))
    layer = None if layers is None else np.array(draw(st.integers(-1, layers)), np.int32)
    forms = st.sampled_from([None, "tensor", "head"] if is_fp8 else [None])
    scales = [random_scale(rng, draw(forms), (), hk) for _ in range(2)]
    operands = [key, value, *caches, slots, layer, *scales]
    return operands, {"layout": layout, "kv_cache_dtype": kv_cache_dtype}


@running.on_each_platform
@given(call=cache_writes())
def test_reshape_and_cache_flash(platform, call):
    check("reshape_and_cache_flash", *call, platform)
