"""A small model of each family gives the tokens that transformers gives. docs/support.md counts on it."""

import json
from pathlib import Path
from typing import Any

import family_models
import pytest
import vllm_running  # noqa: F401  which skips all where there is no vLLM
from families import FAMILIES, architectures

SHORT = ("gpt_oss_mxfp4", "glm4_moe", "minimax_m2_fp8", "qwen3_vl_moe", "mistral3_fp8")
"""What runs always: routers by softmax, groups and bias; sinks; weights in 8 and 4 bits; a wrapper's text. The others are left to
`make test-vllm-full`."""
_TOLERANCE = 2e-3
"""Of a logit: choices this close may go either way."""

_NORMED_BY_HEAD = (
    *("qwen3", "qwen3_int4", "qwen3_fp8", "qwen3_moe", "qwen3_moe_awq", "qwen3_moe_gptq"),
    *("qwen3_modelopt_rows", "qwen3_modelopt_blocks", "qwen3_moe_mixed"),
    *("qwen3_moe_fp8", "qwen3_moe_fp8_block", "qwen3_moe_int8"),
    *(
        "qwen3_moe_modelopt_fp8",
        "qwen3_moe_nvfp4",
        "qwen3_moe_ct_nvfp4",
        "qwen3_moe_ct_mxfp4",
        "qwen3_moe_as_loaded",
    ),
    *("qwen3_moe_rows_as_loaded", "qwen3_moe_blocks_as_loaded"),
    *("qwen3_vl", "qwen3_vl_moe", "internvl", "internvl3_5", "intern_s1", "gemma3", "glm4_moe"),
    *("hy_v3", "afmoe", "laguna", "ring_fp8", "param2", "plamo3", "step3p5", "step3p7"),
)
"""Families that norm each head of queries and keys before they turn them, and nothing else of the product. OLMoE and MiniMax norm all
heads as one, Hunyuan after the turn, Gemma 4 values, too, and Qwen 3.5's product has gates."""
_EXPERTS_ALONE = ("mxfp4", "kimi_int4")
"""Forms of weights that linear layers do not have."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[] if x in SHORT else pytest.mark.full) for x in FAMILIES],
)
def test_tokens_are_those_of_transformers(_environment: None, tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    family_models.make(name, tmp_path)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == [architectures(family)[0]]
    tokens, calls, engine = family_models.by_vllm(name, tmp_path)
    for of_prompt, answer in zip(
        tokens, family_models.by_transformers(name, tmp_path, tokens, engine), strict=True
    ):
        assert max(answer.deficits) < _TOLERANCE, (of_prompt, answer.tokens)
    assert len({t for of_prompt in tokens for t in of_prompt}) > 10, "nothing was chosen"
    steps = [ops for program, ops in calls.items() if " step of " in program]
    assert len(steps) == 2
    experts = any(("moe" in key or "experts" in key) and x for key, x in family.config.items())
    coded = family.form not in ("", "transposed")
    for ops in steps:
        assert "fused_qk_norm_rope" not in ops
        if name in _NORMED_BY_HEAD:  # by the op that turns and writes
            assert "rotary_embedding_and_cache" in ops
            assert "rotary_embedding" not in ops
            # Half of AFMoE's layers turn nothing.
            assert ("reshape_and_cache_flash" in ops) == (name == "afmoe")
        whole = "fused_experts" in ops or "grouped_matmul" in ops  # the latter with clamped gates
        assert whole == (experts and not coded)
        assert ("fused_experts_quantized" in ops) == (experts and coded)
        assert ("linear_quantized" in ops) == (coded and family.form not in _EXPERTS_ALONE)


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama_fp8", "qwen2_fp8_block"])
def test_a_gpu_without_fp8_has_it_as_weights(
    _environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """vLLM takes another kind of kernel there, which knows of no quantized activations."""
    from intarsia.vllm.quantized import XlaFp8WeightsKernel
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors

    def is_old(least: int, error: bool = True, match_exact: bool = False) -> bool:
        return least <= 80 and not match_exact

    config, kernel, packed = compressed_tensors.CompressedTensorsConfig, XlaFp8WeightsKernel, []

    def pack(self: Any, layer: Any) -> None:
        packed.append(layer)
        process(self, layer)

    process = kernel.process_weights_after_loading
    monkeypatch.setattr(config, "_check_scheme_supported", staticmethod(is_old))
    monkeypatch.setattr(kernel, "process_weights_after_loading", pack)
    family_models.make(name, tmp_path)
    tokens, calls, engine = family_models.by_vllm(name, tmp_path)
    assert len(packed) == 8 and any("linear_quantized" in ops for ops in calls.values())
    for answer in family_models.by_transformers(name, tmp_path, tokens, engine):
        assert max(answer.deficits) < _TOLERANCE


def test_families_are_named_once() -> None:
    """An architecture of two families is that of different forms of weights or different facts."""
    assert set(SHORT) <= set(FAMILIES)
    shown = [
        (architectures(f), f.form, json.dumps(f.config, sort_keys=True)) for f in FAMILIES.values()
    ]
    assert len(set(shown)) == len(shown)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen3_moe", {}),
        ("qwen3_moe", {"enable_expert_parallel": True}),
        ("kimi_k2_int4", {}),
        ("qwen3_5", {}),
        ("qwen3_moe_nvfp4", {}),
        ("qwen3_moe_as_loaded", {}),
    ],
    ids=["every_expert", "experts", "latents", "states", "nvfp4", "as_loaded"],
)
def test_two_ranks_share(
    _environment: None, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    """A part of every expert each, or whole experts; heads that are made of latents; states of heads."""
    family_models.make(name, tmp_path)
    two = {"tensor_parallel_size": 2} | options
    tokens, _, engine = family_models.by_vllm(name, tmp_path, **two)
    for answer in family_models.by_transformers(name, tmp_path, tokens, engine):
        assert max(answer.deficits) < _TOLERANCE
