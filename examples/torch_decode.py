"""Decoding by torch alone, without XLA: a norm, rotary embedding, the cache write and paged attention.

    python examples/torch_decode.py            # on CUDA where torch has it, else on the CPU

One layer of a Llama with random weights, eager and under `torch.compile`; both must give the same rows.
"""

import importlib.util

import intarsia.torch  # noqa: F401  defines torch.ops.xla_gpu
import torch

op = torch.ops.xla_gpu
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 8, 2, 64, 16
HIDDEN = HEADS * HEAD_DIM


def decode(hidden, weights, caches, table, positions, slots, lengths, pages, starts):
    """Attention of one layer for one token of each sequence: hidden [b, n] -> [b, n]."""
    normed = op.rms_norm(hidden, weights["norm"])
    qkv = (normed @ weights["qkv"]).unflatten(1, (HEADS + 2 * KV_HEADS, HEAD_DIM))
    query, key, value = qkv.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    op.rotary_embedding(positions, query, table, key)
    op.reshape_and_cache_flash(key, value, *caches, slots)
    attended, _ = op.paged_attention.default(query, *caches, lengths, pages, starts)
    return hidden + attended.flatten(1) @ weights["out"]


def rope_table(length: int) -> torch.Tensor:
    """cos and sin side by side: [length, d]."""
    frequencies = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


@torch.no_grad()
def run(step, device: torch.device) -> torch.Tensor:
    """Five steps of two sequences; the rows of the last."""
    torch.manual_seed(0)
    weights = {
        "norm": torch.ones(HIDDEN),
        "qkv": torch.randn(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM) * HIDDEN**-0.5,
        "out": torch.randn(HIDDEN, HIDDEN) * HIDDEN**-0.5,
    }
    hidden, table = torch.randn(2, HIDDEN), rope_table(64)
    caches = [torch.zeros(4, PAGE_SIZE, KV_HEADS, HEAD_DIM) for _ in range(2)]
    pages, starts = torch.tensor([[2], [0]]), torch.tensor([0, 1, 2])
    weights = {name: x.to(device) for name, x in weights.items()}
    hidden, table, pages, starts, *caches = (
        x.to(device) for x in (hidden, table, pages, starts, *caches)
    )
    for position in range(5):
        positions = torch.full((2,), position, device=device)
        slots = pages[:, 0] * PAGE_SIZE + positions
        hidden = step(
            hidden, weights, caches, table, positions, slots, positions + 1, pages, starts
        )
    return hidden


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    eager = run(decode, device)
    needed = {"inductor": (), "intarsia": ("jax", "torchax")}
    for backend, packages in needed.items():
        if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
            print(f"{backend}: left out, it needs {' and '.join(missing)}, not installed here")
            continue
        compiled = torch.compile(decode, backend=backend, fullgraph=True)
        torch.testing.assert_close(run(compiled, device), eager, atol=1e-4, rtol=1e-4)
        print(f"{backend} on {device}: the same rows as eager")


if __name__ == "__main__":
    main()
