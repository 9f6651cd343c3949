"""Activations of experts that `fused_experts` lacks are vLLM's own, and the products with them are grouped ones."""

import types

import ml_dtypes
import numpy as np
import pytest
import vllm_running  # noqa: F401  which skips all where there is no vLLM

LIMIT = 2.0


def _expected(kind: str):
    """vLLM's own function of torch tensors."""
    import torch.nn.functional as F
    from vllm.model_executor.layers import activation

    def clamped(alpha: float, beta: float):
        def run(x):
            gate, up = x.chunk(2, -1)
            gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
            return gate * (alpha * gate).sigmoid() * (up + beta)

        return run

    return {
        "silu": clamped(1.0, 0.0),
        "swigluoai_uninterleave": clamped(1.7, 1.0),
        "swiglustep": lambda x: activation.SwigluStepAndMul.forward_native(
            types.SimpleNamespace(limit=7.0), x
        ),
        "gelu": lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        "silu_no_mul": F.silu,
        "gelu_no_mul": F.gelu,
        "gelu_tanh_no_mul": lambda x: F.gelu(x, approximate="tanh"),
        "relu2_no_mul": lambda x: F.relu(x) ** 2,
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("silu", "swigluoai_uninterleave", "swiglustep", "gelu"),
        *("silu_no_mul", "gelu_no_mul", "gelu_tanh_no_mul", "relu2_no_mul"),
    ],
)
def test_activations(kind: str) -> None:
    import torch
    from intarsia.vllm.experts import _activation
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    layer = types.SimpleNamespace(
        activation=MoEActivation(kind), swiglu_limit=LIMIT, swiglu_alpha=1.7, swiglu_beta=1.0
    )
    x = 6 * np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    got = np.asarray(_activation(layer)(x))
    np.testing.assert_allclose(got, _expected(kind)(torch.from_numpy(x)).numpy(), atol=1e-4)


def test_an_activation_that_is_not_there() -> None:
    from intarsia.vllm.experts import _activation
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    layer = types.SimpleNamespace(
        activation=MoEActivation.SITU, swiglu_limit=None, swiglu_alpha=None, swiglu_beta=None
    )
    with pytest.raises(NotImplementedError, match="experts: activation situ, expected one of silu"):
        _activation(layer)


@pytest.mark.parametrize("limit", [None, LIMIT])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "swigluoai"])
def test_only_silu_has_a_limit(kind: str, limit: float | None, monkeypatch) -> None:
    """vLLM's two others of the op ignore it."""
    import intarsia.jax as ops
    import test_fused_experts
    from intarsia.vllm import experts
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    layer = types.SimpleNamespace(
        activation=MoEActivation(kind),
        swiglu_limit=limit,
        swiglu_alpha=None,
        swiglu_beta=None,
        expert_map=None,
        apply_router_weight_on_input=False,
    )
    monkeypatch.setattr(experts, "call_jax", lambda run, *operands: run(*operands))
    x, w1, w2, weights, ids = test_fused_experts.layer(3)
    x *= 20  # beyond the limit
    got = experts.run_experts(layer, x, weights, ids, w1, w2, None, None)
    plain = ops.fused_experts(x, w1, w2, weights, ids, activation=kind)
    assert np.array_equal(got, plain) == (kind != "silu" or limit is None)


def test_an_activation_that_needs_a_limit() -> None:
    from intarsia.vllm.experts import _activation
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    layer = types.SimpleNamespace(
        activation=MoEActivation.SWIGLUOAI_UNINTERLEAVE,
        swiglu_limit=None,
        swiglu_alpha=1.7,
        swiglu_beta=1.0,
    )
    with pytest.raises(ValueError, match="experts: activation swigluoai_uninterleave without a sw"):
        _activation(layer)


def _words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)


