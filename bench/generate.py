"""Times generation: our engine, with every kind of KV cache, and the same model in plain jax.numpy.

Usage: generate.py [--model NAME ...] [--sequences 1 16] [--max-tokens 128] [--dtype bfloat16]

All in one run, one after the other; greedy, without printing and without stopping at an end token.
The prompts are the passage of tests/data, from another word on for each sequence. A figure is the
median over `--repeats`, of plain jax.numpy the only one, since each of its runs compiles anew.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys

import jax

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "python")]
from intarsia.models import (  # noqa: E402
    Engine,
    SamplingParams,
    Tokenizer,
    find_model,
    load_model,
    reference,
)
from intarsia.models.packages import PACKAGES  # noqa: E402

_PROMPT_TOKENS = 40


def bench(model: str, sequences: int, args: argparse.Namespace) -> None:
    """Prints a row for each way to generate."""
    path = find_model(model)
    config, params = load_model(path, dtype=args.dtype)
    config = dataclasses.replace(config, eos_ids=())
    text = json.loads((ROOT / "tests" / "data" / "passage.json").read_text())["text"]
    tokens = Tokenizer.from_path(path).encode(text)
    prompts = [tokens[i : i + _PROMPT_TOKENS] for i in range(sequences)]
    sampling = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)

    def row(what: str, prefill: float, decode: list[float]) -> None:
        steps = args.max_tokens - 1
        ms = statistics.median(decode) * 1e3 / steps
        spread = f"{min(decode) * 1e3 / steps:.2f} to {max(decode) * 1e3 / steps:.2f}"
        print(
            f"{model:<8} {sequences:>3} {what:<16} {sequences / ms * 1e3:>8.1f} tokens/s "
            f"{ms:>7.2f} ms a step ({spread})  prefill {prefill * 1e3:.1f} ms",
            flush=True,
        )

    for dtype in args.kv_cache_dtype:
        engine = Engine(
            config,
            params,
            max_num_seqs=sequences,
            max_model_len=_PROMPT_TOKENS + args.max_tokens,
            kv_cache_dtype=dtype,
        )
        runs = []
        for _ in range(args.repeats):
            engine.generate(prompts, sampling)
            runs.append(engine.stats)
        prefill = statistics.median(stats.prefill_seconds for stats in runs)
        row(f"ours, KV {dtype}", prefill, [stats.decode_seconds for stats in runs])
    result = reference.generate(config, params, prompts, args.max_tokens)
    row("plain jax.numpy", result.prefill_seconds, [result.decode_seconds])


def main() -> None:
    """Runs every combination that the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=list(PACKAGES))
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto", "fp8_e4m3", "fp8_e5m2"])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {args.dtype}", flush=True)
    for model in args.model:
        for sequences in args.sequences:
            bench(model, sequences, args)


if __name__ == "__main__":
    main()
