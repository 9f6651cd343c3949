"""Writes a model as a Hugging Face directory, which vLLM and transformers load."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import processors

from intarsia.models.architectures import config_to_hf
from intarsia.models.checkpoint import open_checkpoint
from intarsia.models.choices import EXPORT_DTYPES
from intarsia.models.files import reading
from intarsia.models.lazy import LazyArray
from intarsia.models.tokenizer import Tokenizer
from intarsia.models.weights import check_tensors

_SAID = ("config.json", "generation_config.json", "tokenizer_config.json")
FILES = ("model.safetensors", "tokenizer.json", *_SAID)
"""What is written."""
_INDEX, _TEMPLATE = "model.safetensors.index.json", "chat_template.jinja"


def files_there(directory: Path) -> list[Path]:
    """What a directory has of a model: files that an export replaces, or removes since loaders would prefer them."""
    names = [*FILES, _INDEX, _TEMPLATE]
    files = [directory / name for name in names if (directory / name).exists()]
    return files + sorted(directory.glob("model-*-of-*.safetensors"))


def export_model(path: str | Path, directory: str | Path, *, dtype: str = "bfloat16") -> None:
    """Writes a model as config.json, generation_config.json, model.safetensors and its tokenizer.

    Args:
        path: A .gguf file, whose weights are dequantized, or a directory as `load_model` takes it.
        directory: Where to write; made if it is not there. Files of these names are overwritten, and those removed that loaders
            would take in their place: an index, its shards, a template of its own.
        dtype: What the weights are written in, one of `EXPORT_DTYPES`.

    Raises:
        ValueError: The model or the dtype is not supported, or a number is beyond the dtype's range. Nothing is written then.

    Example:
        export_model(find_model("smollm2"), "smollm2")    # then: vllm serve ./smollm2
    """
    if dtype not in EXPORT_DTYPES:
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(EXPORT_DTYPES)}")
    checkpoint, tokenizer = open_checkpoint(path), Tokenizer.from_path(path)
    config = checkpoint.config
    written = np.dtype(getattr(ml_dtypes, dtype, dtype))
    less_one = config.norms_less_one

    def tensor(name: str) -> np.ndarray:
        array = checkpoint.read(name).astype(np.float32)
        with np.errstate(over="ignore"):
            array = (array - (less_one and name.endswith("norm.weight"))).astype(written)
        if not np.isfinite(array).all():
            raise ValueError(f"tensor {name} has numbers that are not finite in {dtype}")
        return array

    with reading(path):
        said_of_model = config_to_hf(config) | {"dtype": dtype}
    tokens = {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids)}
    said_of_tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens,
    }
    if tokenizer.chat_template is not None:
        said_of_tokenizer["chat_template"] = tokenizer.chat_template
    if tokenizer.add_bos:
        bos = tokenizer.special_tokens["bos_token"]
        tokenizer.backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, config.bos_id)]
        )
    with reading(path):
        tensors = {name: tensor(name) for name in sorted(checkpoint.names)}
        made_of = {name: LazyArray(x.shape, x.__getitem__) for name, x in tensors.items()}
        check_tensors(
            dataclasses.replace(checkpoint, read=tensors.__getitem__, lazy=made_of.__getitem__)
        )
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # A model that was there stays as it is until the other one is whole.
    with reading(directory), tempfile.TemporaryDirectory(dir=directory, prefix=".export-") as made:
        contents: tuple[Mapping[str, Any], ...] = (said_of_model, tokens, said_of_tokenizer)
        for name, content in zip(_SAID, contents, strict=True):
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            (Path(made) / name).write_text(text, encoding="utf-8")
        tokenizer.backend.save(str(Path(made) / "tokenizer.json"))
        save_file(tensors, Path(made) / "model.safetensors", metadata={"format": "pt"})
        # safetensors makes its file for the owner alone; it gets the mode that the umask gave the others.
        mode = (Path(made) / _SAID[0]).stat().st_mode & 0o777
        (Path(made) / "model.safetensors").chmod(mode)
        for name in FILES:
            (Path(made) / name).replace(directory / name)
    for file in files_there(directory):
        if file.name not in FILES:
            file.unlink()
