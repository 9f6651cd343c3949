"""What vLLM's ops on experts do, `torch.ops._moe_C`: part of `_ops.py`. Schemas: csrc/moe/torch_bindings.cpp.

Where vLLM's kernels take pairs of a token and an expert in the order of atomics, these take them in the order of tokens.
"""

import torch

from intarsia.torch._segments import numbers_of_rows
from intarsia.vllm._declare import (
    ANY,
    INDICES,
    Tensor,
    check,
    check_number,
    declare,
    inside,
    inside_rows,
    refuse,
    rows_of,
    write,
)
from intarsia.vllm._ops_cache import xla_gpu

_IDS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


@declare(
    "Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, "
    "bool renormalize=False, Tensor? bias=None, Tensor? is_padding=None",
    namespace="_moe_C",
)
def topk_softmax(
    op,
    topk_weights,
    topk_indices,
    token_expert_indices,
    gating_output,
    renormalize=False,
    bias=None,
    is_padding=None,
):
    refuse(op, is_padding=(is_padding, None))
    check(
        op,
        gating_output=(gating_output, ("t", "e"), ANY),
        bias=(bias, tuple(gating_output.shape[-1:]), ANY),
        topk_weights=(topk_weights, ("t", "k"), (torch.float32,)),
        topk_indices=(topk_indices, ("t", "k"), (*INDICES, torch.uint32)),
    )
    tokens, top_k = gating_output.shape[0], topk_weights.shape[1]
    weights, ids = xla_gpu.topk_router(
        gating_output,
        None if bias is None else bias.float(),
        top_k=top_k,
        renormalize=renormalize,
    )
    # Pair j of token i is number j * tokens + i.
    row = torch.arange(tokens, dtype=torch.int32, device=weights.device)[:, None]
    column = torch.arange(top_k, dtype=torch.int32, device=weights.device)
    write(
        op,
        topk_weights=(topk_weights, weights),
        topk_indices=(topk_indices, ids.to(topk_indices.dtype)),
        token_expert_indices=(token_expert_indices, column * tokens + row),
    )


@declare(
    "Tensor scores, int n_group, int topk_group, int topk, bool renormalize, float routed_scaling_factor, "
    "Tensor bias, int scoring_func",
    namespace="_moe_C",
    returns="(Tensor, Tensor)",
)
def grouped_topk(
    op, scores, n_group, topk_group, topk, renormalize, routed_scaling_factor, bias, scoring_func
):
    check(op, scores=(scores, ("t", "e"), ANY), bias=(bias, tuple(scores.shape[-1:]), ANY))
    if scoring_func == 0:  # scores as they are
        return _best_of_groups(
            scores.float(), n_group, topk_group, topk, renormalize, routed_scaling_factor, bias
        )
    refuse(op, scoring_func=(scoring_func, 1))  # sigmoid
    weights, ids = xla_gpu.topk_router(
        scores,
        bias.float(),
        top_k=topk,
        scoring="sigmoid",
        renormalize=renormalize,
        num_groups=n_group,
        topk_groups=topk_group,
        scale=routed_scaling_factor,
    )
    return weights, ids


def _best_of_groups(scores, n_group, topk_group, topk, renormalize, scale, bias):
    """The same of numbers that are scores already: sorts that keep equal ones in order choose the lower id."""
    xla_gpu.topk_router(  # which checks the sizes, and computes nothing
        *(x.to("meta") for x in (scores, bias.float())),
        top_k=topk,
        num_groups=n_group,
        topk_groups=topk_group,
    )
    each = scores.shape[-1] // n_group
    keys = _nan_last(scores + bias.float())
    groups = keys.unflatten(-1, (n_group, each))
    of_groups = _nan_last(groups.topk(min(2, each), -1).values.sum(-1))  # of both infinities: NaN
    kept = of_groups.sort(descending=True, stable=True).indices[:, :topk_group].sort().values
    # No other group's expert is looked at, so that none ties with a kept one of -inf.
    candidates = (kept[..., None] * each + torch.arange(each, device=keys.device)).flatten(1)
    order = keys.gather(1, candidates).sort(descending=True, stable=True).indices[:, :topk]
    ids = candidates.gather(1, order)
    weights = scores.gather(1, ids)
    factor = scale / weights.sum(-1, keepdim=True) if renormalize else scale
    return weights * factor, ids.int()


def _nan_last(keys: Tensor) -> Tensor:
    return torch.where(keys.isnan(), float("-inf"), keys)


