"""Mixtures of experts in GGUF: the model of a directory with the same numbers, from plain numbers and from codes, and what is refused."""

import dataclasses
import random
from typing import Any

import gguf_models
import jax
import numpy as np
import pytest
import tiny_models
from intarsia import cli, repack
from intarsia.cli import _model
from intarsia.jax import _decoding
from intarsia.models import ModelParallel, load_model
from intarsia.models.checkpoint import matrices_of_a_layer, open_checkpoint
from test_broken_files import check, mutated_bytes
from test_mixtures import check_is_recorded, engine_of, on_each_mixture
from test_packed_experts import ROLES, check_divided_whole, check_generates_alike, ones_of

WIDE = {"hidden": 64}  # whole blocks of 32


def assert_same_config(config: Any, of_directory: Any) -> None:
    """GGUF has its floats in f32."""
    of_rope = {
        kind: dataclasses.replace(kind, rope=dataclasses.replace(kind.rope, divisors=None))
        for kind in (*config.layer_kinds, *of_directory.layer_kinds)
    }
    for kind, other in zip(config.layer_kinds, of_directory.layer_kinds, strict=True):
        assert of_rope[kind] == of_rope[other]
        if other.rope.divisors:
            np.testing.assert_allclose(kind.rope.divisors, other.rope.divisors, rtol=1e-6)
    assert config.rms_eps == np.float32(of_directory.rms_eps)
    same = {"rms_eps": config.rms_eps, "layer_kinds": config.layer_kinds}
    assert config == dataclasses.replace(of_directory, **same)


# ------------------------------------------------------------------------------------------------- plain numbers


@on_each_mixture
def test_weights_are_those_of_the_directory(tmp_path, name):
    """To the bit."""
    path, directory = gguf_models.write(tmp_path, name)
    (config, params), (of_directory, expected) = load_model(path), load_model(directory)
    assert_same_config(config, of_directory)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_tokens_are_those_of_transformers(tmp_path, recorded_tiny):
    path, _ = gguf_models.write(tmp_path, "gpt_oss")
    check_is_recorded(engine_of(load_model(path)), recorded_tiny["gpt_oss"])


@pytest.mark.parametrize(
    ("name", "tensor", "experts"),
    [("mixtral", 2, 1), ("qwen3_moe", 2, 2), ("gpt_oss", 4, 1), ("gpt_oss", 1, 4)],
)
def test_devices_read_their_parts(tmp_path, name, tensor, experts):
    """Of blocks, too: a device's columns begin within one."""
    path, directory = gguf_models.write(tmp_path, name, {"gate": "Q8_0", "down": "Q4_1"}, **WIDE)
    config, whole = load_model(directory)
    parallel = ModelParallel(config, tensor, experts, jax.devices("cpu"))
    placed, want = load_model(path, parallel=parallel)[1], parallel.place(whole)
    jax.tree.map(np.testing.assert_array_equal, placed, want)


def test_types_that_no_op_takes_are_widened(tmp_path):
    """A layer whose up is plain is plain; the other layers keep their codes."""

    def type_of(layer: int, role: str) -> str:
        return {(0, "down"): "IQ4_XS", (1, "up"): "BF16", (2, "gate"): "F16"}.get(
            (layer, role), "Q8_0"
        )

    wide = {"hidden": 64, "intermediate": 256}
    path, directory = gguf_models.write(tmp_path, "qwen3_moe", type_of, **wide)
    (_, params), (_, expected) = load_model(path, quantize="file"), load_model(directory)
    for layer, want in zip(params["layers"], expected["layers"], strict=True):
        for role in ROLES:
            np.testing.assert_array_equal(layer[role], want[role])


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_plain_experts_are_rounded(tmp_path, name):
    """As those of a directory."""
    paths = gguf_models.write(tmp_path, name, **WIDE)
    params, expected = (load_model(path, quantize="int4")[1] for path in paths)
    jax.tree.map(np.testing.assert_array_equal, params, expected)


# ------------------------------------------------------------------------------------------------- codes


def check_codes(path: Any, directory: Any) -> tuple[Any, Any]:
    """What is loaded in codes stands for the directory's numbers, and gives their tokens."""
    (config, packed), (_, plain) = load_model(path, quantize="file"), load_model(directory)
    for layer, want in zip(packed["layers"], plain["layers"], strict=True):
        for role in ROLES:
            numbers = np.stack([repack.decoded(one) for one in ones_of(layer[role])])
            np.testing.assert_array_equal(numbers, want[role])
    check_generates_alike(config, packed, plain)
    return config, packed


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("mixtral", "Q4_0"),
        ("qwen3_moe", "Q5_0"),
        ("qwen3_moe", "Q8_0"),
        ("gpt_oss", "MXFP4"),
        ("gpt_oss", "Q5_1"),
        ("mixtral", "Q4_1"),
        ("qwen3_moe", "MXFP4"),
    ],
)
def test_experts_stay_in_codes(tmp_path, name, type):
    types = dict.fromkeys(("gate", "up", "down"), type)
    check_codes(*gguf_models.write(tmp_path, name, types, **WIDE))


