"""Dense Qwen3: transformers' tokens, the same model from a directory and from GGUF, what a directory may not say, and an export."""

import dataclasses
import json

import gguf_models
import jax
import numpy as np
import pytest
import tiny_models
from intarsia.models import Tokenizer, export_model, load_model, reference
from intarsia.models.architectures import config_from_hf
from test_mixtures import PROMPTS, check_is_recorded, engine_of


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A GGUF file, and a directory with the same numbers."""
    return gguf_models.write(tmp_path_factory.mktemp("qwen3"), "qwen3")


def test_tokens_are_those_of_transformers(paths, recorded_tiny):
    check_is_recorded(engine_of(load_model(paths[1])), recorded_tiny["qwen3"])


def test_reference_gives_the_tokens_of_transformers(paths, recorded_tiny):
    config, params = load_model(paths[1])
    endless = dataclasses.replace(config, eos_ids=())
    tokens = reference.generate(endless, params, PROMPTS, 16).tokens
    assert tokens == [sequence["tokens"] for sequence in recorded_tiny["qwen3"]]


def test_both_files_are_the_same_model(paths):
    (config, params), (of_directory, expected) = map(load_model, paths)
    assert np.float32(of_directory.rms_eps) == config.rms_eps  # f32 in GGUF
    assert config == dataclasses.replace(of_directory, rms_eps=config.rms_eps)
    assert config.qk_norm and not config.qkv_bias
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_tied_embeddings_and_a_head_dim_of_its_own():
    said = tiny_models.CONFIGS["qwen3"] | {"tie_word_embeddings": True, "head_dim": 32}
    config = config_from_hf(said)
    assert config.tie_embeddings and config.head_dim == 32
    assert config_from_hf({k: v for k, v in said.items() if k != "head_dim"}).head_dim == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window is True, expected False"),
        ({"attention_bias": True}, "attention_bias is True, expected False"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer type is 'sliding_attention', expected full_attention"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"head_dim": 32}, r"q_proj\.weight has shape \[64, 48\], expected \[128, 48\]"),
        ({"architectures": ["LlamaForCausalLM"]}, r"unsupported tensors model\.layers\.0\.self_attn\.k_norm"),
    ],
)  # fmt: skip
def test_wrong_configurations(tmp_path, change, message):
    path = tiny_models.write(tmp_path, "qwen3", **change)
    with pytest.raises(ValueError, match=message) as raised:
        load_model(path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


@pytest.mark.parametrize("window", [4, 0])
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_window_in_gguf_is_none(tmp_path, name, window):
    """As llama.cpp reads it."""

    def change(tensors, metadata):
        metadata["attention.sliding_window"] = window

    path, _ = gguf_models.write(tmp_path, name, change=change)
    assert [kind.sliding_window for kind in load_model(path)[0].layer_kinds] == [None]


def test_an_export_with_biases_is_refused(tmp_path):
    """Those of q, k and v; Qwen3's config.json has a key for all four alone."""

    def change(tensors, metadata):
        for layer in range(tiny_models.LAYERS):
            for of, rows in (("q", 64), ("k", 32), ("v", 32)):
                tensors[f"blk.{layer}.attn_{of}.bias"] = np.ones(rows, np.float32)

    path, _ = gguf_models.write(tmp_path, "qwen3", change=change)
    assert load_model(path)[0].qkv_bias
    with pytest.raises(
        ValueError, match="biases of q, k and v, expected none beside norms"
    ) as said:
        export_model(path, tmp_path / "out")
    assert str(said.value).startswith(f"{path}: ") and not (tmp_path / "out").exists()


def test_an_export_is_the_same_model(paths, tmp_path):
    export_model(paths[0], tmp_path / "out", dtype="float32")
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert said["architectures"] == ["Qwen3ForCausalLM"] and said["model_type"] == "qwen3"
    (config, params), (written, weights) = map(load_model, (paths[0], tmp_path / "out"))
    assert written == config
    jax.tree.map(np.testing.assert_array_equal, weights, params)
    assert Tokenizer.from_path(tmp_path / "out").encode("the") == [259]
