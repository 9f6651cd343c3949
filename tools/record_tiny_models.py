"""Records what transformers makes of the tests' tiny models (tests/models/tiny_models.py).

Writes tests/data/tiny_models.json: of each model and prompt the greedy tokens and the log-probability of each token of the prompt
but its first, in f32 on the CPU. Run it in an environment of its own:

    uv run --no-project --with torch --with transformers --with safetensors tools/record_tiny_models.py
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from record_reference_tokens import greedy

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))

import tiny_models  # noqa: E402

MAX_TOKENS = 16


def record(model, prompt: list[int]) -> dict:
    """Generates greedily from one prompt."""
    ids = torch.tensor([prompt])
    tokens, margin, _ = greedy(model, ids, MAX_TOKENS, pad_token_id=0)
    with torch.inference_mode():
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
    return {
        "tokens": tokens,
        "smallest_margin": margin,
        "logprobs": logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist(),
    }


def main() -> None:
    """Writes each model, loads it, and records it."""
    result = {"transformers": transformers.__version__, "torch": torch.__version__}
    for name in tiny_models.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            path = tiny_models.write(Path(folder), name)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        model.generation_config.eos_token_id = None
        result[name] = [record(model, prompt) for prompt in tiny_models.prompts()]
        print(name, [sequence["smallest_margin"] for sequence in result[name]])
    text = re.sub(
        r"\[[-\d\s,.e]+\]", lambda m: " ".join(m[0].split()), json.dumps(result, indent=1)
    )
    (ROOT / "tests" / "data" / "tiny_models.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
