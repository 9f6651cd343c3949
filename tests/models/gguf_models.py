"""The tiny models of `tiny_models` as GGUF files, named, stacked and ordered as llama.cpp's convert_hf_to_gguf.py does it.

Matrices may be in any of ggml's types: their blocks are then random bits of a fitting scale, which need no quantizer.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import packers
import tiny_models
from conftest import add_tokenizer
from gguf_tensors import add_metadata, to_gguf, write_out

ARCHITECTURES = {
    "qwen3": "qwen3",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}
# Where a block's f16 numbers lie, and what the first of them is multiplied by to give each.
_PLACES: dict[str, dict[int, float]] = {
    "Q4_0": {0: 1},
    "Q4_1": {0: 1, 2: -7.5},
    "Q5_0": {0: 1},
    "Q5_1": {0: 1, 2: -15.5},
    "Q8_0": {0: 1},
    "Q4_K": {0: 1, 2: 7.5},
    "Q5_K": {0: 1, 2: 15.5},
    "Q6_K": {208: 1},
    "IQ4_XS": {0: 1},
}
TYPES = (*(type for type in _PLACES if type[0] == "Q"), "MXFP4")
"""Those that weights can stay in."""
_PROJECTIONS = {
    "mixtral": ("block_sparse_moe.experts.", dict(gate="w1", up="w3", down="w2")),
    "qwen3_moe": ("mlp.experts.", dict(gate="gate_proj", up="up_proj", down="down_proj")),
}
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def random_blocks(type: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Bytes of a tensor [..., columns] whose numbers are about as large as those of `tiny_models`."""
    rng, columns = np.random.default_rng(seed), shape[-1]
    deviation = 1.5 / np.sqrt(columns)
    if type in ("F16", "BF16"):
        numbers = (rng.standard_normal(shape) * deviation).astype(np.float32)
        return gguf.quantize(numbers, gguf.GGMLQuantizationType[type])
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    blocks = rng.integers(0, 256, (*shape[:-1], columns // block, size)).astype(np.uint8)
    if type == "MXFP4":
        # The numbers of e2m1 are 2.9 on average.
        exponent = round(np.log2(deviation / 2.9))
        blocks[..., 0] = rng.integers(126 + exponent, 129 + exponent, blocks.shape[:-1])
        return blocks.reshape(*shape[:-1], -1)
    places = _PLACES[type]

    def with_scale(scale: np.ndarray) -> np.ndarray:
        for at, factor in places.items():
            numbers = (scale * factor).astype(np.float16)[..., None]
            blocks[..., at : at + 2] = numbers.view(np.uint8)
        return blocks.reshape(*shape[:-1], -1)

    of_one = numbers_of(with_scale(np.ones(blocks.shape[:-1])), type)
    return with_scale(rng.uniform(0.7, 1.3, blocks.shape[:-1]) * deviation / of_one.std())


def numbers_of(data: np.ndarray, type: str) -> np.ndarray:
    """What the gguf package says that bytes stand for."""
    return gguf.dequantize(data, gguf.GGMLQuantizationType[type])


def _experts_of(name: str, weights: Mapping[str, np.ndarray], layer: str) -> dict[str, np.ndarray]:
    """gate, up and down of a layer, each [e, out, in]."""
    if name == "gpt_oss":
        both = weights[f"{layer}mlp.experts.gate_up_proj"].swapaxes(1, 2)
        down = weights[f"{layer}mlp.experts.down_proj"].swapaxes(1, 2)
        return {"gate": both[:, ::2], "up": both[:, 1::2], "down": down}
    place, names = _PROJECTIONS[name]
    return {
        role: np.stack(
            [weights[f"{layer}{place}{e}.{p}.weight"] for e in range(tiny_models.EXPERTS)]
        )
        for role, p in names.items()
    }


def _put_experts(
    name: str, weights: dict[str, np.ndarray], layer: str, experts: Mapping[str, np.ndarray]
) -> None:
    """The inverse."""
    if name == "gpt_oss":
        both = np.stack([experts["gate"], experts["up"]], axis=2)
        both = both.reshape(len(both), -1, both.shape[-1])
        for p, matrices in (("gate_up", both), ("down", experts["down"])):
            weights[f"{layer}mlp.experts.{p}_proj"] = np.ascontiguousarray(matrices.swapaxes(1, 2))
        return
    place, names = _PROJECTIONS[name]
    for role, p in names.items():
        for e, matrix in enumerate(experts[role]):
            weights[f"{layer}{place}{e}.{p}.weight"] = matrix


def _metadata(name: str, config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    said = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if name != "qwen3":
        said["expert_count"] = tiny_models.EXPERTS
        said["expert_used_count"] = config["num_experts_per_tok"]
    if name == "qwen3_moe":
        said["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if name == "gpt_oss":
        scaling = config["rope_scaling"]
        said |= {
            "expert_feed_forward_length": config["intermediate_size"],
            "attention.sliding_window": config["sliding_window"],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling["factor"],
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        }
    return said


def write(
    folder: Path,
    name: str,
    type_of: Mapping[str, str] | Callable[[int, str], str] | None = None,
    *,
    hidden: int = tiny_models.HIDDEN,
    intermediate: int = tiny_models.INTERMEDIATE,
    change: Change | None = None,
) -> tuple[Path, Path]:
    """Writes a model twice, with the same numbers: a GGUF file, and a directory of plain numbers.

    Args:
        folder: Where to.
        name: Of `ARCHITECTURES`.
        type_of: ggml's type of a mixture's "gate", "up" and "down", perhaps by layer; None: f32.
        hidden: Columns of the residual stream.
        intermediate: Columns between gate and down.
        change: May change the file's tensors, by name (those in blocks as pairs of bytes and type), and its metadata.
    """
    weights = tiny_models.weights(name, hidden, intermediate)
    config = tiny_models.CONFIGS[name] | {"hidden_size": hidden}
    config["moe_intermediate_size" if name == "qwen3_moe" else "intermediate_size"] = intermediate
    architecture = ARCHITECTURES[name]
    tensors: dict[str, Any] = dict(
        to_gguf(tensor, array, architecture, tiny_models.HEAD_DIM)
        for tensor, array in weights.items()
        if ".experts." not in tensor
    )
    for layer in range(tiny_models.LAYERS if name != "qwen3" else 0):
        experts = _experts_of(name, weights, f"model.layers.{layer}.")
        for seed, role in enumerate(experts):
            place = f"blk.{layer}.ffn_{role}_exps"
            type = type_of(layer, role) if callable(type_of) else (type_of or {}).get(role)
            tensors[f"{place}.weight"] = np.ascontiguousarray(experts[role])
            if type:
                data = random_blocks(type, experts[role].shape, 3 * layer + seed)
                tensors[f"{place}.weight"] = data, type
                experts[role] = numbers_of(data, type)
            if name == "gpt_oss":
                bias = weights[f"model.layers.{layer}.mlp.experts.{_BIASES[role][0]}_proj_bias"]
                tensors[f"{place}.bias"] = np.ascontiguousarray(bias[:, _BIASES[role][1]])
        _put_experts(name, weights, f"model.layers.{layer}.", experts)
    metadata = _metadata(name, config, tiny_models.LAYERS)
    if change:
        change(tensors, metadata)
    directory = folder / f"{name}_plain"
    directory.mkdir(exist_ok=True)
    tiny_models.write_config(directory, config)
    packers.save(weights, directory / "model.safetensors")
    return _write_gguf(folder / f"{name}.gguf", architecture, tensors, metadata), directory


_BIASES = {
    "gate": ("gate_up", slice(0, None, 2)),
    "up": ("gate_up", slice(1, None, 2)),
    "down": ("down", slice(None)),
}


def _write_gguf(
    path: Path, architecture: str, tensors: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    add_metadata(writer, {f"{architecture}.{key}": value for key, value in metadata.items()})
    add_tokenizer(writer, "gpt2", "qwen2")
    for name, array in tensors.items():
        if isinstance(array, tuple):
            data, kind = array
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(name, array)
    write_out(writer)
    return path
