"""Calls of vLLM's ops on experts, with what they must write, in loops: the first part of the cases of vllm_names.py."""

import torch
from vllm_calls import Call, _x, also, case, xla_gpu

# Of 6 tokens three experts each, of 8; and which of them are here.
IDS = [[2, 3, 4], [1, 2, 4], [1, 3, 7], [1, 2, 3], [0, 6, 5], [7, 0, 2]]
MAP = [-1, 0, -1, 1, 2, -1, -1, 3]
NOBODY = [[-1, 8, 2], *IDS[1:]]


def _ints(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


@also("bf16, int64", dtype=torch.bfloat16, ids=torch.int64)
@also("with a bias, renormalized", renormalize=True, biased=True)
@case
def topk_softmax(dtype=torch.float32, ids=torch.int32, renormalize=False, biased=False):
    logits, bias = _x(6, 8).to(dtype), _x(8) if biased else None
    weights, chosen = xla_gpu.topk_router(logits, bias, top_k=3, renormalize=renormalize)
    numbers = [[6 * j + i for j in range(3)] for i in range(6)]
    arguments = [torch.zeros(6, 3), torch.zeros(6, 3, dtype=ids), _ints([[0] * 3] * 6), logits]
    arguments += [renormalize, bias] if biased else [renormalize]
    return Call(
        "_moe_C::topk_softmax", arguments, {0: weights, 1: chosen.to(ids), 2: _ints(numbers)}
    )


@also("of scores with NaN", scoring_func=0, renormalize=False, scale=2.0, has_nan=True)
@also("of scores", scoring_func=0, renormalize=False, scale=2.0)
@case
def grouped_topk(scoring_func=1, renormalize=True, scale=2.5, has_nan=False):
    logits, bias = _x(6, 8), _x(8)
    if has_nan:  # one, a group's, those of all but a group, all
        for row, columns in enumerate(([3], [2, 3], [0, 1, 2, 3, 6, 7], range(8))):
            logits[row, list(columns)] = float("nan")
    options = {"renormalize": renormalize, "num_groups": 4, "topk_groups": 2, "scale": scale}
    weights, ids = xla_gpu.topk_router(logits, bias, top_k=3, scoring="sigmoid", **options)
    scores = logits if scoring_func else logits.sigmoid()
    if not scoring_func:
        weights = scores.gather(1, ids.long()) * scale
    arguments = [scores, 4, 2, 3, renormalize, scale, bias, scoring_func]
    return Call("_moe_C::grouped_topk", arguments, {}, returned=(weights, ids))


@also("of what is here", ids=NOBODY, expert_map=MAP)
@also("without padding", ids=NOBODY)
@also("bf16", dtype=torch.bfloat16)
@case
def moe_sum(dtype=torch.float32, ids=None, expert_map=None):
    x = _x(6, 3, 64).to(dtype)
    counted = torch.ones(6, 3, 1)
    for i, row in enumerate(ids or []):
        for j, e in enumerate(row):
            there = e >= 0 if expert_map is None else 0 <= e < 8 and expert_map[e] >= 0
            counted[i, j] = there
    want = (x.float() * counted).sum(1).to(dtype)
    arguments = [x, torch.zeros(6, 64, dtype=dtype)]
    if ids:
        arguments += [_ints(ids), None if expert_map is None else _ints(expert_map)]
    return Call("_moe_C::moe_sum", arguments, {1: want})


@also("with a map of anything", ids=NOBODY, expert_map=[-(2**31), 7, 8, 0, 2**31 - 1, 3, -1, 2])
@also("with a map", ids=NOBODY, expert_map=MAP)
@also("of nobody", ids=NOBODY, dtype=torch.int64)
@case
def moe_align_block_size(ids=IDS, expert_map=None, dtype=torch.int32):
    pairs = [e for row in ids for e in row]
    rows, blocks = [], []
    for expert in range(8):
        mine = [
            p
            for p, e in enumerate(pairs)
            if 0 <= e < 8 and (e if expert_map is None else expert_map[e]) == expert
        ]
        count = -(-len(mine) // 4)
        rows += mine + [18] * (4 * count - len(mine))
        blocks += [expert] * count
    padded = len(rows)
    sorted_ids, block_ids = rows + [18] * (40 - padded), blocks + [0] * (10 - len(blocks))
    arguments = [_ints(ids, dtype), 8, 4, _ints([7] * 40), _ints([7] * 10), _ints([7])]
    arguments += [] if expert_map is None else [_ints(expert_map)]
    want = {3: _ints(sorted_ids), 4: _ints(block_ids), 5: _ints([padded])}
    return Call("_moe_C::moe_align_block_size", arguments, want)


def _permuted(ids, expert_map):
    """Pairs in their new order, how many of them are here, and where the local experts begin."""
    pairs = [e for row in ids for e in row]
    local = [(e if expert_map is None else expert_map[e]) if 0 <= e < 8 else -1 for e in pairs]
    count = 8 if expert_map is None else 4
    keys = [
        x if x >= 0 else count + (e if 0 <= e < 8 else 8) for x, e in zip(local, pairs, strict=True)
    ]
    order = sorted(range(18), key=lambda p: keys[p])
    offsets = [sum(0 <= x < i for x in local) for i in range(count + 1)]
    return order, offsets


@also("with a map", ids=NOBODY, expert_map=MAP)
@case
def moe_permute(ids=IDS, expert_map=None):
    x, old = _x(6, 64), _x(18, 64)
    order, offsets = _permuted(ids, expert_map)
    here = offsets[-1]
    want = torch.cat([x[[p // 3 for p in order[:here]]], old[here:]])
    inverse = [[order.index(3 * i + j) for j in range(3)] for i in range(6)]
    mapped = None if expert_map is None else _ints(expert_map)
    unread = (torch.arange(18, dtype=torch.int32).reshape(6, 3), torch.zeros(18).int())
    offsets, filled = _ints(offsets, torch.int64), _ints([18] * 18)
    return Call(
        "_moe_C::moe_permute",
        [
            *(x, _ints(ids), unread[0], mapped, 8, len(offsets) - 1, 3, None, old),
            *(torch.zeros_like(offsets), torch.zeros(6, 3).int(), filled, unread[1]),
        ],
        {
            8: want,
            9: offsets,
            10: _ints(inverse),
            11: _ints(order[:here] + [18] * (18 - here)),
        },
        unused=unread,
    )


@also("with a map", ids=NOBODY, expert_map=MAP)
@case
def moe_unpermute(ids=IDS, expert_map=None):
    x, weights = _x(18, 64), torch.rand(6, 3)
    order, offsets = _permuted(ids, expert_map)
    x[offsets[-1] :] = float("nan")
    want = torch.zeros(6, 64)
    for i in range(6):
        terms = torch.zeros(3, 64)
        for j in range(3):
            place = order.index(3 * i + j)
            if place < offsets[-1]:
                terms[j] = x[place] * weights[i, j]
        want[i] = terms.sum(0)
    inverse = _ints([[order.index(3 * i + j) for j in range(3)] for i in range(6)])
    arguments = [x, weights, inverse, _ints(offsets, torch.int64), 3, torch.zeros(6, 64)]
    return Call("_moe_C::moe_unpermute", arguments, {5: want})


@case
def shuffle_rows():
    x, rows = _x(6, 64), _ints([3, 3, 0, 5])
    return Call("_moe_C::shuffle_rows", [x, rows, torch.zeros(4, 64)], {2: x[rows.long()]})
