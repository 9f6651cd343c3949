"""Attention under names and signatures that other projects call: `torch.ops.xla.flash_attn_varlen_op`, and
`torch.ops.xla_gpu.paged_attention` with one `kv_cache`.

Each is made of the package's own op, for tensors on any device, for autograd, and in graphs: there, only the op is seen.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from intarsia._cache_form import check_num_seqs, infer_layout, split
from intarsia.torch._grad_rules import deterministic_attention
from intarsia.torch._register import refuse_defined

_ops = torch.ops.xla_gpu
KvCache: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

# A sequence length is a SymInt: it grows at each step, and a graph must not be compiled anew for it.
SCHEMAS = {
    "xla::flash_attn_varlen_op": (
        "(Tensor q, Tensor k, Tensor? v, Tensor cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, "
        "SymInt max_seqlen_k, float? softmax_scale=None, bool is_causal=False, int window_left=-1, "
        "int window_right=-1, float softcap=0.0, Tensor? seqused_k=None, Tensor? block_table=None, "
        "Tensor? alibi_slopes=None, Tensor? leftpad_k=None, Tensor? sinks=None, Tensor? q_scale=None, "
        'Tensor? k_scale=None, Tensor? v_scale=None, *, str kv_cache_dtype="auto", bool deterministic=False, '
        "int attention_chunk=0) -> (Tensor, Tensor)"
    ),
    **{
        f"xla_gpu::paged_attention.{overload}": (
            "(Tensor query, Tensor kv_cache, Tensor context_lens, Tensor block_tables, Tensor query_start_loc, "
            f"{kind} num_seqs, float scale, int? sliding_window=None, float? soft_cap=None) -> Tensor"
        )
        for overload, kind in (("num_seqs_tensor", "Tensor"), ("num_seqs_int", "SymInt"))
    },
}
_fragments: list[torch.library.Library] = []


def refuse_names() -> None:
    """Raises if another module has defined one of these ops."""
    for name in SCHEMAS:
        refuse_defined(name)


# torch prints what does not fit an overload that it tries, and XLA would have to compute a tensor for that: the overload
# that takes a number comes after the package's own, which calls with tensors fit.
_LAST = "xla_gpu::paged_attention.num_seqs_int"


def define(last: bool) -> None:
    """Defines these ops: before the package's own, since torch takes the first overload that fits, or after them."""
    for name, schema in SCHEMAS.items():
        if (name == _LAST) != last:
            continue
        namespace, _, op = name.partition("::")
        fragment = torch.library.Library(namespace, "FRAGMENT")
        fragment.define(op + schema, tags=(torch.Tag.pt2_compliant_tag,))
        fragment.impl(op, composite(name), "CompositeImplicitAutograd")
        _fragments.append(fragment)


def composite(name: str) -> Callable[..., Any]:
    """What the op of one of these names is made of."""
    return flash_attn_varlen_op if name.startswith("xla::") else xla_gpu_paged_attention


def flash_attn_varlen_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    *,
    kv_cache_dtype: str = "auto",
    deterministic: bool = False,
    attention_chunk: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op of that name. max_seqlen_q and max_seqlen_k are not looked at: bounds come from shapes.

    deterministic: the gradient has the same bits at every run, on a GPU at some cost.
    attention_chunk: keys of a chunk. A query sees those of its own chunk alone. 0: all. There is no gradient then.
    """
    del max_seqlen_q, max_seqlen_k
    paged = block_table is not None
    cache = k if v is None else (k, v)
    with deterministic_attention() if deterministic else contextlib.nullcontext():
        return _ops.flash_attn_varlen(
            q,
            k,
            v,
            cu_seqlens_q,
            None if paged else cu_seqlens_k,
            seqused_k,
            block_table,
            None,
            alibi_slopes,
            None if sinks is None else sinks.float(),
            leftpad_k,
            *(as_scale(x) for x in (q_scale, k_scale, v_scale)),
            scale=softmax_scale,
            is_causal=is_causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            layout=infer_layout("flash_attn_varlen", cache, q.shape[-1], None, None)
            if paged
            else "NHD",
            kv_cache_dtype=kv_cache_dtype,
            return_lse=True,
            attention_chunk=attention_chunk,
        )


def xla_gpu_paged_attention(
    query: torch.Tensor,
    kv_cache: KvCache,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor | int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of a batch's newest queries to a paged cache that holds their keys already.

    The same as `torch.ops.xla_gpu.paged_attention` with these arguments, which takes no pair.

    Args:
      query: [t, h, d], sequence after sequence.
      kv_cache: one array [p, s, 2 * hk, d] (K in even, V in odd heads), [p, s, hk, 2 * d] or [2, p, s, hk, d], or a pair of
        [p, s, hk, d].
      context_lens: [b], keys of each sequence, this step's included.
      block_tables: [b, m], the pages of each sequence.
      query_start_loc: [b + 1], where each sequence starts in `query`.
      num_seqs: how many sequences are real, 0 to b: a number, or an array of shape [1], which counts as the nearest of
        these; rows of the others give 0.
      scale: of the scores.
      sliding_window: keys that a query sees, its own included.
      soft_cap: scores become soft_cap * tanh(score / soft_cap).

    Returns:
      [t, h, d].

    Raises:
      ValueError: what does not fit; the text says which.
    """
    if context_lens is None or context_lens.ndim > 1:
        got = "None" if context_lens is None else list(context_lens.shape)
        raise ValueError(
            f"paged_attention: context_lens is {got}, expected [b]; with key_cache and value_cache apart call "
            "torch.ops.xla_gpu.paged_attention.default"
        )
    key_cache, value_cache = split("paged_attention", kv_cache)
    if not isinstance(num_seqs, torch.Tensor):
        check_num_seqs("paged_attention", num_seqs, query_start_loc)
        num_seqs = torch.full((1,), num_seqs, dtype=torch.int32, device=query.device)
    elif num_seqs.numel() != 1:
        raise ValueError(f"paged_attention: num_seqs is {list(num_seqs.shape)}, expected [1]")
    out, _ = _ops.paged_attention.default(
        query,
        key_cache,
        value_cache,
        context_lens,
        block_tables,
        query_start_loc,
        num_seqs.reshape(1),
        scale=scale,
        sliding_window=sliding_window,
        softcap=soft_cap or 0.0,
        layout=infer_layout("paged_attention", kv_cache, query.shape[-1], None, None),
    )
    return out


def as_scale(
    x: torch.Tensor | float | None, like: torch.Tensor | None = None
) -> torch.Tensor | None:
    """A scale as the ops take it: f32, of rank 1 or more; a number goes to the device of `like`."""
    if x is None:
        return None
    if not isinstance(x, torch.Tensor):
        assert like is not None  # who may have a number gives it
        return torch.full((1,), x, dtype=torch.float32, device=like.device)
    return torch.atleast_1d(x.float())
