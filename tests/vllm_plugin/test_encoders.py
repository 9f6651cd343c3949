"""Encoders: embeddings, classes and scores of pairs are transformers'."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import family_checkpoints
import family_models
import numpy as np
import pytest
from families import POOLING
from vllm_running import engine, serving

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
QUERY = "w3 w17 w40 w5"
DOCUMENTS = ["w7 w8 w9", "w40 w41 w42 w43 w44 w45", "w99"]
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
    "modernbert": Encoder("modernbert", "ModernBertModel", LOCAL, "MEAN"),
    "eurobert": Encoder(  # which vLLM has of transformers' own classes
        "eurobert",
        "EuroBertModel",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "MEAN",
    ),
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
LABELING = {
    "bert": Encoder("bert", "BertForTokenClassification"),
    "roberta": Encoder("roberta", "RobertaForTokenClassification"),
    "modernbert": Encoder("modernbert", "ModernBertForTokenClassification", LOCAL),
}
CLASSIFYING = {
    "bert": Encoder("bert", "BertForSequenceClassification"),
    "roberta": Encoder("roberta", "RobertaForSequenceClassification"),
    "modernbert": Encoder("modernbert", "ModernBertForSequenceClassification", LOCAL),
}
ELECTRA = Encoder("electra", "ElectraForSequenceClassification", {"embedding_size": 64})
"""Which vLLM has of transformers' own classes; they take types of tokens."""


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


def _write_tokenizer_of_pairs(directory: Path) -> None:
    """Words w3 to w99; the second text's tokens are of another type."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {"<unk>": 0, "<cls>": 1, "<sep>": 2} | {f"w{i}": i for i in range(3, 100)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>",
        pair="<cls> $A <sep> $B:1 <sep>:1",
        special_tokens=[("<cls>", 1), ("<sep>", 2)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<unk>",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(directory)


def _scores_by_transformers(model: Any, directory: Path) -> list[float]:
    """Of the query beside each document."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    scores = []
    for document in DOCUMENTS:
        pair = tokenizer(QUERY, document, return_tensors="pt")
        assert set(pair["token_type_ids"][0].tolist()) == {0, 1}
        if "token_type_ids" not in inspect.signature(model.forward).parameters:
            del pair["token_type_ids"]
        with torch.no_grad():
            scores.append(float(model(**pair).logits.sigmoid()))
    return scores


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
    expected = _states(_make(encoder, tmp_path))  # before vLLM has decorated transformers' classes
    pooling = {"seq_pooling_type": encoder.pooling}
    with engine(tmp_path, **SIZES, pooler_config=pooling) as llm:
        found = [x.outputs.embedding for x in llm.embed(PROMPTS, use_tqdm=False)]
        [programs] = llm.collective_rpc("xla_programs")
    [(_, ops)] = programs["custom_calls"].items()  # one size, and nothing of a decoder's
    assert ops["flash_attn_varlen"] == 3 and "reshape_and_cache_flash" not in ops
    for states, embedding in zip(expected, found, strict=True):
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


@pytest.mark.full
@pytest.mark.parametrize("name", LABELING)
def test_classes_of_tokens(_environment: None, tmp_path: Path, name: str) -> None:
    """Whose step ends in the classes, not in states."""
    import torch

    model = _make(LABELING[name], tmp_path, num_labels=5)
    with engine(tmp_path, **SIZES) as llm:
        requests = llm.encode(PROMPTS, pooling_task="token_classify", use_tqdm=False)
    for prompt, request in zip(family_models.prompts(), requests, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt])).logits[0]
        np.testing.assert_allclose(request.outputs.data, logits.softmax(-1), atol=1e-4)


