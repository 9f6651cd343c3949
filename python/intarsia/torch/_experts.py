"""`fused_experts` by vLLM's arguments, for `intarsia.xla_ops`."""

from typing import Any

import torch

_BUILT = ("silu", "gelu_tanh", "swigluoai")
# What vLLM's quant_config may have, and what is expected in its place.
_NOT_BUILT = dict.fromkeys(("quant_dtype", "w1_scale", "w2_scale"), "weights as they are")
_NOT_BUILT |= dict.fromkeys(
    ("gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta"), "the activation as it is"
)


def fused_experts(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    inplace: bool = False,
    activation: Any = "silu",
    apply_router_weight_on_input: bool = False,
    global_num_experts: int = -1,
    expert_map: torch.Tensor | None = None,
    quant_config: Any = None,
    allow_deep_gemm: bool = False,
    allow_cutlass_block_scaled_grouped_gemm: bool = False,
) -> torch.Tensor:
    """vLLM's function of that name: hidden_states [t, n], w1 [e, 2*i, n], w2 [e, n, i], topk_weights and topk_ids [t, k].

    Args:
      inplace: the result is written over hidden_states, which is returned.
      activation: its name, or a member of vLLM's MoEActivation: silu, gelu_tanh or swigluoai.
      global_num_experts: not looked at: expert_map has that many numbers.
      quant_config: vLLM's, of which w1_bias and w2_bias are taken; one with quantized weights, or with settings of the
        activation (gemm1_...), is refused.
      allow_deep_gemm, allow_cutlass_block_scaled_grouped_gemm: not looked at.
      The others: as in `torch.ops.xla_gpu.fused_experts`.

    Returns:
      [t, n].
    """
    del global_num_experts, allow_deep_gemm, allow_cutlass_block_scaled_grouped_gemm
    name = getattr(activation, "value", activation)
    if name not in _BUILT:
        raise NotImplementedError(
            f"fused_experts: activation is {name!r}, expected one of {', '.join(_BUILT)}"
        )
    for setting, wanted in _NOT_BUILT.items():
        if getattr(quant_config, setting, None) is not None:
            raise NotImplementedError(
                f"fused_experts: quant_config has {setting}, expected {wanted}"
            )
    out = torch.ops.xla_gpu.fused_experts(
        hidden_states,
        w1,
        w2,
        topk_weights,
        topk_ids,
        getattr(quant_config, "w1_bias", None),
        getattr(quant_config, "w2_bias", None),
        expert_map,
        activation=name,
        apply_router_weight_on_input=apply_router_weight_on_input,
    )
    return hidden_states.copy_(out) if inplace else out