def _is_here(
    op: str, topk_ids: Tensor, experts: int, expert_map: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For each id whether it has an expert here, and which."""
    known, found = inside(topk_ids, experts)
    if expert_map is not None and experts:
        if len(expert_map) < experts:
            raise ValueError(
                f"{op}: the expert map has {len(expert_map)} experts, expected {experts}"
            )
        found = expert_map.long()[found]
    return known & (found >= 0), found


@declare(
    "Tensor input, Tensor! output, Tensor? topk_ids=None, Tensor? expert_map=None",
    namespace="_moe_C",
)
def moe_sum(op, input, output, topk_ids=None, expert_map=None):
    check(
        op,
        input=(input, ("t", "k", "n"), ANY),
        topk_ids=(topk_ids, tuple(input.shape[:2]), _IDS),
        expert_map=(expert_map, ("e",), INDICES),
    )
    if topk_ids is not None:
        experts = torch.iinfo(topk_ids.dtype).max if expert_map is None else len(expert_map)
        here, _ = _is_here(op, topk_ids, experts, expert_map)
        input = torch.where(here[..., None], input, 0)
    write(op, output=(output, input.float().sum(1).to(input.dtype)))


@declare(
    "Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, Tensor! experts_ids, "
    "Tensor! num_tokens_post_pad, Tensor? maybe_expert_map=None, Tensor!? scatter_idx=None",
    namespace="_moe_C",
)
def moe_align_block_size(
    op,
    topk_ids,
    num_experts,
    block_size,
    sorted_token_ids,
    experts_ids,
    num_tokens_post_pad,
    maybe_expert_map=None,
    scatter_idx=None,
):
    refuse(op, scatter_idx=(scatter_idx, None))
    check(
        op,
        topk_ids=(topk_ids, tuple(topk_ids.shape), _IDS),
        maybe_expert_map=(maybe_expert_map, ("e",), INDICES),
    )
    check_number(op, "num_experts", num_experts, 0)
    check_number(op, "block_size", block_size, 1)
    pairs, room, device = topk_ids.numel(), sorted_token_ids.numel(), topk_ids.device
    # The most places that may be needed: an expert with pairs leaves at most block_size - 1 empty.
    padded = pairs + min(pairs, num_experts) * (block_size - 1)
    blocks = padded // block_size if num_experts else 0
    for name, tensor, need in (
        ("sorted_token_ids", sorted_token_ids, blocks * block_size),
        ("experts_ids", experts_ids, blocks),
    ):
        if tensor.numel() < need:
            raise ValueError(f"{op}: {name} has room for {tensor.numel()}, expected {need}")
    here, expert = _is_here(op, topk_ids.reshape(-1), num_experts, maybe_expert_map)
    here = here & (expert < num_experts)  # a map may say anything
    expert, order = torch.where(here, expert, num_experts).sort(stable=True)
    counts = numbers_of_rows(expert, num_experts)
    padded = (counts + block_size - 1) // block_size * block_size
    ends, firsts = padded.cumsum(0), counts.cumsum(0) - counts
    # The place of a pair: behind the blocks of the experts before, by its number among its own.
    shift = torch.cat([ends - padded - firsts, firsts.new_full((1,), room + pairs)])
    place = (torch.arange(pairs, device=device) + shift[expert]).clamp(max=room)
    sorted_ids = torch.full((room + 1,), pairs, dtype=torch.int32, device=device)
    sorted_ids = sorted_ids.scatter(0, place, order.int())[:room]
    block = torch.arange(experts_ids.numel(), device=device) * block_size
    of_block = (block[:, None] >= ends).sum(1)  # how many experts end before
    write(
        op,
        sorted_token_ids=(sorted_token_ids, sorted_ids),
        experts_ids=(experts_ids, torch.where(of_block < num_experts, of_block, 0).int()),
        num_tokens_post_pad=(num_tokens_post_pad, padded.sum().int().reshape(1)),
    )


@declare(
    "Tensor input, Tensor topk_ids, Tensor token_expert_indices, Tensor? expert_map, int n_expert, "
    "int n_local_expert, int topk, int? align_block_size, Tensor! permuted_input, "
    "Tensor! expert_first_token_offset, Tensor! inv_permuted_idx, Tensor! permuted_idx, Tensor! m_indices",
    namespace="_moe_C",
)
def moe_permute(
    op,
    input,
    topk_ids,
    token_expert_indices,
    expert_map,
    n_expert,
    n_local_expert,
    topk,
    align_block_size,
    permuted_input,
    expert_first_token_offset,
    inv_permuted_idx,
    permuted_idx,
    m_indices,
):
    del token_expert_indices, m_indices  # 0, 1, 2 ...; read with blocks alone
    refuse(op, align_block_size=(align_block_size, None))
    check(
        op,
        input=(input, ("t", "n"), (input.dtype,)),
        topk_ids=(topk_ids, (*input.shape[:1], topk), _IDS),
        expert_map=(expert_map, ("e",), INDICES),
    )
    check_number(op, "n_expert", n_expert, 0, 2**31 - 1)
    check_number(op, "n_local_expert", n_local_expert, 0, n_expert)
    ids = topk_ids.reshape(-1)
    pairs, (tokens, n) = ids.numel(), input.shape
    rows = rows_of(op, "permuted_input", permuted_input, (pairs, n), input.dtype, input.device)
    numbers = rows_of(op, "permuted_idx", permuted_idx, (pairs,), torch.int32, input.device)
    # Before anything is counted, which takes as much memory.
    name, shape = "expert_first_token_offset", (n_local_expert + 1,)
    firsts = rows_of(op, name, expert_first_token_offset, shape, torch.int64, input.device)
    places_shape = (tokens, topk) if inv_permuted_idx.ndim == 2 else (pairs,)
    here, expert = _is_here(op, ids, n_expert, expert_map)
    here = here & (expert < n_local_expert)
    # Behind all that are here: those of experts elsewhere, by their numbers, and ids that are none.
    known = (ids >= 0) & (ids < n_expert)
    elsewhere = torch.where(known, ids.long(), n_expert) + n_local_expert
    expert, order = torch.where(here, expert, elsewhere).sort(stable=True)
    counts = numbers_of_rows(expert.clamp(max=n_local_expert), n_local_expert)
    ends = counts.cumsum(0, dtype=torch.int64)  # said, for torch_xla leaves it i32
    offsets = torch.cat([ends.new_zeros(1), ends])
    row = torch.arange(len(order), device=ids.device)
    written = row < offsets[-1]
    places = torch.empty_like(order).scatter(0, order, row)
    write(
        op,
        permuted_input=(rows, torch.where(written[:, None], input[order // max(topk, 1)], rows)),
        expert_first_token_offset=(firsts, offsets),
        inv_permuted_idx=(inv_permuted_idx, places.int().reshape(places_shape)),
        permuted_idx=(numbers, torch.where(written, order.int(), numbers)),
    )


@declare(
    "Tensor permuted_hidden_states, Tensor topk_weights, Tensor inv_permuted_idx, "
    "Tensor? expert_first_token_offset, int topk, Tensor! hidden_states",
    namespace="_moe_C",
)
def moe_unpermute(
    op,
    permuted_hidden_states,
    topk_weights,
    inv_permuted_idx,
    expert_first_token_offset,
    topk,
    hidden_states,
):
    check(op, topk_weights=(topk_weights, ("t", "k"), ANY))
    tokens = topk_weights.shape[0]
    places_shape = (tokens, topk) if inv_permuted_idx.ndim == 2 else (tokens * topk,)
    check(
        op,
        permuted_hidden_states=(permuted_hidden_states, ("p", "n"), ANY),
        topk_weights=(topk_weights, (tokens, topk), ANY),
        inv_permuted_idx=(inv_permuted_idx, places_shape, INDICES),
        expert_first_token_offset=(expert_first_token_offset, ("e",), INDICES),
    )
    if expert_first_token_offset is not None:
        size = expert_first_token_offset.numel()
        check_number(op, "the length of expert_first_token_offset", size, 1)
    places = inv_permuted_idx.reshape(tokens, topk)
    counts, rows = inside_rows(permuted_hidden_states, places)
    terms = rows.float() * topk_weights.float()[..., None]
    if expert_first_token_offset is not None:  # rows behind the last one hold anything
        counts = counts & (places < expert_first_token_offset[-1])
    total = torch.where(counts[..., None], terms, 0.0).sum(1).to(permuted_hidden_states.dtype)
    write(op, hidden_states=(hidden_states, total))


@declare("Tensor input_tensor, Tensor dst2src_map, Tensor! output_tensor", namespace="_moe_C")
def shuffle_rows(op, input_tensor, dst2src_map, output_tensor):
    check(
        op,
        input_tensor=(input_tensor, ("t", "n"), (input_tensor.dtype,)),
        dst2src_map=(dst2src_map, ("r",), INDICES),
    )
    shape, dtype = (dst2src_map.shape[0], input_tensor.shape[1]), input_tensor.dtype
    rows = rows_of(op, "output_tensor", output_tensor, shape, dtype, input_tensor.device)
    there, taken = inside_rows(input_tensor, dst2src_map)
    write(op, output_tensor=(rows, torch.where(there[:, None], taken, rows)))
