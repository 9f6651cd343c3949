"""Times ops on torch_xla's device in three ways: as our custom call, as torch_xla lowers the ATen decomposition, and through the CPU.

Usage: torch_on_xla.py [--platform cpu|gpu] [--op NAME ...]

The decomposition is what vLLM's layers do where they have no kernel (`forward_native`), and for attention what its
XLA backends did: gather the pages, multiply, softmax. "Through the CPU" is what torch_xla does with an operator that
it does not know: operands to the host, the op there (ours), results back. Each way is a function compiled by
`torch.compile(backend="openxla")` where there is something to compile. A figure is the median time of a call, the
device's answer awaited; the ways take turns.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "INTARSIA")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))

import intarsia.torch  # noqa: F401  defines torch.ops.xla_gpu
import torch
import torch.nn.functional as F
import torch_xla

_ops = torch.ops.xla_gpu
_ROUNDS, _CALLS = 7, 10
# Tokens of the token-wise ops; sequences and context of attention. The CPU's are small enough to be waited for.
_SIZES = {"cpu": (256, 8, 512), "gpu": (4096, 64, 4096)}
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _PAGE_SIZE = 2048, 16, 4, 128, 16


# ---------------------------------------------------------------------------- decompositions


def rms_norm(x, weight):
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * scale).to(x.dtype) * weight


def fused_add_rms_norm(x, residual, weight):
    total = x + residual
    return rms_norm(total, weight), total


def silu_and_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotary_embedding(positions, query, table, key):
    cos, sin = table[positions].chunk(2, dim=-1)

    def turn(x):
        a, b = x.chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(x.dtype)

    return turn(query), turn(key)


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
    scores = (query[:, :, None] * d**-0.5) @ keys.transpose(2, 3)
    weights = scores.float().masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    return (weights.to(query.dtype) @ values)[:, :, 0]


# ---------------------------------------------------------------------------- ours


def our_paged_attention(*operands):
    return _ops.paged_attention.default(*operands)[0]


_OURS: dict[str, Callable[..., Any]] = {
    "rms_norm": _ops.rms_norm,
    "fused_add_rms_norm": _ops.fused_add_rms_norm.functional,
    "silu_and_mul": _ops.silu_and_mul,
    "rotary_embedding": _ops.rotary_embedding.functional,
    "reshape_and_cache_flash": _ops.reshape_and_cache_flash,
    "paged_attention": our_paged_attention,
}
_ATEN = {
    "rms_norm": rms_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
    "silu_and_mul": silu_and_mul,
    "rotary_embedding": rotary_embedding,
    "reshape_and_cache_flash": reshape_and_cache_flash,
    "paged_attention": paged_attention,
}


def operands_of(op: str, platform: str) -> list[torch.Tensor]:
    """Random operands on the CPU, in the op's order; bf16 on a GPU."""
    tokens, sequences, context = _SIZES[platform]
    dtype = torch.float32 if platform == "cpu" else torch.bfloat16
    pages = context // _PAGE_SIZE

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype)

    def caches() -> list[torch.Tensor]:
        return [normal(sequences * pages + 1, _PAGE_SIZE, _KV_HEADS, _HEAD_DIM) for _ in range(2)]

    return {
        "rms_norm": lambda: [normal(tokens, _HIDDEN), normal(_HIDDEN)],
        "fused_add_rms_norm": lambda: [
            normal(tokens, _HIDDEN), normal(tokens, _HIDDEN), normal(_HIDDEN)
        ],
        "silu_and_mul": lambda: [normal(tokens, 4 * _HIDDEN)],
        "rotary_embedding": lambda: [
            torch.randint(0, 4096, (tokens,)), normal(tokens, _HEADS, _HEAD_DIM),
            normal(4096, _HEAD_DIM), normal(tokens, _KV_HEADS, _HEAD_DIM),
        ],
        "reshape_and_cache_flash": lambda: [
            normal(tokens, _KV_HEADS, _HEAD_DIM), normal(tokens, _KV_HEADS, _HEAD_DIM),
            *caches(), torch.randperm(sequences * context)[:tokens],
        ],
        "paged_attention": lambda: [
            normal(sequences, _HEADS, _HEAD_DIM), *caches(), torch.full((sequences,), context),
            torch.randperm(sequences * pages).view(sequences, pages), torch.arange(sequences + 1),
        ],
    }[op]()  # fmt: skip


def through_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*operands: torch.Tensor) -> Any:
        here = [x.cpu() for x in operands]
        returned = function(*here)
        if returned is None:  # written in place
            return [x.copy_(y) for x, y in zip(operands[2:4], here[2:4], strict=True)]
        returned = [returned] if isinstance(returned, torch.Tensor) else returned
        return [x.to(operands[0].device) for x in returned]

    return call


def milliseconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of a call in each way, in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(_ROUNDS + 2):  # the first two compile and warm up
        for name, call in ways.items():
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
                torch_xla.sync()
            torch_xla.sync(wait=True)
            if round_ >= 2:
                times[name].append((time.perf_counter() - begin) / _CALLS * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def compiled(function: Callable[..., Any], operands: list[torch.Tensor]) -> Callable[[], Any]:
    program = torch.compile(lambda *x: function(*x), backend="openxla", fullgraph=True)
    return lambda: program(*operands)


def row(name: str, times: dict[str, float]) -> None:
    ours, *others = times.values()
    cells = "".join(f"{x:12.3f} ({x / ours:5.1f}x)" for x in others)
    print(f"{name:26}{ours:12.3f}{cells}", flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--op", action="append", choices=tuple(_OURS))
    args = parser.parse_args()
    device = torch_xla.device()
    torch.manual_seed(0)
    print(f"{'ms a call':26}{'ours':>12}{'decomposed':>21}{'through the CPU':>21}")
    for op in args.op or _OURS:
        operands = [x.to(device) for x in operands_of(op, args.platform)]
        torch_xla.sync(wait=True)
        torch._dynamo.reset()
        fallback = through_the_cpu(_OURS[op])
        ways = {
            "ours": compiled(_OURS[op], operands),
            "aten": compiled(_ATEN[op], operands),
            "cpu": lambda fallback=fallback, operands=operands: fallback(*operands),
        }
        row(op, milliseconds(ways))


if __name__ == "__main__":
    main()
