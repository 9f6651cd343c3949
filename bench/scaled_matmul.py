"""Times `scaled_matmul` on a GPU beside torch's own scaled products (cuBLASLt and CUTLASS), in one run.

Usage: scaled_matmul.py [--size M N K ...] [--json FILE]

A figure is microseconds a call, the median over rounds in which each way has its turn, of calls in a CUDA graph that meet different
weights, more than the L2 cache holds. Codes are those of normal numbers. Ways of torch: `torch._scaled_mm` with scales of tensors, rows
or blocks, and `torch._int_mm`, which gives int32 and has no scales. `bf16` is torch's product of as many bf16 numbers.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import intarsia.torch  # noqa: F401  registers the ops
import record
from torch_graphs import medians, this_run

# DeepSeek-V3's products of 4096 tokens; the linear layers of a Llama of 8 billion parameters.
SIZES = [
    (4096, 4096, 7168),
    (4096, 7168, 4096),
    (4096, 28672, 4096),
    (512, 4096, 4096),
    (64, 28672, 4096),
    (64, 4096, 4096),
    (16, 28672, 4096),
    (1, 28672, 4096),
    (1, 4096, 4096),
]
COLD_BYTES, BLOCK = 2e8, 128


def blocks(size: int) -> int:
    return -(-size // BLOCK)


def codes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    numbers = torch.randn(shape, device="cuda")
    if dtype == torch.int8:
        return (numbers * 40).round().clamp(-127, 127).to(dtype)
    return (numbers * 8).to(dtype)


def ways(m: int, n: int, k: int, copies: int) -> dict[str, Callable[[int], object]]:
    """Each way as a function of which copy of the weights it takes."""
    fp8, i8, ours = torch.float8_e4m3fn, torch.int8, torch.ops.xla_gpu.scaled_matmul

    def scales(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device="cuda") * 0.01 + 0.001

    x8, xi = codes(fp8, m, k), codes(i8, m, k)
    w8 = [codes(fp8, n, k) for _ in range(copies)]
    wi = [codes(i8, n, k) for _ in range(copies)]
    one, rows, columns = scales(1), scales(m, 1), scales(n)
    of_x, of_w = scales(m, blocks(k)), scales(blocks(n), blocks(k))
    # torch wants scales of blocks of x one token after the other.
    of_x_t = of_x.t().contiguous().t()
    scaled = torch._scaled_mm
    found = {
        "fp8 tensors: ours": lambda i: ours(x8, w8[i], one, one),
        "fp8 tensors: torch": lambda i: scaled(
            x8, w8[i].t(), one[0], one[0], out_dtype=torch.bfloat16, use_fast_accum=True
        ),
        "fp8 rows: ours": lambda i: ours(x8, w8[i], rows, columns),
        "fp8 rows: torch": lambda i: scaled(
            x8, w8[i].t(), rows, columns[None], out_dtype=torch.bfloat16, use_fast_accum=True
        ),
        "fp8 blocks: ours": lambda i: ours(x8, w8[i], of_x, of_w),
        "fp8 blocks: torch": lambda i: scaled(
            x8, w8[i].t(), of_x_t, of_w.t(), out_dtype=torch.bfloat16
        ),
        "int8 rows: ours": lambda i: ours(xi, wi[i], rows, columns),
        "int8 rows: torch": lambda i: torch._int_mm(xi, wi[i].t()),
    }
    xb, wb = x8.bfloat16(), [w.bfloat16() for w in w8]
    return found | {"bf16: torch": lambda i: xb @ wb[i].t()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, nargs=3, action="append", metavar=("M", "N", "K"))
    parser.add_argument("--json", type=pathlib.Path, help="file of bench/results to write")
    args = parser.parse_args()
    rows = []
    for m, n, k in args.size or SIZES:
        print(f"{m} x {n} x {k}", flush=True)
        copies = int(COLD_BYTES / (n * k)) + 1
        us = medians(ways(m, n, k, copies), copies)
        for codes_of in dict.fromkeys(name.split(":")[0] for name in us if "ours" in name):
            ours, theirs = us[f"{codes_of}: ours"], us.get(f"{codes_of}: torch")
            row = {"size": f"{m} x {n} x {k}", "codes": codes_of, "us": round(ours, 1)}
            row["tflop_per_s"] = round(2e-6 * m * n * k / ours)
            row["torch_us"] = None if theirs is None else round(theirs, 1)
            row["bf16_us"] = round(us["bf16: torch"], 1)
            rows.append(row)
            print(" ", row)
        torch.cuda.empty_cache()
    if args.json:
        record.write(args.json, rows, **this_run())


if __name__ == "__main__":
    main()
