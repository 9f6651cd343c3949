"""Models written as Hugging Face directories are read as what they were."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from intarsia import cli
from intarsia.models import Tokenizer, export, export_model, load_model
from intarsia.models.architectures import config_from_hf, config_to_hf
from intarsia.models.config import LayerKind, ModelConfig, Rope

TEXTS = ("the weaver 123 threw", "  ΓΙΑ\n\tthe  日本 <|end|> the", "")


def assert_same_model(path, directory):
    config, params = load_model(path)
    written, weights = load_model(directory)
    assert written == config
    jax.tree.map(np.testing.assert_array_equal, weights, params)


def assert_same_tokenizer(path, directory):
    ours, written = Tokenizer.from_path(path), Tokenizer.from_path(directory)
    assert [written.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
    assert written.special_tokens == ours.special_tokens
    assert written.chat_template == ours.chat_template


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_llama_and_qwen2(write_gguf, tiny_weights, tmp_path, architecture):
    if architecture == "qwen2":
        for name in [
            name
            for name in tiny_weights
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
        ]:
            tiny_weights[name.replace(".weight", ".bias")] = tiny_weights[name][:, 0].copy()
    tiny_weights["lm_head.weight"] = -tiny_weights["model.embed_tokens.weight"]
    path = write_gguf(tiny_weights, architecture=architecture)
    export_model(path, tmp_path / "out", dtype="float32")
    assert_same_model(path, tmp_path / "out")
    assert_same_tokenizer(path, tmp_path / "out")
    assert Tokenizer.from_path(tmp_path / "out").render_chat("hi") == "user: hi<|end|>assistant: "


def test_gemma3_with_a_bos_of_its_own(write_gguf, gemma_weights, tmp_path):
    path = write_gguf(gemma_weights, architecture="gemma3", tokenizer="llama")
    export_model(path, tmp_path / "out", dtype="float32")
    written, weights = load_model(tmp_path / "out")
    config, params = load_model(path)
    assert written == config
    # Norms lose a bit where they are held as their difference from 1.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), weights, params)
    assert_same_tokenizer(path, tmp_path / "out")
    assert Tokenizer.from_path(tmp_path / "out").encode("the")[0] == 0  # bos


_IN_C_LOCALE = r"""
import sys
from intarsia.cli.perplexity import _read
from intarsia.models import export_model

