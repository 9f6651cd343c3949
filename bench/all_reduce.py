"""Times the sum over GPUs with the norm after it: our kernel, and XLA's all-reduce followed by fused_add_rms_norm.

Usage: all_reduce.py [--devices 2] [--columns 4096] [--dtype bf16] [--rows 1 4 16 64 256] [--calls 256]

A program of calls that depend on each other, so that each waits for all devices. The floor is what a device sends,
at NVLink's 450 GB/s a direction on an H200, and what it reads and writes of its own memory.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
from intarsia._dtypes import numpy_dtype
from intarsia._steps import compile_step
from intarsia.jax import Exchange, all_reduce_fused_add_rms_norm, make_exchange

_AXIS = "model"
_NVLINK = 450e9
_MEMORY = 4.2e12  # bytes a second, what copies on an H200 reach (docs/notebook/ops.md)
_RUNS = 51
_WARM_UP_SECONDS = 0.5


def seconds_a_call(
    mesh: jax.sharding.Mesh,
    rows: jax.Array,
    weight: jax.Array,
    exchange: Exchange | None,
    calls: int,
) -> float:
    """The median over runs of a program; rows [devices, t, n] are each device's first part of the sum."""

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(_AXIS), P(), P(_AXIS)),
        out_specs=P(_AXIS),
        check_vma=False,
    )
    def chain(x, weight, exchange):
        residual = x
        for _ in range(calls):
            x, residual = all_reduce_fused_add_rms_norm(
                x, residual, weight, axis_name=_AXIS, exchange=exchange
            )
        return x

    program = compile_step(jax.jit(chain).lower(rows, weight, exchange))
    times: list[float] = []
    while sum(times) < _WARM_UP_SECONDS:  # until clocks are up
        times.append(_seconds(program, rows, weight, exchange))
    return (
        statistics.median(_seconds(program, rows, weight, exchange) for _ in range(_RUNS)) / calls
    )


def _seconds(program: jax.stages.Compiled, *operands: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(program(*operands))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--dtype", default="bf16", choices=["f32", "f16", "bf16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--calls", type=int, default=256, help="in a program")
    args = parser.parse_args()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: args.devices]), (_AXIS,))
    dtype = numpy_dtype(args.dtype)
    exchange = make_exchange(
        mesh, _AXIS, columns=args.columns, dtype=dtype, max_rows=max(args.rows)
    )
    if exchange is None:
        raise SystemExit("these devices cannot write to each other's memory: nothing to compare")
    print(f"{args.devices} x {jax.devices()[0].device_kind}, jax {jax.__version__}, {args.dtype}")
    rng = np.random.default_rng(0)
    weight = jax.device_put(
        jnp.asarray(rng.standard_normal(args.columns), dtype), jax.NamedSharding(mesh, P())
    )
    for count in args.rows:
        host = rng.standard_normal((args.devices * count, args.columns)).astype(dtype)
        rows = jax.device_put(host, jax.NamedSharding(mesh, P(_AXIS)))
        ours, xla = (
            1e6 * seconds_a_call(mesh, rows, weight, e, args.calls) for e in (exchange, None)
        )
        one = count * args.columns * dtype.itemsize
        floor = 1e6 * ((args.devices - 1) * one / _NVLINK + (4 * one + weight.nbytes) / _MEMORY)
        print(
            f"{count:4} x {args.columns}: ours {ours:6.2f} us, XLA {xla:6.2f} us ({xla / ours:.2f} times), floor {floor:.2f} us",
            flush=True,
        )


if __name__ == "__main__":
    main()
