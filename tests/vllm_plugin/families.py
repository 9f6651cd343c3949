"""Models as small as they can be that have what a family of models has: its head's dimension, routing and layers.

Their weights are random, by transformers' own model, which also says what their tokens are.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_BASE = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


class Family(NamedTuple):
    """One kind of model."""

    kind: str
    """transformers' model type."""
    config: Mapping[str, Any]
    """What config.json has beside `_BASE`."""
    options: Mapping[str, Any] = {}
    """Of vLLM's engine."""
    text: str = ""
    """Where the language model's part of the configuration is, in a model of several."""


FAMILIES = {
    "qwen3_moe": Family(
        "qwen3_moe",
        {
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
    ),
    "mixtral": Family(
        "mixtral", {"head_dim": 128, "num_local_experts": 8, "num_experts_per_tok": 2}
    ),
    "gpt_oss": Family(
        "gpt_oss",
        {
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "initial_context_length": 512,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 2.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 512,
            },
        },
    ),
}


def prompts() -> list[list[int]]:
    """Token ids: short ones, and one that comes in several chunks."""
    random = np.random.default_rng(7)
    return [[int(t) for t in random.integers(3, 512, n)] for n in (5, 17, 90)]


def make(name: str, directory: Path) -> Path:
    """Writes a family's model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family = FAMILIES[name]
    config = AutoConfig.for_model(family.kind, **{**_BASE, **family.config})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():
            tensor.copy_(torch.from_numpy(_random(parameter, tuple(tensor.shape))))
        for buffer, tensor in model.named_buffers():
            if buffer.endswith("e_score_correction_bias"):
                tensor.copy_(torch.from_numpy(_random(buffer, tuple(tensor.shape))))
    model.save_pretrained(directory)
    return directory


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """So wide that greedy choices are clear."""
    array = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * array
    if len(shape) == 1:
        return 0.3 * array
    if "embed" in name:
        return 0.5 * array
    return array * (1.5 / np.sqrt(shape[-1]))


def reference(directory: Path, steps: int) -> Iterator[tuple[list[int], list[float]]]:
    """What transformers makes of each prompt, greedily: tokens, and how far the second choice stands behind."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for prompt in prompts():
        ids, margins = list(prompt), []
        with torch.no_grad():
            for _ in range(steps):
                logits = model(torch.tensor([ids])).logits[0, -1]
                best = logits.topk(2)
                ids.append(int(best.indices[0]))
                margins.append(float(best.values[0] - best.values[1]))
        yield ids[len(prompt) :], margins


def served(directory: Path, steps: int, **options: Any) -> Any:
    """What vLLM makes of them."""
    from vllm_running import engine, greedy

    sizes = {
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "kv_cache_memory_bytes": 8 << 20,
        "additional_config": {"request_buckets": [4], "token_buckets": [64]},
        "skip_tokenizer_init": True,
    }
    with engine(directory, **sizes | options) as llm:
        texts = [{"prompt_token_ids": ids} for ids in prompts()]
        sampling = greedy(max_tokens=steps, detokenize=False)
        tokens = [
            list(x.outputs[0].token_ids) for x in llm.generate(texts, sampling, use_tqdm=False)
        ]
        return tokens, llm.collective_rpc("xla_programs")


if __name__ == "__main__":
    import os
    import sys
    import tempfile
    import time

    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as root:
            start = time.perf_counter()
            directory = make(name, Path(root) / name)
            expected = list(reference(directory, 12))
            middle = time.perf_counter()
            tokens, programs = served(directory, 12, **FAMILIES[name].options)
            print(
                name,
                [t == e[0] for t, e in zip(tokens, expected)],
                min(m for e in expected for m in e[1]),
                "make",
                middle - start,
                "serve",
                time.perf_counter() - middle,
            )
            if not all(t == e[0] for t, e in zip(tokens, expected)):
                print(tokens, [e[0] for e in expected])
            print(json.dumps(programs[0]["custom_calls"]))
