"""A tiny Llama and a tiny Gemma 3 whose weights the tests write, and the packaged models."""

import functools
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import started
from gguf_tensors import add_metadata, to_gguf, write_out
from intarsia import cli
from intarsia.models import Tokenizer, find_model, load_model
from intarsia.models.packages import PACKAGES
from safetensors.numpy import save_file
from tokenizers import pre_tokenizers

DATA = Path(__file__).resolve().parents[1] / "data"
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE, LAYERS = 4, 2, 16, 48, 96, 2

HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Five layers of a pattern of two, so that one is left over.
GEMMA_LAYERS, GEMMA_WINDOW = 5, 8
GEMMA_CHANGES = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": GEMMA_LAYERS,
    "query_pre_attn_scalar": 16,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": GEMMA_WINDOW,
    "sliding_window_pattern": 2,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|end|>' if not loop.first }}"
    "{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|end|>assistant: ' }}{% endif %}"
)


def _vocabulary() -> tuple[list[str], list[str]]:
    """Two special tokens, the 256 bytes, and a few merges."""
    tokens = ["<|begin|>", "<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = ["t h", "th e", "1 2", "12 3", "Ġ the"]
    return tokens + [merge.replace(" ", "") for merge in merges], merges


def _sentencepiece_vocabulary() -> tuple[list[str], list[int], list[float]]:
    """Special and user-defined tokens, bytes, and pieces of which the first has the best score."""
    pieces = ["th", "the", "▁t", "er", "▁the", "▁", *"terhnot", "日"]
    tokens = ["<bos>", "<eos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n", "  ", "<b>"]
    tokens += [*(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [3, 3, 2, 3, 3, 4, 4, 4] + [6] * 256 + [1] * len(pieces)
    scores = [-1000.0] * 8 + [0.0] * 256 + [-float(i) for i in range(len(pieces))]
    return tokens, types, scores


def _weights(layers: int = LAYERS) -> dict[str, np.ndarray]:
    """A Llama's random weights by Hugging Face name; so wide that greedy choices are clear."""
    rng = np.random.default_rng(0)
    vocab = len(_vocabulary()[0])

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab, HIDDEN) * 4}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
            ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
            ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
            ("mlp.up_proj", INTERMEDIATE, HIDDEN),
            ("mlp.down_proj", HIDDEN, INTERMEDIATE),
        ):
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = 1 + 0.1 * matrix(1, HIDDEN)[0]
    weights["model.norm.weight"] = 1 + 0.1 * matrix(1, HIDDEN)[0]
    return weights


def _gemma_weights() -> dict[str, np.ndarray]:
    """A Gemma 3's: norms are stored as their difference from 1, and there are more of them."""
    rng = np.random.default_rng(1)
    weights = _weights(GEMMA_LAYERS)
    weights["model.embed_tokens.weight"] /= HIDDEN**0.5
    for layer in range(GEMMA_LAYERS):
        prefix = f"model.layers.{layer}."
        for name, n in (
            ("pre_feedforward_layernorm", HIDDEN),
            ("post_feedforward_layernorm", HIDDEN),
            ("self_attn.q_norm", HEAD_DIM),
            ("self_attn.k_norm", HEAD_DIM),
        ):
            weights[f"{prefix}{name}.weight"] = 1 + 0.1 * rng.standard_normal(n, np.float32)
    return {name: w - (w.ndim == 1) for name, w in weights.items()}


@pytest.fixture
def tiny_weights() -> dict[str, np.ndarray]:
    """The tiny model's weights by Hugging Face name, to change at will."""
    return _weights()


@pytest.fixture
def hf_config() -> dict[str, Any]:
    """The tiny model's config.json, to change at will."""
    return HF_CONFIG | {"vocab_size": len(_vocabulary()[0])}


@pytest.fixture
def gemma_weights() -> dict[str, np.ndarray]:
    """The tiny Gemma's weights by Hugging Face name, to change at will."""
    return _gemma_weights()


@pytest.fixture
def gemma_config(hf_config: dict[str, Any]) -> dict[str, Any]:
    """The tiny Gemma's config.json, to change at will."""
    return hf_config | GEMMA_CHANGES


