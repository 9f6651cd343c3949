"""The ops' gradients. The forward pass is the op, with its roundings; the backward pass is torch in f32, except where an
op of ours is the gradient, or its own inverse.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from intarsia import _native
from intarsia.torch._grad import Tensors, gradient

_ops = torch.ops.xla_gpu


@gradient("simple_add", keep=lambda operands, results: ())
def _simple_add(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    (g,) = cotangents
    return g, g


@gradient("topk_router", keep=lambda operands, results: (*operands, results[1]))
def _topk_router(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    """Of the weights c s[ids] for scores s, where c = scale, or scale / sum s[ids]."""
    logits, _, ids = kept
    x, g, scoring = logits.float(), cotangents[0], attributes["scoring"]
    if scoring == "softmax":
        scores = x.softmax(-1)
    elif scoring == "sigmoid":
        scores = x.sigmoid()
    else:
        scores = functional.softplus(x).sqrt()
    chosen = scores.gather(-1, ids.long())
    d_chosen = attributes["scale"] * g
    if attributes["renormalize"]:
        total = chosen.sum(-1, keepdim=True)
        total = torch.where(total == 0, 1.0, total)
        d_chosen = (d_chosen - (d_chosen * chosen / total).sum(-1, keepdim=True)) / total
    d_scores = torch.zeros_like(scores).scatter(-1, ids.long(), d_chosen)
    if scoring == "softmax":
        return scores * (d_scores - (scores * d_scores).sum(-1, keepdim=True)), None
    if scoring == "sigmoid":
        return d_scores * scores * (1 - scores), None
    # 0 where the score is, not 0 / 0.
    return d_scores * x.sigmoid() / (2 * torch.where(scores == 0, 1.0, scores)), None


def _norm_backward(
    x: torch.Tensor, weight: torch.Tensor | None, g: torch.Tensor, eps: float, **_: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Cotangents of x and weight for y = u w, u = x r, r = (mean(x^2) + eps)^-1/2.

    dx = r (w g - u mean(u w g)), dw = sum over rows of u g.
    """
    x, g = x.float(), g.float()
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    u = x * r
    scaled = g if weight is None else g * weight.float()
    dx = r * (scaled - u * (u * scaled).mean(-1, keepdim=True))
    return dx, None if weight is None else (u * g).reshape(-1, x.shape[-1]).sum(0)


