"""Times decode steps of a Llama-3-8B-shaped model with random weights in vLLM, by the plugin, beside `bench/decode.py`'s figure.

Usage: vllm_decode.py [--sequences 16] [--context 4096] [--new-tokens 64] [--layers 32] [--tensor-parallel 1]
  [--no-async-scheduling]

A step's time is the difference between generating many tokens and one, the prompts being in vLLM's prefix cache, over
the number of steps; scheduling and sampling are in it, as in serving. If a prompt is not in that cache, it is an error.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import numpy as np

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--context", type=int, default=4096, help="prompt and new tokens")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="default: vLLM's, which is yes",
    )
    args = parser.parse_args()
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        config = LLAMA_3_8B | {"num_hidden_layers": args.layers}
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=args.context,
            max_num_seqs=args.sequences,
            max_num_batched_tokens=4096,
            tensor_parallel_size=args.tensor_parallel,
            async_scheduling=args.async_scheduling,
            # Those that it needs, which compile sooner than all.
            additional_config={"token_buckets": [4096], "request_buckets": [args.sequences]},
        )
    rng = np.random.default_rng(0)
    length = args.context - args.new_tokens
    shape = (args.sequences, length)
    prompts = [
        {"prompt_token_ids": ids}
        for ids in rng.integers(0, LLAMA_3_8B["vocab_size"], shape).tolist()
    ]

    def seconds(tokens: int, cached: int = 0) -> float:
        """The time for so many new tokens of each prompt, at least `cached` tokens of which need not be computed."""
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        requests = llm.generate(prompts, sampling, use_tqdm=False)
        taken = time.perf_counter() - begin
        found = min(request.num_cached_tokens or 0 for request in requests)
        if found < cached:
            sys.exit(
                f"the prefix cache had {found} tokens of a prompt, expected {cached} of {length}: fewer or shorter sequences fit"
            )
        return taken

    prefill = seconds(1)
    block = llm.llm_engine.vllm_config.cache_config.block_size
    cached = (length - 1) // block * block  # the last token is computed always
    seconds(args.new_tokens, cached)  # every program has run
    many, one = (min(seconds(n, cached) for _ in range(3)) for n in (args.new_tokens, 1))
    step = (many - one) / (args.new_tokens - 1)
    print(
        f"{args.sequences} sequences of {args.context} tokens: decode step {step * 1e3:.2f} ms, "
        f"{args.sequences / step:.0f} tokens/s; prefill {args.sequences * length / prefill:.0f} tokens/s"
    )


if __name__ == "__main__":
    main()
