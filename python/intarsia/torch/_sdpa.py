"""torch's `scaled_dot_product_attention` over our attention op."""

import math
from typing import NamedTuple

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

_NAME = "scaled_dot_product_attention"
_ops = torch.ops.xla_gpu
_BUILT_MULTIPLE = 8  # of head dims
_MOST, _MOST_ON_CUDA = 512, 256  # of them


class _Mask(NamedTuple):
    """What a query sees of the keys, in the op's terms."""

    window_right: int = -1
    used: int | torch.Tensor | None = None  # keys of each batch entry that count; None: all


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, argument by argument, by our attention op.

    is_causal is aligned at the top left, as there and unlike `flash_attn_varlen`: query i sees keys 0 to i, whatever L and S
    are. Nothing is copied where query, key and value are transposed views of [..., L, h, d].

    Args:
      query: [..., h, L, d], f32, f16 or bf16; d up to 256, and to 512 without a
        gradient on the CPU.
      key: [..., hk, S, d], of query's dtype and leading axes.
      value: [..., hk, S, dv]; dv is d, or 128 where d is 192.
      attn_mask: `torch.nn.attention.bias.causal_upper_left` or `causal_lower_right`; or a bool tensor, broadcast to
        [..., h, L, S], whose values are one of these, all True, or for each batch entry True up to a key.
        Such a tensor is read, on a GPU with a wait for the device. So it is refused within torch.compile and CUDA graphs.
      dropout_p: 0; anything else is refused.
      is_causal: query i sees no key behind key i. Not with attn_mask.
      scale: of the scores; default d ** -0.5.
      enable_gqa: h may be a multiple of hk.

    Returns:
      [..., h, L, dv]; it can be differentiated in query, key and value. A query that sees no key gives 0.

    Raises:
      ValueError: shapes, dtypes or arguments do not go together. NotImplementedError: dropout, a mask of numbers or of another
        form, or a head dim that is not built.

    Source: `torch.nn.functional.scaled_dot_product_attention` of torch 2.9.

    Example:
      >>> out = scaled_dot_product_attention(query, key, value, is_causal=True)
    """
    if dropout_p != 0.0:
        raise NotImplementedError(f"{_NAME}: dropout_p={dropout_p} is not built; it is for 0")
    if is_causal and attn_mask is not None:
        raise ValueError(f"{_NAME}: attn_mask is given with is_causal=True, expected one of them")
    _check(query, key, value, enable_gqa)
    rows, d = query.shape[-2:]
    keys, dv = value.shape[-2:]
    b = math.prod(query.shape[:-3])
    mask = _upper_left(rows, keys) if is_causal else _mask_of(attn_mask, query, keys)
    used = mask.used
    if isinstance(used, int):
        used = torch.full((b,), used, dtype=torch.int32, device=query.device)
    entries = torch.arange(b + 1, dtype=torch.int32, device=query.device)
    out, _ = _ops.flash_attn_varlen(
        *(_in_one_row(x) for x in (query, key, value)),
        entries * rows,
        entries * keys,
        used,
        scale=max(d, 1) ** -0.5 if scale is None else scale,
        window_right=mask.window_right,
        return_lse=True,  # which the backward pass needs
    )
    out = out[..., :dv].reshape(b, rows, out.shape[1], dv).transpose(1, 2)
    return out.reshape(*query.shape[:-1], dv)


def _in_one_row(x: torch.Tensor) -> torch.Tensor:
    """[..., h, n, d] as [b * n, h, d], with zeros behind each head up to a head dim that is built."""
    if missing := -x.shape[-1] % _BUILT_MULTIPLE:
        x = torch.nn.functional.pad(x, (0, missing))
    n, d = x.shape[-2:]
    h = x.shape[-3] if x.ndim > 2 else 1
    b = math.prod(x.shape[:-3])
    return x.reshape(b, h, n, d).transpose(1, 2).reshape(b * n, h, d)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    given = {"query": query, "key": key, "value": value}
    for name, x in given.items():
        if x.ndim < 2 or x.ndim != query.ndim or x.shape[:-3] != query.shape[:-3]:
            axes = [*map(str, query.shape[:-3]), *["h", "n", "d"][-min(query.ndim, 3) :]]
            expected = ", ".join(axes if query.ndim > 1 else ["...", "n", "d"])
            raise ValueError(f"{_NAME}: {name} has shape {list(x.shape)}, expected [{expected}]")
        if x.dtype != query.dtype:
            raise ValueError(f"{_NAME}: {name} has dtype {x.dtype} but query has {query.dtype}")
    if key.shape[-1] != query.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in given.items())
        raise ValueError(
            f"{_NAME}: {shapes} do not go together, expected [..., S, d], [..., S, dv]"
        )
    _check_head_dims(query, value)
    if query.ndim < 3:
        return
    h, hk = query.shape[-3], key.shape[-3]
    if h != hk and not enable_gqa:
        raise ValueError(f"{_NAME}: query has h={h} but key has {hk}; enable_gqa=True allows it")
    if hk == 0 or h % hk:
        raise ValueError(f"{_NAME}: query has h={h}, expected a multiple of key's {hk}")


def _check_head_dims(query: torch.Tensor, value: torch.Tensor) -> None:
    d, dv = (x.shape[-1] for x in (query, value))
    most = _MOST_ON_CUDA if query.is_cuda else _MOST
    if not 0 < d <= most:
        raise NotImplementedError(f"{_NAME}: query has d={d}; built are 1 to {most}")
    if (d, dv) != (192, 128) and d + -d % _BUILT_MULTIPLE != dv + -dv % _BUILT_MULTIPLE:
        raise NotImplementedError(
            f"{_NAME}: value has dv={dv} where query has d={d}; built are equal ones, and d=192 with dv=128"
        )


def _upper_left(rows: int, keys: int) -> _Mask:
    """Query i sees keys 0 to i. Aligned at the bottom right, it stands at i + used - rows."""
    used = min(keys, rows)
    return _Mask(rows - used, used)


def _lower_right() -> _Mask:
    return _Mask(window_right=0)


def _mask_of(mask: torch.Tensor | None, query: torch.Tensor, keys: int) -> _Mask:
    if mask is None:
        return _Mask()
    rows = query.shape[-2]
    if isinstance(mask, CausalBias):
        if (mask.seq_len_q, mask.seq_len_kv) != (rows, keys):
            raise ValueError(
                f"{_NAME}: attn_mask is of {mask.seq_len_q} queries and {mask.seq_len_kv} keys, "
                f"expected {rows} and {keys}"
            )
        return (
            _upper_left(rows, keys) if mask.variant == CausalVariant.UPPER_LEFT else _lower_right()
        )
    if mask.dtype != torch.bool:
        raise NotImplementedError(
            f"{_NAME}: attn_mask in {mask.dtype}, which is added to scores, is not built; causal masks are"
        )
    if torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        raise NotImplementedError(
            f"{_NAME}: the values of attn_mask cannot be read within a graph; "
            "pass is_causal=True or torch.nn.attention.bias.causal_lower_right"
        )
    lead = [1] * (3 - query.ndim) + list(query.shape[:-1])
    ones = [1] * (len(lead) + 1 - mask.ndim)
    shape = [*ones, *mask.shape]
    expected = [*lead, keys]
    if len(shape) != len(expected) or any(
        n not in (1, full) for n, full in zip(shape, expected, strict=True)
    ):
        raise ValueError(
            f"{_NAME}: attn_mask has shape {list(mask.shape)}, expected one that broadcasts to {expected}"
        )
    return _form_of(mask.reshape(shape).expand(*shape[:-1], keys), lead)


def _form_of(mask: torch.Tensor, lead: list[int]) -> _Mask:
    """What a mask [..., h, rows, keys] says, if the op has it; all axes but the last may be 1 for what `lead` has."""
    rows, keys = lead[-1], mask.shape[-1]
    if mask.all():
        return _Mask()
    every = torch.ones(rows, keys, dtype=torch.bool, device=mask.device)
    if torch.all(mask == every.tril()):
        return _upper_left(rows, keys)
    if torch.all(mask == every.tril(keys - rows)):
        return _lower_right()
    used = mask[..., :1, :1, :].sum(-1, keepdim=True, dtype=torch.int32)
    if torch.all(mask == (torch.arange(keys, device=mask.device) < used)):
        return _Mask(used=used[..., 0, 0, 0].expand(lead[:-2]).reshape(-1).contiguous())
    raise NotImplementedError(
        f"{_NAME}: attn_mask of another form than causal, or keys up to one for each batch entry, is not built"
    )
