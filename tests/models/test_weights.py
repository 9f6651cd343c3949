"""Loading models: the same weights from GGUF and safetensors, and errors that say what is wrong."""

import json
import math

import ml_dtypes
import numpy as np
import pytest
from intarsia.models import find_model, load_model
from intarsia.models.architectures import config_from_hf
from intarsia.models.checkpoint import open_checkpoint
from intarsia.models.config import Rope

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def assert_same_params(left, right):
    assert left.keys() == right.keys()
    for name in left.keys() - {"layers"}:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    for one, other in zip(left["layers"], right["layers"], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_gguf_and_safetensors_give_the_same_model(
    write_gguf, write_directory, tiny_weights, hf_config
):
    config, params = load_model(write_directory(hf_config, tiny_weights))
    gguf_config, gguf_params = load_model(write_gguf(tiny_weights))
    assert_same_params(params, gguf_params)
    assert gguf_config.rms_eps == pytest.approx(config.rms_eps)  # GGUF keeps it in f32.
    for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
        assert getattr(gguf_config, name) == getattr(config, name)
    for name in ("layer_kinds", "tie_embeddings", "max_positions", "bos_id", "eos_ids"):
        assert getattr(gguf_config, name) == getattr(config, name)
    assert config.eos_ids == (1,)
    assert "lm_head" not in params


def test_projections_with_the_same_input_are_fused(write_directory, tiny_weights, hf_config):
    _, params = load_model(write_directory(hf_config, tiny_weights))
    names = (f"model.layers.1.self_attn.{p}_proj.weight" for p in "qkv")
    fused = np.concatenate([tiny_weights[name] for name in names])
    np.testing.assert_array_equal(params["layers"][1]["wqkv"], fused)
    second = tiny_weights["model.layers.1.input_layernorm.weight"]
    np.testing.assert_array_equal(params["layers"][0]["next_norm"], second)
    last = tiny_weights["model.norm.weight"]
    np.testing.assert_array_equal(params["layers"][1]["next_norm"], last)


def test_shards_are_joined(write_directory, tiny_weights, hf_config, tmp_path):
    _, sharded = load_model(write_directory(hf_config, tiny_weights, shards=3))
    (tmp_path / "model.safetensors.index.json").unlink()
    _, whole = load_model(write_directory(hf_config, tiny_weights))
    assert_same_params(sharded, whole)


SIZES = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 32, "vocab_size": 9}
OF_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("architecture", "eps", "longest", "kv_heads", "head_dim", "tokens", "windows"),
    [
        ("Llama", 1e-6, 2048, 32, 16, (1, 2), [None]),
        ("Mistral", 1e-6, 131072, 8, 16, (1, 2), [4096]),
        ("Qwen2", 1e-6, 32768, 32, 16, (None,), [None]),
        ("Qwen3", 1e-6, 32768, 32, 128, (None,), [None]),
        ("Gemma3", 1e-6, 131072, 4, 256, (2, 1), [4096, 4096]),
        ("Mixtral", 1e-5, 131072, 8, 16, (1, 2), [None]),
        ("Qwen3Moe", 1e-6, 32768, 4, 16, (None,), [None]),
        ("GptOss", 1e-5, 131072, 8, 64, (None,), [128, None]),
    ],
)
def test_what_a_file_leaves_out_is_what_transformers_takes(
    architecture, eps, longest, kv_heads, head_dim, tokens, windows
):
    said = SIZES | OF_EXPERTS | {"architectures": [f"{architecture}ForCausalLM"]}
    said |= {"intermediate_size": 64, "moe_intermediate_size": 64}
    config = config_from_hf(said)
    assert (config.rms_eps, config.max_positions, config.kv_heads) == (eps, longest, kv_heads)
    assert config.head_dim == head_dim and (config.bos_id, *config.eos_ids) == tokens
    assert [config.kind(i).sliding_window for i in range(2)][: len(windows)] == windows
    amplitude = 0.1 * math.log(32) + 1 if architecture == "GptOss" else 1.0
    assert [rope.amplitude for rope in config.ropes] == [amplitude] * len(config.ropes)


def test_null_is_not_what_is_left_out():
    said = SIZES | {"architectures": ["MistralForCausalLM"], "intermediate_size": 64}
    null = dict.fromkeys(("sliding_window", "bos_token_id", "eos_token_id", "num_key_value_heads"))
    config = config_from_hf(said | null)
    assert config.kind(0).sliding_window is None and config.kv_heads == config.heads
    assert config.bos_id is None and config.eos_ids == ()
    said = SIZES | OF_EXPERTS | {"architectures": ["GptOssForCausalLM"], "intermediate_size": 64}
    assert config_from_hf(said | {"rope_scaling": None}).ropes == (Rope(150000.0),)


