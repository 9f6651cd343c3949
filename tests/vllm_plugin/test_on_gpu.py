"""The plugin on an NVIDIA GPU, with small random models and transformers on the CPU as the reference."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("vllm")

import vllm_models

pytestmark = pytest.mark.gpu

PROMPTS = [[5, 99, 1000], list(range(100, 130)), [7], [3 * i % 1009 for i in range(300)]]
SIZES = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "kv_cache_memory_bytes": 64 << 20,
}
# How much less likely than the reference's choice a chosen token may be: sums in TF32, or in 16 bits.
GAPS = {"float32": 0.05, "bfloat16": 0.5, "float16": 0.1}
# Calls in a step of each of the models, which have four layers.
NORMS = {"llama": 9, "qwen2": 9, "qwen3": 9, "gemma3_text": 17}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """Gives a model's directory; it has no tokenizer that one could use."""
    root = tmp_path_factory.mktemp("tiny")
    (root / "none").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (root / "none" / name).write_text("{}")

    def make(name: str) -> pathlib.Path:
        path = root / name
        return path if path.exists() else vllm_models.make_tiny(name, path, root / "none")

    return make


def run(model: pathlib.Path, **options: object) -> dict:
    """What an engine in a process of its own gives."""
    script = pathlib.Path(__file__).parent / "vllm_once.py"
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, str(script), str(model), json.dumps(SIZES | options)]
    done = subprocess.run(
        [*command, json.dumps(PROMPTS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    # vLLM's log may follow it.
    (told,) = [line for line in done.stdout.splitlines() if line.startswith('{"start_seconds"')]
    return json.loads(told)


def gaps(model: pathlib.Path, told: dict) -> list[np.ndarray]:
    """By how much transformers would rather have chosen another token, at each step, and how it differs in log-probability."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    for prompt, tokens, logprobs in zip(PROMPTS, told["tokens"], told["logprobs"], strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        likely = torch.log_softmax(logits, -1)
        chosen = likely[torch.arange(len(tokens)), tokens]
        found.append(
            np.maximum((likely.max(-1).values - chosen).numpy(), np.abs(chosen.numpy() - logprobs))
        )
    return found


@pytest.mark.parametrize("dtype", GAPS)
@pytest.mark.parametrize("name", vllm_models.TINY)
def test_tokens(tiny, name: str, dtype: str) -> None:
    if (name, dtype) == ("gemma3_text", "float16"):
        pytest.skip("vLLM refuses Gemma 3 in float16")
    told = run(tiny(name), dtype=dtype)
    assert max(x.max() for x in gaps(tiny(name), told)) < GAPS[dtype]
    assert len(set(told["without_repeats"])) == 24
    [programs] = told["programs"]
    assert programs["late"] == [] and programs["compilations"] == 0
    steps = {k: v for k, v in programs["custom_calls"].items() if "step" in k}
    assert steps
    for step, calls in steps.items():
        attention = "paged_attention" if step.startswith("decode") else "flash_attn_varlen"
        assert calls[attention] == calls["rotary_embedding_and_cache"] == 4
        assert calls["rms_norm"] + calls["fused_add_rms_norm"] == NORMS[name], step


def test_fp8_cache(tiny) -> None:
    told = run(tiny("qwen3"), dtype="bfloat16", kv_cache_dtype="fp8")
    assert np.mean(np.concatenate(gaps(tiny("qwen3"), told))) < 0.5


def test_memory_is_accounted_for(tiny) -> None:
    """The default: what vLLM may have of the GPU, less what XLA says that it needs."""
    changes = {"kv_cache_memory_bytes": None, "gpu_memory_utilization": 0.15}
    told = run(tiny("llama"), dtype="bfloat16", **changes)
    assert max(x.max() for x in gaps(tiny("llama"), told)) < GAPS["bfloat16"]


def test_two_gpus(tiny) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    told = run(tiny("qwen3"), dtype="float32", tensor_parallel_size=2)
    assert max(x.max() for x in gaps(tiny("qwen3"), told)) < GAPS["float32"]
