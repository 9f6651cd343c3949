"""Encoders: embeddings, classes and scores of pairs are transformers'."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import family_checkpoints
import family_models
import numpy as np
import pytest
from vllm_running import engine

SIZES = {
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "additional_config": {"token_buckets": []},
    "runner": "pooling",
}
BERT = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 160,
}
LOCAL = {
    "local_attention": 16,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
PROMPTS = [{"prompt_token_ids": ids} for ids in family_models.prompts()]


class Encoder(NamedTuple):
    """One kind of model."""

    kind: str
    """transformers' model type."""
    architecture: str
    config: Mapping[str, Any] = {}
    pooling: str = "CLS"


EMBEDDING = {
    "bert": Encoder("bert", "BertModel"),
    "bert_mean": Encoder("bert", "BertModel", pooling="MEAN"),
    "xlm_roberta": Encoder(
        "xlm-roberta", "XLMRobertaModel", {"position_embedding_type": "absolute"}
    ),
    "roberta_last": Encoder("roberta", "RobertaModel", pooling="LAST"),
    "modernbert": Encoder("modernbert", "ModernBertModel", LOCAL),
    "embedding_gemma": Encoder(
        "gemma3_text",
        "Gemma3TextModel",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "use_bidirectional_attention": True,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
        "MEAN",
    ),
}
CLASSIFYING = {
    "bert": Encoder("bert", "BertForSequenceClassification"),
    "roberta": Encoder("roberta", "RobertaForSequenceClassification"),
    "modernbert": Encoder("modernbert", "ModernBertForSequenceClassification", LOCAL),
}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM asks a process of its own what a model's class can do, and imports itself there once more."""
    from vllm.model_executor.models import registry

    monkeypatch.setattr(registry, "_run_in_subprocess", lambda function: function())


def _make(encoder: Encoder, directory: Path, **config: Any) -> Any:
    """A small model with random weights."""
    import torch
    import transformers

    made = transformers.AutoConfig.for_model(encoder.kind, **BERT | dict(encoder.config) | config)
    torch.manual_seed(0)
    model = getattr(transformers, encoder.architecture)(made)
    family_models.randomize(model)
    model.save_pretrained(directory)
    family_checkpoints.write_tokenizer(directory)
    return model.eval()


def _pooled(states: Any, how: str) -> np.ndarray:
    """Of length 1."""
    one = {"CLS": states[0], "LAST": states[-1], "MEAN": states.mean(0)}[how]
    return (one / one.norm()).numpy()


def _states(model: Any) -> list[np.ndarray]:
    """transformers' last ones of each prompt."""
    import torch

    with torch.no_grad():
        return [
            model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
            for ids in family_models.prompts()
        ]


def _of_length_1(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[] if x == "modernbert" else pytest.mark.full) for x in EMBEDDING],
)
def test_embeddings(_environment: None, tmp_path: Path, name: str) -> None:
    encoder = EMBEDDING[name]
    model = _make(encoder, tmp_path)
    pooling = {"seq_pooling_type": encoder.pooling}
    with engine(tmp_path, **SIZES, pooler_config=pooling) as llm:
        found = [x.outputs.embedding for x in llm.embed(PROMPTS, use_tqdm=False)]
        [programs] = llm.collective_rpc("xla_programs")
    [(_, ops)] = programs["custom_calls"].items()  # one size, and nothing of a decoder's
    assert ops["flash_attn_varlen"] == 3 and "reshape_and_cache_flash" not in ops
    for states, embedding in zip(_states(model), found, strict=True):
        one = {"CLS": states[0], "LAST": states[-1], "MEAN": states.mean(0)}[encoder.pooling]
        np.testing.assert_allclose(embedding, _of_length_1(one), atol=1e-4)


@pytest.mark.full
def test_embeddings_of_tokens(_environment: None, tmp_path: Path) -> None:
    model = _make(EMBEDDING["bert"], tmp_path)
    with engine(tmp_path, **SIZES, pooler_config={"task": "token_embed"}) as llm:
        requests = llm.encode(PROMPTS, pooling_task="token_embed", use_tqdm=False)
    for states, request in zip(_states(model), requests, strict=True):
        np.testing.assert_allclose(request.outputs.data, _of_length_1(states), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", CLASSIFYING)
def test_classes(_environment: None, tmp_path: Path, name: str) -> None:
    import torch

    model = _make(CLASSIFYING[name], tmp_path, num_labels=3)
    with engine(tmp_path, **SIZES) as llm:
        found = [x.outputs.probs for x in llm.classify(PROMPTS, use_tqdm=False)]
    assert np.ptp([x[0] for x in found]) > 0.05, "all prompts are alike"
    for prompt, probabilities in zip(family_models.prompts(), found, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt])).logits[0]
        np.testing.assert_allclose(probabilities, logits.softmax(-1).numpy(), atol=1e-4)
