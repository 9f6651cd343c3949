"""The names and signatures that other projects call: the documentation's examples, and each argument."""

import doctest
import itertools
from typing import Any

import intarsia.xla_ops
import numpy as np
import pytest
import running
import support
import torch
import torch_running
from intarsia import xla_ops
from test_ops import make

op = torch.ops.xla_gpu
# When a compiled function of an earlier test is collected, dynamo has forgotten it already.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <function ExactWeakKey")


def test_the_examples_run() -> None:
    result = doctest.testmod(intarsia.xla_ops)
    assert result.attempted > 10 and result.failed == 0


def test_each_op_has_a_registration() -> None:
    names = [
        name for name in xla_ops.__all__ if name.startswith("register_") and name in dir(xla_ops)
    ]
    names.remove("register_ops")
    assert len(set(names)) == len(support.listed_ops())
    assert {"register_rms_norm_lowering", "register_flash_attention_lowering"} <= set(names)
    for name in names:
        assert getattr(xla_ops, name)() is True
    with pytest.raises(AttributeError, match="no attribute 'register_rms_nrom_lowering'"):
        _ = xla_ops.register_rms_nrom_lowering
    assert xla_ops.register_ops() is True and xla_ops.setup_custom_call() is True


def test_rms_norm_xla() -> None:
    x, weight = torch.randn(5, 32), torch.randn(32)
    want = torch.nn.functional.rms_norm(x, (32,), weight, 1e-3)
    torch.testing.assert_close(xla_ops.rms_norm_xla(x, weight, 1e-3), want)
    assert not torch.allclose(xla_ops.rms_norm_xla(x / 100, weight), want)


# ---------------------------------------------------------------------------- reshape_and_cache_flash


@pytest.mark.parametrize("scales", [None, "number", "scalar", "vector"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "fp8_e5m2"])
def test_reshape_and_cache_flash(kv_cache_dtype: str, scales: str | None) -> None:
    key, value = torch.randn(2, 5, 3, 8)
    dtype = torch.float32 if kv_cache_dtype == "auto" else torch.uint8
    caches = [torch.zeros(4, 4, 3, 8, dtype=dtype) for _ in range(2)]
    slots = torch.tensor([3, -1, 9, 15])
    given = {
        None: (None, None),
        "number": (2.0, 0.5),
        "scalar": (torch.tensor(2.0), torch.tensor(0.5)),
    }
    k_scale, v_scale = given.get(scales, (torch.tensor([2.0]), torch.tensor([0.5])))
    args = (key, value, *caches, slots, kv_cache_dtype, k_scale, v_scale)
    assert xla_ops.reshape_and_cache_flash(*args) is None
    for new, cache, scale in zip((key, value), caches, (2.0, 0.5), strict=True):
        rows = new[[0, 2, 3]]
        if kv_cache_dtype != "auto":
            fp8 = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[kv_cache_dtype]
            rows = (rows / (scale if scales else 1.0)).to(fp8).view(torch.uint8)
        got = cache.view(16, 3, 8)
        assert torch.equal(got[[3, 9, 15]], rows), "scales are dropped for a cache that is not fp8"
        got[[3, 9, 15]] = 0
        assert not got.any()


def test_reshape_and_cache_flash_refuses() -> None:
    key = torch.randn(2, 3, 8)
    caches = [torch.zeros(2, 4, 2, 8) for _ in range(2)]
    with pytest.raises(
        ValueError, match="reshape_and_cache_flash: key_cache has hk=2 but key has hk=3"
    ):
        xla_ops.reshape_and_cache_flash(key, key, *caches, torch.tensor([0, 1]), "auto", None, None)
    assert not caches[0].any()


# ---------------------------------------------------------------------------- paged_attention


def paged(case: str) -> tuple[tuple, dict, torch.Tensor]:
    """A case of paged_attention with the cache in one array, in the promised signature, and what it gives."""
    operands, attributes = make("paged_attention", case, "f32")
    (want, *_) = running.run_native("paged_attention", operands, attributes)
    query, cache, pair, lengths, table, starts, count = (
        torch_running.to_torch(x) for x in operands[:7]
    )
    assert pair is None
    count = torch.tensor([len(lengths)]) if count is None else count
    return (query, cache, lengths, table, starts), attributes, count, torch.from_numpy(want)


@pytest.mark.parametrize("layout", ["combined", "packed", "stacked"])
@pytest.mark.parametrize("number", [False, True])
def test_paged_attention(layout: str, number: bool) -> None:
    args, _, count, want = paged(f"{layout}_mixed")
    count = int(count) if number else count
    scale = args[0].shape[-1] ** -0.5
    for got in (
        op.paged_attention(*args, count, scale),
        op.paged_attention(*args, num_seqs=count, scale=scale),
        op.paged_attention(*args, count, scale, sliding_window=None, soft_cap=None),
        xla_ops.xla_gpu_paged_attention(*args, count, scale),
    ):
        assert torch.equal(got, want)


