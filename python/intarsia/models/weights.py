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
from intarsia.models.linear import PackedMatrix, Weight, quantize
from intarsia.models.mixtures import read_experts
from intarsia.repack import GGUF_TYPES, PackedWeight, from_gguf, joined

if TYPE_CHECKING:
    from intarsia.models.gguf_file import Reader

Params = dict[str, Any]
"""Weights by role: `embed` and `lm_head` [vocab, n] (no `lm_head` when tied), `first_norm` [n], and
`layers`, a list of dicts with `wqkv`, `bqkv` (with `qkv_bias`), `q_norm` and `k_norm` [d] (with
`qk_norm`), `sinks` [h] (with `sinks`), `wo`, `bo` (with `o_bias`), `attention_post_norm` (with `post_norms`), `mlp_norm`, `w_gate_up`, `w_down`,
`mlp_post_norm` (with `post_norms`) and `next_norm`, the norm that follows the block (the next block's,
or the model's last). With `experts` a layer has in the place of `w_gate_up` and `w_down` the arrays `router` [E, n], `experts_gate_up`
[E, 2i, n] and `experts_down` [E, n, i], and with `experts.biases` one of each role's name and `_bias`, without the last axis. `wqkv`, `wo`, `w_gate_up` and `w_down` are a `Weight` each (`linear.py`). `ModelParallel.exchange` may
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
    read_packed: Callable[[str], PackedWeight | None] = lambda name: None
    """A matrix in the codes of the file; None if they are plain numbers, or in a format that no op reads."""


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
            token by token. Embedding, output projection and norms stay in `dtype`. "file" keeps
            all matrices in the codes that a GGUF file has them in; activations are in `dtype`.
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
    if quantize and checkpoint.config.experts:
        raise ValueError(f"quantize is {quantize!r}, expected None for a model with experts")
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


def _gguf_checkpoint(path: Path, reader: "Reader") -> Checkpoint:
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

    def in_order(name: str, rows: np.ndarray) -> np.ndarray:
        return _unpermute(rows, config.head_dim) if name.endswith(permuted) else rows

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        with reading(path, f"tensor {tensor.name}"):
            return in_order(name, dequantize(tensor.data, tensor.tensor_type))

    def read_packed(name: str) -> PackedWeight | None:
        tensor = tensors[name]
        if tensor.tensor_type.name not in GGUF_TYPES:
            return None
        with reading(path, f"tensor {tensor.name}"):
            weight = from_gguf(in_order(name, tensor.data), tensor.tensor_type.name)
        reader.release()
        return weight

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
    return Checkpoint(config, frozenset(tensors), read, read_packed)


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
            less_one = config.norms_less_one and name.endswith("norm.weight")
            return array.astype(np.float32) + 1 if less_one else array

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
    config, tensors = checkpoint.config, _Tensors(checkpoint, dtype, quantization)
    params: Params = {"first_norm": jax.device_put(tensors.input_norm(0))}
    # Closed before an error is printed, which would otherwise stand in the bar's line.
    with tqdm(
        range(config.layers), "loading", unit="layer", file=sys.stderr, disable=not progress
    ) as bar:
        params["layers"] = [tensors.block(layer) for layer in bar]
    table = config.vocab, config.hidden
    params["embed"] = tensors.matrix({"model.embed_tokens.weight": table[0]}, table[1])
    if not config.tie_embeddings:
        params["lm_head"] = tensors.matrix({"lm_head.weight": table[0]}, table[1])
    if tensors.unread:
        raise ValueError(f"weights: unsupported tensors {', '.join(sorted(tensors.unread)[:5])}")
    return params


class _Tensors:
    """The tensors of a checkpoint as a model takes them.

    Attributes:
        unread: Names of those that nothing has asked for.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: np.dtype, quantization: str | None) -> None:
        self.unread = set(checkpoint.names)
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._dtype = dtype
        self._quantization = quantization

    def read(self, name: str, *shape: int, dtype: Any = None) -> np.ndarray:
        """A tensor that has to have a shape, in `dtype` or the model's."""
        if name not in self._checkpoint.names:
            raise ValueError(f"weights: {name} is missing, expected shape {[*shape]}")
        array = self._checkpoint.read(name)
        if array.shape != shape:
            raise ValueError(f"weights: {name} has shape {[*array.shape]}, expected {[*shape]}")
        self.unread.discard(name)
        in_f32 = self._config.norm_in_f32 and name.endswith("norm.weight")
        return array.astype(np.float32 if in_f32 else dtype or self._dtype)

    def input_norm(self, layer: int) -> np.ndarray:
        """The norm before a layer, or the model's last."""
        last = layer == self._config.layers
        name = "model.norm.weight" if last else f"model.layers.{layer}.input_layernorm.weight"
        return self.read(name, self._config.hidden)

    def block(self, layer: int) -> Params:
        """A layer's weights by role, on the device."""
        config, prefix = self._config, f"model.layers.{layer}."
        weights = self._attention(prefix + "self_attn.")
        if config.experts:
            weights |= read_experts(config, self._checkpoint.names, prefix, self.read)
        else:
            n, m, mlp = config.hidden, config.intermediate, prefix + "mlp."
            weights["w_gate_up"] = self._linear(mlp, {"gate": m, "up": m}, n)
            weights["w_down"] = self._linear(mlp, {"down": n}, m)
        norms = {"mlp_norm": "post_attention_layernorm"}
        if config.post_norms:
            norms = {
                "attention_post_norm": "post_attention_layernorm",
                "mlp_norm": "pre_feedforward_layernorm",
                "mlp_post_norm": "post_feedforward_layernorm",
            }
        for role, name in norms.items():
            weights[role] = self.read(f"{prefix}{name}.weight", config.hidden)
        weights["next_norm"] = self.input_norm(layer + 1)
        return jax.device_put(weights)

    def _attention(self, prefix: str) -> Params:
        config = self._config
        n, d = config.hidden, config.head_dim
        h, hk = config.heads, config.kv_heads
        qkv = {"q": h * d, "k": hk * d, "v": hk * d}
        weights: Params = {
            "wqkv": self._linear(prefix, qkv, n),
            "wo": self._linear(prefix, {"o": n}, h * d),
        }
        if config.qk_norm:
            weights |= {
                role: self.read(f"{prefix}{role}.weight", d) for role in ("q_norm", "k_norm")
            }
        if config.qkv_bias:
            biases = [self.read(f"{prefix}{p}_proj.bias", rows) for p, rows in qkv.items()]
            weights["bqkv"] = np.concatenate(biases)
        if config.o_bias:
            weights["bo"] = self.read(f"{prefix}o_proj.bias", n)
        if config.sinks:
            weights["sinks"] = self.read(f"{prefix}sinks", h)
        return weights

    def _linear(self, prefix: str, rows_by_name: Mapping[str, int], columns: int) -> Weight:
        """The layers that share an input as one; quantised from what the file has, rounded once."""
        to_fp8 = self._quantization == "fp8"
        rows_by_tensor = {f"{prefix}{name}_proj.weight": r for name, r in rows_by_name.items()}
        weight = self.matrix(rows_by_tensor, columns, jnp.float32 if to_fp8 else None)
        return quantize(weight) if to_fp8 and isinstance(weight, jax.Array) else weight

    def matrix(
        self, rows_by_name: Mapping[str, int], columns: int, dtype: Any = None
    ) -> jax.Array | PackedMatrix:
        """Rows of tensors one after the other, in the file's codes if that is wanted and all are in codes."""
        if self._quantization == "file" and (packed := self._packed(rows_by_name, columns)):
            self.unread.difference_update(rows_by_name)
            return packed
        matrices = [
            self.read(name, rows, columns, dtype=dtype) for name, rows in rows_by_name.items()
        ]
        return jax.device_put(matrices[0] if len(matrices) == 1 else np.concatenate(matrices))

    def _packed(self, rows_by_name: Mapping[str, int], columns: int) -> PackedMatrix | None:
        parts = []
        for name, rows in rows_by_name.items():
            exists = name in self._checkpoint.names
            weight = self._checkpoint.read_packed(name) if exists else None
            if weight is None:
                return None
            if weight.shape != (rows, columns):
                shape = [*weight.shape]
                raise ValueError(f"weights: {name} has shape {shape}, expected {[rows, columns]}")
            parts.append(weight)
        return PackedMatrix(tuple(map(jax.device_put, joined(parts))), jnp.dtype(self._dtype))
