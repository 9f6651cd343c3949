"""Decoders that pool: embeddings and scores are transformers'."""

import json
from pathlib import Path
from typing import Any

import family_checkpoints
import family_models
import numpy as np
import pytest
from families import POOLING
from family import BASE, HEAD
from vllm_running import engine

SIZES = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 8 << 20,
    "additional_config": {"request_buckets": [4], "token_buckets": [64]},
    "runner": "pooling",
}
PROMPTS = [{"prompt_token_ids": ids} for ids in family_models.prompts()]


def _make(architecture: str, directory: Path, **changes: Any) -> Any:
    """A small Qwen3 of one of transformers' classes, with random weights."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model("qwen3", **BASE | HEAD | changes)
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config)
    family_models.randomize(model)
    model.save_pretrained(directory)
    family_checkpoints.write_tokenizer(directory)  # which vLLM's poolers ask for
    return model.eval()


def _check_embeddings(model: Any, directory: Path) -> None:
    """Each is the last token's state, of length 1."""
    import torch

    with engine(directory, **SIZES) as llm:
        found = [x.outputs.embedding for x in llm.embed(PROMPTS, use_tqdm=False)]
        [programs] = llm.collective_rpc("xla_programs")
    assert not any("logits" in name for name in programs["custom_calls"])
    for prompt, embedding in zip(family_models.prompts(), found, strict=True):
        with torch.no_grad():
            state = model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
        expected = (state / state.norm()).numpy()
        np.testing.assert_allclose(embedding, expected, atol=1e-4)


def test_embeddings_are_the_last_tokens_states(_environment: None, tmp_path: Path) -> None:
    _check_embeddings(_make("Qwen3ForCausalLM", tmp_path).model, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("labels", [1, 3], ids=["reranks", "classifies"])
def test_scores(_environment: None, tmp_path: Path, labels: int) -> None:
    import torch

    model = _make("Qwen3ForSequenceClassification", tmp_path, num_labels=labels)
    with engine(tmp_path, **SIZES) as llm:
        found = [x.outputs.probs for x in llm.classify(PROMPTS, use_tqdm=False)]
    for prompt, probabilities in zip(family_models.prompts(), found, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt])).logits[0]
        expected = logits.sigmoid() if labels == 1 else logits.softmax(-1)
        np.testing.assert_allclose(probabilities, expected.numpy(), atol=1e-4)


@pytest.mark.full
def test_jina_v5_embeds_with_a_tasks_adapter(_environment: None, tmp_path: Path) -> None:
    """jina-embeddings-v5-text-small: a Qwen 3 without a head, and low-rank differences for each task."""
    import torch
    from safetensors.torch import save_file

    model = _make("Qwen3Model", tmp_path)
    file = tmp_path / "config.json"
    own = {"architectures": [POOLING["jina_v5"].architecture], "is_decoder": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    adapter = tmp_path / "adapters" / "retrieval"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"lora_alpha": 16, "r": 8}))
    layer, name = model.layers[1].self_attn.v_proj, "base_model.model.layers.1.self_attn.v_proj"
    low = {"A": torch.randn(8, 256) / 16, "B": torch.randn(256, 8)}
    save_file(
        {f"{name}.lora_{x}.weight": y for x, y in low.items()},
        adapter / "adapter_model.safetensors",
    )
    with torch.no_grad():
        layer.weight += 2 * low["B"] @ low["A"]
    _check_embeddings(model, tmp_path)
