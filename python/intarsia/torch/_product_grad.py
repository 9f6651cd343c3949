"""The gradients of matrix products: of one group, of weights in codes, of groups of rows."""

from typing import Any

import torch
from torch.nn import functional

from intarsia.torch._grad import Tensors, gradient
from intarsia.torch._segments import sums_of_groups, sums_of_rows

_ops = torch.ops.xla_gpu


@gradient("linear")
def _linear(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    x, w, bias = kept
    (g,) = (y.float() for y in cotangents)
    rows = g.reshape(-1, g.shape[-1])
    d_w = rows.T @ x.float().reshape(-1, x.shape[-1])
    return g @ w.float(), d_w, None if bias is None else rows.sum(0)


def _why_not_factors(operands: Tensors, attributes: dict[str, Any]) -> str | None:
    if any(x is not None and x.requires_grad for x in operands[2:6]):
        return "scales and zeros have no gradient, only x and bias"
    return None


@gradient("linear_quantized", why_not=_why_not_factors)
def _linear_quantized(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    x, *codes, bias = kept
    (g,) = (y.float() for y in cotangents)
    # The weights as numbers: a sum of one product is exact.
    identity = torch.eye(x.shape[-1], device=x.device)
    w = _ops.linear_quantized(identity, *codes, None, **attributes | {"out_dtype": "f32"}).T
    d_bias = None if bias is None else g.reshape(-1, g.shape[-1]).sum(0)
    return g @ w, None, None, None, None, None, d_bias


@gradient("grouped_matmul")
def _grouped_matmul(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    x, w, sizes, offset, rows, bias = kept
    g, taken, transposed = cotangents[0].to(x.dtype), x, attributes["transposed"]
    if rows is not None:
        exists = (rows >= 0) & (rows < x.shape[0])
        index = torch.where(exists, rows, x.shape[0]).long()
        g = torch.where(exists[:, None], g, 0)  # a row that takes none of x has no bias, either
        taken = torch.cat([x, x.new_zeros(1, x.shape[1])])[index]
    f32 = "f32" if rows is not None else "auto"
    d_x = _ops.grouped_matmul(g, w, sizes, offset, transposed=not transposed, out_dtype=f32)
    if rows is not None:
        d_x = sums_of_rows(d_x, index, x.shape[0])
    left, right = (g, taken) if transposed else (taken, g)
    d_w = torch.zeros_like(w)
    if w.shape[0]:
        d_w = _ops.grouped_matmul_weight_gradient(left, right, sizes, offset, num_groups=w.shape[0])
    d_bias = None
    if bias is not None:
        group = _groups_of_rows(sizes, offset, w.shape[0], g.shape[0])
        d_bias = sums_of_groups(g, group, sizes, offset, w.shape[0])
    return d_x, d_w, None, None, None, d_bias


def _groups_of_rows(
    sizes: torch.Tensor, offset: torch.Tensor | None, groups: int, m: int
) -> torch.Tensor:
    """The group of each of m rows, of those at hand; one more than there are for a row of no group."""
    ends = functional.pad(sizes.long().clamp(0, m).cumsum(0).clamp(max=m), (1, 0))
    first = 0 if offset is None else offset.long().clamp(-groups, sizes.shape[0])
    at = torch.arange(groups + 1, device=sizes.device) + first
    starts = ends[at.clamp(0, sizes.shape[0])]
    row = torch.arange(m, device=sizes.device)
    group = torch.searchsorted(starts, row, right=True) - 1
    return torch.where((group < 0) | (row >= starts[-1]), groups, group)
