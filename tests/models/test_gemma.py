"""Gemma 3: transformers' tokens, and what its layers have different from Llama's."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from intarsia.models import Engine, SamplingParams, load_model, reference

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def prompts():
    """Ragged prompts, shorter and longer than the window."""
    rng = np.random.default_rng(4)
    return [rng.integers(2, 258, length).tolist() for length in (3, 40, 17)]


@pytest.fixture(scope="module")
def greedy_tokens(tiny_gemma, prompts):
    """What the tiny Gemma says greedily."""
    return tokens_of(Engine(*tiny_gemma, max_num_seqs=3, max_model_len=64), prompts)


def tokens_of(engine, prompts, sampling=GREEDY):
    return [completion.tokens for completion in engine.generate(prompts, sampling)]


@pytest.mark.full
def test_tokens_are_those_of_transformers(gemma3, recorded_gemma3):
    # One prompt is longer than the window of 512, in its decoding, too.
    prompts = [sequence["prompt_ids"] for sequence in recorded_gemma3]
    assert max(map(len, prompts)) > gemma3[0].layer_kinds[0].sliding_window + 64
    engine = Engine(*gemma3, max_num_seqs=5, max_model_len=max(map(len, prompts)) + 24)
    tokens = tokens_of(engine, prompts, SamplingParams(temperature=0.0, max_tokens=24))
    assert tokens == [sequence["tokens"][:24] for sequence in recorded_gemma3]


@pytest.mark.full
def test_scanned_layers_give_the_tokens_of_transformers(gemma3, recorded_gemma3):
    prompts = [sequence["prompt_ids"] for sequence in recorded_gemma3[:4]]
    engine = Engine(*gemma3, max_num_seqs=4, max_model_len=64, scan_layers=True)
    tokens = tokens_of(engine, prompts, SamplingParams(temperature=0.0, max_tokens=12))
    assert tokens == [sequence["tokens"][:12] for sequence in recorded_gemma3[:4]]


@pytest.mark.parametrize("quantize", ["file", pytest.param("none", marks=pytest.mark.full)])
def test_first_logits_are_those_of_transformers(request, gemma3_path, recorded_gemma3, quantize):
    """By the file's codes, too: the numbers that they stand for take ten times as long to load."""
    in_codes = quantize == "file"
    model = load_model(gemma3_path, quantize="file") if in_codes else request.getfixturevalue("gemma3")  # fmt: skip
    sequences = recorded_gemma3[:4]
    engine = Engine(*model, max_num_seqs=4, max_model_len=64)
    values = np.array([sequence["first_logits"]["values"] for sequence in sequences])
    logprobs = np.zeros_like(values)
    for rank in range(values.shape[1]):
        longer = [[*s["prompt_ids"], s["first_logits"]["ids"][rank]] for s in sequences]
        logprobs[:, rank] = [of_prompt[-1] for of_prompt in engine.prompt_logprobs(longer)]
    # Both but for a constant a row.
    np.testing.assert_allclose(logprobs - logprobs[:, :1], values - values[:, :1], atol=1e-3)


@pytest.mark.full
def test_reference_gives_the_tokens_of_transformers(gemma3, recorded_gemma3):
    prompts = [sequence["prompt_ids"] for sequence in recorded_gemma3[:4]]
    result = reference.generate(*gemma3, prompts, 12)
    assert result.tokens == [sequence["tokens"][:12] for sequence in recorded_gemma3[:4]]


def test_engine_and_reference_agree(tiny_gemma, prompts):
    engine = Engine(*tiny_gemma, max_num_seqs=3, max_model_len=64)
    tokens = tokens_of(engine, prompts, SamplingParams(temperature=0.0, max_tokens=12))
    assert tokens == reference.generate(*tiny_gemma, prompts, 12).tokens


def test_scanned_layers_give_what_unrolled_ones_give(tiny_gemma, prompts, greedy_tokens):
    config, _ = tiny_gemma
    assert config.layers % len(config.layer_kinds)  # Some layers are left over after the loop.
    engine = Engine(*tiny_gemma, max_num_seqs=3, max_model_len=64, scan_layers=True)
    assert tokens_of(engine, prompts) == greedy_tokens


@pytest.mark.parametrize(
    "change",
    [
        {"attention_scale": 0.5},
        {"embed_scale": 1.0},
        {"activation": "silu"},
        {"rms_eps": 10.0},
    ],
    ids=str,
)
def test_every_trait_changes_the_text(tiny_gemma, prompts, greedy_tokens, change):
    config, params = tiny_gemma
    config = dataclasses.replace(config, **change)
    engine = Engine(config, params, max_num_seqs=3, max_model_len=64)
    assert tokens_of(engine, prompts) != greedy_tokens


@pytest.mark.parametrize("of", ["local", "global"])
def test_kinds_of_layers_are_in_their_places(tiny_gemma, prompts, greedy_tokens, of):
    # With the rope of one kind for both, or no window, long prompts go on in other ways.
    config, params = tiny_gemma
    local, everything = config.layer_kinds
    assert (local.sliding_window, everything.sliding_window) == (8, None)
    assert (local.rope.theta, everything.rope.theta) == (1e4, 1e6)
    kind = {"local": local, "global": everything}[of]
    same = dataclasses.replace(config, layer_kinds=(kind,))
    engine = Engine(same, params, max_num_seqs=3, max_model_len=64)
    assert tokens_of(engine, prompts)[1] != greedy_tokens[1]
    swapped = dataclasses.replace(config, layer_kinds=(everything, local))
    engine = Engine(swapped, params, max_num_seqs=3, max_model_len=64)
    assert tokens_of(engine, prompts)[1] != greedy_tokens[1]


