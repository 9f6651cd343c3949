"""Llama-like models and Gemma 3 on Intarsia's kernels: loading, tokenising and batched generation.

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
from typing import Any

_HOMES = {
    "Completion": "engine",
    "Engine": "engine",
    "ModelConfig": "config",
    "SamplingParams": "sampling",
    "Tokenizer": "tokenizer",
    "export_model": "export",
    "find_model": "packages",
    "load_model": "weights",
    "perplexity": "engine",
}
KV_CACHE_DTYPES = {"auto": None, "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
"""What keys and values can be kept in, by vLLM's names; `auto` is the dtype that they come in."""
QUANTIZATIONS = ("fp8",)
"""What linear layers can be quantised to when a model is loaded."""
EXPORT_DTYPES = ("bfloat16", "float16", "float32")
"""What `export_model` can write weights in; the first is its default."""

__all__ = ["EXPORT_DTYPES", "KV_CACHE_DTYPES", "QUANTIZATIONS", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
