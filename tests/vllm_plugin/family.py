"""What a family of models is, and what its members share."""

from collections.abc import Mapping
from typing import Any, NamedTuple

BASE = {
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
HEAD = {"head_dim": 128}
BOTH = ["sliding_attention", "full_attention"]
DENSE_FIRST = ["dense", "sparse"]


class Family(NamedTuple):
    """One kind of model."""

    kind: str
    """transformers' model type."""
    config: Mapping[str, Any]
    """What config.json has of the language model beside `BASE`."""
    options: Mapping[str, Any] = {}
    """Of vLLM's engine."""
    around: Mapping[str, Any] | None = None
    """What config.json has beside the language model, where that is a part of it."""
    form: str = ""
    """Of the checkpoint's weights, one of `family_weights.FORMS`; by default transformers' own, in f32."""

    factors: Mapping[str, float] = {}
    """Of weights with this in their names, what they are times their usual size."""

    architecture: str = ""
    """vLLM's class, where transformers has the model's mathematics by another name: one of `family_checkpoints.OWN`."""


def rope(theta: float, **others: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta} | others