def _write_directory(
    path: Path, config: dict[str, Any], weights: dict[str, np.ndarray], *, shards: int = 1
) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(weights, path / "model.safetensors")
        return path
    files = [f"model-{i}.safetensors" for i in range(shards)]
    weight_map = {name: files[i % shards] for i, name in enumerate(weights)}
    for file in files:
        inside = {name: array for name, array in weights.items() if weight_map[name] == file}
        save_file(inside, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.fixture
def write_directory(tmp_path: Path):
    """Returns a function that writes a Hugging Face directory."""
    return functools.partial(_write_directory, tmp_path)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """The tiny Llama: its configuration and weights."""
    config = HF_CONFIG | {"vocab_size": len(_vocabulary()[0])}
    return load_model(_write_directory(tmp_path_factory.mktemp("tiny"), config, _weights()))


@pytest.fixture(scope="session")
def tiny_gemma(tmp_path_factory: pytest.TempPathFactory):
    """The tiny Gemma 3: its configuration and weights."""
    config = HF_CONFIG | GEMMA_CHANGES | {"vocab_size": len(_vocabulary()[0])}
    folder = tmp_path_factory.mktemp("tiny_gemma")
    return load_model(_write_directory(folder, config, _gemma_weights()))


def add_tokenizer(writer: gguf.GGUFWriter, kind: str, pre: str) -> None:
    """Adds the tiny vocabulary: bytes and merges, or SentencePiece's pieces and scores."""
    tokens, merges = _vocabulary()
    types, scores = [3, 3] + [1] * (len(tokens) - 2), None
    if kind == "llama":
        tokens, types, scores = _sentencepiece_vocabulary()
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
        writer.add_unk_token_id(2)
    else:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


@pytest.fixture
def write_gguf(tmp_path: Path):
    """Returns a function that writes a GGUF file with the tiny tokenizer in it."""

    def write(
        weights: dict[str, np.ndarray],
        *,
        architecture: str = "llama",
        pre: str = "smollm",
        tokenizer: str = "gpt2",
        add_bos: bool | None = None,
        add_space_prefix: bool | None = None,
        chat_template: str | None = CHAT_TEMPLATE,
        extra: dict[str, np.ndarray] | None = None,
        metadata: dict[str, int | float | str] | None = None,
    ) -> Path:
        path = tmp_path / f"{architecture}-{pre}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(GEMMA_LAYERS if architecture == "gemma3" else LAYERS)
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INTERMEDIATE)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-5)
        if architecture == "gemma3":
            writer.add_rope_freq_base(1000000.0)
            writer.add_sliding_window(GEMMA_WINDOW)
            writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        else:
            writer.add_rope_freq_base(10000.0)
        add_metadata(writer, metadata or {})
        add_tokenizer(writer, tokenizer, pre)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)
        if add_space_prefix is not None:
            writer.add_add_space_prefix(add_space_prefix)
        if chat_template is not None:
            writer.add_chat_template(chat_template)
        for name, array in weights.items():
            writer.add_tensor(*to_gguf(name, array, architecture, HEAD_DIM))
        for name, array in (extra or {}).items():
            writer.add_tensor(name, array)
        write_out(writer)
        return path

    return write


@pytest.fixture(scope="session")
def recorded_tiny() -> dict[str, Any]:
    """What transformers made of the models of `tiny_models`; see tools/record_tiny_models.py."""
    return json.loads((DATA / "tiny_models.json").read_text())


def _recorded(name: str) -> dict[str, Any]:
    """What transformers made of a model; see tools/record_reference_tokens.py."""
    return json.loads((DATA / f"{name}_greedy.json").read_text())


@pytest.fixture(scope="session")
def recorded() -> list[dict[str, Any]]:
    """What transformers generated with SmolLM2."""
    return _recorded("smollm2")["sequences"]


@pytest.fixture(scope="session")
def recorded_gemma3() -> list[dict[str, Any]]:
    """What transformers generated with Gemma 3."""
    return _recorded("gemma3")["sequences"]


@pytest.fixture(scope="session")
def recorded_passages() -> dict[str, dict[str, Any]]:
    """What transformers makes of tests/data/passage.json, by model."""
    return {name: _recorded(name)["passage"] for name in PACKAGES}


def _packaged(name: str) -> Path:
    """A packaged model, or a skip."""
    try:
        return find_model(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2's file."""
    return _packaged("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3's file."""
    return _packaged("gemma3")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path):
    """SmolLM2-135M-Instruct in f32: its configuration and weights."""
    return load_model(smollm2_path)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path):
    """Gemma 3 270M in f32: its configuration and weights."""
    return load_model(gemma3_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    """SmolLM2's tokenizer."""
    return Tokenizer.from_path(smollm2_path)


@pytest.fixture(scope="session")
def gemma3_tokenizer(gemma3_path: Path) -> Tokenizer:
    """Gemma 3's tokenizer."""
    return Tokenizer.from_path(gemma3_path)


@pytest.fixture
def tiny_model(write_gguf, tiny_weights) -> Path:
    """The tiny model's file."""
    return write_gguf(tiny_weights)


@pytest.fixture
def address() -> str:
    """Where a coordinator may listen."""
    return started.free_address()


@pytest.fixture
def start():
    """Starts a Python process; ends what is left of them."""
    with started.starting() as begin:
        yield begin


@pytest.fixture
def generate(start, tiny_model, address):
    """Starts `intarsia generate` as one of several processes, placed by flags or as by a launcher."""

    def begin(count: int, index: int, *more: str, launcher: str | None = None, **variables: str):
        flags, own = started.place(address, count, index, launcher)
        command = ["-c", started.COMMAND, *started.arguments(tiny_model), *flags, *more]
        return start(*command, **own, **variables)

    return begin


@pytest.fixture
def one_process(tiny_model, capsys) -> str:
    """What one process prints: this one, which takes less time than another."""
    assert cli.main([*started.arguments(tiny_model), "--device", "cpu"]) == 0
    return capsys.readouterr().out
