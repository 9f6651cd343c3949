"""Records what transformers makes of a model, for tests/models to compare against.

Reads a GGUF file with transformers (torch, CPU, f32) and writes, for each prompt, its token ids, the
greedy continuation and the largest logits of the first step; and for the passage in tests/data, its
token ids and the mean log-probability of a token. A model without a chat template continues plain
texts, one of which is the passage: longer than a sliding window. Run it in an environment of its own,
since nothing else here needs torch or transformers:

    uv run --no-project --with torch --with transformers --with gguf --with accelerate \
        tools/record_reference_tokens.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2
"""

import argparse
import json
import re
from pathlib import Path

import torch
import transformers

CHAT_PROMPTS = (
    "Tell me about the city of Paris, France.",
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "How does a loom weave cloth? Reply with a numbered list.",
    "Give me a recipe for pancakes.",
)
TEXT_PROMPTS = (
    "Once upon a time, there was a weaver who",
    "The loom was invented in",
    "Q: Why is the sky blue?\nA:",
    "In 1801, Joseph Marie Jacquard showed a loom that",
)
DATA = Path(__file__).resolve().parents[1] / "tests" / "data"


def greedy(model, ids: torch.Tensor, max_tokens: int, **settings) -> tuple[list[int], float, tuple]:
    """A prompt's continuation, the least by which a token of it led the runner-up, and the logits of each step."""
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **settings,
        )
    # How close the runner-up came at each step: the smallest gap bounds the error a test may have.
    margins = [(top := step[0].topk(2).values)[0].item() - top[1].item() for step in output.logits]
    return output.sequences[0, ids.shape[1] :].tolist(), round(min(margins), 6), output.logits


def record(model, tokenizer, prompt: str, max_tokens: int) -> dict:
    """Generates greedily from one prompt; returns its ids, continuation and first logits."""
    chat = {}
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        chat = {"chat_text": text}
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    else:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
    new_tokens, margin, logits = greedy(model, ids, max_tokens)
    first = logits[0][0].float().topk(5)
    return {
        "prompt": prompt,
        **chat,
        "prompt_ids": ids[0].tolist(),
        "tokens": new_tokens,
        "text": tokenizer.decode(new_tokens, skip_special_tokens=True),
        "smallest_margin": margin,
        "first_logits": {"ids": first.indices.tolist(), "values": first.values.tolist()},
    }


def record_passage(model, tokenizer, passage: str) -> dict:
    """Returns a text's ids, and the mean log-probability of all of them but the first."""
    ids = tokenizer(passage, return_tensors="pt").input_ids
    with torch.inference_mode():
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
    mean = logprobs.gather(1, ids[0, 1:, None]).double().mean().item()
    return {"ids": ids[0].tolist(), "mean_logprob": mean}


def main() -> None:
    """Loads the model once and records everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path, help="the GGUF file to read")
    parser.add_argument("--name", required=True, help="writes tests/data/NAME_greedy.json")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    source = {"gguf_file": args.gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(args.gguf.parent), **source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(args.gguf.parent), **source, dtype=torch.float32
    ).eval()
    passage = json.loads((DATA / "passage.json").read_text())["text"]
    prompts = CHAT_PROMPTS if tokenizer.chat_template else (*TEXT_PROMPTS, passage)
    result = {
        "gguf": args.gguf.name,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": "float32",
        "eos_token_id": model.generation_config.eos_token_id,
        "sequences": [record(model, tokenizer, prompt, args.max_tokens) for prompt in prompts],
        "passage": record_passage(model, tokenizer, passage),
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\d\s,.]+\]", lambda numbers: " ".join(numbers[0].split()), text)
    (DATA / f"{args.name}_greedy.json").write_text(text + "\n")
    for sequence in result["sequences"]:
        print(len(sequence["tokens"]), sequence["smallest_margin"], repr(sequence["text"]))
    print(result["passage"]["mean_logprob"], len(result["passage"]["ids"]))


if __name__ == "__main__":
    main()