@gradient("rms_norm")
def _rms_norm(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    return _norm_backward(*kept, *cotangents, **attributes)


@gradient("fused_add_rms_norm", keep=lambda operands, results: (results[1], operands[2]))
def _fused_add_rms_norm(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    g, g_residual = cotangents
    d_total, d_weight = _norm_backward(*kept, g, **attributes)
    d_total = d_total + g_residual.float()
    return d_total, d_total, d_weight


@gradient("layer_norm")
def _layer_norm(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    """For y = u w + b, u = (x - mean) r: dx = r (w g - mean(w g) - u mean(u w g)), dw = sum u g, db = sum g."""
    x, weight, bias = kept
    x, g = x.float(), cotangents[0].float()
    centered = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((centered * centered).mean(-1, keepdim=True) + attributes["eps"])
    u = centered * r
    scaled = g if weight is None else g * weight.float()
    means = [y.mean(-1, keepdim=True) for y in (scaled, u * scaled)]
    d_weight, d_bias = ((y * g).reshape(-1, x.shape[-1]).sum(0) for y in (u, torch.ones_like(u)))
    return (
        r * (scaled - means[0] - u * means[1]),
        None if weight is None else d_weight,
        None if bias is None else d_bias,
    )


def _gated_backward(
    act: Callable[[torch.Tensor], torch.Tensor],
    act_derivative: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    kept: Tensors,
    cotangents: Tensors,
) -> Tensors:
    """Cotangents of the gate and of what it multiplies, apart or side by side as they came."""
    x, up = kept
    (g,) = (y.float() for y in cotangents)
    gate, other = (y.float() for y in (x.chunk(2, -1) if up is None else (x, up)))
    d_gate, d_other = act_derivative(g * other, gate), g * act(gate)
    return (torch.cat([d_gate, d_other], -1), None) if up is None else (d_gate, d_other)


def _silu_backward(g: torch.Tensor, x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """g times the derivative of x s, s = 1 / (1 + e^(-alpha x)): s + alpha x s (1 - s)."""
    if alpha == 1.0 and not torch.is_grad_enabled():  # one kernel, but without a derivative
        return torch.ops.aten.silu_backward(g, x)
    s = torch.sigmoid(alpha * x)
    return g * (s + alpha * x * s * (1 - s))


for _name, _act, _derivative in (
    ("silu_and_mul", functional.silu, _silu_backward),
    ("gelu_and_mul", functional.gelu, torch.ops.aten.gelu_backward),
    (
        "gelu_tanh_and_mul",
        functools.partial(functional.gelu, approximate="tanh"),
        functools.partial(torch.ops.aten.gelu_backward, approximate="tanh"),
    ),
):
    gradient(_name)(
        lambda kept, cotangents, attributes, act=_act, derivative=_derivative: _gated_backward(
            act, derivative, kept, cotangents
        )
    )


@gradient("mul_and_silu")
def _mul_and_silu(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    x, gate = kept
    (g,) = (y.float() for y in cotangents)
    other, gate = (y.float() for y in (x.chunk(2, -1) if gate is None else (x, gate)))
    d_other, d_gate = g * functional.silu(gate), _silu_backward(g * other, gate)
    return (torch.cat([d_other, d_gate], -1), None) if kept[1] is None else (d_other, d_gate)


@gradient("fatrelu_and_mul")
def _fatrelu_and_mul(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    threshold = attributes["threshold"]
    return _gated_backward(
        lambda gate: gate.where(~(gate <= threshold), 0.0),
        lambda g, gate: g.where(~(gate <= threshold), 0.0),
        kept,
        cotangents,
    )


def _clamped_backward(
    gate: torch.Tensor,
    up: torch.Tensor,
    g: torch.Tensor,
    *,
    limit: float | None,
    alpha: float,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cotangents of gate and up for min(gate, limit) / (1 + e^...) * (up within +-limit + beta)."""
    limit = math.inf if limit is None else limit
    clamped, inside = gate.clamp(max=limit), up.clamp(-limit, limit)
    d_gate = _silu_backward(g * (inside + beta), clamped, alpha).where(gate <= limit, 0.0)
    d_up = (g * clamped * torch.sigmoid(alpha * clamped)).where(up.abs() <= limit, 0.0)
    return d_gate, d_up


@gradient("silu_and_mul_with_clamp")
def _silu_and_mul_with_clamp(
    kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]
) -> Tensors:
    x, up = kept
    parts = [y.float() for y in (x.chunk(2, -1) if up is None else (x, up))]
    found = _clamped_backward(*parts, cotangents[0].float(), **attributes)
    return (torch.cat(found, -1), None) if up is None else found


@gradient("swigluoai_and_mul")
def _swigluoai_and_mul(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    x, up = kept
    parts = [y.float() for y in ((x[..., ::2], x[..., 1::2]) if up is None else (x, up))]
    found = _clamped_backward(*parts, cotangents[0].float(), **attributes, beta=1.0)
    return (torch.stack(found, -1).reshape(x.shape), None) if up is None else found


for _name in ("gelu_fast", "gelu_new"):

    @gradient(_name)
    def _gelu_tanh(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
        g, x = cotangents[0].float(), kept[0].float()
        return (torch.ops.aten.gelu_backward(g, x, approximate="tanh"),)


@gradient("gelu_quick")
def _gelu_quick(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    return (_silu_backward(cotangents[0].float(), kept[0].float(), 1.702),)


@gradient("rotary_embedding")
def _rotary_embedding(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    """A rotation's transpose is its inverse; the table's cotangent is gathered from every pair."""
    positions, query, table, key, pair_axes = kept
    back = attributes | {"inverse": not attributes["inverse"]}
    g_key = None if key is None else cotangents[1]
    d_query, d_key = _ops.rotary_embedding.functional(
        positions, cotangents[0], table, g_key, pair_axes, **back
    )
    heads = [(query, cotangents[0])] + ([] if key is None else [(key, g_key)])
    d_table = None
    if table.requires_grad:
        d_table = _table_cotangent(positions, pair_axes, table, heads, **attributes)
    return None, d_query, d_table, None if key is None else d_key, None


def _table_cotangent(
    positions: torch.Tensor,
    pair_axes: torch.Tensor | None,
    table: torch.Tensor,
    heads: list[tuple[torch.Tensor, torch.Tensor]],
    *,
    head_size: int | None,
    is_neox: bool,
    rope_dim_offset: int,
    inverse: bool,
) -> torch.Tensor:
    """For y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin: d cos = x1 g1 + x2 g2, d sin = x1 g2 - x2 g1."""
    max_pos, r = table.shape
    tokens = positions.shape if pair_axes is None else positions.shape[:-1]

    def pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        d = x.shape[-1] if x.ndim == len(tokens) + 2 else head_size
        part = x.float().reshape(*tokens, math.prod(x.shape[len(tokens) :]) // d, d)
        part = part[..., rope_dim_offset : rope_dim_offset + r]
        return part.chunk(2, -1) if is_neox else (part[..., ::2], part[..., 1::2])

    d_angles = torch.zeros(*tokens, r, dtype=torch.float32, device=table.device)
    for x, g in heads:
        (x1, x2), (g1, g2) = pairs(x), pairs(g)
        d_cos, d_sin = x1 * g1 + x2 * g2, x1 * g2 - x2 * g1
        d_angles = d_angles + torch.cat([d_cos, -d_sin if inverse else d_sin], -1).sum(-2)
    if pair_axes is None:
        of_pairs = positions.unsqueeze(-1).expand(*tokens, r // 2)
    else:
        exists = (pair_axes >= 0) & (pair_axes < positions.shape[-1])
        of_pairs = positions[..., torch.where(exists, pair_axes, 0).long()]
        of_pairs = torch.where(exists, of_pairs, -1)
    # A position outside the table turned nothing.
    inside = (of_pairs >= 0) & (of_pairs < max_pos)
    d_angles = torch.where(torch.cat([inside, inside], -1), d_angles, 0.0).reshape(-1, r)
    rows = torch.where(inside, of_pairs, 0).reshape(-1, r // 2).long()
    d_table = torch.zeros(max_pos, r, dtype=torch.float32, device=table.device)
    if pair_axes is None:
        return d_table.index_add(0, rows[:, 0], d_angles)
    return d_table.scatter_add(0, torch.cat([rows, rows], -1), d_angles)


@gradient("merge_attn_states")
def _merge_attn_states(kept: Tensors, cotangents: Tensors, attributes: dict[str, Any]) -> Tensors:
    """For out = a x + b y, lse = ln(e^p + e^s), where a = e^(p - lse) and b = e^(s - lse):

    dx = a g, dy = b g, dp = a g_lse + c, ds = b g_lse - c, c = a b g (x - y).
    """
    x, p, y, s = (tensor.float() for tensor in kept)
    g, g_lse = (tensor.float() for tensor in cotangents)
    p, s = (lse.where(lse != math.inf, -math.inf) for lse in (p, s))
    larger = torch.maximum(p, s)
    neither = larger == -math.inf  # the op gives x then, and no lse
    weights = [torch.exp(lse - larger.where(~neither, 0.0)) for lse in (p, s)]
    a, b = (w / sum(weights).where(~neither, 1.0) for w in weights)
    # What a set without keys holds for its out, NaN maybe, counts for nothing.
    difference = (x - y).where((a * b > 0).T[..., None], 0.0)
    c = a * b * (g * difference).sum(-1).T
    dx, dy = (w.T[..., None] * g for w in (a.where(~neither, 1.0), b))
    return dx, a * g_lse + c, dy, b * g_lse - c


_ATTENTION = [row["name"] for row in _native.main_library().find("flash_attn_varlen").operands]


def _why_not_attention(operands: Tensors, attributes: dict[str, Any]) -> str | None:
    given = dict(zip(_ATTENTION, operands, strict=True))
    for name in ("block_table", "leftpad_k"):
        if given[name] is not None:
            return f"with {name} is not built; it is for dense k and v"
    if chunk := attributes["attention_chunk"]:
        return f"with attention_chunk={chunk} is not built; it is for 0"
    q, v = given["q"], given["v"]
    if v is None:
        return None  # the op says what is missing
    if q.dtype.itemsize == 1 or v.dtype != q.dtype:
        return (
            f"for q in {q.dtype} and v in {v.dtype} is not built; it is for float32, float16 and bfloat16, "
            "the same for all"
        )
    if v.shape[-1] != q.shape[-1]:
        return (
            f"for dv={v.shape[-1]} where q has d={q.shape[-1]} is not built; it is for equal ones"
        )
    slopes = given["alibi_slopes"]
    if slopes is not None and slopes.requires_grad:
        return "of alibi_slopes is not built; pass alibi_slopes.detach()"
    return None


_is_deterministic = contextvars.ContextVar("deterministic", default=False)


@contextlib.contextmanager
def deterministic_attention() -> Iterator[None]:
    """Calls of `flash_attn_varlen` within have the deterministic gradient, whatever torch is told of all its algorithms."""
    token = _is_deterministic.set(True)
    try:
        yield
    finally:
        _is_deterministic.reset(token)


@gradient(
    "flash_attn_varlen",
    keep=lambda operands, results: (*operands, *results),
    why_not=_why_not_attention,
    ask=lambda: {"deterministic": _is_deterministic.get()},
)
def _flash_attn_varlen(
    kept: Tensors, cotangents: Tensors, attributes: dict[str, Any], deterministic: bool
) -> Tensors:
    """An op of its own. Without `return_lse` the forward pass is made once more, for lse."""
    *operands, out, lse = kept
    given = dict(zip(_ATTENTION, operands, strict=True))
    dout, dlse = cotangents
    if not attributes["return_lse"]:
        _, lse = _ops.flash_attn_varlen(*operands, **attributes | {"return_lse": True})
        dlse = None
    names = ("scale", "is_causal", "window_left", "window_right", "softcap")
    gradients = _ops.flash_attn_varlen_backward(
        dout,
        *(given[name] for name in ("q", "k", "v")),
        out,
        lse,
        *(given[n] for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "alibi_slopes", "sinks")),
        dlse,
        **{name: attributes[name] for name in names},
        deterministic=deterministic or torch.are_deterministic_algorithms_enabled(),
    )
    of = dict(zip(("q", "k", "v", "sinks"), gradients, strict=True))
    if given["sinks"] is None:
        del of["sinks"]
    return [of.get(name) for name in _ATTENTION]