@pytest.mark.parametrize(("said", "eos"), [(None, (1,)), ([], (1,)), ([3, 4], (3, 4))])
def test_a_generation_configuration_that_says_nothing_of_an_end(
    write_directory, tiny_weights, hf_config, said, eos
):
    path = write_directory(hf_config, tiny_weights)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    assert open_checkpoint(path).config.eos_ids == eos


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_converted(write_directory, tiny_weights, hf_config, dtype):
    stored = {name: array.astype(ml_dtypes.bfloat16) for name, array in tiny_weights.items()}
    _, params = load_model(write_directory(hf_config, stored), dtype=dtype)
    expected = stored["model.embed_tokens.weight"].astype(dtype)
    assert params["embed"].dtype == dtype
    np.testing.assert_array_equal(params["embed"], expected)
    assert params["layers"][0]["wqkv"].dtype == dtype


def test_output_projection_of_its_own(write_gguf, write_directory, tiny_weights, hf_config):
    tiny_weights["lm_head.weight"] = -tiny_weights["model.embed_tokens.weight"]
    hf_config["tie_word_embeddings"] = False
    for path in (write_directory(hf_config, tiny_weights), write_gguf(tiny_weights)):
        config, params = load_model(path)
        assert not config.tie_embeddings
        np.testing.assert_array_equal(params["lm_head"], tiny_weights["lm_head.weight"])


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_biases_and_the_order_of_rows(
    write_gguf, write_directory, tiny_weights, hf_config, architecture
):
    """llama.cpp's converter permutes llama's q and k, and their biases."""
    for layer in range(2):
        for name in "qkv":
            stem = f"model.layers.{layer}.self_attn.{name}_proj"
            rows = tiny_weights[f"{stem}.weight"].shape[0]
            tiny_weights[f"{stem}.bias"] = np.arange(rows, dtype=np.float32)
    hf_config["architectures"] = ["Qwen2ForCausalLM"]
    config, params = load_model(write_directory(hf_config, tiny_weights))
    _, gguf_params = load_model(write_gguf(tiny_weights, architecture=architecture))
    assert config.qkv_bias
    assert params["layers"][0]["bqkv"].shape == (128,)
    assert_same_params(params, gguf_params)


def test_rope_scaling_of_llama3(write_gguf, write_directory, tiny_weights, hf_config):
    hf_config["rope_scaling"] = LLAMA3_ROPE
    config, _ = load_model(write_directory(hf_config, tiny_weights))
    # Unscaled over scaled frequencies in transformers 5.23.
    expected = [1, 1, 1, 4.78183355, 8, 8, 8, 8]
    np.testing.assert_allclose(config.layer_kinds[0].rope.divisors, expected, rtol=1e-6)
    stored = np.array(config.layer_kinds[0].rope.divisors, np.float32)
    path = write_gguf(tiny_weights, extra={"rope_freqs.weight": stored})
    gguf_config, _ = load_model(path)
    np.testing.assert_array_equal(gguf_config.layer_kinds[0].rope.divisors, stored)
    np.testing.assert_array_equal(gguf_config.rope_tables(64)[0], config.rope_tables(64)[0])
    # As in llama.cpp, a factor divides by that, too.
    both = {"extra": {"rope_freqs.weight": stored}, "metadata": {"llama.rope.scaling.factor": 2.0}}
    divisors = open_checkpoint(write_gguf(tiny_weights, **both)).config.layer_kinds[0].rope.divisors
    np.testing.assert_array_equal(divisors, 2 * stored)


@pytest.mark.parametrize(
    ("change", "divisors", "amplitude"),
    [
        ({}, [1, 4 / 3, 2, 4, 4, 4, 4, 4], 1.138629),
        ({"truncate": False}, [1, 1.40149, 2.34161, 4, 4, 4, 4, 4], 1.138629),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, [1, 4 / 3, 2, 4, 4, 4, 4, 4], 1.064822),
        ({"attention_factor": 1.5, "beta_fast": 4.0, "beta_slow": 0.5}, [1, 1, 4 / 3, 2, 4, 4, 4, 4], 1.5),
    ],
    ids=str,
)  # fmt: skip
def test_rope_scaling_of_yarn(
    write_directory, tiny_weights, hf_config, change, divisors, amplitude
):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    hf_config["rope_scaling"] = scaling | change
    config, _ = load_model(write_directory(hf_config, tiny_weights))
    # Unscaled over scaled frequencies, and attention_scaling, in transformers 4.57.
    np.testing.assert_allclose(config.layer_kinds[0].rope.divisors, divisors, rtol=1e-5)
    assert config.layer_kinds[0].rope.amplitude == pytest.approx(amplitude, rel=1e-6)
    assert config.rope_tables(8)[0][0, 0] == pytest.approx(amplitude, rel=1e-6)


