"""`--activations int8`: what is left of a model's quality, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from intarsia import cli
from intarsia.models import Engine, load_model, perplexity

PASSAGE = Path(__file__).resolve().parents[1] / "data" / "passage.json"
PASSAGE_TOKENS = 200
LOG_PERPLEXITY = 0.02  # the most that its logarithm may move


def test_a_models_quality(smollm2_path, smollm2_tokenizer) -> None:
    tokens = smollm2_tokenizer.encode(json.loads(PASSAGE.read_text())["text"])[:PASSAGE_TOKENS]
    logs = []
    for activations in ("auto", "int8"):
        config, params = load_model(smollm2_path, quantize="file", activations=activations)
        engine = Engine(config, params, max_num_seqs=1, max_model_len=PASSAGE_TOKENS + 1)
        logs.append(np.log(perplexity(engine.prompt_logprobs([tokens]))))
    assert 0 < abs(logs[1] - logs[0]) < LOG_PERPLEXITY, logs


def test_the_command(write_gguf, tiny_weights, capsys) -> None:
    command = [
        "generate",
        "--model",
        str(write_gguf(tiny_weights)),
        "--prompt",
        "the",
        "--max-tokens",
        "2",
    ]
    assert cli.main([*command, "--quantize", "int8", "--activations", "int8"]) == 0
    said = capsys.readouterr().err
    assert "linear layers in int8, activations in int8" in said and "linear_quantized_int8" in said
    assert cli.main([*command, "--quantize", "none", "--activations", "int8"]) == 2
    assert "--activations is int8, expected weights in codes: --quantize" in capsys.readouterr().err
    with pytest.raises(ValueError, match="expected weights in codes: the file has none"):
        load_model(command[2], quantize="file", activations="int8")


def test_words(write_gguf, tiny_weights) -> None:
    with pytest.raises(ValueError, match="activations is 'int4', expected auto or int8"):
        load_model(write_gguf(tiny_weights), quantize="int8", activations="int4")
