"""Writes tools/recipes.json: what vLLM's source distribution says of the models that it has recipes for.

A recipe names no architecture. vLLM's tests and lists of models name those of some; of others it is known by the family (`_LIKE`).
What none of these says is null, and counts as unknown.

    pip download --no-deps --no-binary :all: --no-build-isolation --no-clean vllm==0.33.0  # leaves what it has unpacked
    .venv/vllm-serve/bin/python tools/recipes.py PATH_TO_THE_UNPACKED_SOURCES SHA256

SHA256 is the distribution's, as https://pypi.org/project/vllm/0.33.0/#files has it: pip keeps no file where vLLM does not build.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("recipes.json")

_CLASS = re.compile(
    r"\b\w+For(?:CausalLM|ConditionalGeneration|SequenceClassification|BlockDiffusion|Ranking)\b"
)
# Parts of speculative decoding, and other backends of the same models.
_ANOTHER = re.compile("MTP|Eagle|Spark|Flash2|Draft|Assistant|XPress|Extract|Peagle|Transformers")

# Models that say what architecture they have in a config.json which is not here, with one that is of the same family and whose
# architecture vLLM names. Each is what the maker's model card says of them.
_LIKE = {
    "IFM/K2-Horizon-0.9B": "IFM/K2-Horizon-7B",
    "IFM/K2-Horizon-3.7B": "IFM/K2-Horizon-7B",
    "IFM/K2-Horizon-32B": "IFM/K2-Horizon-7B",
    "MiniMaxAI/MiniMax-M2.1": "MiniMaxAI/MiniMax-M2",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI/MiniMax-M2",
    "MiniMaxAI/MiniMax-M2.7": "MiniMaxAI/MiniMax-M2",
    "PaddlePaddle/PaddleOCR-VL-1.5": "PaddlePaddle/PaddleOCR-VL",
    "PaddlePaddle/PaddleOCR-VL-1.6": "PaddlePaddle/PaddleOCR-VL",
    "Qwen/Qwen2.5-VL-7B-Instruct": "Qwen/Qwen2.5-VL-72B-Instruct",
    "Qwen/Qwen3-1.7B": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-4B": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B": "Qwen/Qwen3-8B",
    "Qwen/Qwen3Guard-Gen-8B": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-VL-235B-A22B-Instruct": "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "Qwen/Qwen3.5-2B": "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.5-9B": "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.5-27B": "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.6-27B": "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.8-27B": "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.5-122B-A10B": "Qwen/Qwen3.5-35B-A3B",
    "Qwen/Qwen3.5-397B-A17B": "Qwen/Qwen3.5-35B-A3B",
    "Qwen/Qwen3.6-35B-A3B": "Qwen/Qwen3.5-35B-A3B",
    "XiaomiMiMo/MiMo-V2.5": "XiaomiMiMo/MiMo-V2.5-Pro",
    "XiaomiMiMo/MiMo-V2.6-Flash-RL": "XiaomiMiMo/MiMo-V2.5-Pro",
    "XiaomiMiMo/MiMo-V2.6-Pro-RL": "XiaomiMiMo/MiMo-V2.5-Pro",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.1-8B": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-1B": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "moonshotai/Kimi-K2.6": "moonshotai/Kimi-K2.5",
    "moonshotai/Kimi-K2.7-Code": "moonshotai/Kimi-K2.5",
    "poolside/Laguna-M.1": "poolside/Laguna-XS.2",
    "poolside/Laguna-S-2.1": "poolside/Laguna-XS.2",
    "poolside/Laguna-XS-2.1": "poolside/Laguna-XS.2",
    "thinkingmachines/Inkling-Small-NVFP4": "thinkingmachines/Inkling-NVFP4",
    "zai-org/GLM-4.6": "zai-org/GLM-4.5",
    "zai-org/GLM-4.7": "zai-org/GLM-4.5",
    "zai-org/GLM-4.6V": "zai-org/GLM-4.5V",
    "zai-org/GLM-5.1": "zai-org/GLM-5",
}
# Architectures of models that vLLM's sources do not name: those of their makers' config.json.
_KNOWN = {
    "Qwen/QwQ-32B": "Qwen2ForCausalLM",
    "Qwen/Qwen2.5-32B": "Qwen2ForCausalLM",
    # vLLM's documentation has them as Gemma4ForCausalLM, too.
    "google/gemma-4-26B-A4B-it": "Gemma4ForConditionalGeneration",
    "google/gemma-4-31B-it": "Gemma4ForConditionalGeneration",
    "google/gemma-4-E2B-it": "Gemma4ForConditionalGeneration",
    "google/gemma-4-E4B-it": "Gemma4ForConditionalGeneration",
    "google/translategemma-27b-it": "Gemma3ForConditionalGeneration",
    "OpenGVLab/InternVL3_5-8B": "InternVLChatModel",
    "ibm-granite/granite-3.2-2b-instruct": "GraniteForCausalLM",
    "inclusionAI/Ling-2.6-1T": "BailingMoeV2_5ForCausalLM",
    "inclusionAI/Ling-2.6-flash": "BailingMoeV2_5ForCausalLM",
    "inclusionAI/Ring-2.6-1T": "BailingMoeV2_5ForCausalLM",
    "inclusionAI/Ring-1T-FP8": "BailingMoeV2ForCausalLM",
    "microsoft/Phi-4-reasoning": "Phi3ForCausalLM",
    "mistralai/Ministral-3-14B-Instruct-2512": "Mistral3ForConditionalGeneration",
    "mistralai/Ministral-3-8B-Reasoning-2512": "Mistral3ForConditionalGeneration",
    "mistralai/Mistral-Medium-3.5-128B": "Mistral3ForConditionalGeneration",
    "moonshotai/Kimi-K2-Instruct": "DeepseekV3ForCausalLM",
    "moonshotai/Kimi-K2-Thinking": "DeepseekV3ForCausalLM",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "NemotronHForCausalLM",
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": "NemotronHForCausalLM",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": "NemotronHForCausalLM",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "NemotronHForCausalLM",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": "NemotronHForCausalLM",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": "NemotronHForCausalLM",
    "openbmb/MiniCPM5-1B": "LlamaForCausalLM",
    "pfnet/plamo-3-nict-31b-base": "Plamo3ForCausalLM",
    "reflection/Beam-1.0-501B-A23B": "BeamForCausalLM",
    "zai-org/Glyph": "Glm4vForConditionalGeneration",
    "zai-org/glm-4-9b-hf": "GlmForCausalLM",
}


def _in_registry(sources: Path) -> Iterator[tuple[str, str]]:
    """Models with their architectures, of the table of vLLM's tests."""
    for node in ast.walk(ast.parse((sources / "tests/models/registry.py").read_text())):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            of_a_model = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id == "_HfExamplesInfo"
                and isinstance(key, ast.Constant)
            )
            if of_a_model:
                for part in ast.walk(value):
                    if isinstance(part, ast.Constant) and "/" in str(part.value):
                        yield part.value, key.value


