"""Mixtures whose experts are in codes: gpt-oss in mxfp4, others in AWQ, compressed-tensors and nvfp4, and plain ones rounded to int4 and int8."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import packers
import pytest
import tiny_models
from intarsia import cli, repack
from intarsia.models import Engine, ModelParallel, SamplingParams, Tokenizer, load_model
from intarsia.models.expert_codes import stack_experts
from test_engine import tokens_of

HIDDEN = 64  # whole blocks of 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPTS = [[5, 9, 200, 31], [7]]
ROLES = ("experts_gate_up", "experts_down")


def write(
    path: Path, name: str, form: str | None, change: Any = None
) -> tuple[Path, dict[str, np.ndarray]]:
    """Writes a tiny mixture, in mxfp4 if it is gpt-oss, else in a format of `packers`, or plain; `change` gets its tensors."""
    weights = tiny_models.weights(name, HIDDEN)
    config: dict[str, Any] = tiny_models.CONFIGS[name] | {"hidden_size": HIDDEN}
    numbers: dict[str, np.ndarray] = {}
    if form == "mxfp4":
        weights, said, numbers = packers.pack_gpt_oss(weights)
        config["quantization_config"] = said
    elif form:
        weights, said, numbers = packers.packed(weights, form, 32)
        config["quantization_config"] = said
    if change:
        change(weights, config)
    (path / "config.json").write_text(json.dumps(config))
    packers.save(weights, path / "model.safetensors")
    return path, numbers


def decoded(params: Any) -> Any:
    """The same weights as plain numbers."""
    layers = []
    for layer in params["layers"]:
        plain = dict(layer)
        for role in ROLES:
            plain[role] = np.stack([repack.decoded(one) for one in ones_of(layer[role])])
        layers.append(plain)
    return params | {"layers": layers}


def ones_of(stack: repack.PackedWeight) -> list[repack.PackedWeight]:
    """Each matrix of a stack by itself."""
    count = len(stack.packed)
    return [
        stack.with_arrays([None if a is None else a[e] for a in stack.arrays], stack.rows)
        for e in range(count)
    ]


def check_generates_alike(config: Any, packed: Any, plain: Any) -> None:
    made = []
    for params in (packed, plain):
        engine = Engine(config, params, max_num_seqs=2, max_model_len=32)
        made.append(tokens_of(engine.generate(PROMPTS, GREEDY)))
        calls = engine.custom_calls()["decode"]
        assert calls.get("fused_experts_quantized", 0) == (config.layers if params is packed else 0)
        assert calls.get("fused_experts", 0) == (0 if params is packed else config.layers)
    assert made[0] == made[1]


def check_divided_whole(path: Path) -> tuple[Any, repack.PackedWeight]:
    """Four devices have two experts each, and give the tokens of one; returns the configuration and a layer's down projections."""
    cpus, settings = jax.devices("cpu"), {"max_num_seqs": 2, "max_model_len": 32}
    with jax.default_device(cpus[0]):
        config, whole = load_model(path, quantize="file")
        one = tokens_of(Engine(config, whole, **settings).generate(PROMPTS, GREEDY))
    parallel = ModelParallel(config, 1, 4, cpus)
    spread = load_model(path, quantize="file", parallel=parallel)[1]
    four = Engine(config, spread, parallel=parallel, **settings)
    assert tokens_of(four.generate(PROMPTS, GREEDY)) == one
    experts, placed = (params["layers"][0]["experts_down"] for params in (whole, spread))
    for array, spread_array in zip(experts.arrays, placed.arrays, strict=True):
        if array is not None:
            shapes = {s.data.shape[0] for s in spread_array.addressable_shards}
            assert shapes == {tiny_models.EXPERTS // 4}
    return config, experts


def test_gpt_oss_in_mxfp4(tmp_path) -> None:
    """Codes stand for what the packer says, stay codes, and give the tokens of plain numbers."""
    path, numbers = write(tmp_path, "gpt_oss", "mxfp4")
    config, packed = load_model(path, quantize="file")
    _, plain = load_model(path)
    for layer, weights in enumerate(packed["layers"]):
        for role, name in zip(ROLES, ("gate_up_proj", "down_proj"), strict=True):
            want = numbers[f"model.layers.{layer}.mlp.experts.{name}"].swapaxes(1, 2)
            stack = weights[role]
            assert stack.format == "e2m1" and stack.group == 32
            np.testing.assert_array_equal(
                np.stack([repack.decoded(one) for one in ones_of(stack)]), want
            )
            np.testing.assert_array_equal(plain["layers"][layer][role], want)
    check_generates_alike(config, packed, plain)


def _down_in_8_bits(tensors: dict[str, np.ndarray], config: Any) -> None:
    weights = tiny_models.weights("qwen3_moe", HIDDEN)
    eight, said, _ = packers.packed(weights, "ct_w8a16")
    tensors |= {name: eight[name] for name in tensors if "mlp" in name and "down_proj" in name}
    groups = config["quantization_config"]["config_groups"]
    groups["group_1"] = said["config_groups"]["group_0"]


def one_scale_for_gate_and_up(tensors: dict[str, np.ndarray], config: Any) -> None:
    """As llm-compressor writes layers that others put together; the numbers are others, too."""
    for name in tensors:
        if name.endswith("up_proj.weight_global_scale"):
            tensors[name] = tensors[name.replace("up_proj", "gate_proj")]


@pytest.mark.parametrize(
    ("name", "form", "change"),
    [
        ("qwen3_moe", "ct_w4a16", None),
        ("mixtral", "awq", None),
        ("qwen3_moe", "ct_w4a16", _down_in_8_bits),
        ("mixtral", "ct_nvfp4", None),
        ("qwen3_moe", "ct_nvfp4", one_scale_for_gate_and_up),
    ],
)
def test_others_in_formats_of_matrices(tmp_path, name, form, change) -> None:
    path, _ = write(tmp_path, name, form, change)
    config, packed = load_model(path, quantize="file")
    check_generates_alike(config, packed, load_model(path)[1])


@pytest.mark.parametrize("which", ["experts.0.gate_proj", "experts.3.up_proj", "down_proj"])
def test_a_layer_that_is_partly_plain_is_plain(tmp_path, which) -> None:
    """Wherever the plain matrix is; the other layers keep their codes."""
    plain = tiny_models.weights("qwen3_moe", HIDDEN)

    def change(tensors: dict[str, np.ndarray], config: Any) -> None:
        names = [n for n in tensors if "layers.1.mlp.experts" in n and which in n]
        for name in names:
            del tensors[name]
        stems = {name.rpartition(".")[0] for name in names}
        tensors |= {f"{stem}.weight": plain[f"{stem}.weight"] for stem in stems}

    path, _ = write(tmp_path, "qwen3_moe", "awq", change)
    config, packed = load_model(path, quantize="file")
    kinds = [isinstance(layer["experts_down"], repack.PackedWeight) for layer in packed["layers"]]
    assert kinds == [True, False, True]
    made = []
    for params in (packed, load_model(path)[1]):
        engine = Engine(config, params, max_num_seqs=2, max_model_len=32)
        made.append(tokens_of(engine.generate(PROMPTS, GREEDY)))
    assert made[0] == made[1]


def test_experts_take_their_activations_as_they_are(tmp_path) -> None:
    path, _ = write(tmp_path, "gpt_oss", "mxfp4")
    with pytest.raises(ValueError, match="in codes: only experts are in codes, which take activat"):
        load_model(path, quantize="file", activations="int8")


def _narrow_experts(tensors: dict[str, np.ndarray], config: Any) -> None:
    config["moe_intermediate_size"] = 24
    for name, array in tensors.items():
        if "gate_proj" in name or "up_proj" in name:
            tensors[name] = array[:24]
        elif "down_proj.weight" in name and array.shape[-1] == 32:
            tensors[name] = array[:, :24]


def test_experts_that_no_op_takes_are_refused(tmp_path) -> None:
    path, _ = write(tmp_path, "qwen3_moe", "ct_int8", _narrow_experts)
    text = "gate and up have 24 rows, expected a multiple of 16"
    said = rf"^{path}: model\.layers\.0\.mlp\.experts: {text}; --quantize none widens them$"
    with pytest.raises(NotImplementedError, match=said):
        load_model(path, quantize="file")
    load_model(path)


def test_outer_scales_of_experts(tmp_path) -> None:
    """One for each expert where gate and up share it; one for each row where they do not."""
    (tmp_path / "apart").mkdir()
    path, _ = write(tmp_path / "apart", "qwen3_moe", "ct_nvfp4")
    [layer, *_] = load_model(path, quantize="file")[1]["layers"]
    shapes = [layer[role].outer_scales.shape for role in ROLES]
    assert shapes == [(8, 4, 1, 16), (8,)]
    (tmp_path / "shared").mkdir()
    path, _ = write(tmp_path / "shared", "qwen3_moe", "ct_nvfp4", one_scale_for_gate_and_up)
    [layer, *_] = load_model(path, quantize="file")[1]["layers"]
    assert [layer[role].outer_scales.shape for role in ROLES] == [(8,), (8,)]


def test_zeros_of_two_kinds_are_refused() -> None:
    rows = np.zeros((16, 32), np.uint8), np.ones((16, 1), np.float32), np.ones((16, 1), np.float32)
    ones = [
        repack.from_codes(*rows, format="u4", group=32, zeros_are=zeros)
        for zeros in ("points", "minimums")
    ]
    with pytest.raises(
        NotImplementedError,
        match=r"x\.experts: gate and up have points, down has minimums, expected one",
    ):
        stack_experts("x.", [[ones[0]]], [ones[1]])


def test_outer_scales_of_some_experts_are_refused() -> None:
    """Of all rows in one expert, whose gate and up differ, and none or those of each row in another."""
    codes, scales = np.zeros((16, 32), np.uint8), np.ones((16, 1), np.float32)

    def with_outer(*shape: int, value: float = 1) -> repack.PackedWeight:
        outer = np.full(shape, value, np.float32) if shape else None
        return repack.from_codes(codes, scales, None, outer, format="u4b8", group=32)

    differ = [with_outer(1), with_outer(1, value=2)]
    for other, said in (((), ""), ((16, 1), " with outer scales of rows")):
        form = "u4b8 in groups of 32"
        found = sorted({f"{form}{said}", f"{form} with outer scales of all rows"})
        with pytest.raises(
            NotImplementedError, match=f"gate and up are in {' and in '.join(found)}, exp"
        ):
            stack_experts("x.", [differ, [with_outer(*other)] * 2], [with_outer()] * 2)
    with pytest.raises(
        NotImplementedError, match=f"gate is in {form} with .* all rows, up in {form}, exp"
    ):
        stack_experts("x.", [[with_outer(1), with_outer()]], [with_outer()])


@pytest.mark.parametrize("quantize", ["int4", "int8"])
def test_plain_experts_are_rounded(tmp_path, quantize) -> None:
    path, _ = write(tmp_path, "qwen3_moe", None)
    config, params = load_model(path, quantize=quantize)
    plain = load_model(path)[1]
    for layer, rounded in zip(plain["layers"], params["layers"], strict=True):
        for role in ROLES:
            for matrix, one in zip(layer[role], ones_of(rounded[role]), strict=True):
                want = repack.round_to_nearest(np.asarray(matrix), int(quantize[3:]))
                np.testing.assert_array_equal(repack.decoded(one), repack.decoded(want))
    check_generates_alike(config, params, decoded(params))


@pytest.mark.parametrize(("name", "form"), [("gpt_oss", "mxfp4"), ("qwen3_moe", "ct_nvfp4")])
def test_experts_in_codes_are_divided_whole(tmp_path, name, form) -> None:
    path, _ = write(tmp_path, name, form)
    config, experts = check_divided_whole(path)
    with pytest.raises(
        ValueError, match=r"experts_down is in .* divided by --expert-parallel alone"
    ):
        ModelParallel(config, 2, devices=jax.devices("cpu")).place({"experts_down": experts})


def _change(path: Path, name: str, change: Any) -> None:
    from intarsia.models.safetensors_file import SafetensorsFile

    file = SafetensorsFile(path / "model.safetensors")
    tensors = {n: file.read(n) for n in file.names}
    tensors[name] = np.ascontiguousarray(change(tensors[name]))
    packers.save(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("gate_up_proj_blocks", lambda a: a[1:], r"gate_up_proj_scales has shape \[8, 64, 2\], expected \[7, 64, 2\]"),
        ("down_proj_scales", lambda a: a.astype(np.float32), "down_proj_scales is float32, expected uint8"),
        ("down_proj_blocks", lambda a: a[..., :8], r"down_proj_blocks has shape \[8, 64, 1, 8\], expected \[8, 64, 1, 16\]"),
    ],
)  # fmt: skip
def test_broken_experts_are_refused(tmp_path, name, change, text) -> None:
    path, _ = write(tmp_path, "gpt_oss", "mxfp4")
    _change(path, f"model.layers.0.mlp.experts.{name}", change)
    with pytest.raises(ValueError, match=text) as said:
        load_model(path, quantize="file")
    assert str(said.value).startswith(str(path)) and "\n" not in str(said.value)


