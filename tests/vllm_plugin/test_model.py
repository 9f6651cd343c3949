"""What is compiled for: every batch that vLLM can make fits a program, and the user can say how many there are."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import batch as batches
from intarsia.vllm import model
from intarsia.vllm.batch import BatchLayout, bucket, bucket_sizes, takes_token_types
from intarsia.vllm.parallel import Ranks


def sizes(option: str, largest: int, **given: object) -> list[int]:
    config = SimpleNamespace(additional_config=given)
    return bucket_sizes(config, option, 16, largest)


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
            bucket_sizes(config, "token_buckets", 16, 100)


def test_sizes_that_no_step_has_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    warn = SimpleNamespace(warning_once=lambda text, *args: said.append(text % args))
    monkeypatch.setattr(batches, "logger", warn)
    assert sizes("request_buckets", 100, request_buckets=[400, 20, 200, 400, 100]) == [20, 100]
    assert said == [
        "intarsia-vllm: additional_config: request_buckets: 200, 400 left out, as no step has more than 100"
    ]


def test_every_batch_fits() -> None:
    found = sizes("token_buckets", 300)
    assert all(n <= bucket(found, n) < max(2 * n, 17) for n in range(1, 301))


@pytest.mark.parametrize("name", ["inputs_embeds", "lookback_token_ids"])
def test_a_step_of_more_than_token_ids_is_refused(name: str) -> None:
    ids = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=f"a step with .*{name}.*, expected token ids"):
        model.XlaModel.forward(None, ids, ids, **{name: torch.zeros(4, 8)})


class _Reader(torch.nn.Module):
    """Of a model of vLLM's that names no types of tokens."""

    def forward(self, input_ids: Any, positions: Any) -> Any: ...


class _Typed(torch.nn.Module):
    def forward(self, input_ids: Any, token_type_ids: Any = None) -> Any: ...


class _Wrapper(torch.nn.Module):
    """As vLLM has a model of transformers'."""

    def __init__(self, inside: torch.nn.Module, types: int | None):
        super().__init__()
        self.model = inside
        inside.config = (
            SimpleNamespace() if types is None else SimpleNamespace(type_vocab_size=types)
        )

    def forward(self, *args: Any, **given: Any) -> Any: ...


@pytest.mark.parametrize(
    ("inner", "takes"),
    [
        (_Typed(), True),
        (_Reader(), False),
        (_Wrapper(_Typed(), 2), True),
        (_Wrapper(_Typed(), 1), False),
        (_Wrapper(_Typed(), None), False),  # words' embeddings are its types'
        (_Wrapper(_Reader(), 2), False),
    ],
)
def test_a_model_takes_types_of_tokens(inner: torch.nn.Module, takes: bool) -> None:
    assert takes_token_types(inner) == takes


def _batch(lengths: list[int], first: int) -> SimpleNamespace:
    """What vLLM's CommonAttentionMetadata has, and the token ids, from `first` on."""
    starts = torch.tensor([0, *lengths]).cumsum(0)
    tokens = int(starts[-1])
    return SimpleNamespace(
        ids=torch.arange(first, first + tokens),
        num_actual_tokens=tokens,
        num_reqs=len(lengths),
        max_query_len=max(lengths),
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths) + first,
        block_table_tensor=torch.full((len(lengths), 2), first),
        slot_mapping=torch.arange(tokens) + first,
    )


def _bare_model(logits: Callable[[jax.Array], jax.Array], given: list | None = None) -> Any:
    """A model whose programs give the vector back as hidden states, and those logits of it in a decode step."""
    one = model.XlaModel.__new__(model.XlaModel)
    torch.nn.Module.__init__(one)

    def get(shape, step, *args, **options):
        def run(weights, pools, vector):
            if given is not None:
                given.append((shape, vector.unsafe_buffer_pointer()))
            return vector[:, None] * 1.0, logits(vector) if shape.decode else None, pools

        return run

    attributes = {
        "_typed": False,
        "_generates": True,
        "_ranks": Ranks(1),
        "_weights": (),
        "_pools": {},
        "_vectors": {},
        "_layout": BatchLayout([2]),
        "_first_layers": ["layer"],
        "decode_sizes": [4],
        "mixed_sizes": [8],
        "programs": SimpleNamespace(get=get),
    }
    one.__dict__.update(attributes)
    return one


