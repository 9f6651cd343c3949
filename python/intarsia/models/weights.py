"""Loads a model, from a GGUF file or a Hugging Face directory, into jax arrays.

Both kinds of file are read through Hugging Face's tensor names; the projections that share an
input (q, k, v and gate, up) are concatenated, so that each is one matrix product. Matrices stay
[out, in] as the files have them: on a CPU, XLA multiplies by either layout at the same speed, and
a tied embedding table then serves as the output projection without being transposed.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from intarsia.models.architectures import config_from_gguf, config_from_hf
from intarsia.models.choices import QUANTIZATIONS
from intarsia.models.config import ModelConfig
from intarsia.models.fields import Fields
from intarsia.models.files import FileError, read_json, reading
from intarsia.models.linear import Weight, quantize

if TYPE_CHECKING:
    from gguf import GGUFReader

Params = dict[str, Any]
"""Weights by role: `embed` and `lm_head` [vocab, n] (no `lm_head` when tied), `first_norm` [n], and
`layers`, a list of dicts with `wqkv`, `bqkv` (with `qkv_bias`), `q_norm` and `k_norm` [d] (with
`qk_norm`), `wo`, `attention_post_norm` (with `post_norms`), `mlp_norm`, `w_gate_up`, `w_down`,
`mlp_post_norm` (with `post_norms`) and `next_norm`, the norm that follows the block (the next block's,
or the model's last). `wqkv`, `wo`, `w_gate_up` and `w_down` are a `Weight` each (`linear.py`). `TensorParallel.exchange` may
add `exchange`, an `intarsia.jax.Exchange`."""

_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Where blocks end with norms of their own, Hugging Face's post_attention_layernorm is one of them.
_GGUF_POST_NORM_NAMES = _GGUF_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An opened model file: its configuration and a reader of tensors by Hugging Face name.

    The reader raises ValueError, OSError or NotImplementedError, with the names of file and tensor.

    Gemma's norms are read as what rows are multiplied by, wherever the file holds them less 1.
    """

    config: ModelConfig
    names: frozenset[str]
    read: Callable[[str], np.ndarray]


def load_model(
    path: str | Path,
    *,
    dtype: Any = "float32",
    quantize: str | None = None,
    progress: bool = False,
) -> tuple[ModelConfig, Params]:
    """Loads a model onto jax's default device.

    Args:
        path: A .gguf file (any quantisation that the `gguf` package can expand), or a directory
            with config.json and model.safetensors (or its shards and their index).
        dtype: What the weights are converted to: float32, bfloat16 or float16.
        quantize: One of `QUANTIZATIONS`, or None: "fp8" keeps the weights of the linear layers in
            float8_e4m3fn with a scale for each output channel, and they quantise their inputs
            token by token. Embedding, output projection and norms stay in `dtype`.
        progress: Whether to draw a progress bar on stderr.

    Returns:
        The configuration and the weights; `Params` describes their layout.

    Raises:
        ValueError: The architecture, a tensor, the dtype or the quantisation is not supported, or a
            tensor has a wrong shape.
        FileNotFoundError: The path holds no model.
    """
    if quantize not in (None, *QUANTIZATIONS):
        expected = " or ".join(QUANTIZATIONS)
        raise ValueError(f"quantize is {quantize!r}, expected {expected}, or None")
    checkpoint = open_checkpoint(path)
    dtype = jnp.dtype(dtype)
    if dtype == jnp.float16 and not checkpoint.config.fits_f16:
        raise ValueError("dtype is float16, whose range this model leaves; expected bfloat16")
    with reading(path):
        return checkpoint.config, _assemble(checkpoint, dtype, quantize, progress)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a .gguf file or a Hugging Face directory without reading its tensors."""
    path = Path(path)
    return _open_directory(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    from intarsia.models.gguf_file import open_gguf

    reader = open_gguf(path)
    with reading(path):
        return _gguf_checkpoint(path, reader)


def _gguf_checkpoint(path: Path, reader: "GGUFReader") -> Checkpoint:
    from gguf import dequantize

    post_norms = any(tensor.name.endswith(".post_ffw_norm.weight") for tensor in reader.tensors)
    names = _GGUF_POST_NORM_NAMES if post_norms else _GGUF_NAMES
    tensors = {_hf_name(tensor.name, names): tensor for tensor in reader.tensors}
    # The vocabulary is the tokenizer's business, and slow to read.
    metadata = {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith("tokenizer.") or key.endswith("_id")
    }

    permuted: tuple[str, ...] = ("q_proj.weight", "k_proj.weight")
    if metadata.get("general.architecture") != "llama":
        permuted = ()

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        with reading(path, f"tensor {tensor.name}"):
            array = dequantize(tensor.data, tensor.tensor_type)
            return _unpermute(array, config.head_dim) if name.endswith(permuted) else array

    # Llama 3's rope scaling is stored as a tensor of divisors instead of as metadata.
    divisors = tensors.pop("rope_freqs.weight", None)
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError("tensor token_embd.weight is missing, or no matrix")
    config = config_from_gguf(
        metadata,
        vocab=int(embedding.shape[1]),
        tie_embeddings="lm_head.weight" not in tensors,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
        rope_divisors=None if divisors is None else tuple(map(float, divisors.data.ravel())),
    )
    return Checkpoint(config, frozenset(tensors), read)


def _hf_name(name: str, names: Mapping[str, str]) -> str:
    """Translates `blk.3.attn_q.weight` into `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk.") and stem.count(".") > 1:
        _, layer, stem = stem.split(".", 2)
        return f"model.layers.{layer}.{names.get(stem, stem)}.{kind}"
    return f"{names.get(stem, stem)}.{kind}"


def _unpermute(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Undoes GGUF's reordering of the rows of llama's q and k.

    GGUF stores them for rope on neighbouring pairs (2i, 2i + 1); the checkpoint, and so this
    model and transformers, pair (i, i + d/2).
    """
    if weight.ndim != 2 or weight.shape[0] % head_dim:
        raise ValueError(f"its shape is {[*weight.shape]}, expected heads of {head_dim} rows")
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _open_directory(path: Path) -> Checkpoint:
    from safetensors import safe_open

    config_json = read_json(path / "config.json")
    if not config_json:
        raise FileNotFoundError(f"model directory {path} has no config.json, or an empty one")
    generation = read_json(path / "generation_config.json")
    with reading(path / "config.json"):
        config = config_from_hf(config_json, {})
    with reading(path / "generation_config.json"):
        if "eos_token_id" in generation:
            eos_ids = Fields(generation).tokens("eos_token_id")
            config = dataclasses.replace(config, eos_ids=eos_ids)
    homes: dict[str, Any] = {}
    for file in _shards(path):
        with reading(file):
            opened = safe_open(file, "numpy")
            homes |= {name: (file, opened) for name in opened.keys()}  # noqa: SIM118 (no dict)
    names = {name for name in homes if not name.endswith("rotary_emb.inv_freq")}
    if config.tie_embeddings:
        names.discard("lm_head.weight")

    def read(name: str) -> np.ndarray:
        file, opened = homes[name]
        with reading(file, f"tensor {name}"):
            array = opened.get_tensor(name)
            # Gemma's checkpoints hold norms as their difference from 1; GGUF has added it already.
            norm_of_gemma = config.norm_in_f32 and name.endswith("norm.weight")
            return array.astype(np.float32) + 1 if norm_of_gemma else array

    return Checkpoint(config, frozenset(names), read)


def _shards(path: Path) -> list[Path]:
    """The files of a directory's tensors: those that its index names, which lie beside it."""
    index = path / "model.safetensors.index.json"
    said = read_json(index).get("weight_map", {})
    if not isinstance(said, dict) or not all(isinstance(name, str) for name in said.values()):
        raise FileError(f"{index}: weight_map is not an object of files by tensor")
    for name in said.values():
        if name != Path(name).name or name in ("", ".."):
            raise FileError(f"{index}: it names {name!r}, expected a file of its own folder")
    return [path / name for name in sorted({*said.values()}) or ["model.safetensors"]]


def _assemble(
    checkpoint: Checkpoint, dtype: np.dtype, quantization: str | None, progress: bool
) -> Params:
    """Reads every tensor, checks its shape, and concatenates those that share an input."""
    config, unread = checkpoint.config, set(checkpoint.names)
    n, d = config.hidden, config.head_dim
    h, hk, m = config.heads, config.kv_heads, config.intermediate

    def read(name: str, *shape: int, dtype: Any = dtype) -> np.ndarray:
        if name not in checkpoint.names:
            raise ValueError(f"weights: {name} is missing, expected shape {[*shape]}")
        array = checkpoint.read(name)
        if array.shape != shape:
            raise ValueError(f"weights: {name} has shape {[*array.shape]}, expected {[*shape]}")
        unread.discard(name)
        in_f32 = config.norm_in_f32 and name.endswith("norm.weight")
        return array.astype(np.float32 if in_f32 else dtype)

    def linear(prefix: str, rows_by_name: Mapping[str, int], columns: int) -> Weight:
        """The layers that share an input as one; quantised from what the file has, rounded once."""
        kept = dtype if quantization is None else jnp.float32
        matrices = [
            read(f"{prefix}{name}_proj.weight", rows, columns, dtype=kept)
            for name, rows in rows_by_name.items()
        ]
        weight = jax.device_put(np.concatenate(matrices))
        return weight if quantization is None else quantize(weight)

    def input_norm(layer: int) -> np.ndarray:
        last = layer == config.layers
        return read(
            "model.norm.weight" if last else f"model.layers.{layer}.input_layernorm.weight", n
        )

    def block(layer: int) -> Params:
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = {"q": h * d, "k": hk * d, "v": hk * d}
        weights = {
            "wqkv": linear(attention, qkv, n),
            "wo": linear(attention, {"o": n}, h * d),
            "w_gate_up": linear(mlp, {"gate": m, "up": m}, n),
            "w_down": linear(mlp, {"down": n}, m),
            "next_norm": input_norm(layer + 1),
        }
        norms = {"mlp_norm": "post_attention_layernorm"}
        if config.post_norms:
            norms = {
                "attention_post_norm": "post_attention_layernorm",
                "mlp_norm": "pre_feedforward_layernorm",
                "mlp_post_norm": "post_feedforward_layernorm",
            }
        weights |= {role: read(f"{prefix}{name}.weight", n) for role, name in norms.items()}
        if config.qk_norm:
            weights |= {role: read(f"{attention}{role}.weight", d) for role in ("q_norm", "k_norm")}
        if config.qkv_bias:
            biases = [read(f"{attention}{p}_proj.bias", rows) for p, rows in qkv.items()]
            weights["bqkv"] = np.concatenate(biases)
        return jax.device_put(weights)

    params: Params = {"first_norm": jax.device_put(input_norm(0))}
    # Closed before an error is printed, which would otherwise stand in the bar's line.
    with tqdm(
        range(config.layers), "loading", unit="layer", file=sys.stderr, disable=not progress
    ) as bar:
        params["layers"] = [block(layer) for layer in bar]
    params["embed"] = jax.device_put(read("model.embed_tokens.weight", config.vocab, n))
    if not config.tie_embeddings:
        params["lm_head"] = jax.device_put(read("lm_head.weight", config.vocab, n))
    if unread:
        raise ValueError(f"weights: unsupported tensors {', '.join(sorted(unread)[:5])}")
    return params
