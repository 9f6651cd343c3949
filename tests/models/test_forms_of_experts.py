"""Experts whose codes do not fit together: layers, experts, and gate and up of several forms, and nvfp4's scales of all."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from intarsia import repack
from intarsia.models import Engine, load_model
from intarsia.models.expert_codes import stack_experts
from test_packed_experts import one_scale_for_gate_and_up, write


def test_layers_of_two_forms_are_not_stacked(tmp_path) -> None:
    """Gate and up share an outer scale in one layer alone."""

    def change(tensors: dict[str, np.ndarray], config: Any) -> None:
        shared = dict(tensors)
        one_scale_for_gate_and_up(shared, config)
        tensors |= {name: array for name, array in shared.items() if ".layers.1." in name}

    path, _ = write(tmp_path, "qwen3_moe", "ct_nvfp4", change)
    config, params = load_model(path, quantize="file")
    with pytest.raises(
        ValueError, match="scan_layers: the file's layers have weights in different"
    ):
        Engine(config, params, scan_layers=True)


GLOBAL_SCALE = "model.layers.1.mlp.experts.3.up_proj.weight_global_scale"


@pytest.mark.parametrize("value", [None, 0.0, -0.0, -2.0, np.nan, np.inf, 1e-40])
def test_global_scales_that_are_refused(tmp_path, recwarn, value) -> None:
    def change(tensors: dict[str, np.ndarray], config: Any) -> None:
        del tensors[GLOBAL_SCALE]
        if value is not None:
            tensors[GLOBAL_SCALE] = np.full(1, value, np.float32)

    path, _ = write(tmp_path, "qwen3_moe", "ct_nvfp4", change)
    said = rf"tensor {GLOBAL_SCALE} is missing"
    if value is not None:
        weight = GLOBAL_SCALE.replace("_global_scale", "")
        said = rf"model\.safetensors: {weight}: repack: global_scale has {np.float32(value)}, expected finite"
    for quantize in ("file", None):
        with pytest.raises(ValueError, match=said) as raised:
            load_model(path, quantize=quantize)
        assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)
    assert not [w for w in recwarn if w.category is RuntimeWarning]


def test_factors_of_scales_are_finite() -> None:
    codes, scales = np.zeros((16, 16), np.uint8), np.ones((16, 2), ml_dtypes.float8_e4m3fn)
    for value in (0.0, -2.0):  # factors, which divide nothing
        weight = repack.from_nvfp4(codes, scales, np.array(value))
        np.testing.assert_array_equal(repack.factors_of(weight)[2], [value])
    with pytest.raises(ValueError, match=r"repack: global_scale has nan, expected finite ones$"):
        repack.from_nvfp4(codes, scales, np.array([*[1.0] * 15, np.nan]))


def test_powers_of_two_beside_a_global_scale_are_refused(tmp_path) -> None:
    name = GLOBAL_SCALE.replace("_global", "")

    def change(tensors: dict[str, np.ndarray], config: Any) -> None:
        tensors[name] = tensors[name].view(np.uint8)[:, ::2]

    path, _ = write(tmp_path, "qwen3_moe", "ct_nvfp4", change)
    with pytest.raises(ValueError, match=f"{name} is uint8, expected float8_e4m3fn"):
        load_model(path)


def test_forms_that_differ_in_factors_alone() -> None:
    """Their dtype, their shape, and what zeros are."""

    def weight(dtype: Any = np.float32, outer: int = 0, zeros: str = "") -> repack.PackedWeight:
        scales = np.ones((16, 2), dtype)
        outers = np.ones((16, outer), np.float32) if outer else None
        rest = (scales if zeros else None), outers
        codes, kind = np.zeros((16, 64), np.uint8), zeros or "points"
        return repack.from_codes(codes, scales, *rest, format="u4", group=32, zeros_are=kind)

    for one, other, said, others in (
        (weight(), weight(np.float16), r"scales float32 \[1, 2, 16\]", r"scales float16 \[1, 2, 16\]"),
        (weight(), weight(zeros="points"), "zeros none", r"zeros float32 \[1, 2, 16\]"),
        (weight(zeros="points"), weight(zeros="minimums"), "points", "minimums"),
        (weight(outer=1), weight(outer=2), r"outer_scales float32 \[1, 1, 16\]", r"outer_scales float32 \[1, 2, 16\]"),
    ):  # fmt: skip
        form = "u4 in groups of 32( with outer scales of rows)?"
        text = f"gate is in {form} with {said}, up in {form} with {others}, expected one form"
        with pytest.raises(NotImplementedError, match=text):
            stack_experts("x.", [[one, other]], [one])
        text = rf"\[16, 64\] in {form} with {others} beside \[16, 64\] in {form} with {said}, exp"
        with pytest.raises(ValueError, match=text):
            repack.stacked([one, other])
