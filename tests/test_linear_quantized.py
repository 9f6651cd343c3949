"""`intarsia.jax.linear_quantized` against f64 of the decoded weights, and as part of JAX's transformations."""

import functools
import subprocess
import sys
from types import SimpleNamespace

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
from intarsia import repack
from intarsia.jax import _decoding, _quantized
from intarsia_src.matmul import quantized
from jax import export

OP = "linear_quantized"
# Around the few rows that codes become numbers in registers for, and blocks of 128 of more.
ROWS = st.one_of(st.integers(0, 9), st.sampled_from([40, 127, 129, 300]))
COLUMNS = st.one_of(st.integers(1, 100), st.sampled_from([255, 256, 320, 700]))
FACTORS = [np.float32, np.float16, ml_dtypes.bfloat16, np.uint8, np.int8]
SCALES = [*FACTORS, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu]
OUTERS = FACTORS[:3]


def draw(sizes: dict, seed: int = 0, dtype=np.float32) -> tuple[list, dict]:
    return support.op_module(OP).arguments(np.random.default_rng(seed), dtype, **sizes)


@st.composite
def calls(draw_from):
    k, format = draw_from(COLUMNS), draw_from(st.sampled_from(sorted(quantized.BITS)))
    groups = [0, 16, 32, 64, 128]
    group = draw_from(st.sampled_from(groups))
    zero = draw_from(st.sampled_from([None, *FACTORS]))
    g = -(-k // group) if group else 1
    divisors = [i for i in range(1, g + 1) if g % i == 0]
    sizes = dict(
        m=draw_from(ROWS),
        c=draw_from(st.integers(0, 9)),
        k=k,
        format=format,
        group=group,
        scale=draw_from(st.sampled_from(SCALES)),
        zero=zero,
        zeros_are=draw_from(st.sampled_from(["points", "minimums"])),
        outer=draw_from(st.sampled_from([None, "all", *divisors])),
        outer_dtype=draw_from(st.sampled_from(OUTERS)),
        bias=draw_from(st.booleans()),
    )
    dtype = draw_from(DTYPES)
    operands, attributes = draw(sizes, draw_from(SEEDS), support.DTYPES[dtype])
    # Products of some factors leave f16's range.
    out_dtypes = ["f32"] if dtype == "f16" else ["auto", "f32"]
    return operands, attributes | {"out_dtype": draw_from(st.sampled_from(out_dtypes))}


@given(calls())
def test_any_format_size_and_group(call) -> None:
    check(OP, *call, "cpu")


def cases() -> list[str]:
    return [*support.cases(OP, "ci")]


@functools.cache
def ours_and_plain() -> dict[str, tuple[jax.Array, jax.Array]]:
    """By case, of one program."""
    calls = {case: draw(support.cases(OP, "ci")[case]) for case in cases()}

    def program(operands: dict[str, list]) -> dict[str, tuple[jax.Array, jax.Array]]:
        return {
            case: (
                ij.linear_quantized(*operands[case], **attributes),
                support.op_module(OP).plain_xla(*operands[case], **attributes)[0],
            )
            for case, (_, attributes) in calls.items()
        }

    return jax.jit(program)({case: operands for case, (operands, _) in calls.items()})


@pytest.mark.parametrize("case", cases())
def test_other_platforms_get_the_same_from_xla(case) -> None:
    """The version of platforms without the op, lowered here for the CPU."""
    operands, attributes = draw(support.cases(OP, "ci")[case])
    got, want = ours_and_plain()[case]
    assert support.relative_error(got, want) < 2e-6
    exported = export.export(
        jax.jit(lambda *a: ij.linear_quantized(*a, **attributes)), platforms=["tpu"]
    )(*operands)
    assert "custom_call" not in exported.mlir_module()


@pytest.mark.parametrize("case", cases())
def test_weights_that_a_gpu_decodes_first(case) -> None:
    """What many rows do on a GPU, run here: the bound is that of the kernels (bf16)."""
    operands, attributes = draw(support.cases(OP, "ci")[case], dtype=ml_dtypes.bfloat16)
    x, *factors, bias = operands
    form = _quantized._Form(
        tuple(a is not None for a in operands), **{"out_dtype": "auto"} | attributes
    )
    got = jax.jit(functools.partial(_quantized._by_decoding, form=form))(
        *(a for a in operands if a is not None)
    )
    want = x.astype(np.float64) @ quantized.weights(*factors, x.shape[1], **attributes).T
    assert got.dtype == x.dtype
    assert (
        support.relative_error(got, want if bias is None else want + bias.astype(np.float64)) < 4e-3
    )


@pytest.mark.parametrize(
    ("rows", "format", "dtype", "scales", "zeros", "decodes"),
    [
        (511, "u4", "bfloat16", "float32", None, False),
        (512, "u4", "bfloat16", "float32", None, True),
        (512, "u4", "bfloat16", "float32", "float32", True),
        (512, "e2m1", "bfloat16", "float8_e8m0fnu", None, True),
        (512, "u4b8", "float16", "float16", None, True),
        (512, "u4b8", "float16", "float32", None, False),
        (512, "u4", "float16", "float16", "uint8", True),
        (512, "u4", "float16", "float16", "float16", True),
        (512, "u4", "float16", "float16", "float32", False),
        (512, "u4b8", "float32", "float32", None, False),
    ],
)
def test_many_rows_take_decoded_weights_on_a_gpu(
    rows, format, dtype, scales, zeros, decodes
) -> None:
    x = jax.ShapeDtypeStruct((2, rows // 2, 64) if rows % 2 == 0 else (rows, 64), dtype)
    packed = jax.ShapeDtypeStruct((1, 2, 4, 16, 4), "uint8")
    factors = [t and jax.ShapeDtypeStruct((1, 2, 16), t) for t in (scales, zeros)]

    def layer(x, packed, scales, zeros):
        return ij.linear_quantized(x, packed, scales, zeros, format=format, group=32)

    def program(platform: str) -> str:
        traced = jax.jit(layer).trace(x, packed, *factors)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    assert ("dot_general" in program("cuda")) == decodes
    assert ("custom_call" in program("cuda")) != decodes
    assert "custom_call" in program("cpu")


def test_hopper_decodes_later_what_it_multiplies_fast(monkeypatch) -> None:
    def decodes(
        format: str, group: int, scales: str, zeros: str | None, rows: int = 512, k: int = 256
    ) -> bool:
        bits = quantized.BITS[format]
        packed = jax.ShapeDtypeStruct((1, k // 32, bits, 16, 4), "uint8")
        factors = [t and jax.ShapeDtypeStruct((1, -(-k // group), 16), t) for t in (scales, zeros)]

        def layer(x, packed, scales, zeros):
            return ij.linear_quantized(x, packed, scales, zeros, format=format, group=group)

        operands = (jax.ShapeDtypeStruct((rows, k), "bfloat16"), packed, *factors)
        program = jax.jit(layer).trace(*operands).lower(lowering_platforms=("cuda",))
        return "dot_general" in program.as_text()

    assert decodes("u4b8", 128, "float16", None)
    for rows, format, group, slow in (
        (128, "u6b32", 16, True),
        (127, "u6b32", 16, False),
        (128, "u5b16", 32, True),
        (128, "u4b8", 32, False),
    ):
        assert decodes(format, group, "float16", None, rows=rows) == slow
    monkeypatch.setattr(_decoding, "is_hopper", lambda: True)
    jax.clear_caches()
    assert not decodes("u4b8", 128, "float16", None)
    assert decodes("u4b8", 128, "float16", None, rows=1024)
    assert decodes("u4b8", 64, "float16", None)
    assert not decodes("u4", 128, "float16", "uint8")
    assert decodes("u4", 128, "float16", "float16")
    assert decodes("i8", 128, "float16", None) and decodes("e4m3", 128, "float32", None)
    assert not decodes("e2m1", 32, "float8_e8m0fnu", None)
    assert not decodes("e2m1", 16, "float8_e4m3fn", None)
    assert decodes("e2m1", 16, "float32", None)
    assert decodes("e2m1", 32, "float8_e8m0fnu", None, k=320)
    assert decodes("u4b8", 128, "float16", None, k=320)
    assert decodes("u6b32", 16, "int8", None) and not decodes("u6b32", 16, "int8", None, rows=128)
    assert decodes("u6b32", 16, "int8", None, rows=128, k=320)
    for outer, is_late in (((1,), True), ((1, 1, 16), True), ((1, 2, 16), False)):
        x, scales, outer_scales = (
            jax.ShapeDtypeStruct(*of)
            for of in (((512, 256), "bfloat16"), ((1, 16, 16), "float8_e4m3fn"), (outer, "float32"))
        )
        form = {"format": "e2m1", "group": 16, "zeros_are": "points"}
        assert _decoding.decode_late(x, scales, None, outer_scales, **form) == is_late
    jax.clear_caches()


@pytest.mark.parametrize(("held_back_to", "hopper"), [(None, True), ("90", True), ("80", False)])
def test_a_hopper_that_is_held_back_is_none(held_back_to, hopper, monkeypatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    monkeypatch.delenv("INTARSIA_ARCH", raising=False)
    if held_back_to:
        monkeypatch.setenv("INTARSIA_ARCH", held_back_to)
    assert _decoding.is_hopper() == hopper


TRACING = """
import jax
from jax._src import xla_bridge
import intarsia.jax as ij

x = jax.ShapeDtypeStruct((4, 128), "bfloat16")
packed, scales = (jax.ShapeDtypeStruct(*of) for of in (((1, 4, 4, 16, 4), "uint8"), ((1, 1, 16), "float16")))
jax.eval_shape(lambda *a: ij.linear_quantized(*a, format="u4b8", group=128), x, packed, scales)
assert not xla_bridge.backends_are_initialized()
"""


def test_tracing_few_rows_starts_no_backend() -> None:
    """`jax.distributed.initialize` must come before that, and a GPU's memory is taken by it."""
    run = subprocess.run([sys.executable, "-c", TRACING], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_leading_axes_vmap_and_grad() -> None:
    operands, attributes = draw(support.cases(OP, "ci")["q4_1_bias"])
    x, *rest, bias = operands
    stacked = np.stack([x, 2 * x])

    def layer(x, bias):
        return ij.linear_quantized(x, *rest, bias, **attributes)

    want = np.stack([layer(x, bias), layer(2 * x, bias)])
    assert support.relative_error(layer(stacked, bias), want) < 1e-5  # other rows, another kernel
    np.testing.assert_array_equal(jax.vmap(layer, (0, None))(stacked, bias), layer(stacked, bias))
    mapped = jax.vmap(layer)(stacked, np.stack([bias, bias]))
    assert support.relative_error(mapped, want) < 1e-5
    weights = quantized.weights(*rest, x.shape[1], **attributes)
    d_x, d_bias = jax.grad(lambda x, bias: (layer(x, bias) ** 2).sum(), (0, 1))(x, bias)
    d_out = 2 * np.asarray(layer(x, bias), np.float64)
    assert support.relative_error(d_x, d_out @ weights) < 1e-5
    assert support.relative_error(d_bias, d_out.sum(0)) < 1e-5


def test_second_derivatives() -> None:
    operands, attributes = draw(support.cases(OP, "ci")["q4_1_bias"])
    x, *rest, bias = operands
    weights = quantized.weights(*rest, x.shape[1], **attributes).astype(np.float32)

    def ours(x, bias):
        return ij.linear_quantized(x, *rest, bias, **attributes)

    got = running.second_derivatives(ours, (x, bias))
    want = running.second_derivatives(lambda x, bias: x @ weights.T + bias, (x, bias))
    for second, expected in zip(got, want, strict=True):
        assert support.relative_error(second, expected) < 1e-3


def test_scales_have_a_gradient() -> None:
    operands, attributes = draw(support.cases(OP, "ci")["int8_channels"])
    x, packed, scales, *rest = operands

    def loss(scales):
        return ij.linear_quantized(x, packed, scales, *rest, **attributes).sum()

    numbers = quantized.numbers("i8", packed)
    want = (x.astype(np.float64) @ numbers.T).sum(0).reshape(scales.shape[0], 1, 16)
    assert support.relative_error(jax.grad(loss)(scales), want) < 1e-5


@pytest.mark.parametrize("m", [1, 3, 8])
def test_what_is_not_finite_stays_in_its_row_and_column(m) -> None:
    sizes = support.cases(OP, "ci")["int8_channels"] | {"m": m}
    operands, attributes = draw(sizes)
    x, _, scales, *_ = operands
    x[m // 2, 5], scales[1, 0, 3] = np.nan, np.inf
    (out,) = running.run_native(OP, operands, attributes)
    bad = ~np.isfinite(out)
    assert bad[m // 2].all() and bad[:, 19].all() and bad.sum() == out.shape[1] + m - 1


def test_rows_beyond_what_is_packed_at_a_time() -> None:
    check(OP, *draw(dict(m=1100, c=1, k=64, format="u4", group=32, scale=np.float32)), "cpu")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": "i8"}, r"packed has shape \[1, 2, 4, 16, 4\], expected \[c kb 8 16 4\]"),
        ({"group": 24}, r"group is 24, expected 0, 16 or a multiple of 32"),
        ({"group": 64}, r"scales has kg=2 groups, expected 1 for k=64 and group=64"),
        ({"format": "u7"}, r"format"),
    ],
)
def test_wrong_attributes_are_told(change, text) -> None:
    operands, attributes = draw(support.cases(OP, "ci")["example"])
    with pytest.raises((ValueError, NotImplementedError), match=text):
        ij.linear_quantized(*operands, **attributes | change)


def test_none_is_the_default_of_an_attribute_for_many_rows_too() -> None:
    (x, packed, scales, *_), _ = draw(support.cases(OP, "ci")["example"] | {"m": 128})
    x = x.astype(ml_dtypes.bfloat16)
    of_all = scales[:, :1]
    got = ij.linear_quantized(x, packed, of_all, format=None, group=None, zeros_are=None)
    np.testing.assert_array_equal(got, ij.linear_quantized(x, packed, of_all))


def test_wrong_operands_are_told() -> None:
    (x, packed, scales, zeros, *_), attributes = draw(support.cases(OP, "ci")["example"])
    outer = np.ones((1,), np.float32)
    with pytest.raises(
        ValueError, match="packed has kb=2 blocks of 32 columns, expected 1 for k=32"
    ):
        ij.linear_quantized(x[:, :32], packed, scales, zeros, **attributes)
    with pytest.raises(ValueError, match="outer_zeros is given but zeros is not"):
        ij.linear_quantized(x, packed, scales, None, outer, outer, **attributes)
    with pytest.raises(
        ValueError, match="outer_zeros is given, expected none where zeros are points"
    ):
        points = attributes | {"zeros_are": "points"}
        ij.linear_quantized(x, packed, scales, zeros, outer, outer, **points)
    with pytest.raises(
        ValueError, match="outer_scales has ko=3, expected a divisor of the kg=2 groups"
    ):
        of_three = np.ones((1, 3, 16), np.float32)
        ij.linear_quantized(x, packed, scales, zeros, of_three, None, **attributes)
    with pytest.raises(
        ValueError, match="outer_zeros has ko=3, expected a divisor of the kg=2 groups"
    ):
        ij.linear_quantized(x, packed, scales, zeros, outer, of_three, **attributes)
    with pytest.raises(ValueError, match="scales has kg=2 groups, expected 1 for k=64"):
        ij.linear_quantized(x, packed, scales, zeros, **attributes | {"group": 2**63 - 32})


def test_rows_that_are_no_tile() -> None:
    """A weight of 37 rows gives 37 results, and rows by their numbers."""
    rng = np.random.default_rng(5)
    codes, scales = rng.integers(0, 16, (37, 40)).astype(np.uint8), rng.uniform(0.1, 1, (37, 2))
    weight = repack.from_codes(codes, scales.astype(np.float16), format="u4b8", group=32)
    want = repack.decoded(weight)
    np.testing.assert_array_equal(
        want, (codes - 8.0).astype(np.float32) * np.repeat(scales.astype(np.float16), 32, 1)[:, :40]
    )
    x = rng.standard_normal((2, 40), np.float32)
    out = jax.jit(ij.linear_packed)(x, weight)
    assert out.shape == (2, 37)
    assert support.relative_error(out, x.astype(np.float64) @ want.T) < 1e-6
    rows = jnp.array([[36, 0], [17, 17]])
    np.testing.assert_array_equal(jax.jit(ij.take_packed)(weight, rows), want[np.asarray(rows)])


def test_zeros_that_are_of_no_kind() -> None:
    sizes = dict(m=2, c=1, k=32, format="u4", group=32, scale=np.float32, zero=np.float32)
    x, packed, scales, zeros = draw(sizes)[0][:4]

    def total(scales, zeros_are):
        out = ij.linear_quantized(
            x, packed, scales, zeros, format="u4", group=32, zeros_are=zeros_are
        )
        return out.sum()

    none, points = (jax.value_and_grad(total)(scales, kind) for kind in (None, "points"))
    np.testing.assert_allclose(none[0], points[0], rtol=1e-6)
    np.testing.assert_allclose(none[1], points[1], rtol=1e-6)


def test_rows_that_a_program_takes() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (20, 64), np.uint8)
    weight = repack.from_codes(codes, np.ones((20, 2), np.float32), format="u4", group=32)
    rows = np.array([3, 19])
    taken = jax.jit(lambda rows: ij.take_packed(weight, rows))(rows)
    np.testing.assert_array_equal(taken, codes[rows].astype(np.float32))
    np.testing.assert_array_equal(ij.take_packed(weight, [3, 19]), taken)
