"""Times ops and a decode step on torch_xla's device in three ways: as our custom calls, as torch_xla lowers the ATen
decomposition, and through the CPU.

Usage: torch_on_xla.py [--platform cpu|gpu] [--op NAME ...]

The decompositions are those of torch_decompositions.py. "Through the CPU" is what torch_xla does with an operator that
it does not know: operands to the host, the op there (ours), results back. Each way is a function compiled by
`torch.compile(backend="openxla")` where there is something to compile. The step is that of a Llama with random
weights, up to the logits: of SmolLM2-135M with fewer layers on a CPU, f32, of Llama-3-8B with fewer layers on a GPU,
bf16. A figure is the least time of a call of many, the end of the device's work awaited; the ways take turns. A way
that takes seconds is called once.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "INTARSIA")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))

import torch
import torch_xla
from torch_decompositions import OPS, PAGE_SIZE, Sizes
from torch_xla.core import xla_model

_ROUNDS, _CALLS = 7, 10
_SLOW = 1000.0
"""Milliseconds of a call beyond which there is no other one."""
_STEP = "a decode step"
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.03}
"""Of a result's norm; codes of 8 bits that lie on the edge of two count in it."""
# The CPU's are small enough to be waited for.
_SIZES = {
    "cpu": Sizes(256, 8, 512, torch.float32),
    "gpu": Sizes(4096, 64, 4096, torch.bfloat16),
}

# ---------------------------------------------------------------------------- a decode step


@dataclass(frozen=True)
class Model:
    """The shape of a Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


_MODELS = {
    "cpu": Model(8, 576, 9, 3, 64, 1536, 49152),
    "gpu": Model(2, 4096, 32, 8, 128, 14336, 128256),
}
_OF_A_LAYER = 8


def step_operands(platform: str) -> list[torch.Tensor]:
    """Random operands of `decode_step` on the CPU: five of the batch, three of the model, eight of each layer."""
    model, sizes = _MODELS[platform], _SIZES[platform]
    sequences, context, dtype = sizes.sequences, sizes.context, sizes.dtype
    pages = torch.randperm(sequences * context // PAGE_SIZE).view(sequences, -1)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype) * shape[0] ** -0.5

    def of_a_layer() -> list[torch.Tensor]:
        width = model.heads * model.head_dim
        cache = (pages.numel(), PAGE_SIZE, model.kv_heads, model.head_dim)
        return [
            weight(model.hidden, width + 2 * model.kv_heads * model.head_dim), weight(width, model.hidden),
            weight(model.hidden, 2 * model.intermediate), weight(model.intermediate, model.hidden),
            torch.ones(model.hidden, dtype=dtype), torch.ones(model.hidden, dtype=dtype),
            torch.randn(cache, dtype=dtype), torch.randn(cache, dtype=dtype),
        ]  # fmt: skip

    return [
        torch.randint(model.vocabulary, (sequences,)), torch.full((sequences,), context),
        pages[:, -1] * PAGE_SIZE + (context - 1) % PAGE_SIZE, pages, torch.arange(sequences + 1),
        weight(model.hidden, model.vocabulary).T.contiguous(), torch.ones(model.hidden, dtype=dtype),
        torch.randn(context, model.head_dim, dtype=dtype),
        *(x for _ in range(model.layers) for x in of_a_layer()),
    ]  # fmt: skip


def decode_step(ops: Mapping[str, Callable[..., Any]], model: Model) -> Callable[..., torch.Tensor]:
    """Logits of the next tokens, where `ops` does what has a custom call."""
    split = [model.heads * model.head_dim, *[model.kv_heads * model.head_dim] * 2]

    def step(tokens, lengths, slots, pages, starts, embedding, first_norm, table, *layers):
        residual = embedding[tokens]
        x = ops["rms_norm"](residual, first_norm)
        for i in range(0, len(layers), _OF_A_LAYER):
            qkv, out, up, down, norm, next_norm, *caches = layers[i : i + _OF_A_LAYER]
            query, key, value = (
                y.unflatten(-1, (-1, model.head_dim)) for y in (x @ qkv).split(split, -1)
            )
            query, key = ops["rotary_embedding"](lengths - 1, query, table, key)
            ops["reshape_and_cache_flash"](key, value, *caches, slots)
            x = ops["paged_attention"](query, *caches, lengths, pages, starts).flatten(1) @ out
            x, residual = ops["fused_add_rms_norm"](x, residual, norm)
            x = ops["silu_and_mul"](x @ up) @ down
            x, residual = ops["fused_add_rms_norm"](x, residual, next_norm)
        return x @ embedding.T

    return step


# ---------------------------------------------------------------------------- three ways


def through_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*operands: torch.Tensor) -> Any:
        device, here = operands[0].device, [x.cpu() for x in operands]
        returned = function(*here)
        if returned is None:  # written in place
            for x, y in zip(operands[2:4], here[2:4], strict=True):
                x.copy_(y)
            return None
        if isinstance(returned, torch.Tensor):
            return returned.to(device)
        return [x.to(device) for x in returned]

    return call


def ways_of(name: str, platform: str, operands: list[torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """The calls to compare, of an op or of the step, which give the same."""
    if name == _STEP:
        model = _MODELS[platform]
        ours, aten, cpu = (
            decode_step(ops, model)
            for ops in (
                {op: x.ours for op, x in OPS.items()},
                {op: x.aten for op, x in OPS.items()},
                {op: through_the_cpu(x.ours) for op, x in OPS.items()},
            )
        )
    else:
        ours, aten, cpu = OPS[name].ours, OPS[name].aten, through_the_cpu(OPS[name].ours)
    torch._dynamo.reset()
    return {
        "ours": compiled(ours, operands),
        "aten": compiled(aten, operands),
        "cpu": lambda: cpu(*operands),
    }


def results_of(call: Callable[[], Any], operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a call gives, on the CPU; of a cache write the rows that it has written, and how much there is in all."""
    returned = call()
    if returned is None:
        written, slots = operands[2:4], operands[4]
        rows = [cache.flatten(0, 1)[slots].cpu() for cache in written]
        for cache in written:
            rows.append(cache.float().abs().sum().cpu())
            cache.zero_()  # the next way is to write them itself
        torch_xla.sync()
        return rows
    returned = [returned] if isinstance(returned, torch.Tensor) else returned
    return [x.cpu().float() for x in returned]


