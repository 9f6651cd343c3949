"""Tiny mixtures of experts and a dense Qwen3, with random weights, as Hugging Face directories: for tests, and to record transformers' tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE = 4, 2, 16, 48, 32
LAYERS, EXPERTS, PER_TOKEN, VOCAB, WINDOW = 3, 8, 2, 263, 8
_CONFIG = {
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": PER_TOKEN,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": _CONFIG
    | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": INTERMEDIATE,
        "num_local_experts": EXPERTS,
        "sliding_window": None,
    },
    "qwen3_moe": _CONFIG
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "intermediate_size": 3 * INTERMEDIATE,
        "moe_intermediate_size": INTERMEDIATE,
        "num_experts": EXPERTS,
        "norm_topk_prob": True,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    },
    "gpt_oss": _CONFIG
    | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": INTERMEDIATE,
        "num_local_experts": EXPERTS,
        "attention_bias": True,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
        # Two kinds in turn: of three layers, one is left over.
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
        "swiglu_limit": 7.0,
    },
    "qwen3": _CONFIG
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "intermediate_size": INTERMEDIATE,
        "attention_bias": False,
        "use_sliding_window": False,
    },
}
MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss")


def prompts() -> list[list[int]]:
    """Ragged prompts, shorter and longer than the window and a page."""
    rng = np.random.default_rng(6)
    return [rng.integers(2, VOCAB, length).tolist() for length in (3, 40, 1, 17)]


def weights(
    name: str, hidden: int = HIDDEN, intermediate: int = INTERMEDIATE
) -> dict[str, np.ndarray]:
    """Random weights by Hugging Face name; so wide that greedy choices are clear."""
    rng = np.random.default_rng(7)

    def matrix(*shape: int, columns: int | None = None) -> np.ndarray:
        scale = 1.5 / np.sqrt(columns or shape[-1])
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def vector(*shape: int, mean: float = 0.0) -> np.ndarray:
        return (mean + 0.3 * rng.standard_normal(shape)).astype(np.float32)

    d, n, i, e = HEAD_DIM, hidden, intermediate, EXPERTS
    made = {
        "model.embed_tokens.weight": matrix(VOCAB, n) * 4,
        "lm_head.weight": matrix(VOCAB, n) * 2,
        "model.norm.weight": vector(n, mean=1.0),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        rows = {"q": HEADS * d, "k": KV_HEADS * d, "v": KV_HEADS * d, "o": n}
        for p, count in rows.items():
            columns = HEADS * d if p == "o" else n
            made[f"{prefix}self_attn.{p}_proj.weight"] = matrix(count, columns)
            if name == "gpt_oss":
                made[f"{prefix}self_attn.{p}_proj.bias"] = vector(count)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}{norm}.weight"] = vector(n, mean=1.0)
        if name in ("qwen3_moe", "qwen3"):
            for norm in ("q_norm", "k_norm"):
                made[f"{prefix}self_attn.{norm}.weight"] = vector(d, mean=1.0)
        if name == "qwen3":
            for projection, shape in (("gate", (i, n)), ("up", (i, n)), ("down", (n, i))):
                made[f"{prefix}mlp.{projection}_proj.weight"] = matrix(*shape)
            continue
        if name == "gpt_oss":
            made |= {
                f"{prefix}self_attn.sinks": 3 * vector(HEADS),
                f"{prefix}mlp.router.weight": matrix(e, n),
                f"{prefix}mlp.router.bias": vector(e),
                # Wide, so that limits are reached.
                f"{prefix}mlp.experts.gate_up_proj": 3 * matrix(e, n, 2 * i, columns=n),
                f"{prefix}mlp.experts.gate_up_proj_bias": vector(e, 2 * i),
                f"{prefix}mlp.experts.down_proj": matrix(e, i, n, columns=4 * i),
                f"{prefix}mlp.experts.down_proj_bias": vector(e, n),
            }
            continue
        place, projections = {
            "mixtral": ("block_sparse_moe.", ("w1", "w3", "w2")),
            "qwen3_moe": ("mlp.", ("gate_proj", "up_proj", "down_proj")),
        }[name]
        made[f"{prefix}{place}gate.weight"] = matrix(e, n)
        for expert in range(e):
            for projection, shape in zip(projections, ((i, n), (i, n), (n, i)), strict=True):
                made[f"{prefix}{place}experts.{expert}.{projection}.weight"] = matrix(*shape)
    return made


def write(path: Path, name: str, **changes: Any) -> Path:
    """Writes a directory with config.json and model.safetensors."""
    path.mkdir(parents=True, exist_ok=True)
    write_config(path, CONFIGS[name] | changes)
    save_file(weights(name), path / "model.safetensors", metadata={"format": "pt"})
    return path


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Writes config.json."""
    (path / "config.json").write_text(json.dumps(config))