assert _read(sys.argv[3]) == "\u65e5"
export_model(sys.argv[1], sys.argv[2], dtype="float32")
"""


def test_files_are_in_utf_8_whatever_the_locale(write_gguf, tiny_weights, tmp_path):
    path = write_gguf(tiny_weights, chat_template="日本 {{ messages[0].content }}")
    (tmp_path / "text").write_text("日", encoding="utf-8")
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", _IN_C_LOCALE, path, tmp_path / "out", tmp_path / "text"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert_same_tokenizer(path, tmp_path / "out")


def test_weights_are_rounded_once_to_the_dtype(write_gguf, tiny_weights, tmp_path):
    export_model(write_gguf(tiny_weights), tmp_path)
    _, params = load_model(tmp_path)
    rounded = tiny_weights["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(params["embed"], rounded.astype(np.float32))


def test_an_exported_directory_can_be_exported(write_gguf, tiny_weights, tmp_path):
    path = write_gguf(tiny_weights)
    export_model(path, tmp_path / "once", dtype="float32")
    export_model(tmp_path / "once", tmp_path / "twice", dtype="float32")
    assert_same_model(path, tmp_path / "twice")


def test_a_model_without_tokens_at_its_ends_stays_so(
    write_gguf, write_directory, hf_config, tiny_weights, tmp_path
):
    none = {"bos_token_id": None, "eos_token_id": None}
    path = write_directory(hf_config | none, tiny_weights)
    Tokenizer.from_path(write_gguf(tiny_weights)).backend.save(str(path / "tokenizer.json"))
    export_model(path, tmp_path / "out", dtype="float32")
    assert_same_model(path, tmp_path / "out")


def test_nothing_of_a_model_that_was_there_remains(write_gguf, tiny_weights, tmp_path, capsys):
    path, out = write_gguf(tiny_weights), tmp_path / "out"
    out.mkdir()
    for name in ("model-00001-of-00002.safetensors", "chat_template.jinja"):
        (out / name).write_text("of another one")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    arguments = ["export", str(path), str(out), "--dtype", "float32"]
    assert cli.main(arguments) == 2
    assert "model.safetensors.index.json already; --overwrite" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == 0
    assert_same_model(path, out)
    assert_same_tokenizer(path, out)


CONFIG = ModelConfig(
    hidden=64, layers=4, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=99, eos_ids=(1,)
)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_kinds": (LayerKind(Rope(1e6, (4.0,) * 8)),)},
        {"layer_kinds": (LayerKind(sliding_window=32),)},
        {"qkv_bias": True, "tie_embeddings": True, "bos_id": 3, "eos_ids": (1, 2)},
    ],
    ids=["linear_rope", "mistral", "qwen2"],
)
def test_configurations_come_back(change):
    config = dataclasses.replace(CONFIG, **change)
    assert config_from_hf(config_to_hf(config)) == config


@pytest.mark.parametrize("types", ["sfffs", "fss", "ffff", "ss"])
def test_kinds_of_layers_come_back_in_any_order(types):
    kinds = {
        "sliding_attention": LayerKind(Rope(1e4), 32),
        "full_attention": LayerKind(Rope(1e6, (8.0,) * 8)),
    }
    names = ["sliding_attention" if kind == "s" else "full_attention" for kind in types]
    said = config_to_hf(
        dataclasses.replace(
            CONFIG, layers=len(types), layer_kinds=tuple(map(kinds.get, names)), post_norms=True
        )
    )
    config = config_from_hf(said)
    assert [config.kind(i) for i in range(len(types))] == [kinds[name] for name in names]


def test_an_amplitude_of_rope_is_refused():
    config = dataclasses.replace(CONFIG, layer_kinds=(LayerKind(Rope(1e4, None, 1.5)),))
    with pytest.raises(ValueError, match=r"rope: its amplitude is 1.5, expected 1"):
        config_to_hf(config)


@pytest.mark.parametrize("trait", ["qk_norm", "qkv_bias"])
def test_a_window_of_qwen_is_refused(trait):
    """Its config.json has one that loaders ignore."""
    kinds = (LayerKind(sliding_window=32),)
    config = dataclasses.replace(CONFIG, layer_kinds=kinds, **{trait: True})
    with pytest.raises(
        ValueError, match=r"sliding_window is 32, expected none in a model of qwen[23]"
    ):
        config_to_hf(config)


def test_a_factor_of_layers_with_a_window_is_refused():
    kinds = (LayerKind(Rope(1e4, (4.0,) * 8), 32), LayerKind(Rope(1e6)))
    config = dataclasses.replace(CONFIG, layer_kinds=kinds, post_norms=True)
    with pytest.raises(
        ValueError, match=r"rope: layers with a window have a factor, expected none"
    ):
        config_to_hf(config)


NORM, Q_BIAS = "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({NORM: None}, f"weights: {NORM} is missing, expected shape [48]"),
        ({NORM: np.ones(47, np.float32)}, f"weights: {NORM} has shape [47], expected [48]"),
        ({Q_BIAS: np.ones(64, np.float32)}, f"weights: unsupported tensors {Q_BIAS}"),
        ({NORM: np.ones(48, np.int8)}, f"tensor {NORM}: its dtype is I8, expected F16"),
        ({NORM: np.full(48, 1e6, np.float32)}, f"tensor {NORM} has numbers that are not finite in float16"),
    ],
    ids=["missing", "shape", "extra", "codes", "range"],
)  # fmt: skip
def test_a_failing_export_leaves_the_folder_as_it_was(
    write_gguf, write_directory, hf_config, tiny_weights, tmp_path, capsys, change, text
):
    """In its own place, where the files that it would replace are those that it reads."""
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights))
    weights = {name: w for name, w in (tiny_weights | change).items() if w is not None}
    path = write_directory(hf_config, weights)
    tokenizer.backend.save(str(path / "tokenizer.json"))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert cli.main(["export", str(path), str(path), "--overwrite", "--dtype", "float16"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"intarsia export: {path}") and text in error
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_an_export_that_cannot_be_written_leaves_the_folder_as_it_was(
    write_gguf, tiny_weights, tmp_path, monkeypatch
):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    path, out = write_gguf(tiny_weights), tmp_path / "out"
    export_model(path, out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    monkeypatch.setattr(export, "save_file", fail)
    with pytest.raises(OSError, match=f"{out}: No space left on device"):
        export_model(path, out, dtype="float32")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_what_cannot_be_written_is_refused(write_gguf, tiny_weights, tmp_path):
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_gguf(tiny_weights, extra={"rope_freqs.weight": divisors})
    with pytest.raises(ValueError, match="divided by different numbers"):
        export_model(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="dtype is 'int8', expected one of bfloat16, float16, flo"):
        export_model(path, tmp_path / "out", dtype="int8")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "safetensors",
            "the command needs safetensors, which is not installed: pip install 'intarsia[models]'",
        ),
        ("nobody_has_it", "the command needs nobody-has-it, which is not installed"),
        ("safetensors.gone", "No module named 'safetensors.gone'"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(monkeypatch, capsys, module, text):
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    monkeypatch.setattr(cli.export, "main", lambda args: (_ for _ in ()).throw(error))
    assert cli.main(["export", "smollm2", "somewhere"]) == 2
    assert capsys.readouterr().err == f"intarsia export: {text}\n"
