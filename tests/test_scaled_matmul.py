"""`intarsia.jax.scaled_matmul` against f64 of the numbers that its codes stand for."""

import intarsia.jax as ij
import jax
import ml_dtypes
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, SEEDS, check
from hypothesis import given
from hypothesis import strategies as st

OP = "scaled_matmul"
FP8 = ml_dtypes.float8_e4m3fn
CODES = [FP8, np.int8]
# Around the widths of panels, blocks of 128 rows and of 128 columns, and parts of 512.
ROWS = st.one_of(st.integers(0, 40), st.sampled_from([127, 129, 160, 300]))
RESULTS = st.one_of(st.integers(0, 40), st.sampled_from([64, 127, 128, 129, 272]))
COLUMNS = st.one_of(st.integers(0, 140), st.sampled_from([256, 384, 511, 513, 640, 1030]))


def draw(seed: int = 0, dtype=np.float32, **sizes) -> tuple[list, dict]:
    return support.op_module(OP).arguments(np.random.default_rng(seed), dtype, **sizes)


@st.composite
def calls(draw_from):
    sizes = dict(
        m=draw_from(ROWS),
        n=draw_from(RESULTS),
        k=draw_from(COLUMNS),
        codes=draw_from(st.sampled_from(CODES)),
        x_scales=draw_from(st.sampled_from(["tensor", "token", "block"])),
        w_scales=draw_from(st.sampled_from(["tensor", "channel", "block"])),
        bias=draw_from(st.booleans()),
    )
    operands, attributes = draw(draw_from(SEEDS), support.DTYPES[draw_from(DTYPES)], **sizes)
    # Results of int8 leave f16's range.
    out_dtypes = ["bf16", "f32"] if sizes["codes"] is np.int8 else ["bf16", "f16", "f32"]
    if attributes["out_dtype"] not in out_dtypes:
        attributes = {"out_dtype": draw_from(st.sampled_from(out_dtypes))}
    return operands, attributes


@running.on_each_platform
@given(calls())
def test_any_sizes_and_scales(platform: str, call) -> None:
    check(OP, *call, platform)


@running.on_each_platform
@pytest.mark.parametrize("codes", CODES)
def test_each_code(platform: str, codes) -> None:
    """Of 256 codes each is met by each; int8's -128 and e4m3's NaN among them."""
    every = np.arange(256, dtype=np.uint8).view(codes)
    ones = np.ones(1, np.float32)
    x, w = (np.zeros((256, 3), codes) for _ in range(2))
    x[:, 1], w[:, 1] = every, every
    (out,) = running.run_any(OP, [x, w, ones, ones, None], {"out_dtype": "f32"}, platform)
    numbers = every.astype(np.float32)
    np.testing.assert_array_equal(out, np.outer(numbers, numbers))


@running.on_each_platform
@pytest.mark.parametrize("m", [1, 3, 16, 130])
@pytest.mark.parametrize("scales", [("token", "channel"), ("block", "block")])
def test_nan_stays_in_its_row_and_column(platform: str, m: int, scales) -> None:
    (x, w, *others), attributes = draw(m=m, n=40, k=200, x_scales=scales[0], w_scales=scales[1])
    x.view(np.uint8)[m // 2, 150], w.view(np.uint8)[7, 3] = 0x7F, 0xFF
    (out,) = running.run_any(OP, [x, w, *others], attributes, platform)
    bad = np.isnan(out)
    assert bad[m // 2].all() and bad[:, 7].all() and bad.sum() == out.shape[1] + m - 1


@running.on_each_platform
def test_rows_of_int8_do_not_depend_on_the_batch(platform: str) -> None:
    """Sums of integers are exact, and take their scales at once."""
    (x, w, x_scales, *others), attributes = draw(m=37, n=48, k=900, codes=np.int8)
    (all_rows,) = running.run_any(OP, [x, w, x_scales, *others], attributes, platform)
    for rows in (slice(0, 1), slice(5, 9), slice(12, 31)):
        (some,) = running.run_any(OP, [x[rows], w, x_scales[rows], *others], attributes, platform)
        np.testing.assert_array_equal(some, all_rows[rows])


@running.on_each_platform
def test_large_sums_of_int8(platform: str) -> None:
    """The largest products, of more columns than 32 bits have room for."""
    k = 140_000
    x, w = np.full((2, k), -128, np.int8), np.full((3, k), -128, np.int8)
    w[1] = 127
    ones = np.ones(1, np.float32)
    (out,) = running.run_any(OP, [x, w, ones, ones, None], {"out_dtype": "f32"}, platform)
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    assert support.relative_error(out, want) < 1e-6


def test_leading_axes_and_vmap() -> None:
    (x, w, x_scales, w_scales, bias), attributes = draw(
        m=6, n=32, k=256, x_scales="block", w_scales="block", bias=True
    )
    whole = ij.scaled_matmul(x, w, x_scales, w_scales, bias, **attributes)
    stacked = [a.reshape(2, 3, -1) for a in (x, x_scales)]

    def layer(x, x_scales):
        return ij.scaled_matmul(x, w, x_scales, w_scales, bias, **attributes)

    np.testing.assert_array_equal(layer(*stacked).reshape(6, 32), whole)
    np.testing.assert_array_equal(jax.vmap(layer)(*stacked).reshape(6, 32), whole)
    (row,) = running.run_native(OP, [x[0], w, x_scales[0], w_scales, bias], attributes)
    np.testing.assert_allclose(row, whole[0], rtol=1e-5, atol=1e-5)


def test_codes_have_no_gradient() -> None:
    (x, w, x_scales, w_scales, _), attributes = draw(m=2, n=16, k=64)

    def loss(scales):
        return ij.scaled_matmul(x, w, scales, w_scales, **attributes).sum()

    with pytest.raises(NotImplementedError, match=OP):
        jax.grad(loss)(x_scales)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({1: np.zeros((300, 200), np.int8)}, "w has dtype i8 but x has f8e4m3fn"),
        ({1: np.zeros((300, 201), FP8)}, "w has k=201 but x has k=200"),
        ({2: np.ones((4, 3), np.float32)}, "x_scales has kb=3, expected 1, or 2 blocks of 128 for k=200"),
        ({2: np.ones((3, 1), np.float32)}, r"x_scales has leading axes \[3\] but x has \[4\]"),
        ({3: np.ones((2, 2), np.float32)}, r"w_scales has \[nb wb\]=\[2 2\], expected \[3 2\], blocks of 128 for n=300, k=200"),
        ({3: np.ones(7, np.float32)}, "w_scales has n=7 but w has n=300"),
        ({4: np.ones(7, np.float32)}, "bias has n=7 but w has n=300"),
    ],
)  # fmt: skip
def test_wrong_operands_are_told(change, text) -> None:
    operands, attributes = draw(m=4, n=300, k=200)
    with pytest.raises(ValueError, match=f"{OP}: .*{text}"):
        ij.scaled_matmul(*(change.get(i, a) for i, a in enumerate(operands)), **attributes)


def test_wrong_out_dtype_is_told() -> None:
    operands, _ = draw(m=4, n=16, k=32)
    with pytest.raises(ValueError, match=f'{OP}: out_dtype is "f64", expected one of bf16.f16.f32'):
        ij.scaled_matmul(*operands, out_dtype="f64")  # type: ignore[arg-type]
