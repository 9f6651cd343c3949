"""The whole layer behind a router, for experts.py: `fused_experts` beside sorts and `jax.lax.ragged_dot`, and beside vLLM's
Triton kernels where vLLM is importable: then with XLA_PYTHON_CLIENT_PREALLOCATE=false, for torch needs memory, too.
"""

import statistics
from collections.abc import Callable
from typing import Any

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
from experts import Row, routed, seconds
from jax import lax

# Experts, experts of a token, n, i, activation. smollm2_cut: SmolLM2-135M's MLP as 8 experts.
LAYERS = {
    "smollm2_cut": (8, 8, 576, 192, "silu"),
    "qwen3_30b_a3b": (128, 8, 2048, 768, "silu"),
    "gpt_oss_20b": (32, 4, 2880, 2880, "swigluoai"),
    "mixtral_8x7b": (8, 2, 4096, 14336, "silu"),
}
# Calls of a program on a GPU, each with a routing of its own: one call alone would time the host.
CALLS = 10


def ours(x: jax.Array, w1: jax.Array, w2: jax.Array, weights: jax.Array, ids: jax.Array, act: str):
    """[t, n], by one custom call."""
    return ij.fused_experts(x, w1, w2, weights, ids, activation=act)


def by_ragged_dot(
    x: jax.Array, w1: jax.Array, w2: jax.Array, weights: jax.Array, ids: jax.Array, act: str
):
    """The same as a user of JAX writes it."""
    k = ids.shape[1]
    order = jnp.argsort(ids.reshape(-1), stable=True)
    sizes = jnp.bincount(ids.reshape(-1), length=w1.shape[0]).astype(jnp.int32)
    hidden = lax.ragged_dot(x[order // k], w1.swapaxes(1, 2), sizes)
    if act == "swigluoai":
        gate, up = jnp.minimum(hidden[:, ::2], 7), jnp.clip(hidden[:, 1::2], -7, 7)
        gated = gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)
    else:
        gate, up = jnp.split(hidden, 2, -1)
        gated = jax.nn.silu(gate) * up
    down = lax.ragged_dot(gated, w2.swapaxes(1, 2), sizes)
    terms = jnp.zeros_like(down).at[order].set(down).reshape(*ids.shape, -1)
    return (terms * weights[..., None].astype(terms.dtype)).sum(1)


def measure(
    name: str,
    tokens: int,
    dtype: str,
    rounds: int,
    ceiling: tuple[float, float],
    zipf: bool = False,
) -> list[Row]:
    """All ways in turn, `rounds` times."""
    e, k, n, i, act = LAYERS[name]
    rng = np.random.default_rng(tokens)
    seeds = jax.random.split(jax.random.key(tokens), 3)
    shapes = (tokens, n), (e, 2 * i, n), (e, n, i)
    x, w1, w2 = (
        jax.random.normal(s, shape, dtype) * shape[-1] ** -0.5
        for s, shape in zip(seeds, shapes, strict=True)
    )
    weights = jnp.full((tokens, k), 1 / k, jnp.float32)
    calls = CALLS if x.device.platform == "gpu" else 1
    routings = [routed(rng, tokens, e, k, zipf) for _ in range(calls)]
    touched = statistics.mean(len(np.unique(ids)) for ids in routings)
    moved = x.dtype.itemsize * (touched * 3 * n * i + 2 * tokens * n)
    floor = max(moved / ceiling[0], 6 * tokens * k * n * i / ceiling[1])
    ids = [jnp.asarray(one) for one in routings]
    ways: dict[str, Callable[[], float]] = {}  # seconds a call
    for way, function in (("ours", ours), ("ragged_dot", by_ragged_dot)):

        def every(x, w1, w2, weights, ids, function=function):
            return [function(x, w1, w2, weights, one, act) for one in ids]

        step = jax.jit(every)
        jax.block_until_ready(step(x, w1, w2, weights, ids))

        def once(step=step) -> float:
            return seconds(lambda: step(x, w1, w2, weights, ids)) / calls

        ways[way] = once
    if calls > 1 and dtype == "bfloat16":
        arrays = [np.asarray(a.astype(jnp.float32)) for a in (x, w1, w2, weights)]
        ways |= in_torch(arrays, routings, act)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            times[way].append(run())
    return [
        Row(name, tokens, dtype, way, 1e6 * min(t), 1e6 * statistics.median(t), 1e6 * floor)
        for way, t in times.items()
    ]


def in_torch(
    arrays: list[np.ndarray], routings: list[np.ndarray], act: str
) -> dict[str, Callable[[], float]]:
    """What times ours in torch and vLLM's, each in a CUDA graph, bf16; nothing without vLLM."""
    try:
        import torch
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
    except ImportError:
        return {}
    import intarsia.torch  # noqa: F401  defines torch.ops.xla_gpu

    x, w1, w2 = (torch.from_numpy(a).cuda().bfloat16() for a in arrays[:3])
    weights = torch.from_numpy(arrays[3]).cuda()
    ids = [torch.from_numpy(one).cuda() for one in routings]
    ways = {
        "ours, torch": lambda one: torch.ops.xla_gpu.fused_experts(
            x, w1, w2, weights, one, activation=act
        ),
        "vLLM": lambda one: fused_experts(
            x, w1, w2, weights, one, activation=MoEActivation.from_str(act)
        ),
    }
    return {way: graph_timer(run, ids) for way, run in ways.items()}


def graph_timer(run: Callable[..., Any], ids: list[Any]) -> Callable[[], float]:
    """Gives seconds a call, of a CUDA graph with a call for each routing."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for one in ids[:2]:
            run(one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in ids:
            run(one)

    def once(_kept=run) -> float:  # its arrays, which the graph reads
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / len(ids)

    for _ in range(2):
        once()
    return once