def test_norms_keep_their_weights_in_f32(write_directory, gemma_config, gemma_weights):
    stored = {name: array.astype(ml_dtypes.bfloat16) for name, array in gemma_weights.items()}
    _, params = load_model(write_directory(gemma_config, stored), dtype="bfloat16")
    norm, name = params["layers"][1]["mlp_norm"], "model.layers.1.pre_feedforward_layernorm.weight"
    assert norm.dtype == jnp.float32
    np.testing.assert_array_equal(norm, stored[name].astype(np.float32) + 1)
    assert params["embed"].dtype == params["layers"][0]["wo"].dtype == jnp.bfloat16


def test_f16_is_refused(write_directory, gemma_config, gemma_weights):
    path = write_directory(gemma_config, gemma_weights)
    with pytest.raises(ValueError, match="dtype is float16, whose range this model leaves"):
        load_model(path, dtype="float16")


def test_bf16_stays_near_f32(write_directory, gemma_config, gemma_weights, prompts):
    path = write_directory(gemma_config, gemma_weights)
    exact, rounded = (
        np.concatenate(
            Engine(
                *load_model(path, dtype=dtype), max_num_seqs=3, max_model_len=64
            ).prompt_logprobs(prompts)
        )
        for dtype in ("float32", "bfloat16")
    )
    assert 0 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 3e-2


def test_steps_run_on_the_library_and_copy_no_cache(tiny_gemma, prompts):
    engine = Engine(*tiny_gemma, max_num_seqs=3, max_model_len=64)
    tokens_of(engine, prompts)
    layers = tiny_gemma[0].layers
    calls = {
        "rms_norm": 1 + 2 * layers,  # The first, and both post-norms of each layer.
        "fused_add_rms_norm": 2 * layers,
        "rotary_embedding_and_cache": layers,
        "gelu_tanh_and_mul": layers,
        "linear": 4 * layers + 1,
    }
    counted = engine.custom_calls()
    assert counted["prefill"] == calls | {"flash_attn_varlen": layers}
    assert counted["decode"] == calls | {"paged_attention": layers}
    shape = f"f32[{','.join(map(str, engine._caches[0][0].shape))}]"
    for executable in engine._executables.values():
        lines = executable.as_text().splitlines()
        assert not [line for line in lines if shape in line and " copy(" in line]


def test_gguf_and_safetensors_give_the_same_model(
    write_gguf, write_directory, gemma_weights, gemma_config
):
    config, params = load_model(write_directory(gemma_config, gemma_weights))
    gguf_config, gguf_params = load_model(write_gguf(gemma_weights, architecture="gemma3"))
    same = dataclasses.replace(
        gguf_config, rms_eps=config.rms_eps, max_positions=config.max_positions
    )
    assert same == config
    assert gguf_config.rms_eps == pytest.approx(config.rms_eps)  # GGUF keeps it in f32.
    jax.tree.map(np.testing.assert_array_equal, gguf_params, params)


def test_layers_and_ropes_in_transformers_5_s_words(write_directory, gemma_weights, gemma_config):
    old, _ = load_model(write_directory(gemma_config, gemma_weights))
    for key in ("sliding_window_pattern", "rope_theta", "rope_local_base_freq"):
        del gemma_config[key]
    kinds = ["sliding_attention", "full_attention"]
    gemma_config["layer_types"] = [*kinds, *kinds, kinds[0]]
    gemma_config["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new, _ = load_model(write_directory(gemma_config, gemma_weights))
    assert new.layer_kinds[0] == old.layer_kinds[0]
    assert new.layer_kinds[1].rope.theta == 1e6
    assert new.layer_kinds[1].rope.divisors == (8.0,) * 8
    assert len(new.rope_tables(16)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu', expected 'gelu_pytorch_t"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, expected None"),
        (
            {"layer_types": ["full_attention"] * 2},
            "layer_types has 2 entries, expected num_hidden_layers=5",
        ),
        ({"layer_types": ["odd"] * 5}, "layer type is 'odd', expected full_attention or sliding_"),
        ({"num_hidden_layers": 4}, r"unsupported tensors model\.layers\.4\."),
    ],
)
def test_wrong_configurations(write_directory, gemma_config, gemma_weights, change, message):
    path = write_directory(gemma_config | change, gemma_weights)
    with pytest.raises(ValueError, match=message):
        load_model(path)


def test_scores_of_the_27b_alone_are_not_scaled_by_the_head_dim():
    from intarsia.models.gguf_config import config_from_gguf

    def scale(layers, hidden, heads, **extra):
        metadata = {
            "block_count": layers,
            "embedding_length": hidden,
            "attention.head_count": heads,
            "attention.key_length": 128,
            "feed_forward_length": 64,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "context_length": 512,
            "attention.sliding_window": 1024,
        } | extra
        metadata = {f"gemma3.{key}": value for key, value in metadata.items()}
        metadata["general.architecture"] = "gemma3"
        kwargs = {"vocab": 8, "tie_embeddings": True, "qkv_bias": False, "rope_divisors": None}
        return config_from_gguf(metadata, **kwargs).attention_scale

    assert scale(62, 5376, 32) == 168**-0.5
    assert scale(48, 3840, 16) == 128**-0.5
    assert scale(48, 3840, 16, **{"attention.scale": 0.25}) == 0.25
