"""Quantization to the bit: every code, every f16 and bf16, NaN and infinities, drawn shapes; fused ops as pairs."""

import ml_dtypes
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, LEAD, SEEDS, WIDTHS
from hypothesis import given
from hypothesis import strategies as st
from intarsia_src.quant import reference as quant

F8 = quant.CODES["f8e4m3fn"]
GIVEN = {"static_scaled_fp8_quant": "f8e4m3fn", "static_scaled_int8_quant": "i8"}
BY_ROW = {
    "dynamic_per_token_scaled_fp8_quant": (F8, 1 / (448 * 512)),
    "dynamic_scaled_int8_quant": (np.dtype(np.int8), 0.0),
}
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38, 65504.0, 448.0]


def check(op: str, operands: list, attributes: dict, platform: str) -> list[np.ndarray]:
    got = running.run_any(op, operands, attributes, platform)
    for i, (x, want) in enumerate(
        zip(got, support.op_module(op).exact(*operands, **attributes), strict=True)
    ):
        assert x.dtype == want.dtype and x.shape == want.shape
        assert x.tobytes() == want.tobytes(), f"{op}: result {i}"
    return got


def scale_of(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def all_values(dtype: str) -> np.ndarray:
    """Every f16 or bf16; of f32 all of those, ties between codes, and what lies beside them."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    if dtype != "f32":
        return bits.view(support.DTYPES[dtype])
    codes = np.arange(127, dtype=np.uint8).view(F8).astype(np.float32)
    ties = np.append((codes[1:] + codes[:-1]) / 2, np.arange(-130, 131) / np.float32(2))
    beside = [np.nextafter(ties, np.float32(to)) for to in (-np.inf, np.inf)]
    halves = [bits.view(t).astype(np.float32) for t in (np.float16, ml_dtypes.bfloat16)]
    with np.errstate(invalid="ignore"):  # signalling NaN
        every = np.concatenate([*halves, codes, ties, *beside]).astype(np.float32)
    return np.concatenate([every, -every])


@running.on_each_platform
@pytest.mark.parametrize("dtype", support.DTYPES)
@pytest.mark.parametrize("op", GIVEN)
def test_every_number_has_its_nearest_code(op: str, dtype: str, platform: str) -> None:
    x = all_values(dtype)
    (codes,) = check(op, [x, scale_of(1.0)], {}, platform)
    with np.errstate(invalid="ignore"):  # signalling NaN
        numbers = x.astype(np.float32)
    largest = quant.LARGEST[GIVEN[op]]
    inside = np.abs(numbers) <= largest
    if GIVEN[op] == "f8e4m3fn":
        # ml_dtypes rounds on its own, apart from what lies beyond the largest.
        with np.errstate(all="ignore"):
            want = numbers.astype(F8).view(np.uint8)
        assert np.array_equal(codes.view(np.uint8)[inside], want[inside])
        assert (codes.view(np.uint8)[np.isnan(numbers)] == 0x7F).all()
        assert (codes.view(np.uint8)[numbers > largest] == 0x7E).all()
        assert (codes.view(np.uint8)[numbers < -largest] == 0xFE).all()
    else:
        assert np.array_equal(codes[inside], np.rint(numbers[inside]).astype(np.int8))
        assert (codes[np.isnan(numbers)] == 0).all()
        assert (codes[numbers > 127] == 127).all() and (codes[numbers < -128] == -128).all()


@running.on_each_platform
def test_every_code_is_kept(platform: str) -> None:
    """Quantizing what the codes stand for gives the codes again."""
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].view(F8)
    x = codes.astype(np.float32) * np.float32(0.25)
    (got,) = running.run_any("static_scaled_fp8_quant", [x, scale_of(0.25)], {}, platform)
    assert got.tobytes() == codes.tobytes()


# ---------------------------------------------------------------------------- drawn calls


@st.composite
def arrays(draw, widths=WIDTHS):
    """Rows of any size, some of them zeros, with special numbers here and there."""
    dtype = support.DTYPES[draw(DTYPES)]
    rng = np.random.default_rng(draw(SEEDS))
    x = rng.standard_normal((*draw(LEAD), draw(widths))).astype(np.float32)
    x *= np.float32(draw(st.sampled_from([1e-30, 1e-6, 1.0, 1e3])))
    if draw(st.booleans()):
        x[rng.random(x.shape[:-1]) < 0.3] = 0
    if draw(st.booleans()):
        holes = rng.random(x.shape) < draw(st.sampled_from([0.01, 0.5]))
        x[holes] = rng.choice(np.array(SPECIAL, np.float32), np.count_nonzero(holes))
    with np.errstate(over="ignore"):
        return x.astype(dtype)


@running.on_each_platform
@given(x=arrays(), op=st.sampled_from(sorted(GIVEN)), data=st.data(), seed=SEEDS)
def test_given_scales(platform, x, op, data, seed):
    n = x.shape[-1]
    groups = data.draw(st.sampled_from([g for g in (1, 2, 3, 7, 16, n) if n % g == 0]))
    lead = x.shape[:-1] or (1,)  # one row's groups would look like channels
    x = x.reshape(*lead, n)
    shape = data.draw(st.sampled_from([(1,), (n,), (*lead, 1), (*lead, groups)]))
    rng = np.random.default_rng(seed)
    scale = rng.uniform(1e-3, 3, shape).astype(np.float32)
    if scale.size and data.draw(st.booleans()):
        scale.flat[rng.integers(scale.size)] = data.draw(st.sampled_from([0, 1e-42, 3e38, np.inf]))
    check(op, [x, scale], {}, platform)


@running.on_each_platform
@given(x=arrays(), upper=st.none() | st.sampled_from([0.0, 1e-9, 0.7, 1e6, np.inf, np.nan]))
def test_per_token_fp8(platform, x, upper):
    bound = None if upper is None else scale_of(upper)
    check("dynamic_per_token_scaled_fp8_quant", [x, bound], {}, platform)


@running.on_each_platform
@given(x=arrays())
def test_per_token_int8(platform, x):
    check("dynamic_scaled_int8_quant", [x], {}, platform)


@running.on_each_platform
@given(x=arrays())
def test_per_tensor_fp8(platform, x):
    check("dynamic_scaled_fp8_quant", [x], {}, platform)


@running.on_each_platform
def test_per_tensor_fp8_takes_any_rank_and_many_parts(platform):
    rng = np.random.default_rng(0)
    for shape in ((), (1,), (3, 1, 5), (5_000_011,)):
        x = np.asarray(rng.standard_normal(shape), np.float32)
        check("dynamic_scaled_fp8_quant", [x], {}, platform)


@running.on_each_platform
@given(
    size=st.sampled_from([1, 2, 8, 11, 16, 32, 64, 77, 128, 640]),
    groups=st.integers(1, 9),
    eps=st.sampled_from([0.0, 1e-10, 0.7]),
    data=st.data(),
)
def test_per_group_fp8(platform, size, groups, eps, data):
    x = data.draw(arrays(widths=st.just(size * groups)))
    attributes = {"group_size": size, "eps": eps}
    check("per_token_group_fp8_quant", [x], attributes, platform)


# ---------------------------------------------------------------------------- corners, in words


@running.on_each_platform
@pytest.mark.parametrize("op", [*BY_ROW, "dynamic_scaled_fp8_quant"])
def test_zeros_have_zero_codes(op: str, platform: str) -> None:
    codes, scale = running.run_any(op, [np.zeros((3, 40), np.float32)], {}, platform)
    assert not codes.view(np.uint8).any()
    assert (scale == np.float32(BY_ROW.get(op, (F8, 0.0))[1])).all()


@running.on_each_platform
@pytest.mark.parametrize("op", BY_ROW)
def test_a_nan_spoils_nothing_else(op: str, platform: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
    hurt = x.copy()
    hurt[0, 7] = np.nan
    x[0, 7] = 0
    (codes, scale), (hurt_codes, hurt_scale) = (
        running.run_any(op, [a], {}, platform) for a in (x, hurt)
    )
    assert scale.tobytes() == hurt_scale.tobytes()
    assert hurt_codes.view(np.uint8)[0, 7] == (0x7F if codes.dtype == F8 else 0)
    hurt_codes = hurt_codes.copy()  # JAX's arrays are read-only
    hurt_codes[0, 7] = codes[0, 7]
    assert codes.tobytes() == hurt_codes.tobytes()


@running.on_each_platform
@pytest.mark.parametrize("op", [*BY_ROW, "dynamic_scaled_fp8_quant"])
def test_the_largest_number_has_the_largest_code(op: str, platform: str) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((50, 33)) * 10.0 ** rng.integers(-3, 4, (50, 1))).astype(np.float32)
    codes, scale = running.run_any(op, [x], {}, platform)
    largest = quant.LARGEST["i8" if codes.dtype == np.int8 else "f8e4m3fn"]
    tops = np.abs(codes.astype(np.float32)).max(axis=-1)
    assert (tops == largest).all() if op in BY_ROW else tops.max() == largest
    # Half a step: of int8 everywhere, of fp8 relatively, for three bits of mantissa.
    error = np.abs(codes.astype(np.float64) * scale - x)
    step = scale if codes.dtype == np.int8 else np.abs(x) / 8 + scale * 2.0**-9
    assert (error <= step * 0.5001).all()


# ---------------------------------------------------------------------------- fused ops


@st.composite
def norms(draw, num_inputs):
    dtype = draw(DTYPES)
    rng = np.random.default_rng(draw(SEEDS))
    shape = (*draw(LEAD), draw(WIDTHS))
    inputs = [rng.standard_normal(shape).astype(support.DTYPES[dtype]) for _ in range(num_inputs)]
    kind = draw(st.sampled_from([dtype, "f32"]))
    weight = rng.uniform(-2, 2, shape[-1]).astype(support.DTYPES[kind])
    return inputs, weight, {"eps": draw(st.sampled_from([1e-6, 0.1]))}


# Norms with scales of rows have half the threads that other norms have (`kNormThreads`), so longer rows than these
# are added up in another order.
SAME_THREADS = 512


def same(op: str, got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert x.shape == y.shape and x.tobytes() == y.tobytes(), f"{op}: result {i}"


@running.on_each_platform
@given(call=norms(2), fused=st.booleans(), rounding=st.sampled_from(["once", "before_weight"]))
def test_static_norms_are_pairs(platform, call, fused, rounding):
    inputs, weight, attributes = call
    prefix = "fused_add_" if fused else ""
    inputs = inputs if fused else inputs[:1]
    scale = scale_of(0.01)
    attributes = {**attributes, "rounding": rounding}
    y, *residual = running.run_any(f"{prefix}rms_norm", [*inputs, weight], attributes, platform)
    op = f"{prefix}rms_norm_static_fp8_quant"
    got = running.run_any(op, [*inputs, weight, scale], attributes, platform)
    same(
        op, got, [*running.run_any("static_scaled_fp8_quant", [y, scale], {}, platform), *residual]
    )
    running.check_against_reference(op, [*inputs, weight, scale], attributes, got)


@running.on_each_platform
@given(
    call=norms(2),
    fused=st.booleans(),
    kind=st.sampled_from(["f8e4m3fn", "i8"]),
    rounding=st.sampled_from(["once", "before_weight"]),
    upper=st.none() | st.sampled_from([0.5, 1e6]),
)
def test_dynamic_norms_are_pairs(platform, call, fused, kind, rounding, upper):
    (x, residual), weight, attributes = call
    bound = None if upper is None else scale_of(upper)
    norm_attributes = {**attributes, "rounding": rounding}
    if fused:
        y, *rest = running.run_any(
            "fused_add_rms_norm", [x, residual, weight], norm_attributes, platform
        )
    else:
        y, *rest = running.run_any("rms_norm", [x, weight], norm_attributes, platform)
    rule = {"f8e4m3fn": quant.TOKEN_F8, "i8": quant.NORM_I8}[kind]
    op = "rms_norm_dynamic_per_token_quant"
    operands = [x, weight, bound, residual if fused else None]
    attributes = {**norm_attributes, "quant_dtype": kind}
    got = running.run_any(op, operands, attributes, platform)
    want = [*rule.exact(y, upper), *rest]
    if platform == "cpu" or x.shape[-1] <= SAME_THREADS:
        same(op, got, want)
    else:
        same(op, got[2:], rest)  # the sum with the residual is of two numbers
    running.check_against_reference(op, operands, attributes, got)


@running.on_each_platform
@given(dtype=DTYPES, shape=st.tuples(st.integers(0, 5), WIDTHS), apart=st.booleans(), seed=SEEDS)
def test_silu_and_mul_quant_is_a_pair(platform, dtype, shape, apart, seed):
    rng = np.random.default_rng(seed)
    gate, up = (rng.standard_normal(shape).astype(support.DTYPES[dtype]) for _ in range(2))
    x, up = (gate, up) if apart else (np.concatenate([gate, up], axis=-1), None)
    scale = scale_of(0.005)
    (y,) = running.run_any("silu_and_mul", [x, up], {}, platform)
    got = running.run_any("silu_and_mul_quant", [x, scale, up], {}, platform)
    same(
        "silu_and_mul_quant",
        got,
        running.run_any("static_scaled_fp8_quant", [y, scale], {}, platform),
    )


# ---------------------------------------------------------------------------- wrong calls


def refused(op: str, operands: list, attributes: dict) -> str:
    with pytest.raises(ValueError) as error:
        running.LIBRARY.infer(op, [running.tensor(x) for x in operands], attributes)
    return str(error.value)


def test_wrong_scales_say_what_is_wrong() -> None:
    x, op = np.zeros((2, 3, 8), np.float32), "static_scaled_fp8_quant"
    for shape, message in {
        (5,): "scale has n=5 but x has n=8",
        (2, 1, 1): "scale has leading axes [2, 1] but x has [2, 3]",
        (2, 3, 3): "scale has g=3 groups in a row, which do not divide n=8",
        (2, 3, 0): "scale has g=0 groups in a row, which do not divide n=8",
    }.items():
        assert refused(op, [x, np.ones(shape, np.float32)], {}) == f"{op}: {message}"
    half = refused(op, [x, np.ones(1, np.float16)], {})
    assert half == f"{op}: scale has dtype f16, expected f32"


def test_wrong_groups_say_what_is_wrong() -> None:
    x, op = np.zeros((2, 100), np.float32), "per_token_group_fp8_quant"
    assert "group_size=128, which does not divide 100" in refused(op, [x], {})
    for size in (0, -4):
        assert "group_size" in refused(op, [x], {"group_size": size})


def test_an_unknown_code_type_is_refused() -> None:
    operands = [np.zeros((2, 8), np.float32), np.ones(8, np.float32)]
    message = refused("rms_norm_dynamic_per_token_quant", operands, {"quant_dtype": "f8e5m2"})
    assert "quant_dtype" in message and "f8e4m3fn" in message
