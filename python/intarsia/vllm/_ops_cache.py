"""What vLLM's ops on attention and its caches do, by ours: part of `_ops.py`."""

import torch

from intarsia import _dtypes
from intarsia.torch import _cache  # and so intarsia.torch, which defines torch.ops.xla_gpu
from intarsia.vllm._declare import (
    INDICES,
    Tensor,
    check,
    check_number,
    declare,
    flat,
    inside_rows,
    one,
    refuse,
    write,
)
from intarsia.vllm.compat import dtype_name

xla_gpu = torch.ops.xla_gpu


@declare(
    "Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, "
    "Tensor k_scale, Tensor v_scale",
    namespace="_C_cache_ops",
)
def reshape_and_cache_flash(op, *arguments):
    _cache.reshape_and_cache_flash(*arguments)


@declare(
    "Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping",
    namespace="_C_cache_ops",
)
def copy_blocks(op, key_caches, value_caches, block_mapping):
    for name, caches in (("key_caches", key_caches), ("value_caches", value_caches)):
        for cache in caches:
            xla_gpu.copy_blocks(flat(op, name, cache, 1), block_mapping)


@declare("Tensor src, Tensor! dst, Tensor block_mapping", namespace="_C_cache_ops")
def swap_blocks(op, src, dst, block_mapping):
    check(op, block_mapping=(block_mapping, ("n", 2), INDICES))
    blocks = flat(op, "dst", dst, 1)
    source, target = block_mapping.unbind(1)
    if src.device != dst.device:  # a host's memory and a GPU's: only what is copied goes over
        taken, target = _taken(src, source.to(src.device), target.to(src.device))
        src = taken.to(dst.device)
        source = torch.arange(len(src), device=dst.device)
    on_device = (x.to(dst.device) for x in (source, target))
    xla_gpu.swap_blocks(flat(op, "src", src, 1), blocks, *on_device)


def _taken(src: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The blocks that a mapping takes, and where they go: -1, which is skipped, where the source has none."""
    there, blocks = inside_rows(src, source)
    return blocks, torch.where(there, target, -1)


def _check_devices(op: str, dst: Tensor, **given: Tensor | None) -> None:
    """By vLLM's names, which are not those of the op below."""
    for name, x in given.items():
        if x is not None and x.device != dst.device:
            raise ValueError(f"{op}: {name} is on {x.device}, expected {dst.device}")


def _first_slots(seq_starts: Tensor | None, cache: Tensor, batch_size: int) -> Tensor | None:
    """vLLM's kernels round down to whole pages."""
    if seq_starts is None:
        return None
    return seq_starts[:batch_size] // cache.shape[1] * cache.shape[1]


def _most(block_table: Tensor, cu_seq_lens: Tensor, seq_starts: Tensor | None) -> int:
    """The sequences that all of these have a row of."""
    rows = [block_table.shape[0], cu_seq_lens.shape[0] - 1]
    return min(rows if seq_starts is None else [*rows, seq_starts.shape[0]])


@declare(
    "Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, int batch_size, Tensor? seq_starts",
    namespace="_C_cache_ops",
)
def cp_gather_cache(op, src_cache, dst, block_table, cu_seq_lens, batch_size, seq_starts):
    given = {"block_table": block_table, "cu_seq_lens": cu_seq_lens, "seq_starts": seq_starts}
    _check_devices(op, dst, src_cache=src_cache, **given)
    check_number(op, "batch_size", batch_size, 0, _most(block_table, cu_seq_lens, seq_starts))
    xla_gpu.gather_cache(
        flat(op, "src_cache", src_cache, 2),
        flat(op, "dst", dst, 1),
        block_table[:batch_size],
        cu_seq_lens[: batch_size + 1],
        _first_slots(seq_starts, src_cache, batch_size),
    )


@declare(
    "Tensor src_cache, Tensor! dst, Tensor block_table, Tensor cu_seq_lens, Tensor token_to_seq, int num_tokens, "
    "str kv_cache_dtype, Tensor scale, Tensor? seq_starts",
    namespace="_C_cache_ops",
)
def gather_and_maybe_dequant_cache(
    op,
    src_cache,
    dst,
    block_table,
    cu_seq_lens,
    token_to_seq,
    num_tokens,
    kv_cache_dtype,
    scale,
    seq_starts,
):
    del token_to_seq  # which cu_seq_lens says as well
    batch_size = cu_seq_lens.numel() - 1
    scale = None if src_cache.dtype == dst.dtype else one(scale)
    given = {"block_table": block_table, "cu_seq_lens": cu_seq_lens, "seq_starts": seq_starts}
    _check_devices(op, dst, src_cache=src_cache, scale=scale, **given)
    check_number(op, "num_tokens", num_tokens, 0, dst.shape[0])
    xla_gpu.gather_cache(
        flat(op, "src_cache", src_cache, 2),
        flat(op, "dst", dst, 1)[:num_tokens],
        block_table[:batch_size],
        cu_seq_lens,
        _first_slots(seq_starts, src_cache, batch_size),
        scale,
        kv_cache_dtype=kv_cache_dtype,
    )


@declare(
    "Tensor! dst_cache, Tensor src_cache, float scale, str kv_cache_dtype",
    namespace="_C_cache_ops",
)
def convert_fp8(op, dst_cache, src_cache, scale, kv_cache_dtype):
    converted = xla_gpu.convert_fp8(
        src_cache,
        scale=scale,
        out_dtype=_dtypes.name_of(dtype_name(dst_cache.dtype)),
        kv_cache_dtype=kv_cache_dtype,
    )
    write(op, dst_cache=(dst_cache, converted))


@declare(
    "Tensor! output, Tensor!? output_lse, Tensor prefix_output, Tensor prefix_lse, Tensor suffix_output, "
    "Tensor suffix_lse, int? prefill_tokens_with_context=None, Tensor? output_scale=None"
)
def merge_attn_states(
    op,
    output,
    output_lse,
    prefix_output,
    prefix_lse,
    suffix_output,
    suffix_lse,
    prefill_tokens_with_context=None,
    output_scale=None,
):
    refuse(
        op,
        prefill_tokens_with_context=(prefill_tokens_with_context, None),
        output_scale=(output_scale, None),
    )
    out, lse = xla_gpu.merge_attn_states(prefix_output, prefix_lse, suffix_output, suffix_lse)
    lses = {} if output_lse is None else {"output_lse": (output_lse, lse)}
    write(op, output=(output, out), **lses)
