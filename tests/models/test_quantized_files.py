"""Directories with weights in codes: what they are loaded as, and what of their configuration or tensors is refused."""

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import packers
import pytest
import support
from intarsia import cli, repack
from intarsia.cli import _model
from intarsia.jax import _decoding
from intarsia.models import Engine, SamplingParams, Tokenizer, load_model, open_checkpoint
from intarsia.models.checkpoint import matrices_of_a_layer
from intarsia.models.linear import NarrowMatrix, PackedMatrix, product_of
from quantized_models import rows_of
from test_broken_files import check, mutated_json

# Rows of 48 columns hold whole blocks of 16 alone.
FORMS = [form for form in packers.FORMS if form != "ct_mxfp4"]
RUN = ("awq", "gptq_v2_8_bits", "ct_int8_asymmetric", "ct_fp8", "fp8_block", "ct_nvfp4")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = [[5, 9, 200, 31], [7]]


@pytest.fixture
def write(tmp_path: Path, hf_config: dict[str, Any], tiny_weights: dict[str, np.ndarray]):
    """Returns a function that writes the tiny model in a format, and gives its tensors' numbers."""

    def write(
        form: str, settings: Any = None, tensors: Any = None, group: int = 16, changes: Any = None
    ) -> Any:
        made, config, numbers = packers.packed(tiny_weights, form, group)
        config |= settings or {}
        if tensors:
            tensors(made)
        (tmp_path / "config.json").write_text(
            json.dumps(hf_config | {"quantization_config": config} | (changes or {}))
        )
        packers.save(made, tmp_path / "model.safetensors")
        return tmp_path, numbers

    return write


def matrices(params) -> list[PackedMatrix]:
    every = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, PackedMatrix))
    return [x for x in every if isinstance(x, PackedMatrix)]


@pytest.mark.parametrize("form", FORMS)
def test_a_directory_runs_from_its_codes(write, form) -> None:
    """Codes stand for what their packer says; the same tokens come from them and from plain numbers."""
    path, numbers = write(form, group=32 if "block" in form else 16)
    assert open_checkpoint(path).has_codes
    config, packed = load_model(path, quantize="file")
    _, plain = load_model(path)
    assert not matrices(plain)
    for layer in range(config.layers):
        want = rows_of(numbers, layer)
        found = matrices(packed["layers"][layer])
        assert len(found) == len(want)
        roles = sorted(
            role for role in plain["layers"][layer] if role in ("w_down", "w_gate_up", "wo", "wqkv")
        )
        for matrix, role, expected in zip(found, roles, want, strict=True):
            got = np.concatenate([repack.decoded(part) for part in matrix.parts])
            np.testing.assert_allclose(got, expected, rtol=3e-7, atol=1e-9)
            np.testing.assert_array_equal(got, plain["layers"][layer][role])
    if form not in RUN:
        return
    made = []
    for params in (packed, plain):
        engine = Engine(config, params, max_num_seqs=2, max_model_len=32)
        made.append([c.tokens for c in engine.generate(PROMPTS, GREEDY)])
        calls = engine.custom_calls()["decode"].get("linear_quantized", 0)
        assert calls >= 4 * config.layers if params is packed else calls == 0
    assert made[0] == made[1]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_tables_in_16_bits_stay_so_beside_f32(write, dtype) -> None:
    """The same tokens and scores come from them and from f32; where activations have 16 bits, they are plain arrays."""

    def narrow(tensors: dict[str, np.ndarray]) -> None:
        tables = {name: a.astype(dtype) for name, a in tensors.items() if "embed" in name}
        tensors |= tables | {"lm_head.weight": tables["model.embed_tokens.weight"][::-1]}
        for name in [name for name in tensors if name.startswith("model.layers.0.mlp.down")]:
            del tensors[name]
        w = np.random.default_rng(0).standard_normal((48, 96)) / 8
        tensors["model.layers.0.mlp.down_proj.weight"] = w.astype(dtype)

    path, _ = write("awq", tensors=narrow, changes={"tie_word_embeddings": False})
    made, scores = [], []
    for quantize in ("file", None):
        config, params = load_model(path, quantize=quantize)
        stays = quantize == "file"
        for weight in (params["embed"], params["lm_head"], params["layers"][0]["w_down"]):
            assert isinstance(weight, NarrowMatrix) == stays
            assert weight.dtype == np.float32
            assert not stays or weight.numbers.dtype == dtype
        engine = Engine(config, params, max_num_seqs=2, max_model_len=128)
        made.append([c.tokens for c in engine.generate(PROMPTS, GREEDY)])
        # More rows than a narrow matrix multiplies in pieces.
        scores.append(engine.prompt_logprobs([[*range(5, 105)]])[0])
    assert made[0] == made[1]
    np.testing.assert_allclose(*scores, atol=2e-5)
    _, params = load_model(path, quantize="file", dtype="bfloat16")
    assert isinstance(params["embed"], jax.Array) and params["embed"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_with_16_bits_are_as_exact_as_in_f32(dtype) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((40, 96)).astype(dtype)
    rows = rng.standard_normal((7, 96)) * np.exp(3 * rng.standard_normal((7, 96)))
    rows *= np.array([1, 0, 1e30, 1e-20, 1e-9, 1, 1])[:, None]
    rows = rows.astype(np.float32)
    multiply = jax.jit(lambda x, w: product_of(x, NarrowMatrix(w, x.dtype)))
    got, want = (
        np.asarray(multiply(rows, numbers)),
        rows.astype(np.float64) @ numbers.T.astype(np.float64),
    )
    size = np.abs(rows).astype(np.float64) @ np.abs(numbers.T.astype(np.float64))
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= 5e-7 * size).all()


