"""The vector of a step's numbers, which torch fills and a program takes apart."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st
from intarsia.vllm.batch import BatchLayout, StepShape, bucket, buckets


def group(lengths: list[int], computed: int, width: int, seed: int) -> SimpleNamespace:
    """What vLLM's CommonAttentionMetadata has: more rows than there are requests."""
    draw = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return SimpleNamespace(
        num_actual_tokens=sum(lengths),
        num_reqs=len(lengths),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([n + computed for n in lengths], dtype=torch.int32),
        block_table_tensor=torch.tensor(draw.integers(0, 99, (len(lengths), width))),
        slot_mapping=torch.tensor(draw.integers(0, 999, sum(lengths))),
    )


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    more=st.integers(0, 5),
    again=st.booleans(),
)
def test_a_batch_comes_out_as_it_went_in(
    lengths: list[int], widths: list[int], more: int, again: bool
) -> None:
    """In new memory, and in that of an earlier batch."""
    tokens, requests = sum(lengths), len(lengths)
    shape = StepShape(tokens + more, requests + more, decode=False)
    groups = [group(lengths, 7, width, i) for i, width in enumerate(widths)]
    ids, positions = torch.arange(tokens) + 50, torch.arange(tokens) + 7
    layout = BatchLayout(widths)
    into = torch.full((layout.size(shape),), 9, dtype=torch.int32) if again else None
    vector = layout.pack(shape, ids, positions, groups, into=into)
    assert vector is into if again else vector.shape == (layout.size(shape),)
    step = layout.unpack(shape, jax.dlpack.from_dlpack(vector))

    def padded(x: torch.Tensor, rows: int, value: int) -> np.ndarray:
        widths = [(0, rows - len(x)), *[(0, 0)] * (x.ndim - 1)]
        return np.pad(x.numpy(), widths, constant_values=value)

    np.testing.assert_array_equal(step.input_ids, padded(ids, shape.tokens, 0))
    np.testing.assert_array_equal(step.positions, padded(positions, shape.tokens, 0))
    assert len(step.groups) == len(groups)
    for got, put in zip(step.groups, groups, strict=True):
        starts = padded(put.query_start_loc, shape.requests + 1, tokens)
        np.testing.assert_array_equal(got.cu_seqlens_q, starts)
        np.testing.assert_array_equal(got.seqused_k, padded(put.seq_lens, shape.requests, 0))
        table = padded(put.block_table_tensor, shape.requests, 0)
        np.testing.assert_array_equal(got.block_table, table)
        np.testing.assert_array_equal(got.slot_mapping, padded(put.slot_mapping, shape.tokens, -1))


@pytest.mark.parametrize("rows", [8, 5], ids=["padded", "full"])
@pytest.mark.parametrize("given", [True, False])
def test_tokens_have_types_where_a_model_takes_them(given: bool, rows: int) -> None:
    types = torch.tensor([0, 0, 1, 0, 1])
    shape, layout = StepShape(rows, 2, decode=False), BatchLayout([1], typed=True)
    ids = torch.arange(5)
    into = torch.full((layout.size(shape),), 9, dtype=torch.int32)
    batch = [group([3, 2], 0, 1, 0)]
    vector = layout.pack(shape, ids, ids, batch, types if given else None, into=into)
    step = layout.unpack(shape, jax.dlpack.from_dlpack(vector))
    expected = types.tolist() if given else [0] * 5
    assert step.token_types.tolist() == expected + [0] * (rows - 5)
    assert step.groups[0].cu_seqlens_q.tolist() == [0, 3, 5]


@pytest.mark.parametrize("typed", [False, True])
def test_padding_alone_writes_nothing(typed: bool) -> None:
    shape, layout = StepShape(8, 4, decode=False), BatchLayout([3, 2], typed)
    vector = layout.padding(shape, torch.device("cpu"))
    step = layout.unpack(shape, jax.dlpack.from_dlpack(vector))
    for one in step.groups:
        assert (np.asarray(one.slot_mapping) == -1).all()
        assert not np.asarray(one.cu_seqlens_q).any() and not np.asarray(one.seqused_k).any()


def test_buckets() -> None:
    assert buckets(1, 6) == [1, 2, 4, 6]
    assert buckets(16, 128) == [16, 32, 64, 128]
    assert buckets(1, 1) == [1]
    assert [bucket([1, 2, 6], n) for n in (1, 2, 3, 6)] == [1, 2, 6, 6]
    with pytest.raises(ValueError, match="a batch of 7 rows, expected at most 6"):
        bucket([1, 2, 6], 7)