def test_paged_attention_takes_a_pair_and_options() -> None:
    operands, attributes = make("paged_attention", "gemma3_window", "f32")
    (want, *_) = running.run_native("paged_attention", operands, attributes)
    query, keys, values, *rest = (torch_running.to_torch(x) for x in operands[:6])
    scale = query.shape[-1] ** -0.5
    got = xla_ops.xla_gpu_paged_attention(
        query, (keys, values), *rest, len(rest[0]), scale, 32, None
    )
    np.testing.assert_array_equal(got.numpy(), want)
    fewer = xla_ops.xla_gpu_paged_attention(query, (keys, values), *rest, 1, scale, 32, 0.5)
    assert not torch.equal(fewer[0], got[0]) and not fewer[1:].any()


@pytest.mark.parametrize("count", [-1, 10**6])
def test_a_number_of_sequences_that_is_none(count: int) -> None:
    """In an array, which nobody reads before the kernel, it counts as the nearest number that is one."""
    args, _, all_of_them, want = paged("combined_mixed")
    b, scale = len(args[2]), args[0].shape[-1] ** -0.5
    for call in (op.paged_attention, xla_ops.xla_gpu_paged_attention):
        with pytest.raises(ValueError, match=f"num_seqs is {count}, expected 0 to b={b}, as cu"):
            call(*args, count, scale)
        with pytest.raises(ValueError, match=r"num_seqs is \[2\], expected \[1\]"):
            call(*args, all_of_them.repeat(2), scale)
    got = op.paged_attention(*args, torch.full_like(all_of_them, count), scale)
    assert torch.equal(got, want if count > 0 else torch.zeros_like(want))


def test_paged_attention_of_two_arrays_is_not_guessed() -> None:
    """Seven tensors fit the signature with one cache as well: torch would make a scale of the last."""
    operands, _ = make("paged_attention", "padded_batch", "f32")
    tensors = [torch_running.to_torch(x) for x in operands[:7]]
    with pytest.raises(
        ValueError, match=r"context_lens is \[.*\], expected \[b\].*paged_attention.default"
    ):
        op.paged_attention(*tensors)


def test_finding_the_overload_prints_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch prints what does not fit a schema: on a GPU it would wait, on XLA run what is pending."""

    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("a tensor is printed")

    operands, _ = make("paged_attention", "example", "f32")
    apart = [torch_running.to_torch(x) for x in operands[:6]]
    args, _, count, _ = paged("combined_mixed")
    monkeypatch.setattr(torch.Tensor, "__repr__", refuse)
    op.paged_attention(*apart)
    op.paged_attention(*apart, layout="NHD", scale=0.1)
    op.paged_attention(*args, count, 0.1)
    op.paged_attention(*args, int(count), 0.1)


# ---------------------------------------------------------------------------- flash_attn_varlen


def test_flash_attn_varlen_op_paged() -> None:
    """As the attention backend of a server calls it: dummy starts of K, lengths and pages instead."""
    operands, _ = make("paged_attention", "example", "f32")
    query, keys, values, lengths, table, starts, *_ = (torch_running.to_torch(x) for x in operands)
    got, lse = torch.ops.xla.flash_attn_varlen_op(
        query, keys, values, starts, torch.zeros(17, dtype=torch.int32), 2, 7, 64**-0.5,
        is_causal=True, window_left=-1, window_right=-1, softcap=0.0, seqused_k=lengths, block_table=table,
    )  # fmt: skip
    want = op.paged_attention.default(query, keys, values, lengths, table, starts, return_lse=True)
    torch.testing.assert_close((got, lse), tuple(want), rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_chunks_of_keys(causal: bool) -> None:
    """FlashAttention-3's attention_chunk, against torch's own attention: the last query stands at the last key."""
    starts_q, starts_k, chunk = [0, 5, 6, 12], [0, 13, 17, 23], 4
    q, k, v = torch.randn(12, 4, 16), torch.randn(23, 2, 16), torch.randn(23, 2, 16)
    cu_q, cu_k = torch.tensor(starts_q, dtype=torch.int32), torch.tensor(starts_k)
    out = xla_ops.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 6, 13, causal=causal, attention_chunk=chunk
    )
    bounds = zip(itertools.pairwise(starts_q), itertools.pairwise(starts_k), strict=True)
    for (a, b), (begin, end) in bounds:
        position = torch.arange(b - a)[:, None] + (end - begin) - (b - a)
        key = torch.arange(end - begin)
        seen = position // chunk == key // chunk
        if causal:
            seen &= key <= position
        want = torch.nn.functional.scaled_dot_product_attention(
            q[a:b].transpose(0, 1),
            *(x[begin:end].transpose(0, 1) for x in (k, v)),
            seen,
            enable_gqa=True,
        )
        torch.testing.assert_close(out[a:b], want.transpose(0, 1))
    with pytest.raises(ValueError, match="attention_chunk is -1, expected 0"):
        xla_ops.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 6, 13, attention_chunk=-1)


def test_flash_attn_varlen_func() -> None:
    """Against torch's own attention, sequence by sequence."""
    starts, h, hk, d = [0, 5, 5, 12], 4, 2, 16
    q, k, v = torch.randn(12, h, d), torch.randn(12, hk, d), torch.randn(12, hk, d)
    cu = torch.tensor(starts, dtype=torch.int32)
    out, lse, probabilities = xla_ops.flash_attn_varlen_func(
        q,
        k,
        v,
        cu,
        cu,
        7,
        7,
        softmax_scale=0.3,
        causal=True,
        window_size=(2, 0),
        return_attn_probs=True,
    )
    assert lse.shape == (h, 12) and probabilities is None
    for a, b in itertools.pairwise(starts):
        i = torch.arange(b - a)
        seen = (i[:, None] >= i) & (i[:, None] - i <= 2)
        want = torch.nn.functional.scaled_dot_product_attention(
            *(x[a:b].transpose(0, 1) for x in (q, k, v)), seen, scale=0.3, enable_gqa=True
        )
        torch.testing.assert_close(out[a:b], want.transpose(0, 1))


