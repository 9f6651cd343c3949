"""The ops as torch's own operators compute them, with operands: what torch_xla lowers where there is no custom call.

The decomposition of an op is what vLLM's layers do where they have no kernel (`forward_native`), and for attention what
its XLA backends did: gather the pages, multiply, softmax. It takes the op's operands and returns its results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import intarsia.torch  # noqa: F401  defines torch.ops.xla_gpu
import torch
import torch.nn.functional as F

_ops = torch.ops.xla_gpu
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, PAGE_SIZE = 2048, 16, 4, 128, 16
_EPS = 1e-6
_LIMITS = {torch.float8_e4m3fn: (-448.0, 448.0), torch.int8: (-128.0, 127.0)}


@dataclass(frozen=True)
class Sizes:
    """How much there is to do: tokens of an op that takes tokens, sequences and context of attention."""

    tokens: int
    sequences: int
    context: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Op:
    """An op of ours, the same by torch's operators, and operands for both, on the CPU."""

    ours: Callable[..., Any]
    aten: Callable[..., Any]
    operands: Callable[[Sizes], list[torch.Tensor]]


# ---------------------------------------------------------------------------- norms, activations, rotation


def rms_norm(x, weight):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + _EPS)
    return (x.float() * scale).to(x.dtype) * weight


def fused_add_rms_norm(x, residual, weight):
    total = x + residual
    return rms_norm(total, weight), total


def silu_and_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


def gelu_tanh_and_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def rotary_embedding(positions, query, table, key):
    cos, sin = table[positions].chunk(2, dim=-1)

    def turn(x):
        a, b = x.chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(x.dtype)

    return turn(query), turn(key)


# ---------------------------------------------------------------------------- quantization


def codes(x, scale, dtype=torch.float8_e4m3fn):
    """x / scale as codes of a dtype."""
    scaled = (x.float() / scale).clamp(*_LIMITS[dtype])
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype)


def scales(x, dtype=torch.float8_e4m3fn):
    """The scale of each row, by its largest number."""
    return x.float().abs().amax(-1, keepdim=True) / _LIMITS[dtype][1]


def by_rows(x, dtype=torch.float8_e4m3fn):
    scale = scales(x, dtype)
    return codes(x, scale, dtype), scale


def dynamic_scaled_fp8_quant(x):
    scale = scales(x.flatten())
    return codes(x, scale), scale


def per_token_group_fp8_quant(x):
    quantized, scale = by_rows(x.unflatten(-1, (-1, 128)))
    return quantized.flatten(-2), scale[..., 0]


def fused_add_rms_norm_static_fp8_quant(x, residual, weight, scale):
    normed, total = fused_add_rms_norm(x, residual, weight)
    return codes(normed, scale), total


# ---------------------------------------------------------------------------- attention


def reshape_and_cache_flash(key, value, key_cache, value_cache, slots):
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)


def paged_attention(query, key_cache, value_cache, lengths, pages, starts):
    del starts  # one query a sequence
    _, h, d = query.shape
    keys, values = (x[pages].flatten(1, 2) for x in (key_cache, value_cache))
    group = h // keys.shape[2]
    keys, values = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (keys, values))
    seen = torch.arange(keys.shape[2], device=query.device) < lengths[:, None]
    logits = (query[:, :, None] * d**-0.5) @ keys.transpose(2, 3)
    weights = logits.float().masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    return (weights.to(query.dtype) @ values)[:, :, 0]