def check_equal(
    name: str, ways: dict[str, Callable[[], Any]], operands: list[torch.Tensor]
) -> None:
    """Raises where a way gives other numbers than ours. Compiles the ways."""
    if name == "reshape_and_cache_flash":
        for cache in operands[2:4]:
            cache.zero_()
    bound = _TOLERANCE[next(x.dtype for x in operands if x.dtype in _TOLERANCE)]
    ours, *others = (results_of(call, operands) for call in ways.values())
    for other in others:
        for x, y in zip(ours, other, strict=True):
            error = (x - y).norm() / y.norm()
            if not error < bound:
                raise AssertionError(f"{name}: the ways differ by {error:.1e} of the result")


def milliseconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least time of a call in each way, in turn. `check_equal` has compiled them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, call in ways.items():
            if max(times[name], default=0) > _SLOW:
                continue
            for i in range(_CALLS + 2):  # the first two recover from the way before
                elapsed = milliseconds_of(call)
                if i >= 2 or elapsed > _SLOW:
                    times[name].append(elapsed)
                if elapsed > _SLOW:
                    break
    return {name: min(values) for name, values in times.items()}


def milliseconds_of(call: Callable[[], Any]) -> float:
    """The time of one call, to the end of the device's work."""
    begin = time.perf_counter()
    call()
    torch_xla.sync()
    xla_model.wait_device_ops()  # sync(wait=True) waits for its own program alone
    return (time.perf_counter() - begin) * 1e3


def compiled(function: Callable[..., Any], operands: list[torch.Tensor]) -> Callable[[], Any]:
    program = torch.compile(lambda *x: function(*x), backend="openxla", fullgraph=True)
    return lambda: program(*operands)


def row(name: str, times: dict[str, float]) -> None:
    ours, *others = times.values()
    cells = "".join(f"{x:12.3f} ({x / ours:5.1f}x)" for x in others)
    print(f"{name:36}{ours:12.3f}{cells}", flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--op", action="append", choices=(*OPS, _STEP))
    args = parser.parse_args()
    device = torch_xla.device()
    torch.manual_seed(0)
    print(f"{'ms a call':36}{'ours':>12}{'decomposed':>21}{'through the CPU':>21}")
    for name in args.op or (*OPS, _STEP):
        sizes = _SIZES[args.platform]
        host = step_operands(args.platform) if name == _STEP else OPS[name].operands(sizes)
        operands = [x.to(device) for x in host]
        torch_xla.sync(wait=True)
        ways = ways_of(name, args.platform, operands)
        check_equal(name, ways, operands)
        row(name, milliseconds(ways))


if __name__ == "__main__":
    main()
