"""Zero points, groups, powers of two and norms before them, to the bit: special numbers, and fused ops as pairs."""

import numpy as np
import pytest
import running
import support
from drawn import DTYPES, LEAD, SEEDS
from hypothesis import given
from hypothesis import strategies as st
from intarsia_src.quant import reference as quant
from test_quant import SPECIAL, all_values, check, scale_of

INT32 = np.iinfo(np.int32)


@running.on_each_platform
@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("azp", [-128, -1, 0, 77, 127, 1000, INT32.min, INT32.max])
def test_every_number_has_its_code_around_a_zero_point(azp, dtype, platform):
    x = all_values(dtype)
    operands = [x, scale_of(1.0), np.array([azp], np.int32)]
    (codes,) = check("static_scaled_int8_quant", operands, {}, platform)
    assert (codes[np.isnan(x.astype(np.float32))] == np.clip(azp, -128, 127)).all()


@running.on_each_platform
def test_no_zero_point_is_the_zero_point_0(platform):
    x = all_values("f32")
    codes = [
        check("static_scaled_int8_quant", [x, scale_of(0.3), azp], {}, platform)[0]
        for azp in (None, np.zeros(1, np.int32))
    ]
    assert np.array_equal(*codes)


def special_rows() -> np.ndarray:
    """Rows of ordinary numbers with a special one in each, then rows that are special as a whole."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((len(SPECIAL), 32)).astype(np.float32)
    rows[np.arange(len(SPECIAL)), rng.integers(0, 32, len(SPECIAL))] = SPECIAL
    whole = np.repeat(np.array(SPECIAL, np.float32)[:, None], 32, axis=1)
    return np.concatenate([rows, whole, np.linspace(3e38, -3e38, 32, dtype=np.float32)[None]])


@running.on_each_platform
def test_special_numbers_in_rows_with_zero_points(platform):
    codes, scale, azp = check("dynamic_scaled_int8_azp_quant", [special_rows()], {}, platform)
    equal = scale[:, 0] == 0
    assert equal.any() and not codes[equal].any() and not azp[equal].any()


@running.on_each_platform
@given(dtype=DTYPES, seed=SEEDS, offset=st.sampled_from([0.0, 3.0, -50.0]))
def test_zero_points_keep_numbers(dtype, seed, offset, platform):
    """To half a step, and another half by the rounding of the zero point."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((5, 40)) + offset).astype(support.DTYPES[dtype])
    codes, scale, azp = check("dynamic_scaled_int8_azp_quant", [x], {}, platform)
    back = (codes.astype(np.int64) - azp) * scale.astype(np.float64)
    assert (np.abs(back - x.astype(np.float64)) <= 1.02 * scale).all()


@running.on_each_platform
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("per_token_group_fp8_quant", dict(scale_ue8m0=True)),
        ("per_token_group_quant_int8", {}),
    ],
)
@pytest.mark.parametrize("group_size", [1, 8, 32])
def test_special_numbers_in_groups(op, attributes, group_size, platform):
    check(op, [special_rows()], attributes | {"group_size": group_size, "eps": 1e-10}, platform)


@running.on_each_platform
@given(dtype=DTYPES, seed=SEEDS, spread=st.sampled_from([1e-8, 1.0, 300.0]))
def test_scales_are_powers_of_two(dtype, seed, spread, platform):
    """The least that does."""
    x = quant.numbers(np.random.default_rng(seed), support.DTYPES[dtype], 6, 96, spread=spread)
    attributes = {"group_size": 32, "eps": 1e-10, "scale_ue8m0": True}
    _, scale = check("per_token_group_fp8_quant", [x], attributes, platform)
    assert (np.frexp(scale)[0] == 0.5).all()
    least = np.abs(x.astype(np.float64)).reshape(6, 3, 32).max(-1) / 448
    assert (scale >= least * (1 - 1e-6)).all()
    assert (scale < 2 * np.maximum(least, 1e-10)).all()