@pytest.mark.parametrize(
    ("encoder", "ranks"),
    [
        (CLASSIFYING["bert"], 1),
        pytest.param(CLASSIFYING["bert"], 2, marks=pytest.mark.full),
        pytest.param(ELECTRA, 1, marks=pytest.mark.full),
        pytest.param(CLASSIFYING["modernbert"], 1, marks=pytest.mark.full),  # which has no types
    ],
    ids=["bert", "bert-ranks", "electra", "modernbert"],
)
def test_scores_of_pairs(_environment: None, tmp_path: Path, encoder: Encoder, ranks: int) -> None:
    """Texts whose types differ, and which come in one step."""
    model = _make(encoder, tmp_path, num_labels=1)
    _write_tokenizer_of_pairs(tmp_path)
    expected = _scores_by_transformers(model, tmp_path)  # before vLLM has decorated its classes
    with engine(tmp_path, **SIZES, tensor_parallel_size=ranks) as llm:
        found = [x.outputs.score for x in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.ptp(found) > 0.01, "all pairs are alike"


@pytest.mark.full
def test_a_server_embeds_and_reranks(_environment: None, tmp_path: Path) -> None:
    """By a model of embeddings, whose scores are their products."""
    import httpx
    import torch
    from transformers import AutoTokenizer

    model = _make(EMBEDDING["bert"], tmp_path)
    _write_tokenizer_of_pairs(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with torch.no_grad():
        states = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0].numpy()
            for text in (QUERY, *DOCUMENTS)
        ]
    query, *documents = _of_length_1(np.stack(states))
    with serving(tmp_path, tmp_path / "log", **SIZES) as server:
        with server.client() as client:
            answer = client.embeddings.create(model="model", input=DOCUMENTS)
        asked = {"model": "model", "query": QUERY, "documents": DOCUMENTS}
        ranked = httpx.post(f"{server.address}/rerank", json=asked, timeout=60).json()["results"]
    np.testing.assert_allclose([x.embedding for x in answer.data], documents, atol=1e-4)
    scores = {x["index"]: x["relevance_score"] for x in ranked}
    expected = np.stack(documents) @ query
    assert list(scores) == np.argsort(-expected).tolist()
    np.testing.assert_allclose([scores[i] for i in range(3)], expected, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_d3_attends_in_both_directions(
    _environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Decision 3.0: a Qwen 3.5 whose full attention is not causal, with a readout of the last token's codes."""
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.models.qwen3_5 import modeling_qwen3_5

    family = POOLING["d3"]
    model = transformers.Qwen3_5Model(family_models._config(family)).eval()
    family_models.randomize(model)
    model.save_pretrained(tmp_path)
    family_checkpoints.write_tokenizer(tmp_path)
    readout = torch.randn(3, 256, generator=torch.Generator().manual_seed(0)) / 16
    save_file({"weight": readout}, tmp_path / "readout.safetensors")
    decision = {
        "format_version": 1,
        "attention_mode": "noncausal_full_attention",
        "codes": ["A", "B", "C"],
        "token_ids": [3, 4, 5],
    }
    (tmp_path / "decision_config.json").write_text(json.dumps(decision))
    with engine(tmp_path, **SIZES | family.options, tensor_parallel_size=ranks) as llm:
        found = [x.outputs.probs for x in llm.classify(PROMPTS, use_tqdm=False)]
        architecture = llm.llm_engine.vllm_config.model_config.architecture
        if ranks == 1:  # in this process
            assert llm.collective_rpc(_temporary_bytes)[0] > 0
    assert architecture == family.architecture
    monkeypatch.setattr(modeling_qwen3_5, "create_causal_mask", lambda **_: None)
    model.set_attn_implementation("eager")
    for states, logits in zip(_states(model), found, strict=True):
        np.testing.assert_allclose(logits, states[-1] @ readout.numpy().T, atol=1e-4)


def _temporary_bytes(worker: Any) -> int:
    """What a worker on a GPU asks before there are caches."""
    runner = worker.model_runner
    return runner.model.temporary_bytes(runner.get_kv_cache_spec(), runner.shared_kv_cache_layers)