def _heads_first(x, sequences, heads):
    """[t, heads, d] of sequences of one length as [sequences, heads of the queries, length, d]."""
    x = x.unflatten(0, (sequences, -1)).transpose(1, 2)
    return x.repeat_interleave(heads // x.shape[1], 1)


def _causal_weights(query, key):
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
    unseen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    return logits.float().masked_fill(unseen, -torch.inf).softmax(-1)


def flash_attn_varlen(q, k, v, starts):
    sequences, heads = starts.shape[0] - 1, q.shape[1]
    query, key, value = (_heads_first(x, sequences, heads) for x in (q, k, v))
    out = _causal_weights(query, key).to(q.dtype) @ value
    return out.transpose(1, 2).flatten(0, 1)


def flash_attn_varlen_backward(dout, q, k, v, out, lse, starts, starts_k):
    """With P the weights: dV = P' dO, dS = P (dO V' - rowsum(dO O)), dQ = dS K scale, dK = dS' Q scale."""
    del lse, starts_k
    sequences, heads, kv_heads = starts.shape[0] - 1, q.shape[1], k.shape[1]
    query, key, value, o, do = (_heads_first(x, sequences, heads) for x in (q, k, v, out, dout))
    weights = _causal_weights(query, key)
    delta = (do.float() * o.float()).sum(-1, keepdim=True)
    ds = (weights * ((do @ value.transpose(2, 3)).float() - delta)).to(q.dtype)
    scale = q.shape[-1] ** -0.5

    def rows(x, of):
        x = x.transpose(1, 2).flatten(0, 1)
        return x.unflatten(1, (of, -1)).sum(2).to(q.dtype)

    dv, dk = weights.to(q.dtype).transpose(2, 3) @ do, ds.transpose(2, 3) @ query * scale
    return rows(ds @ key * scale, heads), rows(dk, kv_heads), rows(dv, kv_heads)


def merge_attn_states(prefix, prefix_lse, suffix, suffix_lse):
    lse = torch.logaddexp(prefix_lse, suffix_lse)
    weights = ((x - lse).exp().T[..., None] for x in (prefix_lse, suffix_lse))
    merged = sum(w * x.float() for w, x in zip(weights, (prefix, suffix), strict=True))
    return merged.to(prefix.dtype), lse


# ---------------------------------------------------------------------------- operands


def _rows(s: Sizes, times: int = 1) -> torch.Tensor:
    return torch.randn(s.tokens, times * _HIDDEN, dtype=s.dtype)


def _weight(s: Sizes) -> torch.Tensor:
    return torch.randn(_HIDDEN, dtype=s.dtype)


def _heads(s: Sizes, tokens: int, heads: int) -> torch.Tensor:
    return torch.randn(tokens, heads, _HEAD_DIM, dtype=s.dtype)


def _scale() -> torch.Tensor:
    return torch.tensor([0.02])


def _caches(s: Sizes) -> list[torch.Tensor]:
    shape = (s.sequences * s.context // PAGE_SIZE + 1, PAGE_SIZE, _KV_HEADS, _HEAD_DIM)
    return [torch.randn(shape, dtype=s.dtype) for _ in range(2)]


def _cache_write(s: Sizes) -> list[torch.Tensor]:
    new = [_heads(s, s.tokens, _KV_HEADS) for _ in range(2)]
    return [*new, *_caches(s), torch.randperm(s.sequences * s.context)[: s.tokens]]


def _decode(s: Sizes) -> list[torch.Tensor]:
    pages = torch.randperm(s.sequences * s.context // PAGE_SIZE).view(s.sequences, -1)
    lengths = torch.full((s.sequences,), s.context)
    starts = torch.arange(s.sequences + 1)
    return [_heads(s, s.sequences, _HEADS), *_caches(s), lengths, pages, starts]


def _prefill(s: Sizes) -> list[torch.Tensor]:
    """Two sequences of as many tokens together as the other ops have."""
    heads = (_HEADS, _KV_HEADS, _KV_HEADS)
    return [*(_heads(s, s.tokens, h) for h in heads), torch.arange(3) * (s.tokens // 2)]


def _gradient(s: Sizes) -> list[torch.Tensor]:
    q, k, v, starts = _prefill(s)
    out, lse = _ops.flash_attn_varlen(q, k, v, starts, starts, is_causal=True, return_lse=True)
    return [_heads(s, s.tokens, _HEADS), q, k, v, out, lse, starts, starts]


def _states(s: Sizes) -> list[torch.Tensor]:
    def state() -> list[torch.Tensor]:
        return [_heads(s, s.tokens, _HEADS), torch.randn(_HEADS, s.tokens)]

    return [*state(), *state()]


def _rotated(s: Sizes) -> list[torch.Tensor]:
    table = torch.randn(4096, _HEAD_DIM, dtype=s.dtype)
    positions = torch.randint(0, 4096, (s.tokens,))
    return [positions, _heads(s, s.tokens, _HEADS), table, _heads(s, s.tokens, _KV_HEADS)]


# ---------------------------------------------------------------------------- all of them


def _causal(q, k, v, starts):
    return _ops.flash_attn_varlen(q, k, v, starts, starts, is_causal=True)[0]


def _causal_gradient(*operands):
    return _ops.flash_attn_varlen_backward(*operands, is_causal=True)[:3]


def _one_token_each(*operands):
    return _ops.paged_attention.default(*operands)[0]


def _norm_by_rows(x, weight):
    return _ops.rms_norm_dynamic_per_token_quant.functional(x, weight)[:2]


OPS: dict[str, Op] = {
    "simple_add": Op(_ops.simple_add, torch.add, lambda s: [_rows(s), _rows(s)]),
    "rms_norm": Op(_ops.rms_norm, rms_norm, lambda s: [_rows(s), _weight(s)]),
    "fused_add_rms_norm": Op(
        _ops.fused_add_rms_norm.functional, fused_add_rms_norm, lambda s: [_rows(s), _rows(s), _weight(s)]
    ),
    "silu_and_mul": Op(_ops.silu_and_mul, silu_and_mul, lambda s: [_rows(s, 4)]),
    "gelu_and_mul": Op(_ops.gelu_and_mul, gelu_and_mul, lambda s: [_rows(s, 4)]),
    "gelu_tanh_and_mul": Op(_ops.gelu_tanh_and_mul, gelu_tanh_and_mul, lambda s: [_rows(s, 4)]),
    "rotary_embedding": Op(_ops.rotary_embedding.functional, rotary_embedding, _rotated),
    "static_scaled_fp8_quant": Op(_ops.static_scaled_fp8_quant, codes, lambda s: [_rows(s), _scale()]),
    "dynamic_scaled_fp8_quant": Op(
        _ops.dynamic_scaled_fp8_quant, dynamic_scaled_fp8_quant, lambda s: [_rows(s)]
    ),
    "dynamic_per_token_scaled_fp8_quant": Op(
        _ops.dynamic_per_token_scaled_fp8_quant, by_rows, lambda s: [_rows(s)]
    ),
    "per_token_group_fp8_quant": Op(
        _ops.per_token_group_fp8_quant, per_token_group_fp8_quant, lambda s: [_rows(s)]
    ),
    "static_scaled_int8_quant": Op(
        _ops.static_scaled_int8_quant,
        lambda x, scale: codes(x, scale, torch.int8),
        lambda s: [_rows(s), _scale()],
    ),
    "dynamic_scaled_int8_quant": Op(
        _ops.dynamic_scaled_int8_quant, lambda x: by_rows(x, torch.int8), lambda s: [_rows(s)]
    ),
    "rms_norm_static_fp8_quant": Op(
        _ops.rms_norm_static_fp8_quant,
        lambda x, weight, scale: codes(rms_norm(x, weight), scale),
        lambda s: [_rows(s), _weight(s), _scale()],
    ),
    "fused_add_rms_norm_static_fp8_quant": Op(
        _ops.fused_add_rms_norm_static_fp8_quant.functional,
        fused_add_rms_norm_static_fp8_quant,
        lambda s: [_rows(s), _rows(s), _weight(s), _scale()],
    ),
    "rms_norm_dynamic_per_token_quant": Op(
        _norm_by_rows, lambda x, weight: by_rows(rms_norm(x, weight)), lambda s: [_rows(s), _weight(s)]
    ),
    "silu_and_mul_quant": Op(
        _ops.silu_and_mul_quant,
        lambda x, scale: codes(silu_and_mul(x), scale),
        lambda s: [_rows(s, 4), _scale()],
    ),
    "reshape_and_cache_flash": Op(
        _ops.reshape_and_cache_flash, reshape_and_cache_flash, _cache_write
    ),
    "paged_attention": Op(_one_token_each, paged_attention, _decode),
    "flash_attn_varlen": Op(_causal, flash_attn_varlen, _prefill),
    "flash_attn_varlen_backward": Op(_causal_gradient, flash_attn_varlen_backward, _gradient),
    "merge_attn_states": Op(_ops.merge_attn_states, merge_attn_states, _states),
}  # fmt: skip