@pytest.mark.parametrize("window", [(3,), (1, 2, 3)])
def test_a_window_is_a_pair_or_none(window: Any) -> None:
    q, cu = torch.randn(6, 2, 16), torch.tensor([0, 6], dtype=torch.int32)
    every = xla_ops.flash_attn_varlen_func(q, q, q, cu, cu, 6, 6)
    none = xla_ops.flash_attn_varlen_func(q, q, q, cu, cu, 6, 6, window_size=None)
    torch.testing.assert_close(none, every, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"flash_attn_varlen: window_size is .*, expected \(left"):
        xla_ops.flash_attn_varlen_func(q, q, q, cu, cu, 6, 6, window_size=window)


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks", "leftpad_k", "seqused_k"])
def test_optional_operands_reach_the_op(name: str) -> None:
    q, k, v = torch.randn(3, 6, 2, 16)
    cu = torch.tensor([0, 6], dtype=torch.int32)
    pages = {"block_table": torch.tensor([[0]]), "seqused_k": torch.tensor([6])}
    paged_only = pages if name == "leftpad_k" else {}
    extra = {
        "alibi_slopes": torch.tensor([0.5, 0.25]),
        "sinks": torch.tensor([1.0, -1.0], dtype=torch.bfloat16),
        "leftpad_k": torch.tensor([2]),
        "seqused_k": torch.tensor([4]),
    }[name]
    keys = (k[None], v[None]) if paged_only else (k, v)
    args = (q, *keys, cu, cu, 6, 6)
    got = xla_ops.flash_attn_varlen_func(*args, **paged_only | {name: extra})
    assert not torch.allclose(got, xla_ops.flash_attn_varlen_func(*args, **paged_only))
    spelled = extra.float() if name == "sinks" else extra
    starts = None if paged_only else cu
    want, _ = op.flash_attn_varlen(
        q, *keys, cu, **{"cu_seqlens_k": starts} | paged_only | {name: spelled}
    )
    assert torch.equal(got, want)


def test_what_flash_attention_can_and_we_cannot() -> None:
    q = torch.randn(4, 2, 16, requires_grad=True)
    cu = torch.tensor([0, 4])
    with pytest.raises(NotImplementedError, match=r"dropout_p=0.1 is not built"):
        xla_ops.flash_attn_varlen_func(q, q, q, cu, cu, 4, 4, dropout_p=0.1)


def test_growing_lengths_compile_once() -> None:
    """max_seqlen_k grows at each step of a decode loop; the second length makes the program general."""
    torch.compiler.reset()
    compiled = []

    def count(graph, inputs):
        compiled.append(graph)
        return graph.forward

    @torch.compile(backend=count, fullgraph=True)
    def step(q, keys, values, starts, lengths, table, longest):
        return torch.ops.xla.flash_attn_varlen_op(
            q,
            keys,
            values,
            starts,
            starts,
            1,
            longest,
            0.25,
            True,
            seqused_k=lengths,
            block_table=table,
        )[0]

    keys, values = torch.randn(2, 8, 4, 2, 16)
    args = (torch.randn(1, 4, 16), keys, values, torch.tensor([0, 1]))
    for longest in range(3, 30):
        step(*args, torch.tensor([longest]), torch.arange(8)[None], longest)
    assert len(compiled) <= 2
