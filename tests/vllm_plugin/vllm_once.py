"""One engine of vLLM, in a process of its own: prompts of token ids in, JSON out.

    python tests/vllm_plugin/vllm_once.py MODEL_DIRECTORY '{"dtype": "bfloat16"}' '[[1, 2, 3], [4, 5]]'

The last line on stdout has, for each prompt, the tokens and their log-probabilities, the first one's tokens where penalties keep
any from coming twice, and what `xla_programs` tells of each worker.
"""

import json
import os
import sys
import time


def main(model: str, options: str, prompts: str) -> None:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    llm = LLM(model, skip_tokenizer_init=True, **json.loads(options))
    started = time.perf_counter()
    sampling = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, logprobs=0, detokenize=False
    )
    texts = [{"prompt_token_ids": ids} for ids in json.loads(prompts)]
    for _ in range(2):  # the second time out of the prefix cache, with programs that have run
        begun = time.perf_counter()
        outputs = [x.outputs[0] for x in llm.generate(texts, sampling, use_tqdm=False)]
    penalties = {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 100.0}
    penalized = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, detokenize=False, **penalties
    )
    [without_repeats] = llm.generate(texts[:1], penalized, use_tqdm=False)
    told = {
        "start_seconds": started - start,
        "seconds": time.perf_counter() - begun,
        "tokens": [list(x.token_ids) for x in outputs],
        "logprobs": [
            [step[token].logprob for token, step in zip(x.token_ids, x.logprobs, strict=True)]
            for x in outputs
        ],
        "without_repeats": list(without_repeats.outputs[0].token_ids),
        "programs": llm.collective_rpc("xla_programs"),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