@running.on_each_platform
def test_int8_of_groups_is_rounded_toward_zero(platform):
    x = np.array([[127.0, 1.9, -1.9, 0.99, -0.99, 126.5, -126.5, np.nan]], np.float32)
    codes, scale = check("per_token_group_quant_int8", [x], {"group_size": 8}, platform)
    np.testing.assert_array_equal(scale, [[1.0]])
    np.testing.assert_array_equal(codes, [[127, 1, -1, 0, 0, 126, -126, 0]])


@st.composite
def rows(draw):
    dtype, lead = draw(DTYPES), draw(LEAD)
    rng = np.random.default_rng(draw(SEEDS))
    return rng.standard_normal((*lead, 96)).astype(support.DTYPES[dtype]), rng


@running.on_each_platform
@given(call=rows(), quant_dtype=st.sampled_from(["f8e4m3fn", "i8"]), fused=st.booleans())
def test_one_group_is_a_row(call, quant_dtype, fused, platform):
    x, rng = call
    residual = rng.standard_normal(x.shape).astype(x.dtype) if fused else None
    weight = rng.uniform(0.5, 2, 96).astype(x.dtype)
    operands, attributes = [x, weight, None, residual], dict(eps=1e-5, quant_dtype=quant_dtype)
    got = running.run_any(
        "rms_norm_per_block_quant", operands, attributes | {"group_size": 96}, platform
    )
    want = running.run_any("rms_norm_dynamic_per_token_quant", operands, attributes, platform)
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes()


@running.on_each_platform
@given(call=rows(), quant_dtype=st.sampled_from(["f8e4m3fn", "i8"]))
def test_a_norm_and_its_groups_are_a_pair(call, quant_dtype, platform):
    """The norm in T as rms_norm gives it; each group as a row of one column norms would be."""
    x, rng = call
    weight = rng.uniform(0.5, 2, 96).astype(x.dtype)
    attributes = dict(eps=1e-5, rounding="before_weight")
    (y,) = running.run_any("rms_norm", [x, weight], attributes, platform)
    codes, scale = running.run_any(
        "rms_norm_per_block_quant",
        [x, weight, None, None],
        attributes | dict(group_size=32, quant_dtype=quant_dtype),
        platform,
    )
    rule = {"f8e4m3fn": quant.TOKEN_F8, "i8": quant.NORM_I8}[quant_dtype]
    want = quant.of_groups(y, *rule.exact(quant.groups(y, 32)))
    assert codes.tobytes() == want[0].tobytes() and scale.tobytes() == want[1].tobytes()


@running.on_each_platform
@given(call=rows(), quant_dtype=st.sampled_from(["f8e4m3fn", "i8"]))
def test_a_layer_norm_and_its_codes_are_a_pair(call, quant_dtype, platform):
    x, rng = call
    weight, bias = (rng.uniform(0.5, 2, 96).astype(x.dtype) for _ in range(2))
    (y,) = running.run_any("layer_norm", [x, weight, bias], dict(eps=1e-5), platform)
    operands, attributes = [x, weight, bias, None], dict(eps=1e-5, quant_dtype=quant_dtype)
    got = running.run_any("layer_norm_dynamic_per_token_quant", operands, attributes, platform)
    rule = {"f8e4m3fn": quant.TOKEN_F8, "i8": quant.NORM_I8}[quant_dtype]
    for a, b in zip(got, rule.exact(y), strict=True):
        assert a.tobytes() == b.tobytes()
    scale = scale_of(0.02)
    (codes,) = running.run_any(
        "layer_norm_static_fp8_quant", [x, scale, weight, bias], dict(eps=1e-5), platform
    )
    (want,) = running.run_any("static_scaled_fp8_quant", [y, scale], {}, platform)
    assert codes.tobytes() == want.tobytes()


def test_more_groups_than_a_block_holds_are_refused():
    x, weight = np.zeros((1, 8200), np.float32), np.ones(8200, np.float32)
    operands = [running.tensor(x), running.tensor(weight), None, None]
    with pytest.raises(NotImplementedError, match="a row of x has 8200 groups; built are up to"):
        running.LIBRARY.infer("rms_norm_per_block_quant", operands, {"group_size": 1})
