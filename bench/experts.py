"""Times `grouped_matmul` for layers of mixtures of experts beside `jax.lax.ragged_dot`, in one run. With --whole it times
`fused_experts`, the whole layer behind the router, beside the same by `ragged_dot` and by vLLM (`experts_whole.py`).

Usage: experts.py [--whole] [--zipf] [--platform cpu|gpu] [--layer NAME ...] [--tokens N ...] [--dtype bfloat16] [--json FILE]

A figure is microseconds a call, the least and the median over rounds in which each way has its turn. `floor` is a call's bytes at the
speed of a large sum in the same run, or its flops at that of a large product, whichever takes longer: a call whose weights lie in a
cache takes less. Each token goes to `top` experts, drawn evenly, or as 1 : 1/2 : 1/3 ... with --zipf. Inputs are random. Without
--whole, two copies of weights of less than 1 GiB take turns, and each round has sizes of its own; "a dot an expert" has the first
round's in its program, and could not have others. With --whole the weights are the same in every call, and on GPUs a figure is the mean
of calls that differ in their routing.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import intarsia.jax as ij
import record


@dataclass(frozen=True)
class Layer:
    """The first product of a mixture: each of m = tokens * top rows of k numbers meets an expert's k x n."""

    experts: int
    top: int
    k: int
    n: int


# smollm2_cut: 32 experts of the size of SmolLM2-135M's up projection, which two cores can time.
LAYERS = {
    "smollm2_cut": Layer(32, 1, 576, 1536),
    "qwen3_30b_a3b": Layer(128, 8, 2048, 1536),
    "gpt_oss_20b": Layer(32, 4, 2880, 5760),
    "mixtral_8x7b": Layer(8, 2, 4096, 28672),
}
DEFAULTS = {
    "cpu": (["smollm2_cut"], [32, 128], 15),
    "gpu": (["qwen3_30b_a3b", "gpt_oss_20b", "mixtral_8x7b"], [1, 16, 64, 512, 4096], 9),
}


@dataclass(frozen=True)
class Row:
    """One way of one layer; times in microseconds a call."""

    layer: str
    tokens: int
    dtype: str
    way: str
    least_us: float
    median_us: float
    floor_us: float


def ways() -> dict[str, Callable[..., jax.Array]]:
    """Each way from x, w [g, k, n], w transposed, and sizes; `dense` is as many rows through one expert."""
    return {
        "ours": lambda x, w, wt, sizes: ij.grouped_matmul(x, w, sizes),
        "ours, transposed": lambda x, w, wt, sizes: ij.grouped_matmul(
            x, wt, sizes, transposed=True
        ),
        "ragged_dot": lambda x, w, wt, sizes: lax.ragged_dot(x, w, sizes),
        "dense": lambda x, w, wt, sizes: x @ w[0],
    }


def loop_of_dots(sizes: np.ndarray) -> Callable[..., jax.Array]:
    """A product an expert, as a program that knows the sizes at compile time may have it."""
    ends = np.cumsum(sizes).tolist()

    def run(x: jax.Array, w: jax.Array, wt: jax.Array, of_round: jax.Array) -> jax.Array:
        rows = zip([0, *ends[:-1]], ends, range(len(ends)), strict=True)
        return jnp.concatenate([x[a:b] @ w[i] for a, b, i in rows if b > a])

    return run


def routed(rng: np.random.Generator, tokens: int, e: int, k: int, zipf: bool) -> np.ndarray:
    """Which experts each token has: all alike, or as 1 : 1/2 : 1/3 ..."""
    shares = rng.permutation(1 / np.arange(1, e + 1)) if zipf else np.ones(e)
    keys = np.log(shares) + rng.gumbel(size=(tokens, e))
    return np.argsort(-keys, axis=-1)[:, :k].astype(np.int32)


def sizes_of(layer: Layer, tokens: int, rng: np.random.Generator, zipf: bool) -> np.ndarray:
    """Rows of each expert; one for each where there are as many rows as experts."""
    if tokens * layer.top == layer.experts and not zipf:
        return np.ones(layer.experts, np.int32)
    chosen = routed(rng, tokens, layer.experts, layer.top, zipf)
    return np.bincount(chosen.ravel(), minlength=layer.experts).astype(np.int32)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def ceilings() -> tuple[float, float]:
    """Bytes and flops a second of a large sum and a large product."""
    x = jax.random.normal(jax.random.key(0), (1 << 25,))
    total = jax.jit(jnp.sum)
    square = jax.random.normal(jax.random.key(1), (2048, 2048))
    product = jax.jit(lambda x: x @ x)
    best = [
        min(seconds(lambda f=f, x=x: f(x)) for _ in range(8))
        for f, x in ((total, x), (product, square))
    ]
    return x.nbytes / best[0], 2 * 2048**3 / best[1]


