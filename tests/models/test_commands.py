"""What the commands refuse, before they load a model, and the figures that they print."""

import io
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from intarsia import cli
from intarsia.cli import _model, generate
from intarsia.cli._processes import Share
from intarsia.cli.perplexity import _read
from intarsia.jax import _decoding
from intarsia.models import Tokenizer, open_checkpoint, weights
from intarsia.models.config import Experts
from intarsia.models.engine import Stats
from intarsia.models.expert_codes import UnheldCodesError
from intarsia.models.parallel_codes import UndividedCodesError


@pytest.fixture
def model(write_gguf, tiny_weights, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights must not be read."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(weights, "_assemble", refuse)
    return write_gguf(tiny_weights)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--decode-steps", "0"], "decode_steps is 0, expected 1 or more"),
        (["--max-model-len", "3"], "prompt 0 has 12 tokens, expected 1 to 2: max_model_len is 3"),
        (["--max-model-len", "1"], "max_model_len is 1, expected 2 to 512"),
        (["--max-model-len", "513"], "max_model_len is 513, expected 2 to 512"),
        (["--tensor-parallel", "8"], "tensor_parallel=8 does not divide heads=4"),
        (["--tensor-parallel", "0"], "--tensor-parallel is 0, expected 1 or more"),
        (["--tensor-parallel", "100000"], "tensor_parallel=100000 does not divide heads=4"),
        (["--max-tokens", "0"], "max_tokens is 0"),
    ],
)
def test_generate(model: Path, capsys: pytest.CaptureFixture, arguments, text: str) -> None:
    chosen = ["--model", str(model), "--prompt", "hello world!", "--no-chat-template"]
    assert cli.main(["generate", *chosen, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("intarsia generate: ") and text in error and error.count("\n") == 1


@pytest.mark.parametrize("flag", ["--top-k 5", "--top-p 0.9", "--seed 0"])
def test_a_flag_without_an_effect(write_gguf, tiny_weights, capsys, flag: str) -> None:
    said = f"{flag} has no effect at --temperature 0\n"
    command = ["generate", "--model", str(write_gguf(tiny_weights)), "--max-tokens", "2"]
    for temperature in ("0", "0.5"):
        more = ["--prompt", "the", *flag.split(), "--temperature", temperature]
        assert cli.main([*command, *more]) == 0
        assert (said in capsys.readouterr().err) == (temperature == "0")


def test_one_sequence_and_two_beside_the_reference(write_gguf, tiny_weights, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    command = ["generate", "--model", str(write_gguf(tiny_weights)), "--max-tokens", "3"]
    arguments = ["--dtype", "float32", "--quantize", "none", "--device", "cpu", "--reference"]
    assert cli.main([*command, "--prompt", "the", *arguments]) == 0
    rows = capsys.readouterr().err.splitlines()
    assert any(re.match(r"weights {10}\d+ MB for each token, \d+\.\d GB/s$", row) for row in rows)
    assert any("one sequence waits for memory" in row for row in rows)
    # A list of calls is cut between names.
    calls = next(i for i, row in enumerate(rows) if row.startswith("calls in decode"))
    assert max(map(len, rows)) <= 70 and re.match(r" {17}\w+ \d", rows[calls + 1])
    assert cli.main([*command, "--prompt", "the", "--prompt", "a", *arguments]) == 0
    assert "for each token" not in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_weights_are_in_no_codes(
    write_gguf, tiny_weights, write_directory, hf_config, capsys, dtype
) -> None:
    backend = Tokenizer.from_path(write_gguf(tiny_weights)).backend
    path = write_directory(hf_config, {n: w.astype(dtype) for n, w in tiny_weights.items()})
    backend.save(str(path / "tokenizer.json"))
    command = ["generate", "--model", str(path), "--prompt", "the", "--max-tokens", "2"]
    command += ["--quantize", "file", "--device", "cpu", "--no-chat-template"]
    steps = ["--max-model-len", "5", "--decode-steps", "1000000"]
    assert cli.main([*command, *steps]) == 0
    of_file = ", weights in the file's 16 bits" if dtype == "bfloat16" else ""
    said = f"2 layers in float32{of_file}, 5 steps a program; compiling"
    assert said in capsys.readouterr().err


def test_experts_that_a_token_does_not_take_are_not_read() -> None:
    layer = {"wo": np.zeros(1000, np.int8), "experts_down": np.zeros((8, 1000), np.int8)}
    params = {"embed": np.zeros(10**6, np.int8), "lm_head": np.zeros(10**6, np.int8)}
    config = types.SimpleNamespace(experts=Experts(count=8, per_token=2))
    model = types.SimpleNamespace(params=params | {"layers": [layer] * 1000}, config=config)
    assert generate._reading(model, 1, 1.0).startswith("4 MB for each token")


@pytest.mark.parametrize("command", ["generate", "perplexity"])
def test_weights_of_nan_are_an_error(
    write_gguf, tiny_weights, capsys, tmp_path: Path, command: str
) -> None:
    tiny_weights["model.norm.weight"][:] = np.nan
    (tmp_path / "text").write_text("hello world!")
    asked = ["--prompt", "hello", "--max-tokens", "2", "--no-chat-template"]
    asked = asked if command == "generate" else [str(tmp_path / "text")]
    assert cli.main([command, "--model", str(write_gguf(tiny_weights)), *asked]) == 2
    text = f"intarsia {command}: engine: logits are not finite, expected numbers: weights are "
    assert capsys.readouterr().err.splitlines()[-1].startswith(text)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nBuffers:")],
)
def test_a_cache_that_no_memory_holds_is_one_line(
    write_gguf, tiny_weights, capsys, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    model = str(write_gguf(tiny_weights))  # of two layers with two KV heads of 16 columns

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(jax.numpy, "zeros", fail)
    command = ["generate", "--model", model, "--prompt", "a", "--no-chat-template"]
    command += ["--device", "cpu", "--dtype", "float32", "--max-model-len", "400"]
    assert cli.main(command) == 2
    said = "intarsia generate: out of memory for a KV cache of 0.2 MB, 25 pages of 16 slots; lower "
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{said}max_model_len (--max-model-")


@pytest.mark.parametrize(("replicas", "whose"), [(1, ""), (2, ", replica 0 of 2")])
def test_figures_are_of_a_replica_s_own_prompts(capsys, replicas: int, whose: str) -> None:
    stats = Stats(1.0, 0.01, prefill_seconds=2, prefill_tokens=7, decode_seconds=1, decode_tokens=4)
    engine = types.SimpleNamespace(stats=stats, custom_calls=dict)
    generate._summarize(engine, Share(replicas=replicas))
    rows = capsys.readouterr().err.splitlines()[-3:]
    assert rows == [
        f"first token      10 ms{whose}",
        f"prefill          7 tokens in 2.00 s, 3.5 tokens/s{whose}",
        f"decode           4 tokens in 1.00 s, 4.0 tokens/s{whose}",
    ]


@pytest.mark.parametrize("context", ["0", "1", "-5", "512"])
def test_perplexity(model: Path, capsys: pytest.CaptureFixture, tmp_path: Path, context) -> None:
    (tmp_path / "text").write_text("hello world!")
    command = ["perplexity", str(tmp_path / "text"), "--model", str(model)]
    assert cli.main([*command, "--context", context]) == 2
    text = f"--context is {context}, expected 2 to 511 for this model"
    assert capsys.readouterr().err == f"intarsia perplexity: {text}\n"


def test_a_text_that_is_none(model: Path, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert cli.main(["perplexity", "nosuch.txt", "--model", str(model)]) == 2
    text = "the text nosuch.txt: No such file or directory"
    assert capsys.readouterr().err == f"intarsia perplexity: {text}\n"
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert cli.main(["perplexity", str(tmp_path / "bytes"), "--model", str(model)]) == 2
    assert "bytes is not UTF-8" in capsys.readouterr().err


def test_stdin_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(data: bytes) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="latin-1"))
        return _read("-")

    assert typed("na\u00efve".encode()) == "na\u00efve"
    with pytest.raises(ValueError, match="the text - is not UTF-8"):
        typed(b"\xff")


def test_export(write_gguf, tiny_weights, capsys, tmp_path: Path, monkeypatch) -> None:
    model, out = str(write_gguf(tiny_weights)), tmp_path / "out"
    assert cli.main(["export", model, str(out)]) == 0
    modes = {file.name: file.stat().st_mode for file in out.iterdir()}
    assert len(modes) == 5 and len(set(modes.values())) == 1, modes
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert cli.main(["export", model, str(out)]) == 2
    assert "has model.safetensors already; --overwrite replaces it" in capsys.readouterr().err
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    assert cli.main(["export", model, str(out), "--overwrite"]) == 0
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", model, "", "--overwrite"]) == 2
    text = "the directory is '', expected a folder to write to"
    assert capsys.readouterr().err == f"intarsia export: {text}\n"


@pytest.mark.parametrize(
    ("dtype", "is_hopper", "gains"),
    [("bfloat16", True, True), ("bfloat16", False, False), ("float32", True, False)],
)
def test_what_a_gpu_keeps_in_codes(
    write_gguf, tiny_weights, monkeypatch, dtype: str, is_hopper: bool, gains: bool
) -> None:
    path = Path(write_gguf(tiny_weights))
    monkeypatch.setattr(_decoding, "is_hopper", lambda: is_hopper)
    assert _model.gains_by_codes_on_gpu(path, open_checkpoint(path), dtype) == gains


@pytest.mark.parametrize("error", [UnheldCodesError, UndividedCodesError])
def test_codes_that_cannot_be_kept_are_widened_by_default(error, monkeypatch, capsys) -> None:
    asked = []

    def load(choice: _model.Choice, quantize: str | None) -> None:
        asked.append(quantize)
        if quantize:
            raise error("w_down is in codes")

    monkeypatch.setattr(_model.Choice, "_load", load)
    choice = _model.Choice(Path(), "bfloat16", "file", None, None, None, "auto", False, True)
    choice.load()
    assert asked == ["file", None]
    assert "w_down is in codes, as is done now" in capsys.readouterr().err
    with pytest.raises(error):
        choice._replace(by_default=False).load()
