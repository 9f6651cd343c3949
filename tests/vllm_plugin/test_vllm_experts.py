"""Activations of experts that `fused_experts` lacks are vLLM's own, and the products with them are grouped ones."""

import types

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


@pytest.mark.parametrize("form", ["AWQ", "GPTQ"])
def test_experts_in_a_form_that_is_not_there(form: str) -> None:
    import intarsia.vllm.quantized_experts  # noqa: F401  which refuses them
    from vllm.model_executor.layers.quantization import auto_awq, auto_gptq
    from vllm.scalar_type import scalar_types

    method, said = {
        "AWQ": (auto_awq.AutoAWQMoEMethod, {"weight_bits": 4, "zero_point": True}),
        "GPTQ": (
            auto_gptq.AutoGPTQMoEMethod,
            {"quant_type": scalar_types.uint4b8, "is_sym": True},
        ),
    }[form]
    with pytest.raises(NotImplementedError, match=f"does not support experts in {form}, expected"):
        method(types.SimpleNamespace(**said), types.SimpleNamespace())