def test_loading_takes_no_more_memory_than_the_file(tmp_path: Path, hf_config) -> None:
    """A fifth more at most, in a process that holds nothing but JAX, whose own memory would be most of that of a smaller file."""
    n, m, layers = 1024, 2816, 20
    rng, shapes = np.random.default_rng(0), {"gate": (m, n), "up": (m, n), "down": (n, m)}
    layer = {f"mlp.{p}_proj.weight": rng.standard_normal(s, np.float32) for p, s in shapes.items()}
    layer |= {f"self_attn.{p}_proj.weight": layer["mlp.up_proj.weight"][:n] for p in "qkvo"}
    layer |= {f"{p}_layernorm.weight": np.ones(n) for p in ("input", "post_attention")}
    made, config, _ = packers.packed(layer, "awq")
    tensors = {f"model.layers.{i}.{name}": a for i in range(layers) for name, a in made.items()}
    tensors |= {
        "model.embed_tokens.weight": np.ones((263, n), np.float16),
        "model.norm.weight": np.ones(n),
    }
    sizes = {"hidden_size": n, "intermediate_size": m, "num_hidden_layers": layers, "head_dim": 64}
    sizes |= {"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 263}
    said = hf_config | sizes | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(said))
    packers.save(tensors, tmp_path / "model.safetensors")
    code = "import sys, pathlib, load_memory; print(load_memory.load(pathlib.Path(sys.argv[1]), 'file')[-1])"
    bench = support.ROOT / "bench"
    more = subprocess.check_output([sys.executable, "-c", code, tmp_path], cwd=bench)
    assert int(more) < 1.2 * (tmp_path / "model.safetensors").stat().st_size


def test_symmetric_gptq_needs_no_zero_points(write) -> None:
    _, packed = load_model(write("gptq")[0], quantize="file")
    assert all(
        part.format == "u4b8" and part.zeros is None for m in matrices(packed) for part in m.parts
    )


