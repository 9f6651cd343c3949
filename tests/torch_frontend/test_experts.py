"""`intarsia.xla_ops.fused_experts`: vLLM's function of that name."""

import enum
import types

import pytest
import test_fused_experts
import torch
from intarsia import xla_ops

op = torch.ops.xla_gpu.fused_experts


class Activation(enum.Enum):
    SWIGLUOAI = "swigluoai"
    GELU = "gelu"


def layer() -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in test_fused_experts.layer(1)]


def test_arguments_mean_what_vllms_do() -> None:
    x, w1, w2, weights, ids = layer()
    biases = torch.randn(6, 32), torch.randn(6, 24)
    here = torch.tensor([0, -1, 1, 2, -1, 3], dtype=torch.int32)
    config = types.SimpleNamespace(quant_dtype=None, w1_bias=biases[0], w2_bias=biases[1])
    got = xla_ops.fused_experts(
        *(x, w1[:4], w2[:4], weights, ids, False, Activation.SWIGLUOAI, True, 6, here),
        quant_config=types.SimpleNamespace(w1_bias=biases[0][:4], w2_bias=biases[1][:4]),
    )
    part = w1[:4], w2[:4], weights, ids, biases[0][:4], biases[1][:4], here
    want = op(x, *part, activation="swigluoai", apply_router_weight_on_input=True)
    assert torch.equal(got, want) and want.any()
    plain = xla_ops.fused_experts(x, w1, w2, weights, ids, quant_config=config)
    assert torch.equal(plain, op(x, w1, w2, weights, ids, *biases))


def test_in_place() -> None:
    x, *others = layer()
    want = op(x, *others)
    assert xla_ops.fused_experts(x, *others, inplace=True) is x
    assert torch.equal(x, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": Activation.GELU}, "activation is 'gelu', expected one of silu, gelu_tanh"),
        ({"quant_config": types.SimpleNamespace(w1_scale=torch.ones(1))}, "has w1_scale, expected"),
        *(
            ({"quant_config": types.SimpleNamespace(**{name: 7.0})}, f"has {name}, expected")
            for name in ("gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta")
        ),
    ],
)
def test_what_is_not_built_is_refused(options, message: str) -> None:
    with pytest.raises(NotImplementedError, match=f"fused_experts: .*{message}"):
        xla_ops.fused_experts(*layer(), **options)
