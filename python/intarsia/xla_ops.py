"""The ops under the names, and with the signatures, that torch code for XLA and vLLM calls them by.

Importing this module, like importing `intarsia.torch`, registers the ops of `torch.ops.xla_gpu` and `torch.ops.xla`; vLLM's
names (`torch.ops._C`, `torch.ops._C_cache_ops`) come with `register_<op>_lowering()`, any of which registers them all. All
functions take tensors on the CPU, on CUDA devices and, where torch_xla is installed, on its devices.

>>> import torch
>>> from intarsia.xla_ops import *

A norm, under vLLM's name too:

>>> register_rms_norm_lowering()
True
>>> input, weight = torch.randn(3, 64), torch.ones(64)
>>> rms_norm_xla(input, weight, epsilon=1e-5).shape
torch.Size([3, 64])
>>> out = torch.empty_like(input)
>>> torch.ops._C.rms_norm(out, input, weight, 1e-5)  # what vLLM's `_custom_ops.rms_norm(out, input, weight, epsilon)` calls
>>> torch.equal(out, rms_norm_xla(input, weight, epsilon=1e-5))
True

A KV cache, written in place; negative slots are padding:

>>> key = torch.randn(4, 2, 8)
>>> value = torch.randn(4, 2, 8)
>>> key_cache = torch.zeros(2, 16, 2, 8)
>>> value_cache = torch.zeros(2, 16, 2, 8)
>>> slot_mapping = torch.tensor([0, 1, 2, -1], dtype=torch.int64)
>>> reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, "auto", None, None)
>>> torch.equal(key_cache[0, :3], key[:3]) and not key_cache[0, 3:].any()
True

Attention over a ragged batch, and over the pages of a cache:

>>> setup_custom_call()
True
>>> q, k, v = torch.randn(3, 10, 4, 8).unbind()
>>> cu_seqlens = torch.tensor([0, 4, 10], dtype=torch.int32)
>>> out, softmax_lse = torch.ops.xla.flash_attn_varlen_op(
...     q, k, v, cu_seqlens, cu_seqlens, 6, 6, 8**-0.5,
...     is_causal=True, window_left=-1, window_right=-1, softcap=0.0, seqused_k=None, block_table=None)
>>> out.shape, softmax_lse.shape
(torch.Size([10, 4, 8]), torch.Size([4, 10]))
>>> out, softmax_lse = torch.ops.xla.flash_attn_varlen_op(
...     q[:1], key_cache, value_cache, cu_seqlens[:1].repeat(2) + torch.tensor([0, 1]), cu_seqlens, 1, 3, 8**-0.5,
...     is_causal=True, seqused_k=torch.tensor([3]), block_table=torch.tensor([[0, 1]]))

>>> kv_cache = torch.randn(6, 16, 2 * 2, 8)  # K and V in even and odd heads
>>> out = xla_gpu_paged_attention(
...     query=q[:2], kv_cache=kv_cache, context_lens=torch.tensor([20, 7]),
...     block_tables=torch.tensor([[0, 3], [5, 0]]), query_start_loc=torch.tensor([0, 1, 2]),
...     num_seqs=2, scale=8**-0.5, sliding_window=None, soft_cap=None)
>>> @torch.compile(fullgraph=True, backend="aot_eager")
... def attention_fn(query, kv_cache, *lengths_and_pages):
...     return torch.ops.xla_gpu.paged_attention(query, kv_cache, *lengths_and_pages, 2, 8**-0.5)
>>> again = attention_fn(
...     q[:2], kv_cache, torch.tensor([20, 7]), torch.tensor([[0, 3], [5, 0]]), torch.tensor([0, 1, 2]))
>>> torch.equal(out, again)
True
"""

from typing import Any, Literal, overload

from intarsia._packages import needed_by

with needed_by("intarsia.xla_ops"):
    import torch

