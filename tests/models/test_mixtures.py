"""Mixtures of experts: transformers' tokens, on one device and on several, and what their files may not say."""

import dataclasses
import json
import random
import re
from pathlib import Path
from typing import Any

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from intarsia import cli
from intarsia.models import Engine, SamplingParams, Tokenizer, export_model, load_model, reference
from intarsia.models.architectures import config_to_hf
from intarsia.models.checkpoint import open_checkpoint
from intarsia.models.config import LayerKind
from intarsia.models.experts import experts
from intarsia.models.parallel import ModelParallel
from safetensors.numpy import save_file
from test_broken_files import check, mutated_json
from test_engine import tokens_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPTS = tiny_models.prompts()
on_each_mixture = pytest.mark.parametrize("name", tiny_models.MIXTURES)


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory):
    """Each tiny mixture's configuration and weights."""
    folder = tmp_path_factory.mktemp("mixtures")
    return {
        name: load_model(tiny_models.write(folder / name, name)) for name in tiny_models.MIXTURES
    }


def engine_of(model, **settings) -> Engine:
    return Engine(*model, max_num_seqs=4, max_model_len=64, **settings)


# ------------------------------------------------------------------------------------------------- transformers' tokens


def check_is_recorded(engine: Engine, recorded: list[dict[str, Any]]) -> None:
    """Tokens and log-probabilities are transformers'."""
    expected = [sequence["tokens"] for sequence in recorded]
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == expected
    for got, sequence in zip(engine.prompt_logprobs(PROMPTS), recorded, strict=True):
        np.testing.assert_allclose(got, sequence["logprobs"], atol=5e-5)
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)


@on_each_mixture
def test_tokens_are_those_of_transformers(mixtures, recorded_tiny, name):
    check_is_recorded(engine_of(mixtures[name]), recorded_tiny[name])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mixtral", {"expert_parallel": 2, "tensor_parallel": 2}),
        ("qwen3_moe", {"scan_layers": True}),
        ("gpt_oss", {"tensor_parallel": 4, "expert_parallel": 4, "decode_steps": 3}),
        *(
            pytest.param(*row, marks=pytest.mark.full)
            for row in (
                ("mixtral", {"tensor_parallel": 2}),
                ("mixtral", {"expert_parallel": 8}),
                ("qwen3_moe", {"expert_parallel": 4}),
                ("gpt_oss", {"scan_layers": True, "expert_parallel": 2}),
                ("gpt_oss", {"tensor_parallel": 4}),
            )
        ),
    ],
    ids=str,
)
def test_several_devices_and_scanned_layers_give_the_same(mixtures, recorded_tiny, name, settings):
    tokens = tokens_of(engine_of(mixtures[name], **settings).generate(PROMPTS, GREEDY))
    assert tokens == [sequence["tokens"] for sequence in recorded_tiny[name]]


@pytest.mark.gpu
@on_each_mixture
def test_a_gpu_gives_the_tokens_of_transformers(recorded_tiny, name, tmp_path):
    with jax.default_device(jax.devices("gpu")[0]):
        model = load_model(tiny_models.write(tmp_path, name))
        tokens = tokens_of(engine_of(model).generate(PROMPTS, GREEDY))
    assert tokens == [sequence["tokens"] for sequence in recorded_tiny[name]]


@pytest.mark.gpu
@on_each_mixture
@pytest.mark.parametrize("tensor", [1, 2])
def test_two_gpus_give_the_tokens_of_transformers(mixtures, recorded_tiny, name, tensor):
    if len(jax.devices("gpu")) < 2:
        pytest.skip("this machine has one GPU")
    engine = engine_of(mixtures[name], expert_parallel=2, tensor_parallel=tensor)
    # More than once: XLA launches calls one by one at first, records a graph, and replays that.
    for _ in range(2):
        tokens = tokens_of(engine.generate(PROMPTS, GREEDY))
        assert tokens == [sequence["tokens"] for sequence in recorded_tiny[name]]


