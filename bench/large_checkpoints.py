"""Checkpoints large enough to measure the memory of loading them: `write` makes one in a format of tests/models/packers.py.

TinyLlama-1.1B's shape, in AWQ Llama-8B's as well, a narrow gpt-oss and a narrow Qwen3-MoE. Weights are random, and all layers have the
same ones. Embedding and output projection are in 16 bits.
"""

import json
import pathlib
import sys
from typing import Any

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "models")]
import packers  # noqa: E402
import tiny_models  # noqa: E402

Tensors = dict[str, np.ndarray]
_MIXTURES = ("gpt_oss_mxfp4", "qwen3_moe_awq")
_LARGE = "llama_8b_awq"
PLAIN = "plain"
FORMS = (*packers.FORMS, *_MIXTURES, _LARGE, PLAIN)
_EXPERTS = 32
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 22,
    "vocab_size": 32000,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}
_NARROW = {
    "hidden_size": 768,
    "intermediate_size": 768,
    "moe_intermediate_size": 768,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 24,
    "vocab_size": 32000,
    "num_experts": _EXPERTS,
    "num_local_experts": _EXPERTS,
}


def _attention(config: dict[str, Any], matrix: Any) -> Tensors:
    """A layer's projections and norms."""
    n, d = config["hidden_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"] * d, "k": config["num_key_value_heads"] * d}
    made = {f"self_attn.{p}_proj.weight": matrix(rows["q" if p == "q" else "k"], n) for p in "qkv"}
    made["self_attn.o_proj.weight"] = matrix(n, rows["q"])
    norms = ("input_layernorm", "post_attention_layernorm")
    return made | {f"{name}.weight": np.ones(n, np.float32) for name in norms}


def _mlp(n: int, i: int, matrix: Any, place: str = "mlp.") -> Tensors:
    """A feed-forward layer or an expert."""
    shapes = {"gate": (i, n), "up": (i, n), "down": (n, i)}
    return {f"{place}{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}


def _gpt_oss_layer(config: dict[str, Any], matrix: Any) -> Tensors:
    """What gpt-oss has in a layer."""
    n, i, e = config["hidden_size"], config["intermediate_size"], _EXPERTS
    made = _attention(config, matrix)
    biases = {k.replace(".weight", ".bias"): v[:, 0] for k, v in made.items() if "proj" in k}
    place = "mlp.experts."
    return made | biases | {
        "self_attn.sinks": np.ones(config["num_attention_heads"], np.float32),
        "mlp.router.weight": matrix(e, n),
        "mlp.router.bias": np.ones(e, np.float32),
        f"{place}gate_up_proj": np.tile(matrix(n, 2 * i), (e, 1, 1)),
        f"{place}gate_up_proj_bias": np.ones((e, 2 * i), np.float32),
        f"{place}down_proj": np.tile(matrix(i, n), (e, 1, 1)),
        f"{place}down_proj_bias": np.ones((e, n), np.float32),
    }  # fmt: skip


def _layer_of(form: str, layers: int | None) -> tuple[dict[str, Any], Tensors, dict[str, Any]]:
    """A model's configuration with what it says of codes, and the tensors of a layer."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    name = form.rpartition("_")[0]
    config = _LLAMA | (_LLAMA_8B if form == _LARGE else {})
    if form in _MIXTURES:
        config = tiny_models.CONFIGS[name] | _NARROW
    if layers:
        config = config | {"num_hidden_layers": layers}
    if name == "gpt_oss":
        kinds = ["sliding_attention", "full_attention"] * config["num_hidden_layers"]
        config |= {"layer_types": kinds[: config["num_hidden_layers"]]}
        made, said, _ = packers.pack_gpt_oss(_gpt_oss_layer(config, matrix))
        return config, made, said
    n, weights = config["hidden_size"], _attention(config, matrix)
    weights |= _mlp(n, config["intermediate_size"], matrix) if name != "qwen3_moe" else {}
    if form == PLAIN:
        return config, weights, {}
    made, said, _ = packers.packed(weights, form if form in packers.FORMS else "awq", 128)
    if name == "qwen3_moe":
        expert, _, _ = packers.packed(
            _mlp(n, config["moe_intermediate_size"], matrix, ""), "awq", 128
        )
        made |= {f"mlp.experts.{x}.{k}": v for x in range(_EXPERTS) for k, v in expert.items()}
        made["mlp.gate.weight"] = matrix(_EXPERTS, n)
        made |= {f"self_attn.{x}_norm.weight": np.ones(64, np.float32) for x in "qk"}
    return config, made, said


def write(path: pathlib.Path, form: str, layers: int | None = None) -> None:
    """Writes a directory, its plain numbers in the 16 bits that its kind usually has.

    Args:
        path: Where; it is there.
        form: One of `FORMS`.
        layers: Fewer or more than the models have.
    """
    config, made, said = _layer_of(form, layers)
    plain = np.float16 if "awq" in form or "gptq" in form else ml_dtypes.bfloat16
    if form != PLAIN:
        config = config | {"quantization_config": said}
    shape = (2, config["vocab_size"], config["hidden_size"])
    tables = np.random.default_rng(1).standard_normal(shape, np.float32)
    tensors = {
        "model.embed_tokens.weight": tables[0] * 0.1,
        "lm_head.weight": tables[1] * 0.1,
        "model.norm.weight": np.ones(config["hidden_size"]),
    }
    for layer in range(config["num_hidden_layers"]):
        tensors |= {f"model.layers.{layer}.{name}": array for name, array in made.items()}
    in_codes = ("scale", "scales", "_global_scale", "scale_inv")
    tensors = {
        name: a.astype(plain) if a.dtype.kind == "f" and not name.endswith(in_codes) else a
        for name, a in tensors.items()
    }
    (path / "config.json").write_text(json.dumps(config))
    packers.save(tensors, path / "model.safetensors")