import intarsia.torch
import intarsia.vllm
from intarsia import _native
from intarsia.torch._attention import xla_gpu_paged_attention
from intarsia.torch._cache import reshape_and_cache_flash
from intarsia.torch._experts import fused_experts

_ops = torch.ops.xla_gpu
# What an op is called in the name of its register_..._lowering, where that is not its own name.
_CALLED = {"flash_attn_varlen": "flash_attention"}
_REGISTRATIONS = tuple(
    f"register_{_CALLED.get(op, op)}_lowering" for op in sorted(_native.main_library().ops)
)


def _register_all_lowerings() -> bool:
    """Registers every op, and all of vLLM's names: `intarsia.vllm.register_ops`. Returns True."""
    return intarsia.vllm.register_ops()


def __getattr__(name: str) -> Any:
    """`register_<op>_lowering` for each op, as code for torch_xla calls them: each is the one function that registers all."""
    if name in _REGISTRATIONS:
        return _register_all_lowerings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_REGISTRATIONS})


def register_ops() -> bool:
    """Registers the ops of `torch.ops.xla_gpu`, as importing this module has done already. Returns True."""
    intarsia.torch.register(_native.main_library(), intarsia.torch.NAMESPACE)
    return True


def setup_custom_call() -> bool:
    """The same, under the name that FlashAttention's users of XLA know."""
    return register_ops()


def rms_norm_xla(
    input: torch.Tensor, weight: torch.Tensor | None, epsilon: float = 1e-6
) -> torch.Tensor:
    """`torch.ops.xla_gpu.rms_norm`: input [..., n], weight [n]."""
    return _ops.rms_norm(input, weight, eps=epsilon)


@overload
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    block_table: torch.Tensor | None = None,
    *,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    attention_chunk: int = 0,
) -> torch.Tensor: ...


@overload
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    *,
    return_attn_probs: Literal[True],
    block_table: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    attention_chunk: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, None]: ...


@overload
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    attention_chunk: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]: ...


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] | None = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    seqused_k: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    attention_chunk: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]:
    """FlashAttention's function of that name: q [tq, h, d], k and v [tk, hk, d], or with `block_table` a paged cache.

    Args:
      max_seqlen_q, max_seqlen_k: not looked at; bounds come from shapes.
      dropout_p: 0; attention with dropout is not built.
      window_size: keys seen to the left and to the right of the query's own; -1: all, as None for both.
      deterministic: the gradient has the same bits at every run, on a GPU at some cost.
      return_attn_probs: returns (out, softmax_lse [h, tq], None).
      attention_chunk: as in FlashAttention-3, keys of a chunk, of which a query sees its own alone; 0: all. Not in the gradient.
      The others: as in `torch.ops.xla_gpu.flash_attn_varlen`.

    Returns:
      [tq, h, d], which can be differentiated in q, k, v and sinks where k and v are dense.
    """
    if dropout_p:
        raise NotImplementedError(
            f"flash_attn_varlen: dropout_p={dropout_p} is not built; it is for 0"
        )
    window_size = (-1, -1) if window_size is None else window_size
    if len(window_size) != 2:
        raise ValueError(
            f"flash_attn_varlen: window_size is {window_size}, expected (left, right) of integers"
        )
    out, softmax_lse = torch.ops.xla.flash_attn_varlen_op(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        causal,
        *window_size,
        softcap,
        seqused_k,
        block_table,
        alibi_slopes,
        leftpad_k,
        sinks,
        q_scale,
        k_scale,
        v_scale,
        deterministic=deterministic,
        attention_chunk=attention_chunk,
    )
    return (out, softmax_lse, None) if return_attn_probs else out


__all__ = [
    *_REGISTRATIONS,
    "flash_attn_varlen_func",
    "fused_experts",
    "register_ops",
    "reshape_and_cache_flash",
    "rms_norm_xla",
    "setup_custom_call",
    "xla_gpu_paged_attention",
]