def test_linear_rope_scaling_stretches_positions(write_directory, tiny_weights, hf_config):
    plain, _ = load_model(write_directory(hf_config, tiny_weights))
    hf_config["rope_scaling"] = {"type": "linear", "factor": 4.0}
    scaled, _ = load_model(write_directory(hf_config, tiny_weights))
    np.testing.assert_allclose(scaled.rope_tables(64)[0][::4], plain.rope_tables(16)[0], atol=1e-6)


@pytest.mark.parametrize("key", ["scaling.factor", "scale_linear"])
def test_a_factor_of_gguf_is_linear_unless_the_file_says_otherwise(write_gguf, tiny_weights, key):
    """As llama.cpp reads it."""
    config, _ = load_model(write_gguf(tiny_weights, metadata={f"llama.rope.{key}": 4.0}))
    assert config.layer_kinds[0].rope.divisors == (4.0,) * 8


@pytest.mark.parametrize(
    "said", [{"type": "linear"}, {"type": "yarn", "original_context_length": 128}, {}], ids=str
)
def test_a_factor_of_0_in_gguf_is_1(write_gguf, tiny_weights, said):
    """As llama.cpp reads it, which writes it, too."""
    scaling = {
        f"llama.rope.scaling.{key}": value for key, value in (said | {"factor": 0.0}).items()
    }
    config, _ = load_model(write_gguf(tiny_weights, metadata=scaling))
    plain, _ = load_model(write_gguf(tiny_weights))
    np.testing.assert_array_equal(config.rope_tables(64)[0], plain.rope_tables(64)[0])


def test_an_amplitude_of_gguf_s_rope_is_refused(write_gguf, tiny_weights):
    """llama.cpp applies it whatever the type is; 1 says nothing."""
    key = "llama.rope.scaling.attn_factor"
    load_model(write_gguf(tiny_weights, metadata={key: 1.0}))
    for said in ({}, {"llama.rope.scaling.factor": 4.0}, {"llama.rope.scaling.type": "none"}):
        path = write_gguf(tiny_weights, metadata=said | {key: 1.25})
        with pytest.raises(ValueError, match=rf"^{path}: {key} is 1.25, expected 1.0"):
            load_model(path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_window_that_llama_cpp_does_not_read(write_gguf, tiny_weights, architecture):
    key = f"{architecture}.attention.sliding_window"
    path = write_gguf(tiny_weights, architecture=architecture, metadata={key: 4})
    assert open_checkpoint(path).config.kind(0).sliding_window is None


def test_rope_table_is_cosines_then_sines(write_directory, tiny_weights, hf_config):
    config, _ = load_model(write_directory(hf_config, tiny_weights))
    table = config.rope_tables(8)[0]
    assert table.shape == (8, 16)
    assert table.dtype == np.float32
    angles = 7 * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(table[7], [*np.cos(angles), *np.sin(angles)], atol=1e-6)


def test_sliding_window_is_mistral_s_alone(write_directory, tiny_weights, hf_config):
    hf_config["sliding_window"] = 64
    assert (
        load_model(write_directory(hf_config, tiny_weights))[0].layer_kinds[0].sliding_window
        is None
    )
    hf_config["architectures"] = ["MistralForCausalLM"]
    assert (
        load_model(write_directory(hf_config, tiny_weights))[0].layer_kinds[0].sliding_window == 64
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "is 'GPT2LMHeadModel', expected one of Llama"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (
            {"rope_scaling": {"rope_type": "dynamic"}},
            "'dynamic', expected one of default, linear, ll",
        ),
        ({"num_key_value_heads": 3}, "heads=4 must be a multiple of kv_heads=3"),
        ({"intermediate_size": 95}, r"gate_proj.weight has shape \[96, 48\], expected \[95, 48\]"),
        ({"num_hidden_layers": 3}, r"layers.2.* is missing, expected shape \[48\]"),
        ({"num_hidden_layers": 1}, r"unsupported tensors model\.layers\.1\.input_layernorm"),
    ],
)
def test_wrong_configurations(write_directory, tiny_weights, hf_config, change, message):
    path = write_directory(hf_config | change, tiny_weights)
    with pytest.raises(ValueError, match=message):
        load_model(path)


def test_wrong_files(write_gguf, tiny_weights, tmp_path):
    with pytest.raises(ValueError, match="architecture is 'gemma', expected one of llama, qwen2"):
        load_model(write_gguf(tiny_weights, architecture="gemma"))
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_model(tmp_path)
    text = tmp_path / "model.gguf"
    text.write_text("hello")
    with pytest.raises(ValueError, match=r"model\.gguf: it begins with b'hell', expected b'GGUF'"):
        load_model(text)
    with pytest.raises(FileNotFoundError, match=r"'nothing' is neither a file .* one of smollm2"):
        find_model("nothing")