WIDER = {"hidden": 256, "intermediate": 256}  # whole blocks of 256


@pytest.mark.parametrize("type", ["Q4_K", "Q5_K", "Q6_K"])
def test_experts_stay_in_codes_with_outer_scales(tmp_path, type):
    types = dict.fromkeys(("gate", "up", "down"), type)
    _, packed = check_codes(*gguf_models.write(tmp_path, "qwen3_moe", types, **WIDER))
    for role in ROLES:
        assert packed["layers"][0][role].outer_scales.ndim == 4


def of_q4_k_m(layer: int, role: str) -> str:
    """As llama.cpp's mixtures have them: some layers' down has more bits than the others'."""
    return "Q6_K" if role == "down" and layer != 1 else "Q4_K"


@on_each_mixture
def test_layers_of_several_formats(tmp_path, name):
    _, packed = check_codes(*gguf_models.write(tmp_path, name, of_q4_k_m, **WIDER))
    formats = [[layer[role].format for role in ROLES] for layer in packed["layers"]]
    assert formats == [["u4", "u6b32"], ["u4", "u4"], ["u4", "u6b32"]]


def test_gpt_oss_of_two_formats(tmp_path):
    types = {"gate": "MXFP4", "up": "MXFP4", "down": "Q5_1"}
    check_codes(*gguf_models.write(tmp_path, "gpt_oss", types, **WIDE))


def test_gate_and_up_of_two_forms_are_refused(tmp_path):
    types = {"gate": "Q4_0", "up": "Q5_0", "down": "Q8_0"}
    path, directory = gguf_models.write(tmp_path, "qwen3_moe", types, **WIDE)
    said = (
        rf"^{path}: model\.layers\.0\.mlp\.experts: gate is in u4b8 in groups of 32, up in u5b16 in groups of 32, "
        "expected one form; --quantize none widens them$"
    )
    with pytest.raises(NotImplementedError, match=said):
        load_model(path, quantize="file")
    params, expected = load_model(path)[1], load_model(directory)[1]
    jax.tree.map(np.testing.assert_array_equal, params, expected)


