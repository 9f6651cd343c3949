"""Times of `linear_quantized` and `fused_experts_quantized` with many rows of bf16 on a GPU: in codes, and with weights decoded first.

python bench/many_rows.py [--weights Q6_K nvfp4] [--rows 16 64] [--json FILE]
"""

import argparse
import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import record
from experts import routed
from experts_whole import LAYERS
from intarsia._packing import FORMATS
from intarsia.jax import _decoding, _quantized
from jax import lax, random

Row = dict[str, Any]


class Weights(NamedTuple):
    """How a layer's weights are in codes."""

    format: str
    group: int
    scales: Any = jnp.float16
    zeros: Any = None
    outer_columns: int = 0
    """That share outer factors, in f16; 0: there are none."""
    points: bool = False
    """Whether zeros are, or minimums."""


LINEAR = {
    "int4, groups of 128": Weights("u4b8", 128),
    "AWQ": Weights("u4", 128, zeros=jnp.uint8, points=True),
    "mxfp4": Weights("e2m1", 32, jnp.float8_e8m0fnu),
    "nvfp4": Weights("e2m1", 16, jnp.float8_e4m3fn),
    "fp8 in blocks of 128": Weights("e4m3", 128),
    "Q8_0": Weights("i8", 32),
    "Q4_0": Weights("u4b8", 32),
    "Q4_1": Weights("u4", 32, zeros=jnp.float16),
    "Q4_K": Weights("u4", 32, jnp.uint8, jnp.uint8, 256),
    "Q5_0": Weights("u5b16", 32),
    "Q6_K": Weights("u6b32", 16, jnp.int8, None, 256),
}
COLUMNS, RESULTS = 4096, 28672
_OF_EXPERTS = ("int4, groups of 128", "mxfp4", "nvfp4")
EXPERTS = {"Qwen3-30B-A3B": "qwen3_30b_a3b", "gpt-oss-20b": "gpt_oss_20b"}
_KEY = random.key(0)
_CALLS = 20


def _codes(*shape: int, format: str) -> jax.Array:
    codes = random.bits(_KEY, shape, jnp.uint8)
    return codes & 0x7E if format == "e4m3" else codes  # none is NaN


def _factors(*shape: int, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.integer):
        return random.randint(_KEY, shape, 1, 16, jnp.int32).astype(dtype)
    if dtype == jnp.float8_e8m0fnu:
        powers = random.randint(_KEY, shape, 118, 123).astype(jnp.uint8)
        return lax.bitcast_convert_type(powers, dtype)
    return random.uniform(_KEY, shape, jnp.float32, 0.01, 0.1).astype(dtype)


def _seconds(function: Callable[..., jax.Array], operands: tuple[jax.Array | None, ...]) -> float:
    run = jax.jit(function)
    run(*operands).block_until_ready()

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            out = run(*operands)
        out.block_until_ready()
        return (time.perf_counter() - begin) / _CALLS

    return statistics.median(once() for _ in range(3))


def _both(function: Callable[..., jax.Array], operands: tuple[jax.Array | None, ...]) -> Row:
    """Times in us; no number of rows is decoded first, then every one."""
    times = {}
    for name, fewest in (("in_codes_us", 1 << 40), ("decoded_first_us", 1)):
        _decoding.LINEAR = _decoding.EXPERTS = _decoding.Fewest(fewest, fewest, fewest)
        _quantized._function.cache_clear()
        jax.clear_caches()
        times[name] = round(1e6 * _seconds(lambda *a: function(*a), operands), 1)
    return times


def linear_layers(names: Sequence[str], counts: Sequence[int]) -> list[Row]:
    rows = []
    tiles = RESULTS // 16
    for name in names:
        of = LINEAR[name]
        packed = _codes(tiles, COLUMNS // 32, FORMATS[of.format].bits, 16, 4, format=of.format)
        groups = (tiles, COLUMNS // of.group, 16)
        scales = _factors(*groups, dtype=of.scales)
        zeros = None if of.zeros is None else _factors(*groups, dtype=of.zeros)
        outer = None
        if of.outer_columns:
            outer = _factors(tiles, COLUMNS // of.outer_columns, 16, dtype=jnp.float16)
        layer = functools.partial(
            ij.linear_quantized,
            format=of.format,
            group=of.group,
            zeros_are="points" if of.points else "minimums",
        )
        for m in counts:
            x = random.normal(_KEY, (m, COLUMNS), jnp.bfloat16)
            outer_zeros = None if zeros is None else outer
            operands = (x, packed, scales, zeros, outer, outer_zeros)
            rows.append({"layer": "linear", "weights": name, "rows": m} | _both(layer, operands))
            print(rows[-1], flush=True)
    return rows


def experts(names: Sequence[str], counts: Sequence[int]) -> list[Row]:
    rows = []
    for name, layer_of in EXPERTS.items():
        count, top, n, i, activation = LAYERS[layer_of]
        for weights in names:
            format, group, scales, *_ = LINEAR[weights]
            w1 = _codes(count, i // 8, n // 32, 4, 16, 4, format=format)
            w2 = _codes(count, n // 16, i // 32, 4, 16, 4, format=format)
            s1 = _factors(count, i // 8, -(-n // group), 16, dtype=scales)
            s2 = _factors(count, n // 16, -(-i // group), 16, dtype=scales)
            layer = functools.partial(
                ij.fused_experts_quantized,
                format=format,
                w1_group=group,
                w2_group=group,
                activation=activation,
            )
            for tokens in counts:
                x = random.normal(_KEY, (tokens, n), jnp.bfloat16)
                ids = routed(np.random.default_rng(0), tokens, count, top, zipf=False)
                share = jnp.full((tokens, top), 1 / top, jnp.float32)
                times = _both(layer, (x, w1, s1, w2, s2, share, jnp.asarray(ids)))
                rows.append({"layer": name, "weights": weights, "rows": tokens} | times)
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    parser.add_argument("--weights", nargs="+", choices=LINEAR, default=list(LINEAR))
    parser.add_argument(
        "--rows",
        nargs="+",
        type=int,
        help="of x; experts have twice as many, so that each has its share",
    )
    args = parser.parse_args()
    path, of_linear = args.json, args.rows or (512, 1024, 2048, 4096)
    of_experts = [name for name in _OF_EXPERTS if name in args.weights]
    rows = linear_layers(args.weights, of_linear) + experts(of_experts, [2 * m for m in of_linear])
    if path:
        facts = {"versions": {"jax": jax.__version__}, "command": "python bench/many_rows.py"}
        record.write(path, rows, device=jax.devices()[0].device_kind, **facts)


if __name__ == "__main__":
    main()
