"""Times of `linear_quantized` and `fused_experts_quantized` with many rows of bf16 on a GPU: in codes, and with weights decoded first.

python bench/many_rows.py [--json FILE]
"""

import argparse
import functools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import record
from experts import routed
from experts_whole import LAYERS
from intarsia.jax import _decoding, _quantized
from jax import lax, random

Row = dict[str, Any]
# Of a layer: format, columns of a group, type of zeros.
LINEAR = {
    "int4, groups of 128": ("u4b8", 128, None),
    "AWQ": ("u4", 128, jnp.uint8),
    "mxfp4": ("e2m1", 32, None),
    "fp8 in blocks of 128": ("e4m3", 128, None),
    "Q8_0": ("i8", 32, None),
    "Q4_0": ("u4b8", 32, None),
    "Q4_1": ("u4", 32, jnp.float16),
}
COLUMNS, RESULTS = 4096, 28672
EXPERTS = {"Qwen3-30B-A3B": "qwen3_30b_a3b", "gpt-oss-20b": "gpt_oss_20b"}
_KEY = random.key(0)
_CALLS = 20


def _codes(*shape: int, format: str) -> jax.Array:
    codes = random.bits(_KEY, shape, jnp.uint8)
    return codes & 0x7E if format == "e4m3" else codes  # none is NaN


def _scales(*shape: int, format: str) -> jax.Array:
    if format != "e2m1":
        return random.uniform(_KEY, shape, jnp.float32, 0.001, 0.01).astype(jnp.float16)
    powers = random.randint(_KEY, shape, 118, 123).astype(jnp.uint8)
    return lax.bitcast_convert_type(powers, jnp.float8_e8m0fnu)


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
        _decoding.LINEAR = _decoding.EXPERTS = _decoding.Fewest(fewest, fewest)
        _quantized._function.cache_clear()
        jax.clear_caches()
        times[name] = round(1e6 * _seconds(lambda *a: function(*a), operands), 1)
    return times


def linear_layers() -> list[Row]:
    rows = []
    for weights, (format, group, of_zeros) in LINEAR.items():
        bits = 8 if format in ("i8", "e4m3") else 4
        packed = _codes(RESULTS // 16, COLUMNS // 32, bits, 16, 4, format=format)
        scales = _scales(RESULTS // 16, COLUMNS // group, 16, format=format)
        zeros = None if of_zeros is None else random.randint(_KEY, scales.shape, 0, 16, jnp.int32)
        layer = functools.partial(
            ij.linear_quantized,
            format=format,
            group=group,
            zeros_are="minimums" if of_zeros == jnp.float16 else "points",
        )
        for m in (512, 1024, 2048, 4096):
            x = random.normal(_KEY, (m, COLUMNS), jnp.bfloat16)
            operands = (x, packed, scales, None if zeros is None else zeros.astype(of_zeros))
            rows.append({"layer": "linear", "weights": weights, "rows": m} | _both(layer, operands))
            print(rows[-1], flush=True)
    return rows


def experts() -> list[Row]:
    rows = []
    for name, layer_of in EXPERTS.items():
        count, top, n, i, activation = LAYERS[layer_of]
        for weights in ("int4, groups of 128", "mxfp4"):
            format, group, _ = LINEAR[weights]
            w1 = _codes(count, i // 8, n // 32, 4, 16, 4, format=format)
            w2 = _codes(count, n // 16, i // 32, 4, 16, 4, format=format)
            s1 = _scales(count, i // 8, -(-n // group), 16, format=format)
            s2 = _scales(count, n // 16, -(-i // group), 16, format=format)
            layer = functools.partial(
                ij.fused_experts_quantized,
                format=format,
                w1_group=group,
                w2_group=group,
                activation=activation,
            )
            for tokens in (1024, 2048, 4096, 8192):
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
    path = parser.parse_args().json
    rows = linear_layers() + experts()
    if path:
        facts = {"versions": {"jax": jax.__version__}, "command": "python bench/many_rows.py"}
        record.write(path, rows, device=jax.devices()[0].device_kind, **facts)


if __name__ == "__main__":
    main()
