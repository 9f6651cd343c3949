"""Times the gradient of causal attention against cuDNN (through JAX) and FlashAttention-2 (through torch), on a GPU.

Usage: attention_gradient.py [--tokens 4096] [--sequences 4] [--torch]

The backward pass alone: the forward pass has run, and its residuals are operands. A figure is a median over
repeats of several calls on their way at once. Flops are 2.5 times those of the forward pass, of the pairs that the
mask leaves. `--torch` times torch's two ways as well; it must be installed.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
from intarsia.jax import flash_attn_varlen

_HEADS, _KV_HEADS = 32, 8
_REPEATS, _IN_FLIGHT = 5, 5


def _print(name: str, b: int, t: int, d: int, seconds: float) -> None:
    flops = 2.5 * 4 * _HEADS * d * b * t * (t + 1) / 2
    print(
        f"{name:<24} d={d:<4} {1e3 * seconds:8.3f} ms {flops / seconds / 1e12:7.1f} TFLOP/s",
        flush=True,
    )


def _median_seconds(run: Callable[[], object], wait: Callable[[object], object]) -> float:
    for _ in range(3):
        wait(run())
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(_IN_FLIGHT):
            last = run()
        wait(last)
        times.append((time.perf_counter() - start) / _IN_FLIGHT)
    return statistics.median(times)


def _ours(q: jax.Array, k: jax.Array, v: jax.Array, *, deterministic: bool) -> jax.Array:
    b, t, _, d = q.shape
    starts = jnp.arange(b + 1, dtype=jnp.int32) * t
    rows = (x.reshape(b * t, -1, d) for x in (q, k, v))
    out = flash_attn_varlen(
        *rows, starts, cu_seqlens_k=starts, is_causal=True, deterministic=deterministic
    )
    return out.reshape(q.shape)


def time_jax(b: int, t: int, d: int) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    q, dout = (jax.random.normal(key, (b, t, _HEADS, d), jnp.bfloat16) for key in keys[:2])
    k, v = (jax.random.normal(key, (b, t, _KV_HEADS, d), jnp.bfloat16) for key in keys[2:])
    ways = {
        "intarsia": functools.partial(_ours, deterministic=False),
        "intarsia, deterministic": functools.partial(_ours, deterministic=True),
        "cuDNN (JAX)": functools.partial(
            jax.nn.dot_product_attention, is_causal=True, implementation="cudnn"
        ),
    }
    found = {}
    for name, attend in ways.items():
        _, pull = jax.jit(functools.partial(jax.vjp, attend))(q, k, v)
        backward = jax.jit(lambda pull, dout: pull(dout))
        found[name] = [np.asarray(x, np.float32) for x in backward(pull, dout)]
        seconds = _median_seconds(functools.partial(backward, pull, dout), jax.block_until_ready)
        _print(name, b, t, d, seconds)
    off = [
        float(np.linalg.norm(x - y) / np.linalg.norm(y))
        for x, y in zip(found["intarsia"], found["cuDNN (JAX)"], strict=True)
    ]
    print("  dq, dk, dv differ from cuDNN's by", ", ".join(f"{x:.1e}" for x in off))


def time_torch(b: int, t: int, d: int) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    options = dict(device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q = torch.randn(b, _HEADS, t, d, **options)
    k, v = (torch.randn(b, _KV_HEADS, t, d, **options) for _ in range(2))
    dout = torch.randn_like(q)
    ways = {
        "FlashAttention-2 (torch)": SDPBackend.FLASH_ATTENTION,
        "cuDNN (torch)": SDPBackend.CUDNN_ATTENTION,
    }
    for name, backend in ways.items():
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        backward = functools.partial(torch.autograd.grad, out, (q, k, v), dout, retain_graph=True)
        _print(name, b, t, d, _median_seconds(backward, lambda _: torch.cuda.synchronize()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--torch", action="store_true")
    args = parser.parse_args()
    for d in (128, 64):
        time_jax(args.sequences, args.tokens, d)
        if args.torch:
            time_torch(args.sequences, args.tokens, d)


if __name__ == "__main__":
    main()