@pytest.mark.parametrize(("form", "bits"), [("awq", 4), ("gptq", 4), ("gptq", 8)])
@pytest.mark.parametrize("groups", [1, 3])
def test_words_are_decoded_as_they_are_packed(form: str, bits: int, groups: int) -> None:
    """Within a step's program, for GPUs, and for the op on CPUs."""
    from intarsia import repack
    from intarsia.vllm import word_experts

    rng, (experts, columns, rows) = np.random.default_rng(0), (2, 96, 32)
    scales = rng.uniform(0.5, 2, (experts, groups, rows)).astype(np.float32)
    if form == "awq":
        method = object.__new__(word_experts.XlaAwqMoEMethod)
        zeros = _words(rng, experts, groups, rows // 8)
        parts = [_words(rng, experts, columns, rows // 8), zeros, scales]
    else:
        method = object.__new__(word_experts.XlaGptqMoEMethod)
        method.__dict__["quant_config"] = types.SimpleNamespace(weight_bits=bits)
        parts = [_words(rng, experts, columns * bits // 32, rows), scales]
    packed = [repack.decoded(method._repack(*expert)) for expert in zip(*parts, strict=True)]
    assert packed[0].shape == (rows, columns) and len(np.unique(packed[0])) > 100
    np.testing.assert_allclose(method._decode(*parts, np.float32), np.stack(packed), rtol=1e-6)


@pytest.mark.parametrize("parts", [None, 1, 2])
def test_fp8_is_decoded_as_it_is_packed(parts: int | None) -> None:
    """With a scale of each expert or of equal parts of its rows, and of blocks that end beyond the matrix."""
    from intarsia import repack
    from intarsia.vllm import quantized_experts

    rng, (experts, rows, columns), block = np.random.default_rng(0), (2, 192, 320), (128, 128)
    codes = rng.integers(0, 0x70, (experts, rows, columns)).astype(np.uint8)
    method = object.__new__(quantized_experts.XlaFp8MoEMethod)
    method.__dict__ |= {"block_quant": parts is None, "moe_block_shape": [*block]}
    size = (experts, parts) if parts else (experts, 2, 3)
    scales = rng.uniform(0.5, 2, size).astype(np.float32)
    packed = [
        repack.decoded(method._repack(*expert))
        for expert in zip(codes.view(ml_dtypes.float8_e4m3fn), scales, strict=True)
    ]
    np.testing.assert_allclose(
        method._decode(codes, scales, np.float32), np.stack(packed), rtol=1e-6
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_nvfp4_is_decoded_as_it_is_packed(parts: int) -> None:
    """With a scale of each expert, or of its gates and its ups."""
    from intarsia import repack
    from intarsia.vllm import nvfp4

    rng, (experts, rows, columns) = np.random.default_rng(0), (2, 64, 96)
    codes = rng.integers(0, 256, (experts, rows, columns // 2)).astype(np.uint8)
    scales = rng.integers(0x20, 0x60, (experts, rows, columns // 16)).astype(np.uint8)
    of_all = rng.uniform(0.5, 2, (experts, parts)).astype(np.float32)
    method = object.__new__(nvfp4.XlaModelOptNvFp4MoEMethod)
    packed = [
        repack.decoded(method._repack(*expert))
        for expert in zip(codes, scales.view(ml_dtypes.float8_e4m3fn), of_all, strict=True)
    ]
    assert len(np.unique(packed[0])) > 100
    np.testing.assert_allclose(
        method._decode(codes, scales, of_all, np.float32), np.stack(packed), rtol=1e-6
    )


def test_int8_of_compressed_tensors_is_decoded_as_it_is_packed() -> None:
    from intarsia import repack
    from intarsia.vllm import compressed_experts

    rng, shape = np.random.default_rng(0), (2, 32, 96)
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    scales = rng.uniform(0.5, 2, (*shape[:2], 1)).astype(np.float32)
    method = object.__new__(compressed_experts.XlaCompressedInt8MoEMethod)
    packed = [
        repack.decoded(method._repack(*expert))
        for expert in zip(codes.view(np.int8), scales, strict=True)
    ]
    np.testing.assert_allclose(
        method._decode(codes, scales, np.float32), np.stack(packed), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("columns", "group", "fits"), [(256, 128, True), (192, 128, False), (192, -1, True)]
)
def test_a_rank_has_whole_groups_of_columns(columns: int, group: int, fits: bool) -> None:
    able, reason = _can_implement("uint4b8", columns, group)
    assert able == fits
    assert fits or reason == "a rank has 192 columns, expected whole groups of 128"


def _can_implement(kind: str, columns: int = 256, group: int = 128) -> tuple[bool, str | None]:
    from intarsia.vllm.quantized import XlaIntegerKernel
    from vllm.scalar_type import scalar_types

    return XlaIntegerKernel.can_implement(
        types.SimpleNamespace(
            weight_type=getattr(scalar_types, kind),
            partition_weight_shape=(columns, 64),
            group_size=group,
        )
    )


def test_codes_of_other_sizes_are_refused() -> None:
    """vLLM asks for layers in 2 to 8 bits."""
    for kind in ("uint4", "uint4b8", "uint8", "uint8b128"):
        assert _can_implement(kind) == (True, None)
    for kind in ("uint2b2", "uint3b4"):
        able, reason = _can_implement(kind)
        assert not able
        assert reason == f"weights are {kind}, expected one of uint4b8, uint4, uint8b128, uint8"


def test_awq_without_zero_points_is_refused() -> None:
    from intarsia.vllm.quantized import XlaAwqLinearMethod

    with pytest.raises(
        NotImplementedError, match="AWQ without zero points, expected zero_point: true"
    ):
        XlaAwqLinearMethod(types.SimpleNamespace(zero_point=False))


def _method(form: str, **changes: object) -> object:
    """What vLLM's configuration of a checkpoint makes of a layer of experts."""
    import intarsia.vllm.word_experts  # noqa: F401  which puts ours in the place of vLLM's
    import torch
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.quantization import auto_awq, auto_gptq

    kind, said = {
        "awq": (auto_awq.AutoAWQConfig, {"zero_point": True}),
        "gptq": (auto_gptq.AutoGPTQConfig, {"desc_act": False, "sym": True}),
    }[form]
    said |= {"quant_method": form, "bits": 4, "group_size": 128}
    layer = RoutedExperts.__new__(RoutedExperts)
    torch.nn.Module.__init__(layer)
    layer.moe_config = types.SimpleNamespace()  # which no kernel of vLLM's takes
    return kind.from_config(said | changes).get_quant_method(layer, "experts")


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("awq", {}),
        ("awq", {"group_size": 48}),
        ("gptq", {}),
        ("gptq", {"bits": 8, "group_size": -1}),
    ],
)
def test_experts_in_words_are_ours(form: str, changes: dict[str, object]) -> None:
    """Never vLLM's `MoeWNA16Method`, whose kernels are Triton's."""
    from intarsia.vllm import word_experts

    ours = {"awq": word_experts.XlaAwqMoEMethod, "gptq": word_experts.XlaGptqMoEMethod}
    assert type(_method(form, **changes)) is ours[form]


def test_experts_in_words_that_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="experts: AWQ without zero points, expected"):
        _method("awq", zero_point=False)
    for form in ("awq", "gptq"):
        with pytest.raises(NotImplementedError, match=r"groups of 128 .* of 256 and 64 on a rank"):
            _method(form).create_weights(None, 8, 256, 64, None)
