"""The gradient of `fused_experts`: by grouped products, those of the forward pass run again."""

import math
from typing import Any

import torch

from intarsia.torch import (
    _grad_rules,  # noqa: F401  the rules of the activations declare themselves
)
from intarsia.torch._grad import Tensors, gradient, rule_of
from intarsia.torch._segments import numbers_of_rows, sums_of_groups

_ops = torch.ops.xla_gpu
_PRODUCTS = {
    "silu": "silu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
    "swigluoai": "swigluoai_and_mul",
}


@gradient("fused_experts")
def _fused_experts(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    """Rows are pairs of a token and an expert, sorted by expert; those of nobody are last, and 0 in each product."""
    x, w1, w2, weights, ids, w1_bias, w2_bias, expert_map = kept
    e, k, t, on_input = (
        w1.shape[0],
        ids.shape[-1],
        x.dtype,
        attributes["apply_router_weight_on_input"],
    )
    experts = _experts_of(ids, e, expert_map).reshape(-1)
    experts, order = experts.sort(stable=True)
    places = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
    sizes = numbers_of_rows(experts, e)
    rows = math.prod(x.shape[:-1]), x.shape[-1]
    taken, g = (y.reshape(rows)[order // max(k, 1)] for y in (x, cotangents[0].float()))
    share = weights.float().reshape(-1)[order][:, None]

    def product(rows: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
        return _ops.grouped_matmul(rows.to(t), w, sizes, **options)

    def of_groups(rows: torch.Tensor) -> torch.Tensor:
        return sums_of_groups(rows.float(), experts, sizes, None, e)

    def weight_gradient(rows: torch.Tensor, taken: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if e == 0:
            return torch.zeros_like(w)
        return _ops.grouped_matmul_weight_gradient(rows.to(t), taken, sizes, num_groups=e)

    if on_input:
        raw = product(taken, w1, transposed=True, out_dtype="f32")
        hidden = raw * share
        if w1_bias is not None:
            none = w1_bias.new_zeros(1, w1_bias.shape[1])
            hidden = hidden + torch.cat([w1_bias, none])[experts].float()
    else:
        hidden = product(taken, w1, bias=w1_bias, transposed=True).float()
    gated, pull = _activated(hidden, attributes)
    d_down = g if on_input else share * g
    d_hidden = pull(product(d_down, w2).float())
    if on_input:
        d_share = (d_hidden * raw).sum(-1)
        d_raw = d_hidden * share
    else:
        down = product(gated, w2, bias=w2_bias, transposed=True)
        d_share = (g * down.float()).sum(-1)
        d_raw = d_hidden
    d_x = product(d_raw, w1).float()[places].reshape(*ids.shape, x.shape[-1]).sum(-2)
    return (
        d_x,
        weight_gradient(d_raw, taken, w1),
        weight_gradient(d_down, gated.to(t), w2),
        d_share[places].reshape(weights.shape),
        None,
        None if w1_bias is None else of_groups(d_hidden),
        None if w2_bias is None else of_groups(d_down),
        None,
    )


def _experts_of(ids: torch.Tensor, e: int, expert_map: torch.Tensor | None) -> torch.Tensor:
    """The expert of each id, e where there is none."""
    ids = ids.long()
    if expert_map is not None:
        size = expert_map.shape[0]
        found = torch.cat([expert_map.long(), expert_map.new_full((1,), -1).long()])
        ids = found[torch.where((ids >= 0) & (ids < size), ids, size)]
    return torch.where((ids >= 0) & (ids < e), ids, e)


def _activated(hidden: torch.Tensor, attributes: dict[str, Any]):
    """What the activation makes of gate and up, and the cotangent of these from its own."""
    name = _PRODUCTS[attributes["activation"]]
    named = ("alpha", "limit") if name == "swigluoai_and_mul" else ()
    settings = {key: attributes[key] for key in named}
    rule = rule_of(name)
    return (
        getattr(_ops, name)(hidden, **settings),
        lambda g: rule.backward((hidden, None), (g,), settings)[0],
    )