@pytest.mark.full
@on_each_mixture
def test_reference_gives_the_tokens_of_transformers(mixtures, recorded_tiny, name):
    config, params = mixtures[name]
    endless = dataclasses.replace(config, eos_ids=())
    tokens = reference.generate(endless, params, PROMPTS, 16).tokens
    assert tokens == [sequence["tokens"] for sequence in recorded_tiny[name]]


@on_each_mixture
def test_bf16_stays_near_f32(mixtures, name, tmp_path):
    rounded = load_model(tiny_models.write(tmp_path, name), dtype="bfloat16")
    assert rounded[1]["layers"][0]["experts_down"].dtype == jnp.bfloat16
    [exact], [rounded] = (
        engine_of(model).prompt_logprobs(PROMPTS[3:]) for model in (mixtures[name], rounded)
    )
    # A token here and there meets another expert, whose logit is nearly that of the right one.
    assert 0 < np.median(np.abs(rounded - exact)) < 0.15


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mixtral", lambda c: {"experts": dataclasses.replace(c.experts, per_token=1)}),
        ("qwen3_moe", lambda c: {"experts": dataclasses.replace(c.experts, renormalize=False)}),
        ("gpt_oss", lambda c: {"experts": dataclasses.replace(c.experts, limit=2.0)}),
        ("gpt_oss", lambda c: {"layer_kinds": c.layer_kinds[::-1]}),
        ("gpt_oss", lambda c: {"layer_kinds": c.layer_kinds[:1]}),
        ("gpt_oss", lambda c: {"layer_kinds": _with_rope(c, divisors=None)}),
        ("gpt_oss", lambda c: {"layer_kinds": _with_rope(c, amplitude=1.0)}),
        ("gpt_oss", lambda c: {"o_bias": False}),
    ],
    ids=["per_token", "renormalize", "limit", "kinds", "one_kind", "rope", "amplitude", "o_bias"],
)
def test_every_trait_changes_the_probabilities(mixtures, recorded_tiny, name, change):
    config, params = mixtures[name]
    changed = dataclasses.replace(config, **change(config)), params
    [logprobs] = engine_of(changed, scan_layers=True).prompt_logprobs(PROMPTS[1:2])
    assert np.abs(logprobs - recorded_tiny[name][1]["logprobs"]).max() > 0.05


def _with_rope(config, **change) -> tuple[LayerKind, ...]:
    return tuple(
        dataclasses.replace(kind, rope=dataclasses.replace(kind.rope, **change))
        for kind in config.layer_kinds
    )


# ------------------------------------------------------------------------------------------------------- what steps hold


def test_steps_run_on_the_library(mixtures):
    engine = engine_of(mixtures["gpt_oss"])
    engine.generate(PROMPTS, GREEDY)
    for step in ("prefill", "decode"):
        calls = engine.custom_calls()[step]
        assert calls["topk_router"] == calls["fused_experts"] == tiny_models.LAYERS