def test_experts_of_two_forms_are_refused() -> None:
    rows = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    four, eight = (repack.round_to_nearest(rows, bits) for bits in (4, 8))
    with pytest.raises(
        ValueError, match=r"experts are \[16, 64\] in i8 in .* beside \[16, 64\] in u4b8"
    ):
        repack.stacked([four, eight])
    with pytest.raises(ValueError, match="experts have 12 rows, expected a multiple of 16"):
        repack.stacked([repack.round_to_nearest(rows[:12], 4)])


@pytest.fixture
def generate(tmp_path, write_gguf, tiny_weights, capsys):
    """Returns a function that writes a mixture with a tokenizer, and gives the command's status and stderr."""
    backend = Tokenizer.from_path(write_gguf(tiny_weights)).backend
    folder = tmp_path / "mixture"
    folder.mkdir()

    def run(name: str, form: str, change: Any = None, *arguments: str) -> tuple[int, str]:
        path, _ = write(folder, name, form, change)
        backend.save(str(path / "tokenizer.json"))
        command = ["generate", "--model", str(path), "--prompt", "the", "--max-tokens", "2"]
        command += ["--device", "cpu"]
        status = cli.main([*command, "--no-chat-template", *arguments])
        return status, capsys.readouterr().err

    return run


def test_the_command(generate) -> None:
    status, said = generate("gpt_oss", "mxfp4")
    assert status == 0 and "weights in the file's codes" in said
    assert "fused_experts_quantized" in said


def test_the_command_widens_what_no_op_takes_unless_it_is_told(generate) -> None:
    status, said = generate("qwen3_moe", "ct_int8", _narrow_experts)
    assert status == 0 and "--quantize none widens them, as is done now" in said
    assert "3 layers in float32; compiling" in said
    status, said = generate("qwen3_moe", "ct_int8", _narrow_experts, "--quantize", "file")
    assert status == 2 and said.endswith("expected a multiple of 16; --quantize none widens them\n")


def test_advice_beside_activations_in_int8(generate) -> None:
    """Which need codes."""
    arguments = "qwen3_moe", "ct_int8", _narrow_experts, "--activations", "int8"
    for more in ((), ("--quantize", "file")):
        status, said = generate(*arguments, *more)
        assert status == 2 and said.endswith(
            "--quantize none widens them, but not beside --activations int8, for which --quantize int8 rounds them\n"
        )
    status, said = generate(*arguments, "--quantize", "int8")
    assert status == 0 and "linear layers in int8, activations in int8" in said