def measure(
    name: str,
    tokens: int,
    dtype: str,
    rounds: int,
    ceiling: tuple[float, float],
    zipf: bool = False,
) -> list[Row]:
    """All ways in turn, `rounds` times."""
    layer, rng = LAYERS[name], np.random.default_rng(tokens)
    g, k, n = layer.experts, layer.k, layer.n
    m = tokens * layer.top
    seeds = jax.random.split(jax.random.key(tokens), 2)
    x = jax.random.normal(seeds[0], (m, k), dtype)
    copies = 2 if g * k * n * x.itemsize < 1 << 30 else 1
    w = [jax.random.normal(s, (g, k, n), dtype) for s in jax.random.split(seeds[1], copies)]
    wt = [a.swapaxes(1, 2).copy() for a in w]
    sizes = [jnp.asarray(sizes_of(layer, tokens, rng, zipf)) for _ in range(rounds)]
    touched = statistics.mean(int((s > 0).sum()) for s in sizes)
    moved = x.itemsize * (touched * k * n + m * (k + n))
    floor = max(moved / ceiling[0], 2 * m * k * n / ceiling[1])
    functions = ways() | {"a dot an expert": loop_of_dots(np.asarray(sizes[0]))}
    jitted = {way: jax.jit(function) for way, function in functions.items()}
    times: dict[str, list[float]] = {way: [] for way in jitted}
    for function in jitted.values():
        jax.block_until_ready(function(x, w[0], wt[0], sizes[0]))
    for i in range(rounds):
        for way, function in jitted.items():
            of_round = (x, w[i % copies], wt[i % copies], sizes[i])
            times[way].append(seconds(lambda f=function, a=of_round: f(*a)))
    return [
        Row(name, tokens, dtype, way, 1e6 * min(t), 1e6 * statistics.median(t), 1e6 * floor)
        for way, t in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--layer", choices=LAYERS, action="append")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        help="default: float32 on CPUs, bfloat16 on GPUs",
    )
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--whole", action="store_true", help="the whole layer, fused_experts")
    parser.add_argument("--zipf", action="store_true", help="some experts have most rows")
    args = parser.parse_args()
    if few := [count for count in args.tokens or [] if count < 1]:
        parser.error(f"--tokens is {few[0]}, expected 1 or more")
    of_layer = measure
    if args.whole:
        import experts_whole

        of_layer = experts_whole.measure
    of_layer = functools.partial(of_layer, zipf=args.zipf)
    layers, tokens, rounds = DEFAULTS[args.platform]
    dtype = args.dtype or {"cpu": "float32", "gpu": "bfloat16"}[args.platform]
    with jax.default_device(jax.devices(args.platform)[0]):
        ceiling = ceilings()
        print(
            f"{args.platform}, jax {jax.__version__}; sum {ceiling[0] / 1e9:.3g} GB/s, "
            f"product {ceiling[1] / 1e12:.3g} TFLOP/s"
        )
        print(
            f"{'layer':<16}{'tokens':>7}  {'way':<18}{'least us':>11}{'median us':>11}{'floor us':>11}"
        )
        rows = []
        for name in args.layer or layers:
            for count in args.tokens or tokens:
                for row in of_layer(name, count, dtype, rounds, ceiling):
                    rows.append(row)
                    print(
                        f"{row.layer:<16}{row.tokens:>7}  {row.way:<18}{row.least_us:>11.1f}"
                        f"{row.median_us:>11.1f}{row.floor_us:>11.1f}",
                        flush=True,
                    )
    if args.json:
        record.write(
            args.json,
            [asdict(row) for row in rows],
            device=jax.devices(args.platform)[0].device_kind,
            versions={"jax": jax.__version__},
            command="python bench/experts.py " + " ".join(sys.argv[1:]),
            ceilings={"bytes_per_s": ceiling[0], "flops_per_s": ceiling[1]},
        )


if __name__ == "__main__":
    main()