def _in_docs(sources: Path) -> Iterator[tuple[str, str]]:
    """The same of the tables of vLLM's documentation."""
    for page in sorted((sources / "docs/models").rglob("*.md")):
        for line in page.read_text().splitlines():
            if found := re.match(r"\|\s*`(\w+)`", line):
                for model in re.findall(r"`([\w.-]+/[\w.-]+)`", line):
                    yield model, found[1]


def _first(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    architectures: dict[str, str] = {}
    for model, name in found:
        if not _ANOTHER.search(name):
            architectures.setdefault(model, name)
    return architectures


def _architecture(model: str, text: str, named: dict[str, str]) -> str | None:
    if model in _KNOWN:
        return _KNOWN[model]
    if model in named:
        return named[model]
    said = {name for name in _CLASS.findall(text) if not _ANOTHER.search(name)}
    if len(said) == 1:
        return said.pop()
    return named.get(_LIKE.get(model, ""))


def _row(recipe: dict[str, Any], text: str, named: dict[str, str]) -> dict[str, Any]:
    model, variants = recipe["model"], recipe.get("variants") or {}
    architecture = _architecture(model["model_id"], text, named)
    return {
        "model": model["model_id"],
        "architecture": architecture,
        "precisions": sorted({v["precision"] for v in variants.values()}),
    }


def main(sources: Path, sha256: str) -> None:
    """Reads the sources of the distribution that has this sum, and writes the file."""
    import yaml

    version = re.search(r"^Version: (.+)$", (sources / "PKG-INFO").read_text(), re.M)
    docs = _first(_in_docs(sources))
    # Where both name one, the documentation: the table of the tests has examples of a draft's target, too.
    named = _first(_in_registry(sources)) | docs
    rows = []
    for file in sorted((sources / "recipes/models").rglob("*.yaml")):
        text = file.read_text()
        rows.append(_row(yaml.safe_load(text), text, named))
    source = {"package": "vllm", "version": version[1] if version else None, "sha256": sha256}
    lines = ",\n".join(json.dumps(row) for row in rows)
    OUT.write_text(f'{{"source": {json.dumps(source)},\n"models": [\n{lines}\n]}}\n')
    print(
        len(rows),
        "models,",
        sum(row["architecture"] is None for row in rows),
        "of unknown architecture",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, help="of vLLM, unpacked")
    parser.add_argument("sha256", help="of the source distribution")
    args = parser.parse_args()
    main(args.sources, args.sha256)
