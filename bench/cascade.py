"""When cascade attention pays: times it against plain paged attention over the same keys, on a GPU.

Usage: cascade.py      bf16, 32 query and 8 KV heads of 128, pages of 16, one query a sequence.

A figure is microseconds a call, of calls chained in one program, a median over runs. `prefix` and
`own` are the two passes alone, `off` the relative difference between the two ways.
"""

import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import intarsia.jax as ij

H, HK, D, PAGE = 32, 8, 128, 16
CALLS, REPEATS, IN_FLIGHT = 8, 7, 3
# Sequences, keys of the prefix, keys of each sequence behind it.
CASES = [(64, 8192, 512), (256, 2048, 512), (16, 32768, 256), (64, 1024, 512)]


def microseconds(attend: Callable, query: jax.Array, keys: dict) -> float:
    """Of one call, where each one's result is the next one's query."""

    @jax.jit
    def program(x: jax.Array, keys: dict) -> jax.Array:
        for _ in range(CALLS):
            x = attend(x, keys)
        return x

    for _ in range(2):
        jax.block_until_ready(program(query, keys))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready([program(query, keys) for _ in range(IN_FLIGHT)])
        times.append((time.perf_counter() - start) / IN_FLIGHT / CALLS)
    return 1e6 * statistics.median(times)


def ways(prefix: int) -> dict[str, Callable]:
    """Both ways, and the passes of which cascade attention consists."""
    return {
        "cascade": lambda q, x: ij.cascade_attention(
            q, x["cache"], x["shared"], prefix, x["lens"], x["table"], x["starts"]
        ),
        "plain": lambda q, x: ij.paged_attention(
            q, x["cache"], x["lens"] + prefix, x["whole"], x["starts"]
        ),
        "prefix": lambda q, x: ij.flash_attn_varlen(
            q,
            *x["cache"],
            x["starts"][jnp.array([0, -1])],
            seqused_k=jnp.array([prefix]),
            block_table=x["shared"][None],
            return_lse=True,
        )[0],
        "own": lambda q, x: ij.paged_attention(
            q, x["cache"], x["lens"], x["table"], x["starts"], return_lse=True
        )[0],
    }


def measure(b: int, prefix: int, own: int) -> None:
    shared_pages, own_pages = prefix // PAGE, own // PAGE
    pages = shared_pages + b * own_pages
    seeds = jax.random.split(jax.random.key(0), 3)
    query = jax.random.normal(seeds[2], (b, H, D), jnp.bfloat16)
    order = np.random.default_rng(0).permutation(pages).astype(np.int32)
    shared, table = order[:shared_pages], order[shared_pages:].reshape(b, own_pages)
    keys = {
        "cache": tuple(jax.random.normal(k, (pages, PAGE, HK, D), jnp.bfloat16) for k in seeds[:2]),
        "shared": jnp.array(shared),
        "table": jnp.array(table),
        "whole": jnp.array(np.hstack([np.tile(shared, (b, 1)), table])),
        "starts": jnp.arange(b + 1, dtype=jnp.int32),
        "lens": jnp.full(b, own, jnp.int32),
    }
    got, want = (ways(prefix)[w](query, keys).astype(jnp.float32) for w in ("cascade", "plain"))
    off = float(jnp.linalg.norm(got - want) / jnp.linalg.norm(want))
    figures = "".join(f"{microseconds(way, query, keys):>10.1f}" for way in ways(prefix).values())
    print(f"{b:>10}{prefix:>10}{own:>10}{figures}{off:>10.1e}", flush=True)


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    heads = ("sequences", "prefix", "own", "cascade", "plain", "prefix", "own", "off")
    print("".join(f"{head:>10}" for head in heads))
    for case in CASES:
        measure(*case)


if __name__ == "__main__":
    main()
