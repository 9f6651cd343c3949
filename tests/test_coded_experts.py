"""Stacked matrices in codes, drawn; and `intarsia.jax.fused_experts_quantized` where a GPU decodes the weights first, run on a CPU here."""

import functools
import inspect

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
from intarsia.jax import _coded_experts, _decoding
from intarsia_src.matmul import quantized

OP = "fused_experts_quantized"
BOUND = 8e-3
"""The op's is 6e-3 in bf16; weights are rounded, too."""
_PARAMETERS = inspect.signature(ij.fused_experts_quantized).parameters.values()
OPERANDS = [p.name for p in _PARAMETERS if p.kind is not p.KEYWORD_ONLY]
DEFAULTS = {p.name: p.default for p in _PARAMETERS if p.kind is p.KEYWORD_ONLY}


@st.composite
def weights(draw, columns: int) -> dict:
    """How matrices of so many columns are in codes."""
    group = draw(st.sampled_from([0, 16, 32, 64]))
    groups = -(-columns // group) if group else 1
    divisors = [i for i in range(1, groups + 1) if groups % i == 0]
    outer = draw(st.sampled_from([None, "all", *divisors]))
    return {
        "format": draw(st.sampled_from(sorted(quantized.BITS))),
        "group": group,
        "scale": draw(st.sampled_from([np.float32, ml_dtypes.bfloat16, *[np.uint8, np.int8] * (outer is not None)])),
        "zero": draw(st.sampled_from([None, np.uint8, np.float32])),
        "outer": outer,
        "outer_dtype": draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])),
    }  # fmt: skip


@st.composite
def products(draw):
    k, g = draw(st.sampled_from([16, 40, 96, 256])), draw(st.integers(1, 4))
    m, more = draw(st.integers(0, 30)), draw(st.integers(0, 2))
    sizes = dict(
        m=m,
        k=k,
        c=draw(st.integers(0, 3)),
        g=g,
        sizes=draw(st.sampled_from(["balanced", "zipf"])),
        e=g + more,
        offset=draw(st.integers(0, more)),
        mx=draw(st.sampled_from([None, 5])),
        bias=draw(st.booleans()),
        **draw(weights(k)),
    )
    return sizes, draw(SEEDS)


@running.on_each_platform
@given(dtype=DTYPES, call=products())
def test_any_groups_in_codes(platform, dtype, call) -> None:
    sizes, seed = call
    module = support.op_module("grouped_matmul_quantized")
    check(
        "grouped_matmul_quantized",
        *module.arguments(np.random.default_rng(seed), support.DTYPES[dtype], **sizes),
        platform,
    )


@st.composite
def layers(draw):
    u, c = draw(st.integers(1, 8)), 2 * draw(st.integers(1, 8))
    first, second = draw(weights(16 * u)), draw(weights(8 * c))
    second["zero"] = draw(st.sampled_from([None, second["zero"]]))
    if (first["outer"] is None) != (second["outer"] is None):  # of minimums, and of points
        second["zero"] = None
    e = draw(st.integers(1, 6))
    sizes = dict(
        t=draw(st.integers(0, 12)),
        u=u,
        c=c,
        e=e,
        k=draw(st.integers(1, e)),
        biases=draw(st.booleans()),
        activation=draw(st.sampled_from(["silu", "gelu_tanh", "swigluoai"])),
        w2=second,
        **first,
    )
    return sizes, draw(SEEDS)


@running.on_each_platform
@given(call=layers())
def test_any_experts_in_codes(platform, call) -> None:
    # Some numbers leave f16's range, and f32's bound is for activations that make no error larger.
    sizes, seed = call
    check(
        OP,
        *support.op_module(OP).arguments(np.random.default_rng(seed), ml_dtypes.bfloat16, **sizes),
        platform,
    )


