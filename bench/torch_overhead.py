"""What a call of an op costs through torch's dispatcher, where the work itself is next to nothing.

Usage: torch_overhead.py [--device cpu|cuda] [--torch-ops LIBRARY] [--rounds 300] [--calls 300] [--columns 8]

On a GPU calls are only launched, and the figure is what a launch costs the caller. LIBRARY: one with vLLM's
`_C::rms_norm`, which writes into a tensor of the caller's; docs/notebook/torch.md says how to get one for the CPU. For a GPU it is
`vllm/_C_stable_libtorch.abi3.so` of vLLM's wheel, or `vllm/_C.abi3.so` of an older one.
"""

import argparse
import contextlib
import statistics
import timeit
from collections.abc import Callable

import intarsia.torch  # noqa: F401  registers the ops
import torch

OURS, THEIRS = "xla_gpu::rms_norm", "vLLM's _C::rms_norm"


@torch.library.custom_op("intarsia_bench::rms_norm", mutates_args=())
def in_python(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The way without C++."""
    return torch.ops.xla_gpu.rms_norm(x, weight)


def calls(
    device: str, columns: int, torch_ops: str | None
) -> dict[str, Callable[[], torch.Tensor]]:
    """What is timed, by name."""
    x, weight = torch.ones(1, columns, device=device), torch.ones(columns, device=device)
    out = torch.empty_like(x)
    op, aten = torch.ops.xla_gpu, torch.ops.aten
    theirs = {}
    if torch_ops:
        torch.ops.load_library(torch_ops)
        rms_norm = torch.ops._C.rms_norm.default
        theirs[THEIRS] = lambda: rms_norm(out, x, weight, 1e-6)
        theirs[f"{THEIRS} and torch.empty_like"] = lambda: rms_norm(
            torch.empty_like(x), x, weight, 1e-6
        )
    return theirs | {
        "aten::add, the bare op": lambda: aten.add.Tensor(x, x),
        "xla_gpu::simple_add": lambda: op.simple_add.default(x, x),
        OURS: lambda: op.rms_norm.default(x, weight),
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
    parser.add_argument("--columns", type=int, default=8, help="of the one row")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # Many short rounds, all taking turns. What is above the least is other programs' doing.
    timed = calls(args.device, args.columns, args.torch_ops)
    seconds = {(name, mode): [] for name in timed for mode in MODES}
    for _ in range(args.rounds):
        for name, function in timed.items():
            for mode, context in MODES.items():
                with context():
                    once = timeit.timeit(function, number=args.calls) / args.calls
                seconds[name, mode].append(once)
                if args.device == "cuda":
                    torch.cuda.synchronize()
    where = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    print(
        f"torch {torch.__version__}, {where}, f32 [1, {args.columns}], us a call: least and median"
    )
    print(f"{'':50}" + "".join(f"{mode:>20}" for mode in MODES))
    for name in timed:
        print(f"{name:50}" + "".join(_figures(seconds[name, mode]) for mode in MODES))
    if args.torch_ops:
        ratios = [_ratios(seconds[OURS, mode], seconds[THEIRS, mode]) for mode in MODES]
        print(f"{f'{OURS} over {THEIRS}':50}" + "".join(ratios))


MODES = {"inference_mode": torch.inference_mode, "autograd": contextlib.nullcontext}


def _figures(seconds: list[float]) -> str:
    return f"{1e6 * min(seconds):12.2f}{1e6 * statistics.median(seconds):8.2f}"


def _ratios(ours: list[float], theirs: list[float]) -> str:
    least, median = min(ours) / min(theirs), statistics.median(ours) / statistics.median(theirs)
    return f"{least:11.2f}x{median:7.2f}x"


if __name__ == "__main__":
    main()
