"""What the activations beside `silu_and_mul` promise: their relations to each other, their ends, their roundings."""

import ml_dtypes
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, LEAD, SEEDS, WIDTHS, check
from hypothesis import given
from hypothesis import strategies as st

ELEMENTWISE = pytest.mark.parametrize("op", ["gelu_fast", "gelu_new", "gelu_quick"])
STEPS = pytest.mark.parametrize("op", ["gelu_fast", "gelu_new"])
ATTRIBUTES = {
    "fatrelu_and_mul": dict(threshold=0.3),
    "mul_and_silu": {},
    "silu_and_mul_with_clamp": dict(limit=0.75, alpha=1.3, beta=0.5),
    "swigluoai_and_mul": dict(limit=0.75),
}
EACH_GATED = pytest.mark.parametrize(("op", "attributes"), ATTRIBUTES.items())


@st.composite
def gates(draw):
    """A gate and what it multiplies, of a drawn shape."""
    dtype = support.DTYPES[draw(DTYPES)]
    rng = np.random.default_rng(draw(SEEDS))
    shape = (*draw(LEAD), draw(WIDTHS))
    spread = draw(st.sampled_from([0.01, 1.0, 30.0]))
    gate, up = (rng.standard_normal(shape) for _ in range(2))
    gate.flat[:1], up.flat[:1] = 1, 1  # not the far tail alone
    return (spread * gate).astype(dtype), up.astype(dtype)


def together(op: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Gate and up in one array, where the op looks for them."""
    if op == "swigluoai_and_mul":
        return np.stack([gate, up], axis=-1).reshape(*gate.shape[:-1], 2 * gate.shape[-1])
    first, second = (up, gate) if op == "mul_and_silu" else (gate, up)
    return np.concatenate([first, second], axis=-1)


def apart(op: str, gate: np.ndarray, up: np.ndarray) -> list[np.ndarray]:
    return [up, gate] if op == "mul_and_silu" else [gate, up]


@running.on_each_platform
@EACH_GATED
@given(call=gates())
def test_gate_and_up_in_one_array_or_apart(op, attributes, platform, call):
    one = check(op, [together(op, *call), None], attributes, platform)
    two = check(op, apart(op, *call), attributes, platform)
    assert one[0].tobytes() == two[0].tobytes()


@running.on_each_platform
@pytest.mark.parametrize("op", ["mul_and_silu", "silu_and_mul_with_clamp"])
@given(call=gates())
def test_what_is_silu_and_mul_in_all_bits(op, platform, call):
    (got,) = running.run_any(op, apart(op, *call), {}, platform)
    (want,) = running.run_any("silu_and_mul", list(call), {}, platform)
    assert got.tobytes() == want.tobytes()


@running.on_each_platform
@STEPS
@given(call=gates())
def test_gelus_rounded_once_are_gelu_tanh(op, platform, call):
    gate, _ = call
    (got,) = running.run_any(op, [gate], {}, platform)
    (want,) = running.run_any("gelu_tanh_and_mul", [gate, np.ones_like(gate)], {}, platform)
    assert got.tobytes() == want.tobytes()


@running.on_each_platform
@ELEMENTWISE
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_elementwise_activations_are_accurate_in_each_element(op, dtype, platform):
    x = np.linspace(-9, 12, 40001).astype(support.DTYPES[dtype])
    (got,) = running.run_any(op, [x], {}, platform)
    (want,) = support.op_module(op).reference(x.astype(np.float64))
    limits = ml_dtypes.finfo(x.dtype)
    rounding = float(limits.eps) / 2 * np.abs(want) + float(limits.smallest_subnormal) / 2
    assert (np.abs(got.astype(np.float64) - want) <= 1.01 * rounding + 3e-5 * np.abs(want)).all()


@running.on_each_platform
@ELEMENTWISE
@pytest.mark.parametrize("dtype", support.DTYPES)
def test_elementwise_activations_at_the_ends(op, dtype, platform):
    most = float(ml_dtypes.finfo(support.DTYPES[dtype]).max)
    x = np.array([np.inf, most, 0.0, -0.0, -most, -np.inf, np.nan], support.DTYPES[dtype])
    (got,) = running.run_any(op, [x], {}, platform)
    want = np.array([np.inf, most, 0.0, -0.0, -0.0, np.nan, np.nan])
    np.testing.assert_array_equal(got.astype(np.float64), want)


@running.on_each_platform
@STEPS
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_each_step_is_rounded(op, dtype, platform):
    """A tanh in f32 lies on the other side of a tie now and then."""
    x = np.linspace(-6, 6, 20001).astype(support.DTYPES[dtype])
    (got,) = running.run_any(op, [x], {"round_steps": True}, platform)
    (once,) = running.run_any(op, [x], {}, platform)
    want = support.op_module(op).each_step(x)
    assert np.mean(got.astype(np.float32) == want) > 0.995
    assert np.mean(once.astype(np.float32) == want) < 0.9


@running.on_each_platform
@EACH_GATED
def test_gated_activations_keep_nan_and_saturate(op, attributes, platform):
    """Also where a clamp or a threshold would swallow a NaN."""
    gate = np.array([np.nan, 1.0, 1e30, -1e30], np.float32)
    up = np.array([1.0, np.nan, 1.0, 1.0], np.float32)
    (got,) = running.run_any(op, apart(op, gate, up), attributes, platform)
    operands = [x.astype(np.float64) for x in apart(op, gate, up)]
    with np.errstate(invalid="ignore"):
        (want,) = support.op_module(op).reference(*operands, **attributes)
    assert np.isnan(got[:2]).all()
    np.testing.assert_allclose(got[2:], want[2:], rtol=1e-5)


@running.on_each_platform
@pytest.mark.parametrize("limit", [7.0, 0.75])
def test_limits_hold_in_both_directions(limit, platform):
    """The gate only from above."""
    ends = np.array([-50.0, 50.0], np.float32)
    gate, up = (x.reshape(-1) for x in np.meshgrid(ends, ends))
    for op, attributes in (
        ("silu_and_mul_with_clamp", dict(limit=limit)),
        ("swigluoai_and_mul", dict(limit=limit)),
    ):
        (clamped,) = running.run_any(op, [gate, up], attributes, platform)
        inside = [np.minimum(gate, np.float32(limit)), np.clip(up, -limit, limit)]
        (want,) = running.run_any(
            op, [x.astype(np.float32) for x in inside], dict(limit=100.0), platform
        )
        np.testing.assert_array_equal(clamped, want)


@running.on_each_platform
@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_a_gate_at_the_threshold_does_not_pass(threshold, dtype, platform):
    gate = np.array([threshold, np.nextafter(threshold, 1), 0.75, -np.inf, np.inf]).astype(
        support.DTYPES[dtype]
    )
    attributes = dict(threshold=threshold)
    operands = [gate, np.full_like(gate, -2)]
    (got,) = running.run_any("fatrelu_and_mul", operands, attributes, platform)
    (want,) = support.op_module("fatrelu_and_mul").exact(*operands, **attributes)
    assert got.tobytes() == want.tobytes()
    np.testing.assert_array_equal(got[[0, 2, 3, 4]].astype(np.float32), [0, -1.5, 0, -np.inf])
