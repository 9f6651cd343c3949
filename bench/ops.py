"""Times every op's bench cases against plain XLA's version of the same function, in one run.

Usage: ops.py [--platform cpu|gpu] [--op NAME ...] [--dtype bf16] [--json FILE]

A figure is the median over runs of one compiled program that holds many calls, each on inputs of its
own, so that launches overlap as in a real step and no call finds its inputs in the cache. `share` is of
the ceiling measured in the same run: bytes a second of a large copy, or flops of a large matmul,
whichever bound of the case is the higher. Inputs are random, never zeros.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parent.parent / d) for d in ("tests", "python")]
import support  # noqa: E402

from intarsia import _native  # noqa: E402
from intarsia.jax import call  # noqa: E402

_RUNS = 15
_TAG = {"cpu": "bench_cpu", "gpu": "bench"}
# Enough that neither a GPU's L2 cache nor a CPU's last level holds them.
_ROTATE_BYTES = {"cpu": 1 << 28, "gpu": 400 << 20}
_PROGRAM_SECONDS = 2e-3  # so that the program's own launch is noise
_MAX_CALLS = 200


@dataclass(frozen=True)
class Ceilings:
    """What this device does at best: bytes (read and written) and flops a second."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Row:
    """One case's result; times in microseconds a call."""

    op: str
    case: str
    dtype: str
    us: float
    xla_us: float | None
    floor_us: float
    gb_per_s: float
    tflop_per_s: float
    share: float

    @property
    def ratio(self) -> float | None:
        return self.xla_us / self.us if self.xla_us else None