def _step_of(batch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(attn_metadata={"layer": batch})
    monkeypatch.setattr(model, "get_forward_context", lambda: context)


def test_a_decode_steps_vector_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one address, while each step gets its own batch, a smaller one after a larger one too; other steps have vectors of
    their own."""
    given = []
    one = _bare_model(lambda vector: vector[:, None] * 2.0, given)
    answers = []
    for lengths, first in (([1, 1, 1], 5), ([3, 2], 40), ([1], 70), ([1, 1], 90)):
        batch = _batch(lengths, first)
        _step_of(batch, monkeypatch)
        shape = one._shape(batch)
        hidden = one.forward(batch.ids, batch.ids + 1)
        fresh = one._layout.pack(shape, batch.ids, batch.ids + 1, [batch])
        answers.append((hidden, fresh[: len(batch.ids), None].float()))
    for hidden, fresh in answers:  # the earlier ones, too, are as they were
        torch.testing.assert_close(hidden, fresh)
    decode = [at for shape, at in given if shape.decode]
    assert len(given) == 4 and len(decode) == 3 and len({*decode}) == 1
    assert [shape for shape in one._vectors] == [shape for shape, _ in given[:1]]


def test_types_of_tokens_are_left_out_for_a_model_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a warning: an error would end the engine, for one request."""
    said = []
    warn = SimpleNamespace(warning_once=lambda text, *args: said.append(text % args))
    monkeypatch.setattr(model, "logger", warn)
    one = _bare_model(lambda vector: vector[:, None] * 2.0)
    one.__dict__["inner"] = _Reader()
    batch = _batch([3, 2], 40)
    _step_of(batch, monkeypatch)
    hidden = one.forward(batch.ids, batch.ids + 1, token_type_ids=torch.ones_like(batch.ids))
    torch.testing.assert_close(hidden, one.forward(batch.ids, batch.ids + 1))
    assert said == ["intarsia-vllm: _Reader takes no types of tokens: left out"]


def test_logits_of_a_decode_step_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After such a step vLLM gets the step's own; what it asks for next, as for a prompt's logprobs, is computed, and so is all
    after another step."""
    one = _bare_model(lambda vector: vector[:, None] * 2.0)
    one._logits = lambda rows: rows * 3
    for lengths, of_step in (([1, 1], 2.0), ([2, 1], None), ([1], 2.0)):
        batch = _batch(lengths, 5)
        _step_of(batch, monkeypatch)
        hidden = one.forward(batch.ids, batch.ids + 1)
        first, second = one.compute_logits(hidden), one.compute_logits(hidden)
        torch.testing.assert_close(first, hidden * (of_step or 3))
        torch.testing.assert_close(second, hidden * 3)
    hidden = one.forward(batch.ids, batch.ids + 1)
    with pytest.raises(RuntimeError, match="got 0 rows for logits, expected the 1 of the decode"):
        one.compute_logits(hidden[:0])
    one.forward(batch.ids, batch.ids + 1)
    monkeypatch.setattr(model, "get_forward_context", lambda: SimpleNamespace(attn_metadata=None))
    one._config = SimpleNamespace(
        model_config=SimpleNamespace(get_hidden_size=lambda: 1, dtype=torch.float32)
    )
    hidden = one.forward(batch.ids, batch.ids + 1)
    assert not one.compute_logits(hidden + 0).any()


def test_reloaded_weights_stay_in_the_programs_order() -> None:
    one = _bare_model(lambda vector: vector)
    one._tensors = {}
    one._config = SimpleNamespace(cache_config=SimpleNamespace(cache_dtype="auto"))
    one.__dict__["inner"] = norm = torch.nn.LayerNorm(3)
    one.take_weights()
    assert [*one._tensors] == ["weight", "bias"]
    weight = torch.nn.Parameter(torch.full((3,), 5.0))
    del norm.weight
    norm.weight = weight  # registered anew: behind the bias
    one.take_weights()
    assert [x.tolist() for x in one._weights] == [[5] * 3, [0] * 3]
    weight.data = torch.zeros(3, dtype=torch.float16)
    said = r"XlaModel: weight has become float16 \[3\], expected float32 \[3\]"
    with pytest.raises(RuntimeError, match=said):
        one.take_weights()
    assert one._weights[0].tolist() == [5] * 3
    norm.register_buffer("more", torch.zeros(1))
    with pytest.raises(RuntimeError, match=r"reloading added or removed \['more'\]"):
        one.take_weights()
