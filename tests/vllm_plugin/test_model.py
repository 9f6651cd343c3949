"""What is compiled for: every batch that vLLM can make fits a program, and the user can say how many there are."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import model
from intarsia.vllm.batch import bucket


def sizes(option: str, largest: int, **given: object) -> list[int]:
    config = SimpleNamespace(additional_config=given)
    return model._sizes(config, option, 16, largest)


def test_sizes_are_powers_of_two() -> None:
    assert sizes("token_buckets", 100) == [16, 32, 64, 100]
    assert sizes("token_buckets", 8) == [8]
    assert sizes("token_buckets", 100, request_buckets=[1]) == [16, 32, 64, 100]


def test_a_user_chooses_sizes() -> None:
    assert sizes("token_buckets", 100, token_buckets=[50, 20, 200]) == [20, 50, 100]
    assert sizes("token_buckets", 100, token_buckets=[]) == [100]
    for wrong in ([0], [-1], ["8"], [1.5], 3, True, [True], "16", {"a": 1}):
        with pytest.raises(ValueError, match=r"token_buckets is .*, expected positive integers"):
            sizes("token_buckets", 100, token_buckets=wrong)
    for wrong in ([1], "token_buckets", 3):
        config = SimpleNamespace(additional_config=wrong)
        with pytest.raises(ValueError, match=r"additional_config is .*, expected an object"):
            model._sizes(config, "token_buckets", 16, 100)


def test_every_batch_fits() -> None:
    found = sizes("token_buckets", 300)
    assert all(n <= bucket(found, n) < max(2 * n, 17) for n in range(1, 301))


@pytest.mark.parametrize("name", ["inputs_embeds", "lookback_token_ids"])
def test_a_step_of_more_than_token_ids_is_refused(name: str) -> None:
    ids = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=f"a step with .*{name}.*, expected token ids"):
        model.XlaModel.forward(None, ids, ids, **{name: torch.zeros(4, 8)})


def test_types_of_tokens_are_refused_by_a_model_without() -> None:
    ids = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="types of tokens, which the model does not take"):
        model.XlaModel.forward(SimpleNamespace(_typed=False), ids, ids, token_type_ids=ids)
