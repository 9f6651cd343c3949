"""Prints the perplexity of tests/data/passage.json for SmolLM2 in each format of weights, beside f32, as a table for docs/notebook/accuracy.md.

The packers of the tests (tests/models/packers.py) write the formats, by rounding to nearest; groups have 64 columns (576 = 9 * 64):

    .venv/bin/python tools/perplexity_of_formats.py [format ...]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from intarsia.models import Engine, Tokenizer, export_model, find_model, load_model, perplexity
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))

import packers  # noqa: E402

_MADE_HERE = ("int8", "int4", "fp8")
_ERROR = "log-perplexity less that of f32"


def logprobs_of(path: Path, quantize: str | None, tokens: list[int]) -> np.ndarray:
    """The log-probability of each token of the passage but the first."""
    config, params = load_model(path, quantize=quantize)
    engine = Engine(config, params, max_num_seqs=1, max_model_len=len(tokens) + 1)
    return np.asarray(engine.prompt_logprobs([tokens])[0], np.float64)


def main() -> None:
    """Prints a row for each format."""
    chosen = sys.argv[1:] or [*packers.FORMS, *_MADE_HERE]
    model = find_model("smollm2")
    tokens = Tokenizer.from_path(model).encode(
        json.loads((ROOT / "tests" / "data" / "passage.json").read_text())["text"]
    )
    print(f"| format | perplexity of {len(tokens) - 1} tokens | {_ERROR} |\n|---|---|---|")
    plain = logprobs_of(model, None, tokens)
    print(f"| f32 | {perplexity([plain]):.2f} | |")
    with tempfile.TemporaryDirectory() as folder:
        export_model(model, Path(folder) / "plain", dtype="float32")
        weights = load_file(Path(folder) / "plain" / "model.safetensors")
        config = json.loads((Path(folder) / "plain" / "config.json").read_text())
        path = Path(folder) / "packed"
        path.mkdir()
        for form in chosen:
            if form in _MADE_HERE:
                logprobs = logprobs_of(model, form, tokens)
            else:
                tensors, said, _ = packers.packed(weights, form)
                (path / "config.json").write_text(
                    json.dumps(config | {"quantization_config": said})
                )
                packers.save(tensors, path / "model.safetensors")
                logprobs = logprobs_of(path, "file", tokens)
            lost = plain - logprobs
            error = lost.std(ddof=1) / len(lost) ** 0.5
            name = f"`--quantize {form}`" if form in _MADE_HERE else form
            print(f"| {name} | {perplexity([logprobs]):.2f} | {lost.mean():+.3f} +- {error:.3f} |")


if __name__ == "__main__":
    main()
