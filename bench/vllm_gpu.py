"""Times vLLM on one GPU with the plugin, and as it is, on models of well-known shapes with random weights.

Usage: vllm_gpu.py [--model llama-8b|qwen3-30b-a3b] [--cases decode:16x4096 prefill:8x4096 serve:128x1024+128]
  [--engines plugin stock] [--rounds 1] [--kv-cache-dtype fp8] [--layers N] [--stock JSON] [--json FILE]

Each engine is a process of its own; rounds alternate, and figures are the rounds' medians. `start` is the time from the process's start
until the engine is ready, `start again` that of later rounds. decode:NxC is a step of N sequences of C tokens: the difference between
64 new tokens and 16, each the fastest of five runs, over the 48 steps. The prompts are in the prefix cache; scheduling and sampling
count, as in serving. `distinct` is how many different tokens a step has on average: engines that differ there read different experts.
prefill:NxL has fresh prompts and one new token, serve:NxI+O fresh prompts of I tokens and O new ones, N requests at once: of three
runs the median. A ratio above 1 says that the plugin is faster.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

BEGIN = time.perf_counter()
STEPS, FEW = 64, 16
_COMMON = {
    "rope_theta": 1e6,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "head_dim": 128,
    "num_attention_heads": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama-8b": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
    },
    "qwen3-30b-a3b": _COMMON
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
    },
}

# ------------------------------------------------------------------------------------------- the engine's process


def work(args: argparse.Namespace) -> None:
    """One engine: a JSON object a line for each case."""
    import numpy as np
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    stock = os.environ.get("VLLM_PLUGINS") == ""
    if current_platform.is_out_of_tree() == stock:
        sys.exit(
            f"vLLM's platform is {type(current_platform).__name__}: is intarsia-vllm installed?"
        )

    config = MODELS[args.model] | ({"num_hidden_layers": args.layers} if args.layers else {})
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            kv_cache_dtype=args.kv_cache_dtype,
            max_model_len=8192,
            max_num_batched_tokens=8192,
            max_num_seqs=256,
            **(args.stock if stock else {}),
        )
    tell(case="start", ms=round((time.perf_counter() - BEGIN) * 1e3))
    rng = np.random.default_rng(0)
    made: list[list[int]] = []  # by the last requests

    def prompts(count: int, length: int) -> list[dict[str, Any]]:
        ids = rng.integers(0, config["vocab_size"], (count, length)).tolist()
        return [{"prompt_token_ids": x} for x in ids]

    def seconds(requests: list[dict[str, Any]], tokens: int, cached: int = 0) -> float:
        """For so many new tokens of each, at least `cached` tokens of which need not be computed."""
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        done = llm.generate(requests, sampling, use_tqdm=False)
        taken = time.perf_counter() - begin
        if (found := min(x.num_cached_tokens or 0 for x in done)) < cached:
            sys.exit(f"the prefix cache had {found} tokens of a prompt, expected {cached}")
        made[:] = [list(x.outputs[0].token_ids) for x in done]
        return taken

    for case in args.cases:
        kind, *numbers = re.split(r"[:x+]", case)
        count, length, *new = map(int, numbers)
        if kind == "decode":
            requests = prompts(count, length - STEPS)
            seconds(requests, 1)
            cached = (length - STEPS - 1) // 16 * 16  # the last token is computed always
            seconds(requests, STEPS, cached)  # every program has run
            few, many = (min(seconds(requests, n, cached) for _ in range(5)) for n in (FEW, STEPS))
            distinct = statistics.mean(len(set(step)) for step in zip(*made, strict=True))
            step = (many - few) / (STEPS - FEW)
            tell(case=case, ms=round(step * 1e3, 3), distinct=round(distinct, 1))
            continue
        [tokens] = new or [1]
        seconds(prompts(count, length), tokens)
        taken = statistics.median(seconds(prompts(count, length), tokens) for _ in range(3))
        counted = count * (tokens if new else length)
        tell(case=case, tokens_per_s=round(counted / taken))


def tell(**row: Any) -> None:
    print("ROW", json.dumps(row), flush=True)


# --------------------------------------------------------------------------------------------------- all of them


def run(engine: str) -> Iterator[dict[str, Any]]:
    """The rows of one engine's process."""
    environment = {name: x for name, x in os.environ.items() if name != "VLLM_PLUGINS"}
    if engine == "stock":
        environment["VLLM_PLUGINS"] = ""
    command = [sys.executable, __file__, "--worker", *sys.argv[1:]]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("ROW "):
                print(engine, line[4:], end="", flush=True)
                yield json.loads(line[4:])
    if process.returncode:
        sys.exit(f"{engine}: exit status {process.returncode}")


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all engines' rounds, side by side."""
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(args.rounds):
        for engine in args.engines:
            prefix = "stock_" if engine == "stock" else ""
            for row in run(engine):
                name = row.pop("case")
                again = name == "start" and turn > 0  # with what was compiled before
                case = found.setdefault("start again" if again else name, {})
                for name, value in row.items():
                    case.setdefault(prefix + name, []).append(value)
    rows = []
    for case, figures in found.items():
        row = {name: statistics.median(values) for name, values in figures.items()}
        if "ms" in row and "stock_ms" in row:
            row["ratio"] = round(row["stock_ms"] / row["ms"], 3)
        if "tokens_per_s" in row and "stock_tokens_per_s" in row:
            row["ratio"] = round(row["tokens_per_s"] / row["stock_tokens_per_s"], 3)
        kind = args.model + (", fp8 cache" if args.kv_cache_dtype.startswith("fp8") else "")
        rows.append({"model": kind, "case": case} | row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="llama-8b")
    default = "decode:1x4096 decode:16x4096 decode:64x4096 prefill:8x4096 serve:128x1024+128"
    parser.add_argument("--cases", nargs="+", default=default.split())
    parser.add_argument(
        "--engines", nargs="+", choices=("plugin", "stock"), default=["plugin", "stock"]
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--layers", type=int, help="default: the model's")
    graphs = '{"compilation_config": {"cudagraph_capture_sizes": [1, 16, 64]}}'
    parser.add_argument(
        "--stock",
        type=json.loads,
        default={},
        help=f"more of LLM's arguments, for vLLM as it is; {graphs} makes its starts shorter",
    )
    parser.add_argument("--json", type=pathlib.Path, help="where to write the rows")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    rows = compare(args)
    for row in rows:
        print(row)
    if args.json:
        import jax
        import record
        import torch
        import vllm

        versions = {x.__name__: x.__version__ for x in (vllm, torch, jax)}
        record.write(
            args.json,
            rows,
            device=torch.cuda.get_device_name(),
            versions=versions,
            command=f"python bench/vllm_gpu.py {' '.join(sys.argv[1:])}",
        )


if __name__ == "__main__":
    main()
