"""Checkpoints in 8 and 4 bits against readers that are not ours, as recorded by tools/record_quantized.py: a mistake that packer and loader share shows here.

GGUF's codes are compared with those of its own package in tests/test_repack.py.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import packers
import pytest
import quantized_models
from conftest import DATA
from intarsia import repack
from intarsia.models import Engine, SamplingParams, load_model, open_checkpoint
from test_quantized_files import matrices

RECORDED = json.loads((DATA / "quantized.json").read_text())["models"]
RUN = [form for form, model in RECORDED.items() if "sequences" in model]
# Of a log-probability, the most and the mean, of activations in 8 bits; int8 has one step for a whole token, outliers too.
BOUNDS = {"ct_fp8": (0.15, 0.05), "ct_int8": (0.3, 0.1)}
cut_smollm2 = functools.cache(quantized_models.cut_smollm2)


@pytest.fixture
def written(smollm2_path: Path, tmp_path: Path):
    """Returns a function that writes the model in a format, and gives its directory and what was recorded of it."""

    def write(form: str) -> tuple[Path, dict[str, Any]]:
        quantized_models.write(cut_smollm2(smollm2_path), form, tmp_path)
        said = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
        assert said[:16] == RECORDED[form]["weights"], "not the file that was recorded"
        return tmp_path, RECORDED[form]

    return write


def test_every_format_is_recorded() -> None:
    assert {*RECORDED} == {*packers.FORMS, quantized_models.GPT_OSS}
    assert len(RUN) == 7


@pytest.mark.parametrize("form", packers.FORMS)
def test_weights_are_what_another_reader_decodes(written, form) -> None:
    """To the last bit of f32: a code's product with its scale is all that is rounded, or in nvfp4 the scales' product before it."""
    path, recorded = written(form)
    config, params = load_model(path, quantize="file")
    found = [
        np.concatenate([repack.decoded(part) for part in matrix.parts])
        for layer in range(config.layers)
        for matrix in matrices(params["layers"][layer])
    ]
    assert [quantized_models.digest(w) for w in found] == recorded["decoded"]


def test_stacked_experts_are_what_another_reader_decodes(written) -> None:
    path, recorded = written(quantized_models.GPT_OSS)
    read = open_checkpoint(path).read_packed
    stacks = [read(name) for name in quantized_models.STACKED]
    found = [np.stack([repack.decoded(w).T for w in stack]) for stack in stacks]
    assert [quantized_models.digest(w) for w in found] == recorded["decoded"]


@pytest.mark.parametrize("form", RUN)
def test_tokens_and_scores_are_near_those_of_vllm(written, form) -> None:
    """Its activations are in bf16 or, in the two formats whose weights it takes with no others, in 8 bits; ours are in f32.

    Its logits are bf16's, steps of 1/8 there, so that tokens are the same only until two of them come near each other.
    """
    path, recorded = written(form)
    config, params = load_model(path, quantize="file")
    engine = Engine(config, params, max_num_seqs=4, max_model_len=128)
    prompts, sequences = quantized_models.PROMPTS, recorded["sequences"]
    greedy = SamplingParams(temperature=0.0, max_tokens=quantized_models.MAX_TOKENS)
    for made, said in zip(engine.generate(prompts, greedy), sequences, strict=True):
        clear = next((i for i, m in enumerate(said["margins"]) if m < 0.25), len(said["margins"]))
        assert made.tokens[:clear] == said["tokens"][:clear]
    whole = [[*p, *said["tokens"]] for p, said in zip(prompts, sequences, strict=True)]
    most, mean = BOUNDS.get(form, (0.1, 0.03))
    for scores, said in zip(engine.prompt_logprobs(whole), sequences, strict=True):
        difference = np.abs(scores[-len(said["tokens"]) :] - said["logprobs"])
        assert difference.max() < most and difference.mean() < mean
