"""Llama-like models, Gemma 3 and mixtures of experts on Intarsia's kernels: loading, tokenizing and batched generation.

    from intarsia.models import Engine, SamplingParams, Tokenizer, find_model, load_model

    path = find_model("smollm2")
    config, params = load_model(path)
    tokenizer = Tokenizer.from_path(path)
    engine = Engine(config, params, max_num_seqs=1, max_model_len=256)
    prompt = tokenizer.encode_chat("Tell me a story.")
    [completion] = engine.generate([prompt], SamplingParams(temperature=0.0, max_tokens=100))
    print(tokenizer.decode(completion.tokens))

Importing this package loads neither jax nor a tokenizer library; the names above do when used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from intarsia.models.choices import (
    ACTIVATIONS,
    EXPORT_DTYPES,
    KV_CACHE_DTYPES,
    QUANTIZATIONS,
)

if TYPE_CHECKING:
    from intarsia.models.checkpoint import open_checkpoint
    from intarsia.models.config import ModelConfig
    from intarsia.models.engine import Completion, Engine, perplexity
    from intarsia.models.export import export_model
    from intarsia.models.packages import find_model
    from intarsia.models.parallel import ModelParallel
    from intarsia.models.sampling import SamplingParams
    from intarsia.models.tokenizer import Tokenizer
    from intarsia.models.weights import load_model

_HOMES = {
    "Completion": "engine",
    "Engine": "engine",
    "ModelConfig": "config",
    "ModelParallel": "parallel",
    "SamplingParams": "sampling",
    "Tokenizer": "tokenizer",
    "export_model": "export",
    "find_model": "packages",
    "load_model": "weights",
    "open_checkpoint": "checkpoint",
    "perplexity": "engine",
}
__all__ = [
    "ACTIVATIONS",
    "EXPORT_DTYPES",
    "KV_CACHE_DTYPES",
    "QUANTIZATIONS",
    "Completion",
    "Engine",
    "ModelConfig",
    "ModelParallel",
    "SamplingParams",
    "Tokenizer",
    "export_model",
    "find_model",
    "load_model",
    "open_checkpoint",
    "perplexity",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
