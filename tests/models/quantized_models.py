"""SmolLM2 cut short, in each format of `packers`, for readers that are not ours: tools/record_quantized.py and the tests of its recordings.

What makes the directories needs our package; the rest is read where there is none, too. To make them by hand:

    PYTHONPATH=tests .venv/bin/python tests/models/quantized_models.py build/quantized_models
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, VOCABULARY = 2, 1024
GPT_OSS = "gpt_oss_mxfp4"
"""gpt-oss's stacked experts, without a model around them."""
STACKED = ("experts.gate_up_proj", "experts.down_proj")
PROMPTS = ([504, 260, 28, 198, 700], [*range(20, 500, 13)], [1, 99, 320, 601, 17, 17, 905])
MAX_TOKENS = 16
# vLLM multiplies weights of these formats with activations in 8 bits alone; we use the weights as they are.
_TOKENS = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
ACTIVATIONS = {
    "ct_int8": _TOKENS | {"type": "int"},
    "ct_int8_asymmetric": _TOKENS | {"type": "int"},
    "ct_fp8": _TOKENS | {"type": "float"},
}


def cut_smollm2(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The first layers and tokens of the packaged SmolLM2, and its config.json.

    Numbers are rounded to bf16, so that embeddings and norms are the same to who computes in bf16.
    """
    import ml_dtypes
    from intarsia.models import open_checkpoint
    from intarsia.models.architectures import config_to_hf

    checkpoint = open_checkpoint(path)
    weights = {}
    for name in sorted(checkpoint.names):
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= LAYERS:
            continue
        array = np.asarray(checkpoint.read(name))
        if name == "model.embed_tokens.weight":
            array = array[:VOCABULARY]
        weights[name] = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    cut = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "dtype": "float32"}
    return weights, config_to_hf(checkpoint.config) | cut


def write(model: tuple[dict[str, np.ndarray], dict[str, Any]], form: str, directory: Path) -> None:
    """Writes the model in one of `packers.FORMS`, or some experts as gpt-oss's."""
    import packers

    weights, config = model
    if form == GPT_OSS:
        w = weights["model.layers.0.mlp.down_proj.weight"]
        experts = dict(
            zip(STACKED, (w.T.reshape(2, 768, 576), w.reshape(2, 288, 1536)), strict=True)
        )
        tensors, said, _ = packers.pack_gpt_oss(experts)
    else:
        tensors, said, _ = packers.packed(weights, form)
    if form in ACTIVATIONS:
        said["config_groups"]["group_0"]["input_activations"] = ACTIVATIONS[form]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    packers.save(tensors, directory / "model.safetensors")


def rows_of(numbers: Mapping[str, np.ndarray], layer: int) -> list[np.ndarray]:
    """The matrices of a layer, those that are loaded as one put together, in the order of `jax.tree.leaves`."""
    place = f"model.layers.{layer}."

    def together(*names: str) -> np.ndarray:
        return np.concatenate([numbers[f"{place}{name}_proj.weight"] for name in names])

    mlp, attention = "mlp.", "self_attn."
    return [
        together(mlp + "down"),
        together(mlp + "gate", mlp + "up"),
        together(attention + "o"),
        together(*(attention + p for p in "qkv")),
    ]


def digest(w: np.ndarray) -> str:
    """Tells whether a matrix has the numbers, in f32, that were recorded."""
    return hashlib.sha256(np.ascontiguousarray(w, np.float32)).hexdigest()[:16]


def main(root: Path) -> None:
    """Writes every model."""
    import packers
    from intarsia.models import find_model

    model = cut_smollm2(find_model("smollm2"))
    for form in (*packers.FORMS, GPT_OSS):
        write(model, form, root / form)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
