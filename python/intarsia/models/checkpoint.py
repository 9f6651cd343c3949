"""Opens a model's files, GGUF or a Hugging Face directory: its configuration, and tensors by Hugging Face's names."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia._packing import packed_by_rows
from intarsia.models.architectures import config_from_hf
from intarsia.models.config import ModelConfig
from intarsia.models.fields import Fields
from intarsia.models.files import FileError, read_json, reading
from intarsia.models.gguf_config import config_from_gguf
from intarsia.models.gguf_mixtures import check_gguf_experts
from intarsia.models.lazy import Index, LazyArray
from intarsia.models.quantized_files import Scheme, Tensors, scheme_from_hf
from intarsia.models.safetensors_file import SafetensorsFile
from intarsia.repack import GGUF_TYPES, PackedWeight, decoded, from_gguf, from_gguf_mxfp4

if TYPE_CHECKING:
    from intarsia.models.gguf_file import Reader

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
    # Of mixtures, whose experts have no such names elsewhere: see gguf_mixtures.py.
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
# What is post_attention_layernorm in a directory is post_attention_norm: in gpt-oss the norm before the experts, in Gemma 3 that after
# attention. Gemma 3 has four norms a block.
_OTHER_GGUF_NAMES = {
    "gpt-oss": {"post_attention_norm": "post_attention_layernorm"},
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}

_PERMUTED = tuple(f"{of}_proj.{what}" for of in "qk" for what in ("weight", "bias"))
# By ggml's type: what packs rows of its blocks.
_PACKS: dict[str, Callable[[np.ndarray], PackedWeight]] = {
    type: functools.partial(from_gguf, type=type) for type in GGUF_TYPES
} | {"MXFP4": from_gguf_mxfp4}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """An opened model file: its configuration and a reader of tensors by Hugging Face name.

    The reader raises ValueError, OSError or NotImplementedError, with the names of file and tensor.

    Gemma's norms are read as what rows are multiplied by, wherever the file holds them less 1.
    """

    config: ModelConfig
    names: frozenset[str]
    read: Callable[[str], np.ndarray]
    lazy: Callable[[str], LazyArray]
    """A matrix, or several of a tensor, of which a part is read later."""
    read_packed: Callable[[str], "PackedWeight | list[PackedWeight] | None"] = lambda name: None
    """A matrix in the codes of the file, or stacked ones; None if they are plain numbers, or in a format that no op reads."""
    has_codes: bool = False
    """Whether there may be such matrices."""


def matrices_of_a_layer(checkpoint: Checkpoint) -> list[tuple[PackedWeight, bool]]:
    """Those of the first layer in codes, of experts the first one's, each with whether it is an expert's."""
    found: list[tuple[PackedWeight, bool]] = []
    for layer in range(checkpoint.config.layers):
        for name in sorted(n for n in checkpoint.names if n.startswith(f"model.layers.{layer}.")):
            *_, expert = name.partition(".experts.")
            if expert[:1].isdigit() and expert[:2] != "0.":
                continue
            weight = checkpoint.read_packed(name)
            if weight is not None:
                of_one = weight[0] if isinstance(weight, list) else weight
                found.append((of_one, bool(expert)))
        if found:
            break
    return found


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
    # The vocabulary is the tokenizer's business, and slow to read.
    metadata = {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith("tokenizer.") or key.endswith("_id")
    }
    if (parts := metadata.get("split.count", 1)) > 1:
        raise ValueError(
            f"it is part {metadata.get('split.no', 0) + 1} of {parts}, expected a whole model; "
            "llama-gguf-split --merge joins them"
        )
    architecture = Fields(metadata).text("general.architecture")
    names = _GGUF_NAMES | _OTHER_GGUF_NAMES.get(architecture, {})
    tensors = {_hf_name(tensor.name, names): tensor for tensor in reader.tensors}
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
    check_gguf_experts(config, tensors)
    head_dim = config.head_dim if architecture == "llama" else None
    readers = _GgufTensors(path, reader, tensors, head_dim)
    return Checkpoint(
        config, frozenset(tensors), readers.read, readers.lazy, readers.read_packed, True
    )


@dataclasses.dataclass(frozen=True)
class _GgufTensors:
    """A GGUF file's tensors by Hugging Face's names.

    `permuted_heads` is the head dim of a model whose rows of q and k are in GGUF's order, as llama's are.
    """

    path: Path
    reader: "Reader"
    tensors: Mapping[str, Any]
    permuted_heads: int | None

    def read(self, name: str) -> np.ndarray:
        """The numbers of a tensor."""
        from intarsia.models.gguf_file import read_whole

        with self._reading(name) as tensor:
            array = self._in_order(name, read_whole(tensor))
        self.reader.release()
        return array

    def lazy(self, name: str) -> LazyArray:
        """The same, read in parts."""
        from intarsia.models.gguf_file import read_part

        def cut(index: Index) -> np.ndarray:
            with self._reading(name) as tensor:
                return self._in_order(name, read_part(tensor, index))

        return LazyArray([int(size) for size in reversed(self.tensors[name].shape)], cut)

    def read_packed(self, name: str) -> PackedWeight | list[PackedWeight] | None:
        """A matrix in codes, or several; None for formats that no op reads."""
        kind = self.tensors[name].tensor_type.name
        if kind not in _PACKS:
            return None
        with self._reading(name) as tensor:
            if tensor.data.ndim == 3:
                return [self._packed(kind, rows) for rows in tensor.data]
            return self._packed(kind, self._in_order(name, tensor.data))

    def _packed(self, kind: str, rows: np.ndarray) -> PackedWeight:
        def pack(part: slice) -> PackedWeight:
            weight = _PACKS[kind](rows[part])
            self.reader.release()
            return weight

        return packed_by_rows(len(rows), 2 * rows[0].size, pack)  # a byte is two codes or less

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[Any]:
        """The tensor; errors name it as the file does."""
        tensor = self.tensors[name]
        with reading(self.path, f"tensor {tensor.name}"):
            yield tensor

    def _in_order(self, name: str, rows: np.ndarray) -> np.ndarray:
        if self.permuted_heads is None or not name.endswith(_PERMUTED):
            return rows
        return _unpermute(rows, self.permuted_heads)


def _hf_name(name: str, names: Mapping[str, str]) -> str:
    """Translates `blk.3.attn_q.weight` into `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk.") and stem.count(".") > 1:
        _, layer, stem = stem.split(".", 2)
        if (stem, kind) == ("attn_sinks", "weight"):
            return f"model.layers.{layer}.self_attn.sinks"
        return f"model.layers.{layer}.{names.get(stem, stem)}.{kind}"
    return f"{names.get(stem, stem)}.{kind}"


def _unpermute(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Undoes GGUF's reordering of the rows of llama's q and k, or of their biases.

    GGUF stores them for rope on neighboring pairs (2i, 2i + 1); the checkpoint, and so this
    model and transformers, pair (i, i + d/2).
    """
    if weight.ndim not in (1, 2) or weight.shape[0] % head_dim:
        raise ValueError(f"its shape is {[*weight.shape]}, expected heads of {head_dim} rows")
    pairs = weight.reshape(weight.shape[0] // head_dim, head_dim // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _open_directory(path: Path) -> Checkpoint:
    config_json = read_json(path / "config.json")
    if not config_json:
        raise FileNotFoundError(f"model directory {path} has no config.json, or an empty one")
    generation = read_json(path / "generation_config.json")
    with reading(path / "config.json"):
        config = config_from_hf(config_json)
        scheme = scheme_from_hf(Fields(config_json))
    with reading(path / "generation_config.json"):
        if eos_ids := Fields(generation).tokens("eos_token_id"):
            config = dataclasses.replace(config, eos_ids=eos_ids)
    homes = {name: file for file in map(SafetensorsFile, _shards(path)) for name in file.names}
    return _directory_checkpoint(config, scheme, homes)


def _directory_checkpoint(
    config: ModelConfig, scheme: Scheme | None, homes: dict[str, SafetensorsFile]
) -> Checkpoint:
    stems = scheme.stems(homes) if scheme else {}
    of_codes = (
        {stem + ending for stem in stems.values() for ending in scheme.endings} if scheme else set()
    )
    names = {name for name in homes if not name.endswith("rotary_emb.inv_freq")} - of_codes
    names |= set(stems)
    if config.tie_embeddings:
        names.discard("lm_head.weight")

    said_of_codes = f"if it holds codes, {'their scales are missing' if scheme else 'config.json lacks quantization_config'}"

    def read_tensor(name: str) -> np.ndarray:
        return homes[name].read(name)

    def read_packed(name: str) -> PackedWeight | list[PackedWeight] | None:
        if scheme is None or name not in stems:
            return None
        stem = stems[name]
        file = next(homes[stem + e].path for e in scheme.markers if stem + e in homes)
        with reading(file, name):
            return scheme.pack(Tensors(stem, homes, read_tensor))

    def read(name: str) -> np.ndarray:
        weight = read_packed(name)
        if isinstance(weight, PackedWeight):
            return decoded(weight)
        if weight is not None:
            # Stacked matrices are [in, out] where they are plain.
            return np.stack([decoded(of_one) for of_one in weight]).swapaxes(1, 2)
        homes[name].check_numbers(name, said_of_codes)
        array = homes[name].read(name)
        # Gemma's checkpoints hold norms as their difference from 1; GGUF has added it already.
        less_one = config.norms_less_one and name.endswith("norm.weight")
        return array.astype(np.float32) + 1 if less_one else array

    def lazy(name: str) -> LazyArray:
        if name not in stems:
            homes[name].check_numbers(name, said_of_codes)
            return homes[name].lazy(name)
        whole = read(name)
        return LazyArray(whole.shape, lambda index: whole[index])

    return Checkpoint(config, frozenset(names), read, lazy, read_packed, scheme is not None)


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