@pytest.mark.parametrize(
    ("operand", "shape", "text"),
    [
        ("w1_outer_scales", (4, 4, 3, 16), "w1_outer_scales has no=3, expected a divisor of the ng=1"),
        ("w2_outer_scales", (4, 2, 2, 16), "w2_outer_scales has io=2, expected a divisor of the ig=1"),
        ("w2_outer_zeros", (4,), "w2_outer_zeros is given but w2_zeros is not"),
        ("w1_outer_scales", (3,), "w1_outer_scales has e=3 but w1 has e=4"),
    ],
)  # fmt: skip
def test_outer_factors_that_do_not_fit_are_told(operand, shape, text) -> None:
    module = support.op_module(OP)
    operands, attributes = module.arguments(
        np.random.default_rng(0), np.float32, **support.cases(OP, "ci")["example"]
    )
    given = dict(zip(OPERANDS, operands, strict=True)) | {operand: np.ones(shape, np.float32)}
    with pytest.raises(ValueError, match=text):
        ij.fused_experts_quantized(**given, **attributes)


def test_none_is_the_default_of_an_attribute_for_many_tokens_too() -> None:
    sizes = support.cases(OP, "ci")["example"] | {"t": 2048}
    operands, attributes = support.op_module(OP).arguments(
        np.random.default_rng(0), ml_dtypes.bfloat16, **sizes
    )

    def traced(**given):
        return jax.make_jaxpr(lambda *a: ij.fused_experts_quantized(*a, **attributes, **given))(
            *operands
        ).out_avals

    assert traced(w2_format=None, zeros_are=None, activation=None) == traced()


def test_outer_scales_in_f32_are_not_decoded_to_f16() -> None:
    scales = jax.ShapeDtypeStruct((4, 32, 2, 16), "float16")
    operands = {"x": jax.ShapeDtypeStruct((2048, 256), "float16")}
    for name in ("w1", "w2"):
        operands |= {name: jax.ShapeDtypeStruct((4, 32, 8, 4, 16, 4), "uint8")}
        operands |= {f"{name}_scales": scales, f"{name}_zeros": None}
    attributes = DEFAULTS | {"format": "u4b8", "w1_group": 128, "w2_group": 128}
    assert _coded_experts._pays_to_decode(operands, attributes)
    for dtype, decodes in (("float16", True), ("float32", False)):
        operands["w2_outer_scales"] = jax.ShapeDtypeStruct((4,), dtype)
        assert _coded_experts._pays_to_decode(operands, attributes) == decodes


def test_codes_of_another_format_than_said_are_told() -> None:
    module = support.op_module(OP)
    operands, attributes = module.arguments(
        np.random.default_rng(0), np.float32, **support.cases(OP, "ci")["example"]
    )
    with pytest.raises(ValueError, match=r"w2.*\[4, 2, 1, 4, 16, 4\].*expected"):
        ij.fused_experts_quantized(*operands, **attributes, w2_format="i8")


@pytest.mark.parametrize("case", support.cases(OP, "ci"))
def test_decoded_experts_against_f64(case) -> None:
    module = support.op_module(OP)
    operands, attributes = module.arguments(
        np.random.default_rng(0), ml_dtypes.bfloat16, **support.cases(OP, "ci")[case]
    )
    wide = [
        a if a is None or np.issubdtype(a.dtype, np.integer) else a.astype(np.float64)
        for a in operands
    ]
    [want] = module.reference(*wide, **attributes)
    run = functools.partial(_coded_experts._decoded, DEFAULTS | attributes)
    got = jax.jit(run)(dict(zip(OPERANDS, operands, strict=True)))
    assert got.dtype == operands[0].dtype
    assert support.relative_error(got, want) < BOUND