@pytest.mark.parametrize(("name", "places"), [("qwen3_moe", 3), ("gpt_oss", 2)])
def test_shapes_of_codes_that_do_not_fit(tmp_path, name, places):
    types = dict.fromkeys(("gate", "up", "down"), "Q8_0")

    def change(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
        shape = (8, 64, 64)[:places] if places == 3 else (64, 32)
        tensors["blk.1.ffn_down_exps.weight"] = gguf_models.random_blocks("Q8_0", shape, 0), "Q8_0"

    path, _ = gguf_models.write(tmp_path, name, types, change=change, **WIDE)
    got = r"\[8, 64, 64\]" if places == 3 else r"\[64, 32\]"
    with pytest.raises(ValueError, match=rf"down_proj.* has shape {got}, expected \[8, 64, 32\]"):
        load_model(path, quantize="file")


def test_experts_in_codes_are_divided_whole(tmp_path):
    """Outer scales, too."""
    check_divided_whole(gguf_models.write(tmp_path, "qwen3_moe", lambda *at: "Q4_K", **WIDER)[0])


def test_every_block_of_mxfp4_is_what_ggml_says():
    """With scales up to 2^125, beyond which f32 ends; 255 stands for no number."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (253, 3, 17)).astype(np.uint8)
    blocks[..., 0] %= 253
    blocks[:, 1, 0] = np.arange(253)
    data = blocks.reshape(253, -1)
    weight = repack.from_gguf_mxfp4(data)
    assert weight.shape == (253, 96) and (weight.format, weight.group) == ("e2m1", 32)
    np.testing.assert_array_equal(repack.decoded(weight), gguf_models.numbers_of(data, "MXFP4"))
    whole = np.repeat(data, 400, axis=0)  # packed in parts
    np.testing.assert_array_equal(
        repack.decoded(repack.from_gguf_mxfp4(whole)), gguf_models.numbers_of(whole, "MXFP4")
    )
    with pytest.raises(
        ValueError, match=r"data is uint8 \[1, 18\], expected uint8 rows of blocks of 17"
    ):
        repack.from_gguf_mxfp4(np.zeros((1, 18), np.uint8))


@pytest.mark.parametrize("shape", [(0, 34), (0, 0), (3, 0)])
def test_no_blocks_are_refused(shape):
    data, blocks = (
        np.zeros(shape, np.uint8),
        rf"data is uint8 \[{shape[0]}, {shape[1]}\], expected a block of",
    )
    with pytest.raises(ValueError, match=f"repack: {blocks} 34 at least"):
        repack.from_gguf(data, "Q8_0")
    with pytest.raises(ValueError, match=f"repack: {blocks} 17 at least"):
        repack.from_gguf_mxfp4(data)


# ------------------------------------------------------------------------------------------------- what is refused


def without(key: str) -> Any:
    return lambda tensors, metadata: metadata.pop(key)


def saying(**values: Any) -> Any:
    return lambda tensors, metadata: metadata.update(
        {k.replace("__", "."): v for k, v in values.items()}
    )


def without_tensors(text: str) -> Any:
    def change(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
        for name in [name for name in tensors if text in name]:
            del tensors[name]

    return change


def one_tensor_for_each_expert(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
    for name in [name for name in tensors if "_exps" in name]:
        for expert, matrix in enumerate(tensors.pop(name)):
            tensors[name.replace("_exps", f".{expert}")] = matrix


def with_a_shared_expert(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
    tensors["blk.0.ffn_gate_shexp.weight"] = np.zeros((32, 48), np.float32)


def with_few_divisors(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
    tensors["rope_freqs.weight"] = np.ones(7, np.float32)


def with_fewer_columns_than_experts(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
    del metadata["expert_feed_forward_length"]
    metadata["feed_forward_length"] = 1


REFUSED = [
    ("qwen3_moe", without("expert_count"), "key qwen3moe.expert_count is missing"),
    ("qwen3_moe", saying(expert_count=0), "qwen3moe.expert_count is 0, expected a whole number, 1 or more"),
    ("qwen3", saying(expert_count=8), "qwen3.expert_count is 8, expected none or 0"),
    ("mixtral", without("expert_used_count"), "key llama.expert_used_count is missing"),
    ("mixtral", saying(expert_used_count=9), "llama.expert_used_count is 9, expected a whole number, 1 to 8"),
    ("mixtral", saying(expert_count=7), r"mlp\.experts\.gate_proj\.weight has shape \[8, 32, 48\], expected \[7, 32, 48\]"),
    ("mixtral", saying(expert_shared_count=1), "llama.expert_shared_count is 1, expected 0"),
    ("mixtral", saying(expert_weights_scale=2.5), "llama.expert_weights_scale is 2.5, expected 1"),
    ("mixtral", with_a_shared_expert, r"unsupported tensors model\.layers\.0\.ffn_gate_shexp\.weight"),
    ("mixtral", one_tensor_for_each_expert, r"tensor blk\.0\.ffn_gate_exps\.weight is missing; it has a tensor for each expert, as old files do"),
    ("mixtral", without_tensors("_exps"), r"tensor blk\.0\.ffn_gate_exps\.weight is missing$"),
    ("qwen3_moe", without_tensors("blk.1.ffn_gate_exps"), r"layers\.1\.mlp\.experts\.gate_proj\.weight is missing, expected shape \[8, 32, 48\]"),
    ("qwen3_moe", without_tensors("ffn_gate_inp"), r"mlp\.router\.weight is missing, expected shape \[8, 48\]"),
    ("qwen3_moe", saying(expert_feed_forward_length=31), r"gate_proj\.weight has shape \[8, 32, 48\], expected \[8, 31, 48\]"),
    ("qwen3_moe", with_fewer_columns_than_experts, "qwen3moe.feed_forward_length is 1, expected a whole number, 2 or more"),
    ("gpt_oss", with_few_divisors, "tensor rope_freqs.weight has 7 numbers, expected 8"),
    ("gpt_oss", without("expert_feed_forward_length"), "key gpt-oss.expert_feed_forward_length is missing"),
    ("gpt_oss", without("attention.sliding_window"), "key gpt-oss.attention.sliding_window is missing"),
    ("gpt_oss", without("rope.scaling.original_context_length"), "key gpt-oss.rope.scaling.original_context_length is missing"),
    ("gpt_oss", saying(rope__scaling__type="longrope"), "rope.scaling.type is 'longrope', expected none, linear or yarn"),
    ("gpt_oss", saying(rope__scaling__yarn_ext_factor=0.5), "gpt-oss.rope.scaling.yarn_ext_factor is 0.5, expected 1.0"),
    ("gpt_oss", saying(rope__scaling__yarn_beta_fast=0.5), "beta_fast is 0.5, expected beta_slow or more, which is 1.0"),
    ("gpt_oss", saying(rope__freq_base_swa=1e4), "rope.freq_base_swa is 10000.0, expected 150000.0"),
    ("gpt_oss", without_tensors("sinks"), r"self_attn\.sinks is missing, expected shape \[4\]"),
    ("gpt_oss", without_tensors("ffn_up_exps.bias"), r"up_proj\.bias is missing, expected shape \[8, 32\]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "text"), REFUSED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_what_a_mixture_cannot_be(tmp_path, name, change, text):
    path, _ = gguf_models.write(tmp_path, name, change=change)
    with pytest.raises(ValueError, match=text) as raised:
        load_model(path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_what_a_file_may_leave_out(tmp_path):
    """As llama.cpp reads it: an expert's columns are those of a dense layer divided by the experts of a token."""
    path, _ = gguf_models.write(tmp_path, "qwen3_moe", change=without("expert_feed_forward_length"))
    assert open_checkpoint(path).config.intermediate == 3 * tiny_models.INTERMEDIATE // 2

    def change(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
        metadata |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
        metadata |= {
            "rope.scaling.original_context_length": 128,
            "attention.sliding_window_pattern": 3,
        }

    path, _ = gguf_models.write(tmp_path, "gpt_oss", change=change)
    windows = [kind.sliding_window for kind in open_checkpoint(path).config.layer_kinds]
    assert windows == [tiny_models.WINDOW, tiny_models.WINDOW, None]
    # Unscaled over scaled frequencies in transformers 4.57, whose other models begin and end the band at whole indices.
    path, _ = gguf_models.write(
        tmp_path, "qwen3", change=lambda t, m: (change(t, m), m.update({"rope.freq_base": 1e4}))
    )
    rope = open_checkpoint(path).config.layer_kinds[0].rope
    np.testing.assert_allclose(rope.divisors, [1, 4 / 3, 2, 4, 4, 4, 4, 4], rtol=1e-6)
    assert rope.amplitude == pytest.approx(1.138629, rel=1e-6)


def test_mutants(tmp_path, pytestconfig):
    types = {"gate": "MXFP4", "up": "MXFP4", "down": "MXFP4"}
    path, _ = gguf_models.write(tmp_path, "gpt_oss", types, **WIDE)
    content = path.read_bytes()
    for number in range(pytestconfig.getoption("--mutants") // 8):
        path.write_bytes(mutated_bytes(random.Random(number), content, 16_000))
        check(path, f"mutant {number}", lambda path: load_model(path, quantize="file"))


# ------------------------------------------------------------------------------------------------- the command


def test_the_command_keeps_codes(tmp_path, capsys):
    types = {"gate": "MXFP4", "up": "MXFP4", "down": "MXFP4"}
    path, _ = gguf_models.write(tmp_path, "gpt_oss", types, **WIDE)
    texts = []
    for flags in ([], ["--quantize", "none"]):
        command = ["generate", "--model", str(path), "--prompt", "the 12", "--max-tokens", "4"]
        command += ["--device", "cpu"]
        assert cli.main([*command, "--no-chat-template", *flags]) == 0
        out, said = capsys.readouterr()
        texts.append(out)
        assert ("weights in the file's codes" in said) == (not flags)
        assert ("fused_experts_quantized" in said) == (not flags)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("type", "gains"), [("MXFP4", True), ("Q8_0", True), ("Q4_1", False)])
def test_a_hopper_keeps_experts_that_it_has_kernels_for(tmp_path, monkeypatch, type, gains):
    """As those of directories; linear layers in any type."""

    def change(tensors: dict[str, Any], metadata: dict[str, Any]) -> None:
        name = "blk.0.attn_q.weight"
        tensors[name] = gguf_models.random_blocks("Q4_1", tensors[name].shape, 0), "Q4_1"

    types = {"gate": "MXFP4", "up": "MXFP4", "down": type}
    path, _ = gguf_models.write(tmp_path, "gpt_oss", types, change=change, **WIDE)
    monkeypatch.setattr(_decoding, "is_hopper", lambda: True)
    checkpoint = open_checkpoint(path)
    assert [of_experts for _, of_experts in matrices_of_a_layer(checkpoint)] == [True] * 3 + [False]
    assert _model.gains_by_codes_on_gpu(path, checkpoint, "bfloat16") == gains
