"""What a call of an op costs through torch's dispatcher, where the work itself is next to nothing.

Usage: torch_overhead.py [--device cpu|cuda] [--torch-ops LIBRARY] [--rounds 300] [--calls 300]

On a GPU calls are only launched, and the figure is what a launch costs the caller. LIBRARY: one with vLLM's
`_C::rms_norm`, which writes into a tensor of the caller's; docs/facts.md says how to get one for the CPU.
"""

import argparse
import contextlib
import timeit
from collections.abc import Callable

import intarsia.torch  # noqa: F401  registers the ops
import torch

SHAPE = (1, 8)


@torch.library.custom_op("intarsia_bench::rms_norm", mutates_args=())
def in_python(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The way without C++."""
    return torch.ops.xla_gpu.rms_norm(x, weight)


def calls(device: str, torch_ops: str | None) -> dict[str, Callable[[], torch.Tensor]]:
    """What is timed, by name."""
    x, weight = torch.ones(SHAPE, device=device), torch.ones(SHAPE[-1], device=device)
    out = torch.empty_like(x)
    op, aten = torch.ops.xla_gpu, torch.ops.aten
    theirs = {}
    if torch_ops:
        torch.ops.load_library(torch_ops)
        theirs["vLLM's _C::rms_norm"] = lambda: torch.ops._C.rms_norm.default(out, x, weight, 1e-6)
    return theirs | {
        "aten::add, the bare op": lambda: aten.add.Tensor(x, x),
        "xla_gpu::simple_add": lambda: op.simple_add.default(x, x),
        "xla_gpu::rms_norm": lambda: op.rms_norm.default(x, weight),
        "xla_gpu::rms_norm by torch.ops.xla_gpu.rms_norm": lambda: op.rms_norm(x, weight),
        "torch.library.custom_op around it": lambda: in_python(x, weight),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--torch-ops", help="a library with _C::rms_norm to compare with")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--calls", type=int, default=300, help="of each, one after the other, in a round"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    modes = {"inference_mode": torch.inference_mode, "autograd": contextlib.nullcontext}
    # The least of many short rounds, all taking turns: what is above it is other programs' doing.
    timed = calls(args.device, args.torch_ops)
    least = {(name, mode): float("inf") for name in timed for mode in modes}
    for _ in range(args.rounds):
        for name, function in timed.items():
            for mode, context in modes.items():
                with context():
                    seconds = timeit.timeit(function, number=args.calls) / args.calls
                least[name, mode] = min(least[name, mode], seconds)
                if args.device == "cuda":
                    torch.cuda.synchronize()
    print(f"torch {torch.__version__}, {args.device}, us a call")
    print(f"{'':50}" + "".join(f"{mode:>16}" for mode in modes))
    for name in timed:
        print(f"{name:50}" + "".join(f"{1e6 * least[name, mode]:16.2f}" for mode in modes))


if __name__ == "__main__":
    main()
