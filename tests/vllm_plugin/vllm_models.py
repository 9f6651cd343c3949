"""The models that vLLM is tested with, as Hugging Face directories, and what they are asked.

SmolLM2 comes from its package; the others are small, of the architectures that differ in what a plugin can
get wrong, with random weights that depend on nothing but NumPy and SmolLM2's tokenizer. To make them by hand:

    .venv/vllm-serve/bin/python tests/vllm_plugin/vllm_models.py build/vllm_models
"""

import hashlib
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SMOLLM2 = "smollm2"
# By transformers' model type. head_dim * heads is not the hidden size, as in many a Qwen3; Gemma's window is
# shorter than most prompts; two KV heads can be shared by two ranks.
_SIZES = {
    "vocab_size": 49152,  # SmolLM2's
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 64, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 64, "tie_word_embeddings": True},
    "gemma3_text": {
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}
MODELS = (SMOLLM2, *TINY)

_FOX = "The quick brown fox jumps over the lazy dog. "
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a weaver who",
    "def fibonacci(n):\n",
    _FOX * 20 + "Question: what does the fox do? Answer:",  # longer than a step's budget
)
MAX_TOKENS = 24


def make_smollm2(directory: Path) -> Path:
    """Writes SmolLM2, from its package."""
    from intarsia.models import export_model, find_model

    export_model(find_model(SMOLLM2), directory)
    return directory


def make_tiny(kind: str, directory: Path, tokenizer: Path) -> Path:
    """Writes a small model with random weights in f32, and a copy of another's tokenizer."""
    from safetensors.numpy import save_file
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **_SIZES | TINY[kind], dtype="float32")
    directory.mkdir(parents=True)
    tensors = dict(_tensors(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer / name, directory)
    return directory


def _tensors(config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Random weights by name, so wide that greedy choices are clear."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    gemma = config.model_type.startswith("gemma")
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    for name, parameter in model.state_dict().items():
        if name in tied:
            continue
        random = np.random.default_rng(zlib.crc32(name.encode()))
        array = random.standard_normal(parameter.shape, np.float32)
        if name == "model.embed_tokens.weight":
            # Gemma multiplies its own by the root of the width, and has it as its output projection.
            array *= 0.06 if gemma else 0.3
        elif name.endswith("norm.weight"):
            # Gemma holds norms as their difference from 1.
            array = array * 0.1 + (not gemma)
        elif array.ndim == 1:
            array *= 0.5
        else:
            array *= 1.5 / np.sqrt(parameter.shape[-1])
        yield name, array.astype(np.float32)


def make(name: str, root: Path) -> Path:
    """The directory of a model, written if it is not there yet."""
    directory = root / name
    if directory.exists():
        return directory
    if name == SMOLLM2:
        return make_smollm2(directory)
    return make_tiny(name, directory, make(SMOLLM2, root))


def digest(directory: Path) -> str:
    """Tells whether weights are those that were recorded."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    for model in MODELS:
        made = make(model, Path(sys.argv[1]))
        print(made, digest(made))
