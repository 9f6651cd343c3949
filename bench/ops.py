"""Times every op's bench cases against plain XLA's version of the same function, in one run.

Usage: ops.py [--platform cpu|gpu] [--op NAME ...] [--case NAME ...] [--dtype bf16] [--json FILE]

Many calls, on inputs that rotate through more memory than a cache holds (small ones chained, as in
a model), stand in one compiled program, so that launches overlap as in a real step. A figure is the
difference between programs of 2n and of n calls, a median over runs each, over n: what launching a
program costs cancels. `share` is of the ceiling measured in the same run: bytes a second of a large
copy, or flops of a large matmul, whichever bound of the case is the higher. Inputs are random,
never zeros.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parent.parent / d) for d in ("bench", "tests", "python")]
import record  # noqa: E402
import support  # noqa: E402
from intarsia import _native  # noqa: E402
from intarsia.jax import call  # noqa: E402

_REPEATS, _IN_FLIGHT = 9, 2
_ATTEMPTS = 3  # on a busy machine
_TAG = {"cpu": "bench_cpu", "gpu": "bench"}
# Enough that neither a GPU's L2 cache nor a CPU's last level holds them.
_ROTATE_BYTES = {"cpu": 1 << 28, "gpu": 400 << 20}
_PROGRAM_SECONDS = 2e-3  # at the floor's speed
_CALLS = (4, 100)  # of the shorter program: at least, at most
_CHAINED_BYTES = 16 << 20  # below it a model's activations are in the cache, as in a chain of calls


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


class TooNoisyError(Exception):
    """The machine is too busy for a figure."""


def _seconds(run: Callable[[], object]) -> list[float]:
    """Of runs, of which several are in flight at once: the host works while the device does."""
    for _ in range(3):
        jax.block_until_ready(run())
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(_IN_FLIGHT):
            last = run()
        jax.block_until_ready(last)
        times.append((time.perf_counter() - start) / _IN_FLIGHT)
    return times


def seconds_per_call(short: list[float], long: list[float], calls: int) -> float:
    """From runs of programs of `calls` and of twice as many calls.

    Raises:
      TooNoisyError: half of the runs spread by as much as those calls take.
    """
    difference = statistics.median(long) - statistics.median(short)
    noise = _spread(short) + _spread(long)
    if difference <= noise:
        raise TooNoisyError(
            f"{calls} calls took {1e6 * difference:.1f} us, and runs differ by {1e6 * noise:.1f} us"
        )
    return difference / calls


def _spread(times: list[float]) -> float:
    """How far apart the middle half of the times lies."""
    quarters = statistics.quantiles(times, n=4)
    return quarters[2] - quarters[0]


Operands = Sequence[jax.Array | None]
Function = Callable[[Operands], Sequence[jax.Array]]


def _aliases(op: str) -> dict[int, int]:
    """Which operand (by position) the op writes in place, and the result that holds it then."""
    info = _native.main_library().find(op)
    names = [operand["name"] for operand in info.operands]
    return {names.index(r["alias"]): i for i, r in enumerate(info.results) if r["alias"]}


def _program(function: Function, aliases: dict[int, int], *, chained: bool) -> Callable:
    """One jitted program of a call for each element of `calls`.

    What a call writes in place is donated, and passed on to the next call of its set. If chained,
    its first result is the next call's first operand, as one layer's is the next one's, and only
    the last is returned; else every call has parameters of its own, or XLA would merge calls that
    it sees to be the same, and all results are returned, or XLA would drop them.
    """

    def run(written: list[dict[int, jax.Array]], calls: list[Operands]) -> tuple:
        written, outs = list(written), []
        for i, operands in enumerate(calls):
            k = i % len(written)
            operands = [written[k].get(j, x) for j, x in enumerate(operands)]
            if chained and outs:
                # The barrier keeps XLA from fusing what stands for separate layers.
                operands[0] = jax.lax.optimization_barrier(outs.pop()[0])
            results = function(operands)
            written[k] = {at: results[r] for at, r in aliases.items() if at in written[k]}
            outs.append([x for r, x in enumerate(results) if r not in aliases.values()])
        return written, outs

    return jax.jit(run, donate_argnums=0)


def _time_calls(
    function: Function, aliases: dict[int, int], sets: list[Operands], calls: int
) -> float:
    """Seconds of one call."""
    first, *_ = jax.eval_shape(function, sets[0])
    operand = sets[0][0]
    small = _bytes(sets[0]) < _CHAINED_BYTES
    chained = small and (first.shape, first.dtype) == (operand.shape, operand.dtype)
    program = _program(function, aliases, chained=chained)
    # Copies, since donation consumes them.
    written = [{at: jnp.copy(x[at]) for at in aliases if x[at] is not None} for x in sets]
    inputs = [[None if i in aliases else x for i, x in enumerate(one)] for one in sets]

    def program_seconds(calls: int) -> list[float]:
        operands = [inputs[i % len(inputs)] for i in range(calls)]

        def run() -> list:
            nonlocal written
            written, outs = program(written, operands)
            return [written, outs]

        return _seconds(run)

    for attempt in range(_ATTEMPTS):
        try:
            return seconds_per_call(program_seconds(calls), program_seconds(2 * calls), calls)
        except TooNoisyError:
            if attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError


def measure_ceilings(platform: str) -> Ceilings:
    """A large copy and a large bf16 (CPU: f32) matmul, as XLA does them."""
    size = 1 << (28 if platform == "gpu" else 26)
    n, dtype = (8192, jnp.bfloat16) if platform == "gpu" else (2048, jnp.float32)
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [[jax.random.normal(key, (size // 4,), jnp.float32)] for key in keys[:2]]
    matrices = [[jax.random.normal(key, (n, n), dtype)] for key in keys[2:]]
    copy = _time_calls(lambda x: [x[0] * 1.0000001], {}, arrays, 8)
    dot = _time_calls(lambda x: [x[0] @ x[0]], {}, matrices, 4)
    return Ceilings(2 * size / copy, 2 * n**3 / dot)


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
    moved, flops = module.floor(np.dtype(support.DTYPES[dtype]).itemsize, **case)
    floor_us = 1e6 * max(moved / ceilings.bytes_per_s, flops / ceilings.flops_per_s)
    calls = int(np.clip(_PROGRAM_SECONDS / (floor_us * 1e-6 + 1e-9), *_CALLS))
    hints = getattr(module, "plain_xla_hints", lambda **_: {})(**case)
    us = 1e6 * _time_calls(lambda x: call(op, x, **attributes), aliases, inputs, calls)
    try:
        plain = functools.partial(module.plain_xla, **attributes, **hints)
        xla_us = 1e6 * _time_calls(lambda x: plain(*x), aliases, inputs, calls)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        xla_us = None  # plain XLA's version does not fit into the device's memory
    return Row(
        op, name, dtype, us, xla_us, floor_us, moved / us / 1e3, flops / us / 1e6, floor_us / us
    )


def _put(operands: Sequence[np.ndarray | None]) -> list[jax.Array | None]:
    return [None if x is None else jnp.asarray(x) for x in operands]


def _print(row: Row) -> None:
    in_flops = row.tflop_per_s > 1
    rate = f"{row.tflop_per_s:8.1f} TFLOP/s" if in_flops else f"{row.gb_per_s:8.0f} GB/s   "
    xla = f"{row.xla_us:>12.1f} us {row.ratio:>7.2f}x" if row.ratio else "  out of memory       -"
    print(
        f"{row.op:<24}{row.case:<32}{row.dtype:<6}{row.us:>10.1f} us {rate} {row.share:>6.1%}{xla}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--op", action="append", help="only this op; may be given several times")
    parser.add_argument("--case", action="append", help="only this case; several as above")
    parser.add_argument("--dtype", choices=tuple(support.DTYPES), help="default: bf16 (CPU: f32)")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here")
    args = parser.parse_args()
    device = jax.devices(args.platform)[0]
    jax.config.update("jax_default_device", device)
    dtype = args.dtype or ("bf16" if args.platform == "gpu" else "f32")
    try:
        ceilings = measure_ceilings(args.platform)
    except TooNoisyError as error:
        sys.exit(f"too noisy to measure this machine's ceilings: {error}")
    print(
        f"{device.device_kind}, jax {jax.__version__}, intarsia {_native.main_library().version}; "
        f"copy {ceilings.bytes_per_s / 1e9:.0f} GB/s, "
        f"matmul {ceilings.flops_per_s / 1e12:.2f} TFLOP/s"
    )
    print(
        f"{'op':<24}{'case':<32}{'dtype':<6}{'ours':>13} {'rate':<16} {'share':>6}"
        f"{'XLA':>15} {'ratio':>8}"
    )
    rows, refused = [], 0
    platform = {"cpu": "cpu", "gpu": "cuda"}[args.platform]
    for op in args.op or support.op_names(platform):
        for name, case in support.cases(op, _TAG[args.platform]).items():
            if args.case and name not in args.case:
                continue
            try:
                rows.append(time_case(op, name, case, dtype, ceilings, args.platform))
            except TooNoisyError as error:
                refused += 1
                print(f"{op:<24}{name:<32}{dtype:<6}too noisy: {error}", flush=True)
            else:
                _print(rows[-1])
    if args.json:
        record.write(
            args.json,
            [asdict(row) | {"ratio": row.ratio} for row in rows],
            device=device.device_kind,
            versions={"jax": jax.__version__},
            command="python " + " ".join(sys.argv),
            ceilings=asdict(ceilings),
        )
    if refused:
        sys.exit(f"{refused} cases without a figure: the machine is too busy")


if __name__ == "__main__":
    main()