def _median_seconds(run: Callable[[], object], runs: int = _RUNS) -> float:
    for _ in range(3):
        jax.block_until_ready(run())
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_ceilings(platform: str) -> Ceilings:
    """A large copy and a large bf16 (CPU: f32) matmul, as XLA does them."""
    size = 1 << (30 if platform == "gpu" else 26)
    x = jax.random.normal(jax.random.key(0), (size // 4,), jnp.float32)
    copy = jax.jit(lambda x: x * 1.0000001)
    n, dtype = (8192, jnp.bfloat16) if platform == "gpu" else (2048, jnp.float32)
    a = jax.random.normal(jax.random.key(1), (n, n), dtype)
    dot = jax.jit(lambda a: a @ a)
    return Ceilings(
        2 * size / _median_seconds(lambda: copy(x)), 2 * n**3 / _median_seconds(lambda: dot(a))
    )


Operands = Sequence[jax.Array | None]
Function = Callable[[Operands], Sequence[jax.Array]]


def _aliases(op: str) -> dict[int, int]:
    """Which operand (by position) the op writes in place, and the result that holds it then."""
    info = _native.main_library().find(op)
    names = [operand["name"] for operand in info.operands]
    return {names.index(r["alias"]): i for i, r in enumerate(info.results) if r["alias"]}


def _program(function: Function, aliases: dict[int, int], calls: int) -> Callable:
    """One jitted program of `calls` calls one after the other, cycling through sets of inputs.

    What a call writes in place is donated, and passed on to the set's next call.
    """

    def run(written: list[dict[int, jax.Array]], inputs: list[Operands]) -> tuple:
        written, out, outs = list(written), (), []
        for i in range(calls):
            k = i % len(inputs)
            caches = {at: x for at, x in written[k].items() if inputs[k][at] is None}
            operands, out = jax.lax.optimization_barrier((_merged(inputs[k], caches), out))
            results = function(operands)
            written[k] = {at: results[r] for at, r in aliases.items() if at in caches}
            out = tuple(x for r, x in enumerate(results) if r not in aliases.values())
            outs.append(out)  # all are returned, or XLA would drop the calls
        return written, outs

    return jax.jit(run, donate_argnums=0)


def _merged(operands: Operands, written: dict[int, jax.Array]) -> list[jax.Array | None]:
    return [written.get(i, x) for i, x in enumerate(operands)]


def _time_calls(function: Function, aliases: dict[int, int], sets: list[Operands]) -> float:
    """Median seconds of one call."""
    # Copies, since donation consumes them.
    written = [
        {at: jnp.copy(x[at]) for at in aliases if x[at] is not None} for x in sets
    ]
    inputs = [[None if i in aliases else x for i, x in enumerate(one)] for one in sets]

    def seconds(calls: int, runs: int) -> float:
        nonlocal written
        program = _program(function, aliases, calls)

        def run() -> tuple:
            nonlocal written
            written, outs = program(written, inputs)
            return written, outs

        return _median_seconds(run, runs) / calls

    once = seconds(1, runs=3)
    return seconds(int(np.clip(_PROGRAM_SECONDS / once, len(sets), max(_MAX_CALLS, len(sets)))), _RUNS)


def _bytes(operands: Sequence[np.ndarray | None]) -> int:
    return sum(x.nbytes for x in operands if x is not None)


def time_case(op: str, name: str, case: dict, dtype: str, ceilings: Ceilings, platform: str) -> Row:
    """Times one case of one op, and plain XLA's version where the op's module has one."""
    module = support.op_module(op)
    rng = np.random.default_rng(0)
    first, attributes = module.arguments(rng, support.DTYPES[dtype], **case)
    sets = int(np.clip(_ROTATE_BYTES[platform] // max(_bytes(first), 1) + 1, 2, 40))
    inputs = [_put(first)]
    for _ in range(sets - 1):
        inputs.append(_put(module.arguments(rng, support.DTYPES[dtype], **case)[0]))
    aliases = _aliases(op)
    us = 1e6 * _time_calls(lambda x: call(op, x, **attributes), aliases, inputs)
    xla_us = 1e6 * _time_calls(lambda x: module.plain_xla(*x, **attributes), aliases, inputs)
    moved, flops = module.floor(np.dtype(support.DTYPES[dtype]).itemsize, **case)
    floor_us = 1e6 * max(moved / ceilings.bytes_per_s, flops / ceilings.flops_per_s)
    return Row(
        op, name, dtype, us, xla_us, floor_us, moved / us / 1e3, flops / us / 1e6, floor_us / us
    )


def _put(operands: Sequence[np.ndarray | None]) -> list[jax.Array | None]:
    return [None if x is None else jnp.asarray(x) for x in operands]


def _print(row: Row) -> None:
    rate = f"{row.tflop_per_s:8.1f} TFLOP/s" if row.tflop_per_s > 1 else f"{row.gb_per_s:8.0f} GB/s   "
    print(
        f"{row.op:<24}{row.case:<28}{row.dtype:<6}{row.us:>10.1f} us {rate} {row.share:>6.1%}"
        f"{row.xla_us:>12.1f} us {row.ratio:>7.2f}x",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--op", action="append", help="only this op; may be given several times")
    parser.add_argument("--dtype", choices=tuple(support.DTYPES), help="default: bf16 (CPU: f32)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here")
    args = parser.parse_args()
    device = jax.devices(args.platform)[0]
    jax.config.update("jax_default_device", device)
    dtype = args.dtype or ("bf16" if args.platform == "gpu" else "f32")
    ceilings = measure_ceilings(args.platform)
    print(
        f"{device.device_kind}, jax {jax.__version__}, intarsia {_native.main_library().version}; "
        f"copy {ceilings.bytes_per_s / 1e9:.0f} GB/s, matmul {ceilings.flops_per_s / 1e12:.2f} TFLOP/s"
    )
    print(f"{'op':<24}{'case':<28}{'dtype':<6}{'ours':>13} {'rate':<16} {'share':>6}{'XLA':>15} {'ratio':>8}")
    rows = []
    for op in args.op or support.op_names():
        for name, case in support.cases(op, _TAG[args.platform]).items():
            rows.append(time_case(op, name, case, dtype, ceilings, args.platform))
            _print(rows[-1])
    if args.json:
        figures = dict(
            device=device.device_kind,
            jax=jax.__version__,
            date=time.strftime("%Y-%m-%d"),
            command="python " + " ".join(sys.argv),
            ceilings=asdict(ceilings),
            rows=[asdict(row) | {"ratio": row.ratio} for row in rows],
        )
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