@pytest.mark.parametrize(
    ("tokens", "format", "dtype", "experts", "decodes"),
    [
        (2047, "u4", "bfloat16", 4, False),
        (2048, "u4", "bfloat16", 4, True),
        (2048, "u4b8", "bfloat16", 4, True),
        (2048, "u4b8", "float16", 4, True),
        (2048, "u4b8", "float32", 4, False),
        (2048, "u4b8", "bfloat16", 1 << 20, False),  # decoded they would have 6 GB
    ],
)
def test_many_tokens_take_decoded_experts_on_a_gpu(tokens, format, dtype, experts, decodes) -> None:
    types = {
        "x": ((2, tokens // 2, 32) if tokens % 2 == 0 else (tokens, 32), dtype),
        "w1": ((experts, 4, 1, 4, 16, 4), "uint8"),
        "w1_scales": ((experts, 4, 1, 16), "float16"),
        "w2": ((experts, 2, 1, 4, 16, 4), "uint8"),
        "w2_scales": ((experts, 2, 1, 16), "float16"),
    }
    operands = {name: jax.ShapeDtypeStruct(*of) for name, of in types.items()}
    lead = operands["x"].shape[:-1]
    operands["weights"] = jax.ShapeDtypeStruct((*lead, 2), "float32")
    operands["ids"] = jax.ShapeDtypeStruct((*lead, 2), "int32")

    def layer(operands):
        return ij.fused_experts_quantized(**operands, format=format)

    def ops(platform: str) -> set[str]:
        text = jax.jit(layer).trace(operands).lower(lowering_platforms=(platform,)).as_text()
        return {op for op in (OP, "fused_experts") if f"@intarsia.{op}(" in text}

    assert ops("cuda") == {"fused_experts" if decodes else OP}
    assert ops("cpu") == {OP}


@pytest.mark.parametrize(
    ("tokens", "format", "group", "outer", "hopper", "decodes"),
    [
        (512, "u5", 32, False, True, True),  # Hopper has no kernel for experts in such codes
        (511, "u5", 32, False, True, False),
        (512, "u4b8", 128, False, False, False),
        (512, "u4b8", 32, True, False, True),
        (512, "e2m1", 16, True, False, True),
        (512, "e2m1", 16, True, True, False),
    ],
)
def test_slow_kernels_have_experts_decoded_early(
    tokens, format, group, outer, hopper, decodes, monkeypatch
) -> None:
    monkeypatch.setattr(_decoding, "is_hopper", lambda: hopper)
    scales = "float8_e4m3fn" if group == 16 else "float16"
    operands = {"x": jax.ShapeDtypeStruct((tokens, 256), "bfloat16")}
    for name in ("w1", "w2"):
        shape = (4, 32, 8, quantized.BITS[format], 16, 4)
        operands[name] = jax.ShapeDtypeStruct(shape, "uint8")
        operands[f"{name}_scales"] = jax.ShapeDtypeStruct((4, 32, 256 // group, 16), scales)
        operands[f"{name}_zeros"] = None
        operands[f"{name}_outer_scales"] = jax.ShapeDtypeStruct((4,), "float32") if outer else None
    attributes = DEFAULTS | {"format": format, "w1_group": group, "w2_group": group}
    assert _coded_experts._pays_to_decode(operands, attributes) == decodes


@pytest.mark.parametrize(
    ("format", "dtype", "group", "zeros", "multiplies"),
    [
        ("u4b8", "float16", 128, None, True),
        ("u4b8", "bfloat16", 0, None, True),
        ("u4b8", "bfloat16", 64, None, False),
        ("u4", "bfloat16", 256, "uint8", True),
        ("u4", "bfloat16", 128, "float16", False),
        ("u4", "bfloat16", 128, None, False),
        ("e2m1", "bfloat16", 32, None, True),
        ("e2m1", "bfloat16", 16, None, True),
        ("i8", "bfloat16", 128, None, True),
        ("i8", "bfloat16", 64, None, False),
        ("e4m3", "bfloat16", 0, None, True),
    ],
)
def test_hopper_decodes_later_what_wgmma_multiplies(
    format, dtype, group, zeros, multiplies, monkeypatch
) -> None:
    operands = {"x": jax.ShapeDtypeStruct((2048, 256), dtype)}
    for name in ("w1", "w2"):
        operands[name] = jax.ShapeDtypeStruct(
            (4, 32, 8, 8 if format in ("i8", "e4m3") else 4, 16, 4), "uint8"
        )
        of_e2m1 = "float8_e8m0fnu" if group == 32 else "float8_e4m3fn"
        scales = of_e2m1 if format == "e2m1" else "float16"
        operands[f"{name}_scales"] = jax.ShapeDtypeStruct((4, 32, 2, 16), scales)
        operands[f"{name}_zeros"] = zeros and jax.ShapeDtypeStruct((4, 32, 2, 16), zeros)
    attributes = DEFAULTS | {"format": format, "w1_group": group, "w2_group": group}
    assert _coded_experts._pays_to_decode(operands, attributes)
    monkeypatch.setattr(_decoding, "is_hopper", lambda: True)
    assert _coded_experts._pays_to_decode(operands, attributes) != multiplies
