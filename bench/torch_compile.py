"""Times a transformers Llama eager, by inductor and by `torch.compile(backend="intarsia")`, in turn.

Usage: torch_compile.py [--device cpu|cuda] [--tokens 128] [--layers 8]

A forward pass over a prompt, and a step with one token and a static KV cache; random weights in the shape of SmolLM2
(on a CPU, f32) or of Llama-3-8B with fewer layers (on a GPU, bf16). A figure is a median of calls, after two that compile.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers

_ROUNDS = 15
_SHAPES = {
    "cpu": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "cuda": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


def model(device: str, layers: int) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(num_hidden_layers=layers, vocab_size=49152, **_SHAPES[device])
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return transformers.LlamaForCausalLM(config).eval().to(device, dtype)


def medians(ways: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Milliseconds a call of each way, in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(_ROUNDS + 2):
        for name, call in ways.items():
            begin = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if round_ >= 2:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(_SHAPES), default="cpu")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    llama = model(args.device, args.layers)
    prompt = torch.randint(0, 49152, (1, args.tokens), device=args.device)
    # transformers 5 counts the steps itself, and goes on in the cache with each.
    cache = transformers.StaticCache(llama.config, max_cache_len=args.tokens + 128)
    llama(prompt, past_key_values=cache)
    place = torch.tensor([args.tokens], device=args.device)

    def forward(run):
        return lambda: run(prompt, use_cache=False)

    def step(run):
        return lambda: run(prompt[:, :1], past_key_values=cache, cache_position=place)

    print(f"{'ms':24}{'eager':>10}{'inductor':>10}{'intarsia':>10}")
    for name, of in (("prompt", forward), ("step with a cache", step)):
        torch._dynamo.reset()
        ways = {"eager": of(llama.forward)}
        for backend in ("inductor", "intarsia"):
            ways[backend] = of(torch.compile(llama.forward, backend=backend, dynamic=False))
        cells = "".join(f"{ms:10.2f}" for ms in medians(ways, args.device).values())
        print(f"{f'{name}, {args.tokens} tokens':24}{cells}", flush=True)


if __name__ == "__main__":
    main()
