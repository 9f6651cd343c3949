"""`intarsia.jax.fused_experts_quantized` where a GPU decodes the weights first, run on a CPU here; the op itself is in test_ops.py."""

import functools
import inspect

import intarsia.jax as ij
import jax
import ml_dtypes
import numpy as np
import pytest
import support
from intarsia.jax import _coded_experts, _decoding

OP = "fused_experts_quantized"
BOUND = 8e-3
"""The op's is 6e-3 in bf16; weights are rounded, too."""
_PARAMETERS = inspect.signature(ij.fused_experts_quantized).parameters.values()
OPERANDS = [p.name for p in _PARAMETERS if p.kind is not p.KEYWORD_ONLY]
DEFAULTS = {p.name: p.default for p in _PARAMETERS if p.kind is p.KEYWORD_ONLY}


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
    ("format", "dtype", "group", "zeros", "multiplies"),
    [
        ("u4b8", "float16", 128, None, True),
        ("u4b8", "bfloat16", 0, None, True),
        ("u4b8", "bfloat16", 64, None, False),
        ("u4", "bfloat16", 256, "uint8", True),
        ("u4", "bfloat16", 128, "float16", False),
        ("u4", "bfloat16", 128, None, False),
        ("e2m1", "bfloat16", 32, None, True),
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
        scales = "float8_e8m0fnu" if format == "e2m1" else "float16"
        operands[f"{name}_scales"] = jax.ShapeDtypeStruct((4, 32, 2, 16), scales)
        operands[f"{name}_zeros"] = zeros and jax.ShapeDtypeStruct((4, 32, 2, 16), zeros)
    attributes = DEFAULTS | {"format": format, "w1_group": group, "w2_group": group}
    assert _coded_experts._pays_to_decode(operands, attributes)
    monkeypatch.setattr(_decoding, "is_hopper", lambda: True)
    assert _coded_experts._pays_to_decode(operands, attributes) != multiplies
