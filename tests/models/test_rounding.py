"""`--quantize int8` and `int4`: codes nearest to a checkpoint's plain numbers, and what is left of a model's quality."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from intarsia import cli, repack
from intarsia._rounding import group_for
from intarsia.models import Engine, ModelParallel, SamplingParams, load_model, perplexity
from intarsia.models.linear import PackedMatrix

ROLES = ("wqkv", "wo", "w_gate_up", "w_down")
PASSAGE = Path(__file__).resolve().parents[1] / "data" / "passage.json"
PASSAGE_TOKENS = 300
# The logarithm grew by 0.007 and 0.20 (standard errors 0.004 and 0.05).
LOG_PERPLEXITY = {"int8": 0.02, "int4": 0.35}


@pytest.mark.parametrize(
    ("columns", "group"), [(4096, 128), (576, 64), (96, 32), (48, 16), (40, 32), (8, 32)]
)
def test_groups_divide_rows_where_they_can(columns, group) -> None:
    assert group_for(columns) == group


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [256, 48, 40])
def test_codes_are_the_nearest(bits, columns) -> None:
    """Half a step away; a step, where the code opposite to the largest number would be needed."""
    rng = np.random.default_rng(bits)
    sizes = 10.0 ** rng.uniform(-3, 2, (37, 1))
    weight = (rng.standard_normal((37, columns)) * sizes).astype(np.float32)
    weight[5, :16] = 0
    weight[6] = 0
    packed = repack.round_to_nearest(weight, bits)
    assert packed.shape == weight.shape and packed.format == {4: "u4b8", 8: "i8"}[bits]
    scales = repack.factors_of(packed)[0]
    assert scales is not None and scales.dtype == np.float16
    steps = np.repeat(np.abs(scales.astype(np.float64)), packed.group, axis=1)[:, :columns]
    got, most = repack.decoded(packed), (1 << (bits - 1)) - 1
    reached = np.abs(got) > (most - 0.5) * steps
    error = np.abs(got - weight)
    assert (error <= np.where(reached, 1.01, 0.5 + 1e-6) * steps).all()
    assert not got[6].any() and not np.isnan(got).any()
    # All codes are in use: the largest number of a group is the lowest one.
    codes = repack.codes_of(packed)
    lowest = 0 if bits == 4 else 128
    assert (codes[0] == lowest).any()


def test_many_rows_are_rounded_as_few_are() -> None:
    weight = np.random.default_rng(1).standard_normal((4100, 32)).astype(np.float32)
    whole = repack.decoded(repack.round_to_nearest(weight, 4))
    np.testing.assert_array_equal(
        whole[4090:], repack.decoded(repack.round_to_nearest(weight[4090:], 4))
    )


@pytest.mark.parametrize("worst", [np.nan, np.inf, 1e7])
def test_what_has_no_scale_is_refused(worst) -> None:
    weight = np.ones((2, 32), np.float32)
    weight[1, 3] = worst
    with pytest.raises(ValueError, match="beyond 16-bit scales"):
        repack.round_to_nearest(weight, 4)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_linear_layers_are_in_codes(
    write_directory, write_gguf, hf_config, tiny_weights, kind, quantize
):
    path = write_gguf(tiny_weights) if kind == "gguf" else write_directory(hf_config, tiny_weights)
    config, plain = load_model(path)
    _, params = load_model(path, quantize=quantize)
    bits = int(quantize.removeprefix("int"))
    decoded = dict(plain)
    decoded["layers"] = [dict(layer) for layer in plain["layers"]]
    for whole, layer, numbers in zip(
        plain["layers"], params["layers"], decoded["layers"], strict=True
    ):
        for role in ROLES:
            assert isinstance(layer[role], PackedMatrix)
            (part,) = layer[role].parts
            numbers[role] = repack.decoded(part)
            want = repack.decoded(repack.round_to_nearest(np.asarray(whole[role]), bits))
            np.testing.assert_array_equal(numbers[role], want)
    assert config.tie_embeddings  # so the table is the output projection, and has 8 bits
    (table,) = params["embed"].parts
    decoded["embed"] = repack.decoded(table)
    want = repack.decoded(repack.round_to_nearest(np.asarray(plain["embed"]), 8))
    np.testing.assert_array_equal(decoded["embed"], want)
    made = []
    for given in (params, decoded):
        engine = Engine(config, given, max_num_seqs=1, max_model_len=32)
        sampling = SamplingParams(temperature=0.0, max_tokens=8)
        made.append([c.tokens for c in engine.generate([[5, 9, 200]], sampling)])
    assert made[0] == made[1]


@pytest.mark.full
def test_a_models_quality(smollm2_path, smollm2_tokenizer) -> None:
    tokens = smollm2_tokenizer.encode(json.loads(PASSAGE.read_text())["text"])[:PASSAGE_TOKENS]
    logs = {}
    for quantize in (None, "int8", "int4"):
        config, params = load_model(smollm2_path, quantize=quantize)
        engine = Engine(config, params, max_num_seqs=1, max_model_len=PASSAGE_TOKENS + 1)
        logs[quantize] = np.log(perplexity(engine.prompt_logprobs([tokens])))
    for quantize, most in LOG_PERPLEXITY.items():
        assert 0 < logs[quantize] - logs[None] < most, logs


def test_the_command_says_what_layers_are_in(write_gguf, tiny_weights, capsys) -> None:
    command = [
        "generate",
        "--model",
        str(write_gguf(tiny_weights)),
        "--prompt",
        "the",
        "--max-tokens",
        "2",
    ]
    assert cli.main([*command, "--quantize", "int4"]) == 0
    said = capsys.readouterr().err
    assert "linear layers in int4" in said and "linear_quantized" in said


# ------------------------------------------------------------------------------- several devices


@pytest.fixture
def divisible(write_directory, hf_config, tiny_weights):
    """The tiny model with feed-forward layers of 128 columns, of which two devices get whole blocks."""
    rng = np.random.default_rng(4)
    for name, w in tiny_weights.items():
        if ".mlp." in name:
            shape = [128 if size == 96 else size for size in w.shape]
            tiny_weights[name] = (rng.standard_normal(shape) / 6).astype(np.float32)
    return write_directory(hf_config | {"intermediate_size": 128}, tiny_weights)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_codes_are_divided_among_devices(divisible, scan_layers) -> None:
    """Two devices have the same codes, half of them each, and choose the same tokens."""
    config, whole = load_model(divisible, quantize="int4")
    parallel = ModelParallel(config, 2)
    params = load_model(divisible, quantize="int4", parallel=parallel)[1]
    made = []
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    for given, devices in ((whole, None), (params, parallel)):
        engine = Engine(
            config,
            given,
            max_num_seqs=2,
            max_model_len=32,
            parallel=devices,
            scan_layers=scan_layers,
        )
        made.append([c.tokens for c in engine.generate([[5, 9, 200], [7]], sampling)])
    assert made[0] == made[1]
    for role in ROLES:
        (part,) = params["layers"][0][role].parts
        for array in (part.packed, part.scales):
            pieces = {tuple(map(str, shard.index)) for shard in array.addressable_shards}
            assert len(pieces) == (1 if array.shape[1] == 1 and role in ("wo", "w_down") else 2)
        assert (
            sum(shard.data.nbytes for shard in part.packed.addressable_shards) == part.packed.nbytes
        )


def test_what_devices_would_cut_is_refused(
    write_directory, hf_config, tiny_weights, tmp_path
) -> None:
    path = write_directory(hf_config, tiny_weights)
    config, whole = load_model(path, quantize="int4")
    with pytest.raises(
        ValueError, match=r"w_down is in codes, .* 2 devices would cut its blocks of 32"
    ):
        ModelParallel(config, 2).place(whole)
    with pytest.raises(
        ValueError, match=r"wqkv is in codes, .* 4 devices would cut its tiles of 16"
    ):
        ModelParallel(dataclasses.replace(config, heads=8, kv_heads=4, head_dim=8), 4).place(
            {"wqkv": whole["layers"][0]["wqkv"]}
        )
    rows = np.random.default_rng(0).standard_normal((16, 192)).astype(np.float32)
    matrix = PackedMatrix((repack.round_to_nearest(rows, 4, group=128),), np.dtype("float32"))
    with pytest.raises(
        ValueError, match=r"w_down .* 2 devices would cut its groups of 128 columns"
    ):
        ModelParallel(config, 2).place({"w_down": matrix})
