"""vLLM's mixtures of experts by our ops, where they are part of an XLA program.

vLLM's runner stays: it holds the gate, the shared experts and the sums over ranks. Ours are the choice of experts
(`topk_router`) and what the chosen ones do (`fused_experts`; `grouped_matmul` where it has no form).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import FusedTopKBiasRouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter
from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopKRouter
from vllm.model_executor.layers.fused_moe.runner import moe_runner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

import intarsia.jax as ops
from intarsia.jax._experts import experts_by_products
from intarsia.vllm.compat import is_traced
from intarsia.vllm.layers import call_jax
from intarsia.vllm.operands import operand_of
from intarsia.vllm.replacing import replace

_SCORINGS = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "softplus_sqrt"}
"""vLLM's names of what scores are made by, and ours."""
BY_OP = {
    MoEActivation.SILU: "silu",
    MoEActivation.GELU_TANH: "gelu_tanh",
    MoEActivation.SWIGLUOAI: "swigluoai",
}
"""Activations that `fused_experts` has."""


# ---------------------------------------------------------------------------- routers


def _route(router: Any, logits: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights f32 [t, k] and ids i32 [t, k] of each token's experts."""
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is not None:
        bias = operand_of(bias, "experts: a router's bias")

    def run(logits: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        return ops.topk_router(
            logits,
            None if bias is None else bias.astype(jnp.float32),
            top_k=router.top_k,
            scoring=_SCORINGS[router.scoring_func],
            renormalize=bool(router.renormalize),
            **options,
        )

    return call_jax(run, logits, bias)


def _route_top_k(
    self: FusedTopKRouter,
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    indices_type: torch.dtype | None,
    *,
    input_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _route(self, router_logits)


def _route_with_bias(
    self: FusedTopKBiasRouter,
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    indices_type: torch.dtype | None,
    *,
    input_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if self._hash_indices_table is not None or self.bias_vl is not None:
        raise NotImplementedError("experts: routing by token id, expected by scores")
    if self.num_fused_shared_experts:
        raise NotImplementedError("experts: shared experts among the routed ones, expected beside")
    return _route(self, router_logits, scale=self.routed_scaling_factor)


def _route_in_groups(
    self: GroupedTopKRouter,
    hidden_states: torch.Tensor,
    router_logits: torch.Tensor,
    indices_type: torch.dtype | None,
    *,
    input_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if self.num_fused_shared_experts:
        raise NotImplementedError("experts: shared experts among the routed ones, expected beside")
    experts, groups = router_logits.shape[-1], self.num_expert_group
    options: dict[str, Any] = {"scale": self.routed_scaling_factor}
    if experts > groups and experts % groups == 0:  # else vLLM forgets the groups
        options |= {"num_groups": groups, "topk_groups": self.topk_group}
    return _route(self, router_logits, **options)


def _replace_routing(router: type, ours: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Lets a router of vLLM's, which is not made to be replaced, choose by our op in a program."""

    def compute(
        self: Any,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        *args: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        function = ours if is_traced(router_logits) else theirs
        return function(self, hidden_states, router_logits, *args, **named)

    theirs = replace(router, "_compute_routing", compute)


for _router, _ours in (
    (FusedTopKRouter, _route_top_k),
    (FusedTopKBiasRouter, _route_with_bias),
    (GroupedTopKRouter, _route_in_groups),
):
    _replace_routing(_router, _ours)


# ---------------------------------------------------------------------------- the runner


def _forward_in_sight(self: moe_runner.MoERunner) -> Callable[..., Any]:
    """As vLLM has it for CPUs: no op of torch's dispatcher, behind which nothing is traced."""
    shared = self._shared_experts is not None
    return moe_runner._moe_forward_shared if shared else moe_runner._moe_forward


replace(moe_runner.MoERunner, "_select_forward", _forward_in_sight)


# ---------------------------------------------------------------------------- experts


def _quant_method(self: RoutedExperts, *args: Any, **named: Any) -> Any:
    """What holds a layer's matrices; one of vLLM's own would fail once it has loaded all of them."""
    method = _their_quant_method(self, *args, **named)
    if not type(method).__module__.startswith("intarsia."):
        raise NotImplementedError(
            f"experts: weights of {type(method).__name__}, expected a form that docs/vllm.md lists"
        )
    return method


_their_quant_method = replace(RoutedExperts, "_get_quant_method", _quant_method)


def _post_init(self: FusedMoEConfig) -> None:
    """With vLLM's last check left out, which takes experts without gates on its own platforms alone."""
    try:
        _their_post_init(self)
    except NotImplementedError as error:
        if "is_act_and_mul" not in str(error):
            raise


_their_post_init = replace(FusedMoEConfig, "__post_init__", _post_init)


@UnquantizedFusedMoEMethod.register_oot
class XlaUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """Experts whose weights are in the model's dtype."""

    @property
    def is_monolithic(self) -> bool:
        return False

    def forward_oot(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        biased = self.moe.has_bias
        return run_experts(
            layer,
            x,
            topk_weights,
            topk_ids,
            layer.w13_weight,
            layer.w2_weight,
            layer.w13_bias if biased else None,
            layer.w2_bias if biased else None,
        )


def has_form(layer: Any) -> bool:
    """Whether `fused_experts` has a layer's activation. vLLM ignores a limit of those of its names but silu."""
    limited = layer.activation is MoEActivation.SILU and layer.swiglu_limit is not None
    return layer.activation in BY_OP and not limited


def run_experts(
    layer: Any,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    w1_bias: torch.Tensor | None,
    w2_bias: torch.Tensor | None,
) -> torch.Tensor:
    """What a layer of vLLM's `RoutedExperts` does: x and the result are [t, n]."""
    operands = (x, w1, w2, weights, ids, w1_bias, w2_bias, layer.expert_map)
    on_input = layer.apply_router_weight_on_input
    if has_form(layer):

        def run(*arrays: jax.Array | None) -> jax.Array:
            return ops.fused_experts(
                *arrays,
                activation=BY_OP[layer.activation],
                apply_router_weight_on_input=on_input,
            )
    else:
        activate = _activation(layer)

        def run(*arrays: jax.Array | None) -> jax.Array:
            return experts_by_products(
                *arrays, activate=activate, apply_router_weight_on_input=on_input
            )

    return call_jax(run, *operands)


def _activation(layer: Any) -> Callable[[jax.Array], jax.Array]:
    """What stands between both products where `fused_experts` has no form: [m, 2 * i] f32, or [m, i], to [m, i] f32.

    As vLLM's `apply_moe_activation` has them.
    """
    kind, limit = layer.activation, layer.swiglu_limit
    alpha = 1.0 if layer.swiglu_alpha is None else layer.swiglu_alpha
    beta = 0.0 if layer.swiglu_beta is None else layer.swiglu_beta
    plain = {
        MoEActivation.SILU_NO_MUL: jax.nn.silu,
        MoEActivation.GELU_NO_MUL: lambda x: jax.nn.gelu(x, approximate=False),
        MoEActivation.GELU_TANH_NO_MUL: jax.nn.gelu,
        MoEActivation.RELU2_NO_MUL: lambda x: jnp.square(jax.nn.relu(x)),
    }
    if kind in plain:
        return plain[kind]

    def gated(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
        return lambda hidden: function(*jnp.split(hidden, 2, axis=-1))

    if kind is MoEActivation.GELU:
        return gated(lambda gate, up: jax.nn.gelu(gate, approximate=False) * up)
    if kind in (MoEActivation.SILU, MoEActivation.SWIGLUOAI_UNINTERLEAVE):
        if kind is MoEActivation.SILU:
            alpha, beta = 1.0, 0.0
        if limit is None:
            raise ValueError(
                f"experts: activation {kind.value} without a swiglu_limit, expected one"
            )

        def clamped(gate: jax.Array, up: jax.Array) -> jax.Array:
            gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
            return gate * jax.nn.sigmoid(alpha * gate) * (up + beta)

        return gated(clamped)
    if kind is MoEActivation.SWIGLUSTEP:
        return gated(lambda gate, up: jnp.minimum(jax.nn.silu(gate), 7.0) * jnp.clip(up, -7.0, 7.0))
    raise NotImplementedError(
        f"experts: activation {kind.value}, expected one of "
        f"{', '.join(x.value for x in (*BY_OP, *plain, MoEActivation.GELU))}, swigluoai_uninterleave, swiglustep"
    )