def test_padding_meets_no_expert(mixtures):
    config, params = mixtures["gpt_oss"]
    rows = np.random.default_rng(0).standard_normal((5, config.hidden), np.float32)
    is_token = np.array([True, False, True, True, False])
    run = jax.jit(lambda mask: experts(ij, config, params["layers"][0], jnp.asarray(rows), mask))
    every, some = (np.asarray(run(mask)) for mask in (np.ones(5, bool), is_token))
    assert every.any(axis=1).all() and not some[~is_token].any()
    np.testing.assert_allclose(some[is_token], every[is_token], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tensor", "sums"), [(1, 1), (2, 2)])
def test_devices_have_their_experts_and_sum_once_a_branch(mixtures, tensor, sums):
    """No token travels to its experts, for every device has all tokens."""
    config, params = mixtures["mixtral"]
    parallel = ModelParallel(config, tensor, 2)
    [layer, *_] = parallel.place(params)["layers"]
    e, n, i = tiny_models.EXPERTS, config.hidden, config.intermediate
    shapes = {role: layer[role].sharding.shard_shape(layer[role].shape) for role in layer}
    assert shapes["experts_gate_up"] == (e // 2, 2 * i, n)
    assert shapes["experts_down"] == (e // 2, n, i)
    assert shapes["wo"] == (n, config.heads * config.head_dim // tensor)
    engine = engine_of((config, params), expert_parallel=2, tensor_parallel=tensor)
    engine.generate(PROMPTS, GREEDY)
    for key, executable in engine._executables.items():
        text = executable.as_text()
        assert not re.search(r" (all-to-all|collective-permute|all-gather)\(", text), key
        of_rows = re.findall(rf"= f32\[\d+,{n}\]\S* all-reduce\(", text)
        assert len(of_rows) == 1 + sums * config.layers, key  # the embedding's, and each branch's


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixtral", {"quantization_config": {"bits": 4}}, "quant_method is None, expected one of"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, expected a whole number, 1 to 8"),
        ("mixtral", {"num_local_experts": None}, "key num_local_experts is missing"),
        ("mixtral", {"num_local_experts": 7}, r"gate\.weight has shape \[8, 48\], expected \[7, 48\]"),
        ("mixtral", {"num_hidden_layers": 2}, r"unsupported tensors model\.layers\.2\.block_sparse_moe"),
        ("mixtral", {"intermediate_size": 31}, r"w1\.weight has shape \[32, 48\], expected \[31, 48\]"),
        ("mixtral", {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers is \[1\], expected \[\]"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2, expected 1"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob is 1, expected a bool"),
        ("qwen3_moe", {"moe_intermediate_size": 64}, r"gate_proj\.weight has shape \[32, 48\], expected \[64"),
        ("gpt_oss", {"attention_bias": False}, "attention_bias is False, expected True"),
        ("gpt_oss", {"layer_types": ["odd"] * 3}, "layer type is 'odd', expected sliding_attention or full"),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit is 0, expected a number, above 0"),
        ("gpt_oss", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "key original_max_position_emb"),
        ("gpt_oss", {"rope_theta": 1.0}, "rope_theta is 1.0, expected more than 1 for yarn"),
        ("gpt_oss", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 0.5, "original_max_position_embeddings": 64}},
         "beta_fast is 0.5, expected beta_slow or more, which is 1.0"),
        ("gpt_oss", {"architectures": ["MixtralForCausalLM"]}, r"layers\.0\.mlp\.gate\.weight is missing"),
    ],
)  # fmt: skip
def test_wrong_configurations(tmp_path, name, change, message):
    path = tiny_models.write(tmp_path, name, **change)
    with pytest.raises(ValueError, match=message) as raised:
        load_model(path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


@on_each_mixture
def test_mutants_of_the_configuration(tmp_path, name, pytestconfig):
    path = tiny_models.write(tmp_path, name)
    for number in range(pytestconfig.getoption("--mutants") // 8):
        mutant = mutated_json(random.Random(number), tiny_models.CONFIGS[name])
        (path / "config.json").write_text(json.dumps(mutant))
        check(path, f"mutant {number} of {name}", load_model)


def test_what_a_mixture_cannot_be(tmp_path):
    path = tiny_models.write(tmp_path / "gpt_oss", "gpt_oss")
    with pytest.raises(ValueError, match="dtype is float16, whose range this model leaves"):
        load_model(path, dtype="float16")
    with pytest.raises(
        ValueError, match="quantize is 'fp8', expected None for a model with experts, or 'int8'"
    ):
        load_model(path, quantize="fp8")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expert_parallel": 3}, "expert_parallel=3 does not divide experts=8; this model takes 1, 2, 4, 8"),
        ({"expert_parallel": 0}, "expert_parallel is 0, expected 1 to 8"),
        ({"expert_parallel": 4, "tensor_parallel": 2}, "tensor_parallel is 2, expected 1 or 4, which exp"),
        ({"expert_parallel": 8, "tensor_parallel": 8}, "tensor_parallel=8 does not divide heads=4; .* 1, 2, 4"),
        ({"tensor_parallel": 3}, "tensor_parallel=3 does not divide heads=4"),
    ],
    ids=str,
)  # fmt: skip
def test_impossible_sizes_are_refused(mixtures, settings, message):
    with pytest.raises(ValueError, match=message):
        engine_of(mixtures["mixtral"], **settings)


def test_a_model_without_experts_cannot_divide_them(tiny):
    with pytest.raises(ValueError, match="expert_parallel is 2, expected 1: this model has no exp"):
        engine_of(tiny, expert_parallel=2)


# ------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def directory(tmp_path, write_gguf, tiny_weights) -> Path:
    """A gpt-oss with a tokenizer."""
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights))
    path = tiny_models.write(tmp_path / "gpt-oss", "gpt_oss")
    tokenizer.backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return path


