"""Times products with int4 weights in groups of 128 beside vLLM's compiled Marlin, in one run on one GPU.

Usage: marlin.py --torch-ops LIBRARY [--rows 1 16 64 ...] [--json FILE]

LIBRARY is `vllm/_C_stable_libtorch.abi3.so` of vLLM's wheel. Layers are the four linear ones of a Llama of 8 billion parameters, bf16. A
figure is microseconds a call, launch included, the median over rounds in which both have their turn, of calls in a CUDA graph that meet
different weights, more than the L2 cache holds. Before that both multiply the same codes, and their results are compared.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import intarsia.torch  # noqa: F401  registers the ops
import record
from intarsia import repack
from intarsia._packing import decoded
from torch_graphs import medians, this_run

LAYERS = {"wqkv": (6144, 4096), "wo": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
GROUP, COLD_BYTES = 128, 3e8
# vLLM's ScalarType of an unsigned code of 4 bits less 8: mantissa, bias, and how NaN is written.
UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50


def ways(packed, scales, tiles, scales_t, n: int, k: int) -> list[Callable]:
    """Both, as functions of x and of which copy of the weights they take."""
    workspace = torch.zeros(1024, dtype=torch.int32, device="cuda")

    def ours(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.ops.xla_gpu.linear_quantized(
            x, packed[i], scales[i], format="u4b8", group=GROUP
        )

    def marlin(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.ops._C.marlin_gemm(
            x, None, tiles[i], None, scales_t[i], None, None, None, workspace, UINT4B8,
            x.shape[0], n, k, False, True, False,
        )  # fmt: skip

    return [ours, marlin]


def random_ways(n: int, k: int, copies: int) -> list[Callable]:
    def codes(kind: torch.dtype, low: int, high: int, *shape: int) -> list[torch.Tensor]:
        return [torch.randint(low, high, shape, dtype=kind, device="cuda") for _ in range(copies)]

    def scales(*shape: int) -> list[torch.Tensor]:
        return [(torch.rand(shape, device="cuda") * 0.02).bfloat16() for _ in range(copies)]

    return ways(
        codes(torch.uint8, 0, 256, n // 16, k // 32, 4, 16, 4),
        scales(n // 16, k // GROUP, 16),
        codes(torch.int32, -(2**31), 2**31, k // 16, 2 * n),
        scales(k // GROUP, n),
        n,
        k,
    )


def compare() -> None:
    """Both ways of the same product beside f64. With equal scales Marlin's own order of them does not matter."""
    n, k, rng = 512, 1024, np.random.default_rng(0)
    words = rng.integers(-(2**31), 2**31, (k // 8, n)).astype(np.int32)
    scales = np.full((k // GROUP, n), 1 / 64, np.float32)
    weight = repack.from_gptq(words, None, scales)
    tiles = torch.ops._C.gptq_marlin_repack(torch.from_numpy(words).cuda(), k, n, 4, False)
    x = torch.randn(16, k, device="cuda").bfloat16()
    want = x.double() @ torch.from_numpy(decoded(weight)).cuda().double().t()
    both = ways(
        [torch.from_numpy(weight.packed).cuda()],
        [torch.from_numpy(weight.scales).cuda().bfloat16()],
        [tiles],
        [torch.from_numpy(scales).cuda().bfloat16()],
        n,
        k,
    )
    for name, way in zip(("ours", "Marlin"), both, strict=True):
        error = float((way(x, 0).double() - want).norm() / want.norm())
        print(f"{name}: off by {error:.1e} from f64")
        assert error < 6e-3, name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-ops", required=True, help="vLLM's library")
    parser.add_argument("--vllm", default="0.32.0", help="the wheel's version, for --json")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--json", type=pathlib.Path, help="file of bench/results to write")
    args = parser.parse_args()
    torch.ops.load_library(args.torch_ops)
    compare()
    rows = []
    for m in args.rows:
        total = {"ours": 0.0, "Marlin": 0.0}
        for layer, (n, k) in LAYERS.items():
            copies = int(COLD_BYTES / (n * k / 2)) + 1
            x = torch.randn(m, k, device="cuda").bfloat16()
            ours, marlin = random_ways(n, k, copies)
            us = medians(
                {
                    "ours": lambda i, f=ours, x=x: f(x, i),
                    "Marlin": lambda i, f=marlin, x=x: f(x, i),
                },
                copies,
            )
            rows.append({"rows": m, "layer": layer} | _figures(us))
            total = {name: total[name] + us[name] for name in total}
        rows.append({"rows": m, "layer": "all four"} | _figures(total))
        for row in rows[-len(LAYERS) - 1 :]:
            print(f"{m:4} rows {row['layer']:9} ours {row['us']:7.1f} us, Marlin {row['marlin_us']:7.1f}, "
                  f"{row['marlin_us'] / row['us']:.2f}")  # fmt: skip
    if args.json:
        record.write(args.json, rows, **this_run(vllm=args.vllm))


def _figures(us: dict[str, float]) -> dict[str, float]:
    return {"us": round(us["ours"], 1), "marlin_us": round(us["Marlin"], 1)}


if __name__ == "__main__":
    main()
