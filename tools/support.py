"""Writes docs/support.md: which of the models that vLLM has recipes for the plugin serves, and what stands in the way of the others.

Served is a model whose architecture a family of tests/vllm_plugin/families.py has, with weights in the form of a precision that its
recipe lists: that family's test shows that a small one, in f32, gives transformers' tokens.

    .venv/bin/python tools/support.py [--check]
"""

import collections
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "vllm_plugin"))

import generated  # noqa: E402
from families import FAMILIES, POOLING, architectures  # noqa: E402

PAGE = ROOT / "docs" / "support.md"
README = ROOT / "README.md"
RECIPES = ROOT / "tools" / "recipes.json"

RECURRENT = "recurrent layers of other kinds"
SPARSE = "sparse attention"
INPUT = "inputs other than text, which are what the model is for"
ENCODER = "encoder-decoder models"
DIFFUSION = "diffusion models"
KERNELS = "layers that are Triton or CUTLASS kernels"
UNTESTED = "no test yet"
UNKNOWN = "no public configuration: not judged"

TESTED = FAMILIES | POOLING
"""By name of a test."""

BLOCKED = {
    "BailingMoeV2_5ForCausalLM": RECURRENT,
    "BailingMoeV3ForCausalLM": RECURRENT,
    "BailingMoeV3VLForConditionalGeneration": RECURRENT,
    "BeamForCausalLM": KERNELS,
    "DeepseekV32ForCausalLM": SPARSE,
    "DeepseekV41ForCausalLM": SPARSE,
    "DeepseekV4ForCausalLM": SPARSE,
    "DeepseekV4ForConditionalGeneration": SPARSE,
    "DiffusionGemmaForBlockDiffusion": DIFFUSION,
    "Dots3NoteForCausalLM": SPARSE,
    "FlintForCausalLM": KERNELS,
    "Glm5NextForCausalLM": SPARSE,
    "GlmMoeDsaForCausalLM": SPARSE,
    "HYV4ForCausalLM": SPARSE,
    "InklingForCausalLM": KERNELS,
    "JinaVLForSequenceClassification": INPUT,
    "KimiK3ForConditionalGeneration": RECURRENT,
    "KimiLinearForCausalLM": RECURRENT,
    "MiniMaxM3SparseForCausalLM": SPARSE,
    "NemotronH_Nano_Omni_Reasoning_V3": RECURRENT,
    "NemotronH_Nano_VL_V2": RECURRENT,
    "PaddleOCRVLForConditionalGeneration": INPUT,
    "MossTranscribeDiarizeForConditionalGeneration": INPUT,
    "Qwen3ASRForConditionalGeneration": INPUT,
    "Step5ForConditionalGeneration": SPARSE,
    "UnlimitedOCRForCausalLM": INPUT,
    "DeepseekOCR2ForCausalLM": INPUT,
    "DeepseekOCRForCausalLM": INPUT,
    "VoxtralRealtimeGeneration": INPUT,
    "HunYuanVLForConditionalGeneration": INPUT,
    "GlmAsrForConditionalGeneration": INPUT,
    "GlmOcrForConditionalGeneration": INPUT,
    "WhisperForConditionalGeneration": ENCODER,
}
"""Why an architecture that has no family is not served. Most are refused by name; KERNELS fail where their layers are traced."""

_PRECISIONS = {
    "": "bf16",
    "transposed": "bf16",
    "awq": "int4",
    "ct_fp8": "fp8",
    "ct_fp8_block": "fp8",
    "ct_fp8_weights": "fp8",
    "ct_int4": "int4",
    "ct_int8": "int8",
    "fp8_block": "fp8",
    "fp8_tensor": "fp8",
    "gptq": "int4",
    "kimi_int4": "int4",
    "as_loaded": "bf16",
    "rows_as_loaded": "bf16",
    "blocks_as_loaded": "bf16",
    "modelopt_blocks": "fp8",
    "modelopt_fp8": "fp8",
    "modelopt_mixed": "nvfp4",
    "modelopt_rows": "fp8",
    "nvfp4_weights": "nvfp4",
    "nvfp4": "nvfp4",
    "ct_nvfp4": "nvfp4",
    "ct_mxfp4": "mxfp4",
    "mxfp4": "mxfp4",
}
"""The precision, in the words of recipes, that a family's form of weights shows; numbers as they are count as bf16."""

