"""Broken and hostile model files: a model loads, or one line names the file and what is wrong with it."""

import dataclasses
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from conftest import GEMMA_CHANGES
from gguf_tensors import write_out
from intarsia.models import Tokenizer, load_model
from intarsia.models.gguf_file import open_gguf
from intarsia.models.weights import open_checkpoint

REFUSALS = (ValueError, OSError, NotImplementedError)
NUMBERS = [0, 1, 2, 3, 0x7F, 0xFF, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 2**31, 2**64, 0.5, float("nan"), 1e300, "", "x", [], [1], ["x"], [[]], {},
    {"a": 1}, {"factor": 0, "rope_type": "llama3"}, {"rope_type": "linear", "factor": "x"},
]  # fmt: skip
UNIGRAM = '{"version": "1.0", "model": {"type": "Unigram", "unk_id": null, "vocab": [["a", 0.0]]}}'


@pytest.fixture
def directory(write_directory: Callable[..., Path], write_gguf: Any, tmp_path: Path, hf_config: Any,
              tiny_weights: Any) -> Path:  # fmt: skip
    """A directory with every file that is read, its weights in two shards."""
    tokenizer = Tokenizer.from_path(write_gguf(tiny_weights))
    path = write_directory(hf_config, tiny_weights, shards=2)
    for file in tmp_path.glob("*.gguf"):
        file.unlink()
    tokenizer.backend.save(str(path / "tokenizer.json"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    said = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}
    said["chat_template"] = tokenizer.chat_template
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    return path


def load(path: Path) -> None:
    load_model(path)
    tokenizer = Tokenizer.from_path(path)
    tokenizer.decode(tokenizer.encode("the 123"))


def check(path: Path, what: str, load: Callable[[Path], Any] = load) -> None:
    """The model loads, or an error names a file of it."""
    try:
        load(path)
    except REFUSALS as error:
        text = str(error)
        assert str(path) in text, f"{what}: {type(error).__name__}: {text}"
        assert "\n" not in text and len(text) > len(str(path)) + 4, what
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def mutated_bytes(rng: random.Random, content: bytes, header: int) -> bytes:
    """Flipped, cut, doubled or overwritten by a number, mostly in the first bytes."""
    at = rng.randrange(min(len(content), header) if rng.random() < 0.8 else len(content))
    kind = rng.randrange(5)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    if kind == 2:
        return content[:at] + struct.pack("<Q", rng.choice(NUMBERS)) + content[at + 8 :]
    if kind == 3:
        end = at + rng.randrange(1, 64)
        return content[:end] + content[at:]
    return content[:at] + content[at + rng.randrange(1, 64) :]


def mutated_json(rng: random.Random, value: Any) -> Any:
    """A value somewhere in it is another, or is gone."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: mutated_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], mutated_json(rng, value[at]), *value[at + 1 :]]
    return rng.choice(VALUES)


def test_mutants_of_gguf(write_gguf: Any, tiny_weights: Any, pytestconfig: pytest.Config) -> None:
    small = {n: w for n, w in tiny_weights.items() if ".layers.1." not in n}
    paths = [write_gguf(tiny_weights), write_gguf(small, pre="default", tokenizer="llama")]
    contents = [path.read_bytes() for path in paths]
    for number in range(pytestconfig.getoption("--mutants")):
        rng = random.Random(number)
        which = number % 2
        paths[which].write_bytes(mutated_bytes(rng, contents[which], 12_000))
        check(paths[which], f"mutant {number} of GGUF")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "model-0.safetensors",
    ],
)
def test_mutants_of_a_directory(directory: Path, name: str, pytestconfig: pytest.Config) -> None:
    file = directory / name
    content = file.read_bytes()
    for number in range(pytestconfig.getoption("--mutants") // 4):
        rng = random.Random(number)
        if file.suffix == ".json" and number % 4:
            file.write_text(json.dumps(mutated_json(rng, json.loads(content))))
        else:
            file.write_bytes(mutated_bytes(rng, content, 2_000))
        check(directory, f"mutant {number} of {name}")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("config.json", DEEP, "it is nested too deeply"),
        ("config.json", "[]", "it holds a list, expected an object"),
        ("config.json", "{", "Expecting property name"),
        ("generation_config.json", DEEP, "it is nested too deeply"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x', expected the id"),
        ("model.safetensors.index.json", '{"weight_map": []}', "weight_map is not an object"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../x"}}', "it names '../x', expected"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "/x"}}', "it names '/x', expected"),
        ("model.safetensors.index.json", '{"weight_map": {"a": ".."}}', "it names '..', expected"),
        ("model-0.safetensors", "", "SafetensorError"),
        ("tokenizer.json", "{}", "Exception: "),
        ("tokenizer.json", UNIGRAM, "Encountered an unknown token"),  # not before a text is encoded
        ("tokenizer_config.json", '{"bos_token": 3}', "bos_token is 3, expected a text"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template is no text"),
        ("tokenizer_config.json", '{"chat_template": [{}]}', "chat_template: KeyError: 'name'"),
    ],
)  # fmt: skip
def test_the_file_and_the_fault_are_named(
    directory: Path, name: str, content: str, text: str
) -> None:
    (directory / name).write_text(content)
    with pytest.raises(REFUSALS) as raised:
        load(directory)
    assert str(raised.value).startswith(f"{directory / name}: "), raised.value
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a number, 0 or more"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x', expected a number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, expected a number, 0 or more"),
        ({"rope_theta": 0}, "rope_theta is 0, expected a number, above 0"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0, expected a number, above 0"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x', expected the id of a token"),
        ({"max_position_embeddings": "x"}, "max_position_embeddings is 'x', expected a whole number"),
        ({"max_position_embeddings": -5}, "max_position_embeddings is -5, expected a whole number, 2"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4', expected a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a whole number"),
        ({"num_key_value_heads": True}, "num_key_value_heads is True, expected a whole number"),
        ({"head_dim": 15}, "head_dim is 15, expected a multiple of 8 up to 512"),
        ({"head_dim": 20}, "head_dim is 20, expected a multiple of 8 up to 512"),
        ({"head_dim": 520}, "head_dim is 520, expected a multiple of 8 up to 512"),
        ({"hidden_size": None}, "key hidden_size is missing"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected a bool"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', expected a list"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0.5}, "sliding_window is 0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor is 0, expected a number, above"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                           "high_freq_factor": 4.0}}, "low_freq_factor is 4.0, expected less than"),
        ({"rope_scaling": [1]}, "rope_scaling is [1], expected an object"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_type is missing beside factor, expected one of default, linear"),
        ({"rope_scaling": {"rope_type": "default", "type": "linear", "factor": 4.0}},
         "rope_type is 'default', expected that of type, 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}}},
         "rope_parameters has full_attention, expected one rope for all layers"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5, expected 1.0"),
        (GEMMA_CHANGES | {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
         "rope_parameters has rope_type, expected full_attention and sliding_attention"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense(
    write_directory: Any, hf_config: Any, tiny_weights: Any, change: dict[str, Any], text: str
) -> None:
    path = write_directory(hf_config | change, tiny_weights)
    with pytest.raises(ValueError) as raised:
        open_checkpoint(path)
    assert str(raised.value).startswith(f"{path / 'config.json'}: "), raised.value
    assert text in str(raised.value)


def kv(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def gguf_header(*keys: bytes, tensors: int = 0, count: int | None = None) -> bytes:
    counted = len(keys) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, counted) + b"".join(keys)


ARRAY, U8 = 9, 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (gguf_header(kv("x", ARRAY, struct.pack("<IQ", U8, 2**62))), "the file ends at byte 49, expected 4611"),
        (gguf_header(kv("x", ARRAY, struct.pack("<IQ", U8, 2**24)) + bytes(2**24)), "more than 8388608 elements"),
        (gguf_header(kv("x", 8, struct.pack("<Q", 2**60))), "the file ends at byte 45, expected 11529"),
        (gguf_header(count=2**60), "counts 1152921504606846976 keys"),
        (gguf_header(tensors=2**60), "counts 1152921504606846976 tensors"),
        (gguf_header(kv("x", 77, b"")), "a value is of type 77, which the gguf package lacks"),
        (gguf_header(kv("x", U8, b"1"), kv("x", U8, b"1")), "Duplicate x"),
        (gguf_header(), "key general.architecture is missing"),
        (gguf_header(kv("general.architecture", 8, struct.pack("<Q", 5) + b"llama")), "tensor token_embd.weight is missing"),
        (b"GGUF", "the file ends at byte 4, expected 8"),
    ],
)  # fmt: skip
def test_a_header_that_promises_more_than_there_is(
    tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError) as raised:
        open_checkpoint(path)
    assert str(raised.value).startswith(f"{path}: ") and text in str(raised.value), raised.value


def test_half_a_gguf(write_gguf: Any, tiny_weights: Any) -> None:
    path = write_gguf(tiny_weights)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(
        ValueError, match=rf"^{path}: the file ends at byte \d+, expected \d+ or more"
    ):
        load_model(path)


def test_a_gguf_replaced_under_its_name(write_gguf: Any, tiny_weights: Any, tmp_path: Path) -> None:
    first = write_gguf(tiny_weights)
    kept = tmp_path / "kept.gguf"
    shutil.copy(first, kept)
    assert open_gguf(first) is open_gguf(first)
    changed = tiny_weights | {"model.norm.weight": tiny_weights["model.norm.weight"] * 2}
    os.replace(write_gguf(changed, pre="other"), first)  # of the same size, or nearly
    read = open_checkpoint(first).read("model.norm.weight")
    np.testing.assert_array_equal(read, changed["model.norm.weight"])
    os.replace(kept, first)
    read = open_checkpoint(first).read("model.norm.weight")
    np.testing.assert_array_equal(read, tiny_weights["model.norm.weight"])


def test_an_error_has_a_line_of_its_own(
    directory: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intarsia.models import weights

    opened = open_checkpoint(directory)
    broken = dataclasses.replace(opened, names=opened.names - {"model.layers.1.mlp.up_proj.weight"})
    monkeypatch.setattr(weights, "open_checkpoint", lambda path: broken)
    with pytest.raises(ValueError, match=r"up_proj\.weight is missing"):
        load_model(directory, progress=True)
    assert capsys.readouterr().err.endswith("\n")


def test_a_gguf_of_another_byte_order(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    write_out(writer)
    with pytest.raises(ValueError, match=r"big.gguf: its byte order is not this machine's"):
        open_checkpoint(tmp_path / "big.gguf")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ValueError, match=r"pipe.gguf: it is no regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")


def test_a_part_of_a_gguf(write_gguf: Any, tiny_weights: Any) -> None:
    path = write_gguf(tiny_weights, metadata={"split.count": 2, "split.no": 0})
    with pytest.raises(ValueError, match="it is part 1 of 2, expected a whole model"):
        open_checkpoint(path)


def test_dtypes_that_no_weights_have(write_gguf: Any, tiny_weights: Any) -> None:
    path = write_gguf(tiny_weights)
    for dtype in ("int8", "float64", "foo", np.complex64):
        with pytest.raises(ValueError, match=r"dtype is .*, expected float32, bfloat16, float16"):
            load_model(path, dtype=dtype)
