"""Times attention over prompts, mixed batches and short chunks beside vLLM's FlashAttention-3, in one run on one Hopper GPU.

Usage: attention_prefill.py --fa3 LIBRARY [--cases NAME ...] [--json FILE]

LIBRARY is `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so` of vLLM's wheel. Heads are 32 over 8 (16 over 4 where d is 256), pages have 16 slots
in any order, masks are causal. A figure is microseconds a call, the median over rounds in which both have their turn, of calls in a CUDA
graph that meet different caches, more than the L2 cache holds. Flops are those of the pairs that the mask leaves. Results are compared
first. FA3 takes an fp8 cache with queries in fp8 alone.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import intarsia.torch  # noqa: F401  registers the ops
import record
from torch_graphs import medians, this_run

PAGE, COLD_BYTES = 16, 4e8


class Case(NamedTuple):
    """Sequences as rows of q and keys. `cache`: of e4m3 under q in bf16; `all`: q, too."""

    lengths: list[tuple[int, int]]
    d: int = 128
    fp8: str = ""
    window: int = -1


def _prompts(count: int, length: int) -> list[tuple[int, int]]:
    return [(length, length)] * count


def _rows(count: int, keys: int) -> list[tuple[int, int]]:
    return [(1, keys)] * count


# Prompts and their length, rows of decode and their keys.
MIXED = ((2, 2048, 8, 1024), (4, 1024, 16, 2048), (2, 4096, 32, 1024))


def _k(n: int) -> str:
    return f"{n // 1024}k"


CASES = (
    {f"1x{n}": Case(_prompts(1, n)) for n in (512, 2048, 4096, 8192, 16384, 32768)}
    | {"4x4096": Case(_prompts(4, 4096))}
    | {f"1x{n} d64": Case(_prompts(1, n), d=64) for n in (2048, 8192)}
    | {f"1x{n} d256": Case(_prompts(1, n), d=256) for n in (4096, 16384)}
    | {"1x32768 window 4096": Case(_prompts(1, 32768), window=4095)}
    | {f"1x8192 fp8 {kind}": Case(_prompts(1, 8192), fp8=kind) for kind in ("cache", "all")}
    | {f"mixed {a}x{_k(n)}+{b}x{_k(m)}": Case(_prompts(a, n) + _rows(b, m)) for a, n, b, m in MIXED}
    | {f"its prompts {a}x{_k(n)}": Case(_prompts(a, n)) for a, n, _, _ in MIXED}
    | {f"its rows {b}x{_k(m)}": Case(_rows(b, m)) for _, _, b, m in MIXED}
    | {
        "chunk 1k on 32k + 32x4k": Case([(1024, 32768), *_rows(32, 4096)]),
        "speculative 16x5 on 4k": Case([(5, 4096)] * 16),
    }
)


def _flops(case: Case, heads: int) -> float:
    """A row sees the keys up to its own, and no more than `window` before that."""
    pairs = 0
    for rows, keys in case.lengths:
        first = keys - rows + 1  # what the first row sees
        seen = rows * (first + keys) // 2
        if 0 <= case.window < keys:
            beyond = [max(n - case.window - 1, 0) for n in range(first, keys + 1)]
            seen -= sum(beyond)
        pairs += seen
    return 4.0 * heads * case.d * pairs


def ways(case: Case, heads: int, kv_heads: int) -> tuple[dict[str, Callable], int]:
    """Both, as functions of which copy of the operands they take; and how many copies there are."""
    rows, keys = (max(x) for x in zip(*case.lengths, strict=True))
    sequences, pages = len(case.lengths), -(-keys // PAGE)
    kind = torch.float8_e4m3fn if case.fp8 else torch.bfloat16
    shape = (sequences * pages, PAGE, kv_heads, case.d)
    bytes_read = 2 * torch.Size(shape).numel() * kind.itemsize
    copies = max(2, min(24, int(COLD_BYTES / bytes_read) + 1))

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    total = sum(n for n, _ in case.lengths)
    q = [numbers(total, heads, case.d) for _ in range(copies)]
    q8 = [x.to(torch.float8_e4m3fn) for x in q] if case.fp8 else q
    k, v = ([(numbers(*shape) / 2).to(kind) for _ in range(copies)] for _ in range(2))
    tables = [
        torch.randperm(sequences * pages, device="cuda").int().view(sequences, pages)
        for _ in range(copies)
    ]
    starts = torch.tensor([0, *(n for n, _ in case.lengths)], device="cuda").cumsum(0).int()
    used = torch.tensor([n for _, n in case.lengths], device="cuda").int()
    one = torch.ones(1, device="cuda") if case.fp8 else None
    ones = torch.ones(sequences, kv_heads, device="cuda") if case.fp8 else None
    window = (case.window, 0) if case.window >= 0 else (-1, -1)
    plan = torch.ops._vllm_fa3_C.get_scheduler_metadata(
        sequences, rows, keys, heads, kv_heads, case.d, case.d, kind, used, starts, None, None, None, None,
        PAGE, 0, True, *window, False, 0, None, 0,
    )  # fmt: skip

    def fa3(i: int) -> torch.Tensor:
        return torch.ops._vllm_fa3_C.fwd(
            q8[i], k[i], v[i], None, None, None, None, starts, None, None, None, used, rows, keys, tables[i],
            None, None, None, None, None, ones, ones, ones, case.d**-0.5, True, *window, 0.0, True, plan, 0,
            None, 0, None, 1, 0, None,
        )  # fmt: skip

    def ours(i: int) -> torch.Tensor:
        return torch.ops.xla_gpu.flash_attn_varlen(
            q8[i] if case.fp8 == "all" else q[i], k[i], v[i], starts, seqused_k=used, block_table=tables[i],
            q_scale=one if case.fp8 == "all" else None, k_scale=one, v_scale=one, is_causal=True,
            window_left=case.window,
        )  # fmt: skip

    return {"ours": ours, "FA3": fa3}, copies


def _first(result: torch.Tensor | tuple) -> torch.Tensor:
    return result[0] if isinstance(result, (tuple, list)) else result


def measure(name: str, case: Case) -> dict[str, str | float]:
    heads, kv_heads = (16, 4) if case.d == 256 else (32, 8)
    both, copies = ways(case, heads, kv_heads)
    ours, theirs = (_first(way(0)).float() for way in both.values())
    off = float((ours - theirs).norm() / theirs.norm())
    if off > (0.08 if case.fp8 else 0.01):
        raise AssertionError(f"{name}: the results differ by {off:.1e}")
    us = medians(both, copies)
    ratio, rate = us["FA3"] / us["ours"], _flops(case, heads) / us["ours"] / 1e6
    print(f"{name:28} ours {us['ours']:8.1f} us, FA3 {us['FA3']:8.1f}, {ratio:.3f}; {rate:4.0f} TFLOP/s", flush=True)  # fmt: skip
    return {
        "case": name,
        "ours_us": round(us["ours"], 1),
        "fa3_us": round(us["FA3"], 1),
        "ours_tflop_per_s": round(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fa3", required=True, help="vLLM's library")
    parser.add_argument("--vllm", default="0.32.0", help="the wheel's version, for --json")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--json", type=pathlib.Path, help="file of bench/results to write")
    args = parser.parse_args()
    torch.ops.load_library(args.fa3)
    torch.manual_seed(0)
    rows = [measure(name, CASES[name]) for name in args.cases]
    if args.json:
        record.write(args.json, rows, **this_run(vllm=args.vllm))


if __name__ == "__main__":
    main()