_HEAD = """# Models

vLLM {version} ships [recipes](https://recipes.vllm.ai) for {count} models: how to serve each. The plugin serves **{served}** of them.
For each, a small random model of the same architecture gives the tokens or scores that transformers gives (`make test-vllm-full`). It runs
in f32, on a CPU. Its sizes are its own: the model that it stands for may have other heads, more experts or another routing.

On NVIDIA GPUs four small families were run ([what is tested](vllm.md#what-is-tested)). Heads of more than 256 are refused there, so
Gemma 4 runs on CPUs only. Of those served, {text_only} are the language half of models that also take images: they need
`--language-model-only`.

| what stands in the way, or why a model is not judged | models |
|---|---|
{reasons}

A precision of the recipe is listed if a small model has weights in its form. bf16 stands for weights as they are: the small model's are
in f32. Only weights are in codes of 8 and 4 bits; activations stay in the model's dtype. Each small model was run on one device.
On two ranks, too: `qwen3_moe`, `kimi_k2_int4`, `qwen3_5`, `qwen3_moe_nvfp4`, `qwen3_moe_as_loaded`, `d3`.

| model | form of weights (recipe's precision) | needs | or not served because of | architecture | test |
|---|---|---|---|---|---|
{rows}

`tools/support.py` writes this page from `tools/recipes.json` and the tests' table (`tests/vllm_plugin/families.py`). The list is of vLLM's
source distribution (sha256 `{sha256}`).
transformers has some models by another name (`family_checkpoints.py`), and lacks K2 Horizon, whose reference is our own
(`family_k2_horizon.py`).
"""


class Row(NamedTuple):
    """What is said of a model."""

    model: str
    architecture: str
    precisions: tuple[str, ...]
    """In which it is served."""
    reason: str
    """Why it is not."""
    families: tuple[str, ...]
    """Whose tests show that it is."""


def _row(recipe: dict[str, Any]) -> Row:
    architecture = recipe["architecture"]
    found = {name: f for name, f in TESTED.items() if architecture in architectures(f)}
    shown = {name: _PRECISIONS[f.form] for name, f in found.items()}
    shown = {name: p for name, p in shown.items() if p in recipe["precisions"]}
    if shown:
        precisions = tuple(dict.fromkeys(sorted(shown.values())))
        return Row(recipe["model"], architecture, precisions, "", tuple(shown))
    if architecture is None:
        return Row(recipe["model"], "unknown", (), UNKNOWN, ())
    reason = BLOCKED.get(architecture)
    if reason is None:
        listed = ", ".join(recipe["precisions"])
        reason = f"weights in {listed} alone" if found else UNTESTED
    return Row(recipe["model"], architecture, (), reason, ())


def table() -> tuple[dict[str, str], list[Row]]:
    """Where the recipes are from, and what is said of each model."""
    recipes = json.loads(RECIPES.read_text())
    return recipes["source"], [_row(recipe) for recipe in recipes["models"]]


def _text_only(row: Row) -> bool:
    return "language_model_only" in TESTED[row.families[0]].options


def _needed(row: Row) -> str:
    return "`--language-model-only`" if row.families and _text_only(row) else ""


def page() -> str:
    """docs/support.md."""
    source, rows = table()
    reasons = collections.Counter(row.reason for row in rows if row.reason)
    served = [row for row in rows if row.precisions]
    text_only = sum(_text_only(row) for row in served)
    return _HEAD.format(
        version=source["version"],
        sha256=source["sha256"],
        count=len(rows),
        served=len(served),
        text_only=text_only,
        reasons="\n".join(f"| {reason} | {n} |" for reason, n in reasons.most_common()),
        rows="\n".join(
            f"| {r.model} | {', '.join(r.precisions)} | {_needed(r)} | {r.reason} | {r.architecture} | {', '.join(r.families)} |"
            for r in rows
        ),
    )


def readme() -> str:
    """README.md with the figure of the page in it."""
    source, rows = table()
    served = sum(bool(row.precisions) for row in rows)
    said = f"Of the {len(rows)} models that vLLM {source['version']} has recipes for, it serves {served} "
    text, found = re.subn(
        r"Of the \d+ models that vLLM [\d.]+ has recipes for, it serves \d+ ",
        said,
        README.read_text(),
    )
    if found != 1:
        sys.exit("README.md does not say how many of the models are served")
    return text


if __name__ == "__main__":
    sys.exit(generated.write_or_check({PAGE: page(), README: readme()}))
