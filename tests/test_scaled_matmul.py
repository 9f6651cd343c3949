"""`intarsia.jax.scaled_matmul` against f64 of the numbers that its codes stand for; `linear_w8a8`, which makes codes of x."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, SEEDS, check
from hypothesis import given
from hypothesis import strategies as st
from intarsia import _dtypes

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
    """Sums of integers are exact, and take their scales at once, while f32 holds them: those of 1023 columns."""
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


@pytest.mark.parametrize("codes", CODES)
def test_a_last_block_of_rows_with_the_most_lanes(codes) -> None:
    """117 rows behind 128 make panels of 144 lanes, where registers have 16; wide tiles of w."""
    operands, attributes = draw(m=245, n=4096, k=1040, codes=codes)
    check(OP, operands, attributes, "cpu")


@running.on_each_platform
@pytest.mark.parametrize("w_scales", ["tensor", "channel", "block"])
def test_no_columns_have_no_blocks(platform: str, w_scales: str) -> None:
    operands, attributes = draw(m=3, n=24, k=0, x_scales="block", w_scales=w_scales, bias=True)
    assert operands[2].shape == (3, 0)
    check(OP, operands, attributes, platform)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("scales", [("tensor", "channel"), ("block", "block")])
@pytest.mark.parametrize("m", [1, 16, 130])
def test_cpus_sum_in_f32(codes, scales, m: int) -> None:
    """The op's tolerance is for the 14 bits of Hopper's sums."""
    operands, _ = draw(m=m, n=136, k=2000, codes=codes, x_scales=scales[0], w_scales=scales[1])
    (out,) = running.run_any(OP, operands, {"out_dtype": "f32"}, "cpu")
    (want,) = support.op_module(OP).reference(*map(running.as_f64, operands))
    assert support.relative_error(out, want) < 2e-6


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
    assert support.relative_error(row, whole[0]) < 1e-5


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


# ------------------------------------------------------------------------------------------- linear_w8a8

N, K = 48, 256
W8A8 = [(FP8, 0), (FP8, 128), (np.int8, 0), (np.int8, 128)]


def layer(codes, dtype=np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, codes of w and their scales, and a bias."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 5, K)).astype(dtype)
    w = rng.standard_normal((N, K))
    scales = np.abs(w).max(1) / (127 if codes is np.int8 else 448)
    w = w / scales[:, None]
    w = (np.rint(w) if codes is np.int8 else w).astype(codes)
    return x, w, scales.astype(np.float32), rng.standard_normal(N).astype(dtype)


def rounding(codes, out: np.dtype) -> float:
    """What rounding x to codes, by a scale of each row or group, changes of results, and rounding these."""
    return (0.015 if codes is np.int8 else 0.035) + support.TOLERANCE[_dtypes.name_of(out)]


@running.on_each_platform
@pytest.mark.parametrize(("codes", "group"), W8A8)
def test_w8a8_is_the_layer_but_for_x_rounded(platform: str, codes, group: int) -> None:
    def program(operands):
        return [ij.linear_w8a8(*o[:3], bias=o[3], group=group) for o in operands]

    layers = [layer(codes, dtype) for dtype in support.DTYPES.values()]
    with jax.default_device(jax.devices(platform)[0]):
        results = jax.jit(program)(layers)
    for (x, w, scales, bias), out in zip(layers, results, strict=True):
        assert out.dtype == x.dtype and out.shape == (2, 5, N)
        want = x.astype(np.float64) @ (w.astype(np.float64) * scales[:, None]).T + bias
        assert support.relative_error(out, want) < rounding(codes, x.dtype)


@running.on_each_platform
@pytest.mark.parametrize(("codes", "group"), W8A8)
def test_w8a8_is_exactly_of_the_codes(platform: str, codes, group: int) -> None:
    """Against f64 of the codes that our ops make."""
    x, w, scales, _ = layer(codes)
    ops = {
        (FP8, 0): (ij.dynamic_per_token_scaled_fp8_quant, {}),
        (FP8, 128): (ij.per_token_group_fp8_quant, {"group_size": 128}),
        (np.int8, 0): (ij.dynamic_scaled_int8_quant, {}),
        (np.int8, 128): (ij.per_token_group_quant_int8, {"group_size": 128}),
    }
    quantize, how = ops[codes, group]

    def program(x):
        return ij.linear_w8a8(x, w, scales, group=group), *quantize(x, **how)

    with jax.default_device(jax.devices(platform)[0]):
        out, *of_x = map(np.asarray, jax.jit(program)(x))
    (want,) = support.op_module(OP).reference(
        *map(running.as_f64, (of_x[0], w, of_x[1], scales)), None
    )
    running.check(OP, out, want)


@running.on_each_platform
@pytest.mark.parametrize("codes", CODES)
def test_w8a8_by_given_scales(platform: str, codes) -> None:
    x, w, scales, _ = layer(codes)
    given = np.abs(x).max() / (127 if codes is np.int8 else 448)
    with jax.default_device(jax.devices(platform)[0]):
        of_all, of_one, of_rows = jax.jit(
            lambda x: (
                ij.linear_w8a8(x, w, scales, x_scales=given),
                ij.linear_w8a8(x, w, scales, x_scales=jnp.full(1, given)),
                ij.linear_w8a8(x, w, scales, x_scales=jnp.full((2, 5, 1), given)),
            )
        )(x)
    want = x.astype(np.float64) @ (w.astype(np.float64) * scales[:, None]).T
    assert support.relative_error(of_all, want) < rounding(codes, x.dtype)
    np.testing.assert_array_equal(of_all, of_one)
    np.testing.assert_array_equal(of_all, of_rows)


@pytest.mark.parametrize(("codes", "group"), W8A8)
def test_w8a8_of_rows_alone_under_vmap(codes, group: int) -> None:
    x, w, scales, bias = layer(codes)
    x = x[0]
    given = np.abs(x).max(1) / (127 if codes is np.int8 else 448)

    def of_row(x, x_scales=None):
        return ij.linear_w8a8(x, w, scales, x_scales=x_scales, group=group, bias=bias)

    want = ij.linear_w8a8(x, w, scales, group=group, bias=bias)
    np.testing.assert_array_equal(jax.vmap(of_row)(x), want)
    assert of_row(x[0]).shape == (N,)
    if not group:
        want = ij.linear_w8a8(x, w, scales, x_scales=given[:, None], bias=bias)
        for each in (given, given[:, None]):
            np.testing.assert_array_equal(jax.vmap(of_row)(x, each), want)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": np.ones((2, K), np.int8)}, "linear_w8a8: x has dtype i8, expected f32, f16 or bf16"),
        ({"w": np.ones((N, K), np.float32)}, "linear_w8a8: w has dtype f32, expected f8e4m3fn or i8"),
        ({"w": np.ones((N, K + 1), FP8)}, "scaled_matmul: w has k=257 but x has k=256"),
        ({"group": 64}, "linear_w8a8: group is 64, expected 0 or 128"),
        ({"group": 128, "x_scales": np.ones(1, np.float32)}, "linear_w8a8: group is 128, expected 0 where x_scales is given"),
        ({"x_scales": np.ones(1, np.float16)}, "linear_w8a8: x_scales has dtype f16, expected f32"),
        ({"group": 128, "x": np.ones((2, 200), np.float32)}, "linear_w8a8: group is 128 where x has 200 columns"),
        ({"x_scales": np.ones(3, np.float32)}, r"linear_w8a8: x_scales has shape \[3\] where x has \[2, 5, 256\]"),
        ({"x_scales": np.ones((2, 1, 1), np.float32)}, r"linear_w8a8: x_scales has shape \[2, 1, 1\]"),
    ],
)  # fmt: skip
def test_what_w8a8_does_not_take_is_told(change, text) -> None:
    x, w, scales, _ = layer(FP8)
    given = {"x": x, "w": w, "w_scales": scales} | change
    with pytest.raises(ValueError, match=text):
        ij.linear_w8a8(**given)


def test_a_scale_may_be_a_number_in_x64_mode() -> None:
    """There 0.5 is f64."""
    x, w, scales, _ = layer(np.int8)
    want = ij.linear_w8a8(x, w, scales, x_scales=0.5)
    with jax.enable_x64(True):
        got = ij.linear_w8a8(x, w, scales, x_scales=0.5)
        np.testing.assert_array_equal(got, want)
        with pytest.raises(
            ValueError, match="linear_w8a8: x_scales has dtype float64, expected f32"
        ):
            ij.linear_w8a8(x, w, scales, x_scales=np.full(1, 0.5))


def test_scales_of_parts_that_are_no_blocks() -> None:
    """Blocks have 128 columns, and the quantization op would cut rows in equal parts."""
    with pytest.raises(ValueError, match=r"x_scales has shape \[2, 2\] where x has 200 columns"):
        ij.linear_w8a8(
            np.ones((2, 200), np.float32),
            np.ones((32, 200), np.int8),
            np.ones(1, np.float32),
            x_scales=np.ones((2, 2), np.float32),
        )