def test_mxfp4_of_compressed_tensors() -> None:
    """Rows of whole blocks of 32, as the tiny model has none."""
    from intarsia.models.fields import Fields
    from intarsia.models.quantized_files import Tensors, scheme_from_hf

    weights = {"a_proj.weight": np.random.default_rng(3).standard_normal((24, 96))}
    tensors, config, numbers = packers.packed(weights, "ct_mxfp4")
    scheme = scheme_from_hf(Fields({"quantization_config": config}))
    assert scheme is not None and scheme.stems(tensors) == {"a_proj.weight": "a_proj"}
    weight = scheme.pack(Tensors("a_proj", tensors, tensors.__getitem__))
    assert isinstance(weight, repack.PackedWeight)
    np.testing.assert_array_equal(repack.decoded(weight), numbers["a_proj.weight"])


Q = "model.layers.0.self_attn.q_proj"


def _set(name: str, change: Any) -> Any:
    """A change of one tensor; None: it is gone."""

    def apply(tensors: dict[str, np.ndarray]) -> None:
        array = tensors.pop(name)
        if change is not None:
            tensors[name] = np.ascontiguousarray(change(array))

    return apply


@pytest.mark.parametrize(
    ("form", "settings", "text"),
    [
        ("awq", {"quant_method": "aqlm"}, "quant_method is 'aqlm', expected one of awq, gptq, compressed-tensors, fp8, mxfp4"),
        ("awq", {"quant_method": None}, "quant_method is None, expected one of"),
        ("awq", {"bits": 3}, "bits is 3, expected 4"),
        ("awq", {"bits": True}, "bits is True, expected 4"),
        ("awq", {"version": "gemv"}, "version is 'gemv', expected 'gemm' or 'GEMM'"),
        ("awq", {"zero_point": False}, "zero_point is False, expected True"),
        ("awq", {"group_size": 24}, "group_size is 24, expected 16, a multiple of 32, or -1 for all columns"),
        ("awq", {"group_size": "x"}, "group_size is 'x', expected a whole number"),
        ("gptq", {"bits": 2}, "bits is 2, expected 4 or 8"),
        ("gptq", {"desc_act": True}, "desc_act is True, expected False: act-order"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', expected 'gptq' or 'gptq_v2'"),
        ("gptq", {"dynamic": {"a": {}}}, "dynamic gives modules settings of their own, expected none"),
        ("fp8_block", {"fmt": "e5m2"}, "fmt is 'e5m2', expected 'e4m3'"),
        ("fp8_block", {"weight_block_size": [128]}, r"weight_block_size is \[128\], expected rows and columns"),
        ("fp8_block", {"weight_block_size": [32, 40]}, "weight_block_size is 40, expected 16, a multiple of 32"),
        ("ct_int8", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is given, expected none"),
        ("ct_int8", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format is 'sparse-24-bitmask'"),
        ("ct_int8", {"config_groups": []}, "config_groups is no object, or an empty one"),
        ("ct_int8", {"config_groups": {"a": 3}}, "config_groups.a.it is 3, expected an object"),
        ("ct_int8", {"config_groups": {"a": {}}}, "config_groups.a.weights is missing"),
        ("ct_int8", {"format": "marlin-24"}, "config_groups.group_0.format is 'marlin-24', expected one of"),
        ("ct_int8", {"config_groups": {"a": {"weights": {"num_bits": 2}}}}, "weights.num_bits is 2, expected 4 or 8"),
        ("ct_int8", {"config_groups": {"a": {"weights": {"num_bits": 8, "actorder": "group"}}}},
         "config_groups.a.weights.actorder is 'group', expected 'weight' or none: act-order"),
        ("ct_int8", {"quantization_status": "initialized"}, "quantization_status is 'initialized', expected 'compressed'"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_refused(write, form, settings, text) -> None:
    path, _ = write(form, settings)
    where = f"{path}/config.json: quantization_config"
    with pytest.raises((ValueError, NotImplementedError), match=text) as said:
        load_model(path, quantize="file")
    assert str(said.value).startswith(where) and "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("form", "tensors", "text"),
    [
        ("awq", _set(f"{Q}.scales", None), rf"tensor {Q}\.scales is missing"),
        ("awq", _set(f"{Q}.qzeros", lambda a: a[:-1]), r"qzeros has shape \[2, 8\], expected \[3, 8\]"),
        ("awq", _set(f"{Q}.qweight", lambda a: a.astype(np.int64)), r"qweight is int64, expected int32"),
        ("awq", _set(f"{Q}.qweight", lambda a: a[0]), r"qweight has shape \[8\], expected 2 axes"),
        ("awq", _set(f"{Q}.qweight", lambda a: a[:0]), r"qweight has shape \[0, 8\], expected 2 axes, none of them empty"),
        ("gptq", _set(f"{Q}.g_idx", lambda a: a[::-1]), "repack: g_idx puts columns out of order .act-order."),
        ("gptq", _set(f"{Q}.scales", lambda a: a.astype(np.int32)), "scales is int32, expected float16, bfloat16, float32"),
        ("gptq", _set(f"{Q}.qzeros", None), "qzeros is missing"),
        ("gptq", _set(f"{Q}.qweight", None), "weights: model.layers.0.self_attn.q_proj.weight is missing"),
        ("ct_w4a16", _set(f"{Q}.weight_packed", None), r"q_proj\.weight is missing"),
        ("ct_w4a16", _set(f"{Q}.weight_shape", lambda a: a + 1), r"holds no \[65, 49\] codes of 4 or 8 bits"),
        ("ct_w4a16", _set(f"{Q}.weight_scale", lambda a: a[1:]), r"weight_scale has shape \[63, 3\], expected \[1\] or \[64, 1\]"),
        ("ct_int8", _set(f"{Q}.weight", lambda a: a.astype(np.float32)), "weight is float32, expected int8, float8_e4m3fn"),
        ("fp8_block", _set(f"{Q}.weight_scale_inv", lambda a: a[:1]), r"weight_scale_inv has shape \[1, 3\], expected \[4, 3\]"),
        ("fp8_block", _set(f"{Q}.weight_scale_inv", None),
         f"tensor {Q}.weight: its dtype is F8_E4M3, expected F16, BF16, F32 or F64; if it holds codes, their scales are missing"),
        ("ct_fp8", _set(f"{Q}.weight_scale", None), f"tensor {Q}.weight: its dtype is F8_E4M3, expected F16, "),
        ("ct_int8", _set(f"{Q}.weight_scale", None), f"tensor {Q}.weight: its dtype is I8, expected F16, "),
        ("awq", _set("model.norm.weight", lambda a: a.astype(np.int32)), "model.norm.weight: its dtype is I32, expected F16, "),
        ("ct_int8_asymmetric", _set(f"{Q}.weight_zero_point", None), f"tensor {Q}.weight_zero_point is missing"),
        ("ct_w4a16_asymmetric", _set(f"{Q}.weight_zero_point", None), f"tensor {Q}.weight_zero_point is missing"),
        ("ct_nvfp4", _set(f"{Q}.weight_global_scale", lambda a: a.repeat(2)), r"weight_global_scale has shape \[2\], expected"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(write, form, tensors, text) -> None:
    path, _ = write(form, tensors=tensors)
    for quantize in ("file", None):
        with pytest.raises((ValueError, NotImplementedError), match=text) as said:
            load_model(path, quantize=quantize)
        assert str(said.value).startswith(str(path)) and "\n" not in str(said.value)
        assert str(said.value).count(str(path)) == 1


def test_codes_are_no_plain_numbers(write_directory, hf_config, tiny_weights) -> None:
    """Neither whole nor by parts, where config.json says nothing of codes."""
    name = f"{Q}.weight"
    tiny_weights[name] = np.ones_like(tiny_weights[name], np.uint8)
    opened = open_checkpoint(write_directory(hf_config, tiny_weights))
    for read in (opened.read, opened.lazy):
        with pytest.raises(ValueError, match=r"is U8, .* config\.json lacks quantization_config"):
            read(name)


@pytest.mark.parametrize("form", ["awq", "gptq", "ct_w4a16", "fp8_block", "ct_nvfp4"])
def test_mutants_of_a_configuration(write, form, pytestconfig: pytest.Config) -> None:
    path, _ = write(form)
    said = json.loads((path / "config.json").read_text())
    for number in range(pytestconfig.getoption("--mutants") // 8):
        mutant = mutated_json(random.Random(number), said["quantization_config"])
        (path / "config.json").write_text(json.dumps(said | {"quantization_config": mutant}))
        check(path, f"mutant {number} of {form}", lambda p: load_model(p, quantize="file"))


def test_the_command_keeps_the_files_codes(write, write_gguf, tiny_weights, capsys) -> None:
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights))
    path, _ = write("awq")
    tokenizer.backend.save(str(path / "tokenizer.json"))
    command = [
        "generate",
        "--model",
        str(path),
        "--max-tokens",
        "2",
        "--prompt",
        "the",
        "--no-chat-template",
    ]
    assert cli.main(command) == 0
    said = capsys.readouterr().err
    assert "weights in the file's codes" in said and "linear_quantized" in said
    (path / "text").write_text("the 123 the")
    assert cli.main(["perplexity", str(path / "text"), "--model", str(path)]) == 0
    write("awq", {"bits": 5})
    assert cli.main(command) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == f"intarsia generate: {path}/config.json: quantization_config.bits is 5, expected 4"
    )


@pytest.mark.parametrize(("form", "gains"), [("gptq", True), ("awq", False)])
def test_a_hopper_keeps_codes_that_it_has_kernels_for(write, monkeypatch, form, gains) -> None:
    path, _ = write(form, group=16)
    seen = []

    def gain(weight: repack.PackedWeight) -> bool:
        seen.append(weight.format)
        return weight.format == "u4b8"

    monkeypatch.setattr(_decoding, "is_hopper", lambda: True)
    monkeypatch.setattr(_decoding, "gain_by_codes", gain)
    assert _model.gains_by_codes_on_gpu(path, open_checkpoint(path), "bfloat16") == gains
    assert seen == ["u4b8"] * 7 if gains else ["u4"]


def test_the_first_layer_in_codes_may_not_be_the_first(write) -> None:
    path, _ = write("gptq", group=16)
    whole = open_checkpoint(path)

    def packed_behind_layer_0(name: str):
        return None if ".layers.0." in name else whole.read_packed(name)

    later = dataclasses.replace(whole, read_packed=packed_behind_layer_0)
    assert [w.format for w, _ in matrices_of_a_layer(later)] == ["u4b8"] * 7
    assert matrices_of_a_layer(dataclasses.replace(whole, read_packed=lambda name: None)) == []


def test_what_a_hopper_has_kernels_for() -> None:
    def gain(format: str, group: int, scale: str, zero: str | None = None, outer=None) -> bool:
        factors = (np.zeros(1, np.dtype(t)) if t else None for t in (scale, zero))
        outer = None if outer is None else np.zeros(outer, np.float32)
        weight = repack.PackedWeight(None, *factors, outer, None, 16, 4096, format, group)
        return _decoding.gain_by_codes(weight)

    assert gain("u4", 128, "float16", "uint8") and not gain("u4", 64, "float16", "uint8")
    assert gain("u4b8", 64, "bfloat16") and gain("u4b8", 32, "float16")
    assert gain("i8", 32, "float16") and gain("i8", 0, "float32")
    assert not gain("i8", 128, "float16", "int8")
    assert gain("e4m3", 128, "float32") and not gain("e4m3", 64, "float32")
    assert gain("e2m1", 32, "float8_e8m0fnu")
    assert gain("e2m1", 16, "float8_e4m3fn", outer=1)
    assert gain("e2m1", 16, "float8_e4m3fn", outer=(1, 1, 16))
    assert not gain("e2m1", 16, "float8_e4m3fn", outer=(1, 2, 16))
    assert not gain("u4b8", 64, "float16", outer=1) and not gain(
        "u4", 32, "uint8", "uint8", outer=1
    )