def test_the_command_generates(directory, capsys):
    arguments = ["--model", str(directory), "--prompt", "the 123", "--max-tokens", "8"]
    arguments += ["--no-chat-template", "--dtype", "float32", "--scan-layers"]
    texts = []
    for size in ("1", "8"):
        assert cli.main(["generate", *arguments, "--expert-parallel", size]) == 0
        out, error = capsys.readouterr()
        texts.append(out)
        assert ("on 8 devices" in error) == (size == "8") and "topk_router" in error
    assert texts[0] == texts[1] and len(texts[0]) > len("\n> the 123\n")


def test_the_command_refuses_in_a_line(directory, capsys, tmp_path):
    for arguments, text in (
        (["--expert-parallel", "0"], "--expert-parallel is 0, expected 1 or more"),
        (
            ["--quantize", "fp8"],
            "quantize is 'fp8', expected None for a model with experts, or 'int8', 'int4' or 'file'",
        ),
    ):
        assert cli.main(["generate", "--model", str(directory), *arguments]) == 2
        assert capsys.readouterr().err == f"intarsia generate: {text}\n"
    with pytest.raises(ValueError, match="a model with experts is not written yet"):
        export_model(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------- real weights


@pytest.fixture(scope="module")
def smollm2_in_experts(smollm2_path, tmp_path_factory):
    """SmolLM2 as a mixture that computes the same.

    Its MLP is cut into 8 experts of 192 columns, of which each token takes all. A router of zeros gives each the weight 1/8,
    exactly, which the down projections make up for.
    """
    checkpoint = open_checkpoint(smollm2_path)
    config = checkpoint.config
    cut = config.intermediate // 8
    tensors = {}
    for name in sorted(checkpoint.names):
        array = checkpoint.read(name)
        layer, _, projection = name.partition("mlp.")
        if not projection:
            tensors[name] = array
            continue
        place = f"{layer}block_sparse_moe."
        tensors[f"{place}gate.weight"] = np.zeros((8, config.hidden), np.float32)
        role = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[projection.split(".")[0]]
        for expert in range(8):
            part = slice(expert * cut, (expert + 1) * cut)
            share = array[:, part] * 8 if role == "w2" else array[part]
            tensors[f"{place}experts.{expert}.{role}.weight"] = np.ascontiguousarray(share)
    said = config_to_hf(config) | {
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": cut,
        "num_local_experts": 8,
        "num_experts_per_tok": 8,
    }
    path = tmp_path_factory.mktemp("smollm2")
    (path / "config.json").write_text(json.dumps(said))
    save_file(tensors, path / "model.safetensors")
    del tensors
    loaded = load_model(path)
    (path / "model.safetensors").unlink()  # 540 MB
    return loaded


@pytest.mark.full
def test_smollm2_in_experts_gives_the_tokens_of_smollm2(
    smollm2_in_experts, recorded, recorded_passages
):
    engine = Engine(*smollm2_in_experts, max_num_seqs=5, max_model_len=1024, scan_layers=True)
    prompts = [sequence["prompt_ids"] for sequence in recorded]
    completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=16))
    assert tokens_of(completions) == [sequence["tokens"][:16] for sequence in recorded]
    passage = recorded_passages["smollm2"]
    [logprobs] = engine.prompt_logprobs([passage["ids"]])
    assert logprobs.mean(dtype=np.float64) == pytest.approx(passage["mean_logprob"], abs=1e-4)
