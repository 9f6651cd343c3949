"""vmap of a call is the calls one by one, stacked; what cannot be mapped says so."""

import functools
import re
import zlib

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from hypothesis import given, settings
from hypothesis import strategies as st

MEMBERS = 3
OPS = sorted(support.op_names("cpu"))


def members(op: str, case: str, count: int = MEMBERS) -> tuple[list[list], dict]:
    """Operands of some calls of one shape, and their attributes."""
    rng = np.random.default_rng(zlib.crc32(f"{op} {case}".encode()))
    sizes = support.cases(op, "ci")[case]
    calls = [support.op_module(op).arguments(rng, np.float32, **sizes) for _ in range(count)]
    operands = [operands for operands, _ in calls]
    for i, first in enumerate(operands[0]):
        if first is not None and any(row[i].shape != first.shape for row in operands):
            for row in operands:  # drawn in different sizes: the same for all
                row[i] = first
    # What one call may not read, and is NaN, may be read by another with the same cache.
    return [[without_nan(x) for x in row] for row in operands], calls[0][1]


def without_nan(x: np.ndarray | None) -> np.ndarray | None:
    """The array with finite numbers in place of NaN and infinities."""
    if x is None or (x.dtype.kind in "biu" and x.dtype != np.uint8):
        return x
    if x.dtype.itemsize == 1:  # the second bit set is of large exponents, those of NaN among them
        return (x.view(np.uint8) & 0xBF).view(x.dtype)
    return np.nan_to_num(x)


@functools.cache
def kinds_of_cases(op: str) -> list[str]:
    """A case for each set of operands, their ranks, and choice of words; vmap sees no more of them."""
    found: dict[tuple, str] = {}
    for case in support.cases(op, "ci"):
        ((operands,), attributes) = members(op, case, 1)
        ranks = tuple(None if x is None else x.ndim for x in operands)
        words = tuple(sorted(v for v in attributes.values() if isinstance(v, str)))
        found.setdefault((ranks, words), case)
    return list(found.values())


def map_call(op: str, calls: list[list], attributes: dict, mapped: set[str], axis: int = 0):
    """The op mapped over the operands of these names, and operands for it; the others are those of the first call."""
    names = [row["name"] for row in running.LIBRARY.find(op).operands]
    present = [i for i, x in enumerate(calls[0]) if x is not None]
    axes, arrays = [], []
    for i in present:
        stack = np.stack([operands[i] for operands in calls])
        if names[i] in mapped:
            axes.append(min(axis, stack.ndim - 1))
            arrays.append(np.moveaxis(stack, 0, axes[-1]))
        else:
            axes.append(None)
            arrays.append(calls[0][i])

    def function(*given):
        operands = [None] * len(names)
        for i, x in zip(present, given, strict=True):
            operands[i] = x
        return ij.call(op, operands, **attributes)

    return jax.vmap(function, axes), arrays


def call_mapped(op: str, calls: list[list], attributes: dict, mapped: set[str], axis: int = 0):
    """The results of the mapped op."""
    function, arrays = map_call(op, calls, attributes, mapped, axis)
    with running.wide_indices(arrays):
        return [np.asarray(x) for x in jax.jit(function)(*arrays)]


def one_by_one(op: str, calls: list[list], attributes: dict, mapped: set[str]) -> list[np.ndarray]:
    names = [row["name"] for row in running.LIBRARY.find(op).operands]
    results = [
        running.run_native(
            op,
            [
                x if n in mapped else first
                for n, x, first in zip(names, operands, calls[0], strict=True)
            ],
            attributes,
        )
        for operands in calls
    ]
    return [np.stack(xs) for xs in zip(*results, strict=True)]


def can_be_mapped(op: str, calls: list[list], attributes: dict) -> set[str]:
    """The operands that vmap takes when it is offered all; empty if it takes the op not at all."""
    rows = running.LIBRARY.find(op).operands
    mapped = {row["name"] for row, x in zip(rows, calls[0], strict=True) if x is not None}
    while mapped:
        try:
            function, arrays = map_call(op, calls, attributes, mapped)
            with running.wide_indices(arrays):
                jax.jit(function).trace(*arrays)
        except NotImplementedError as error:
            assert str(error).startswith(f"{op}: ")
            shared = re.match(rf"{op}: (\w+) \[.*\] is shared by the whole batch", str(error))
            if not shared:
                assert re.match(rf"{op}: has no vmap, since its result \w+ has", str(error))
                return set()
            mapped.remove(shared[1])
        else:
            break
    return mapped


@functools.cache
def mapped_of(op: str, case: str) -> set[str]:
    return can_be_mapped(op, *members(op, case))


@functools.cache
def mapped_in_one_program(op: str, platform: str) -> dict[str, list]:
    """The results by case, of those that can be mapped."""
    found: dict[str, list] = {}
    cases = [case for case in kinds_of_cases(op) if mapped_of(op, case)]
    calls = {case: map_call(op, *members(op, case), mapped_of(op, case), axis=1) for case in cases}
    for wide in (False, True):
        some = {k: v for k, v in calls.items() if running.has_wide_indices(v[1]) == wide}

        def program(operands: dict[str, list], some=some) -> dict[str, list]:
            return {case: function(*operands[case]) for case, (function, _) in some.items()}

        with jax.enable_x64(wide), jax.default_device(jax.devices(platform)[0]):
            found |= jax.jit(program)({case: arrays for case, (_, arrays) in some.items()})
    return found


@pytest.mark.parametrize(
    ("op", "platform"), [row for op in OPS for row in running.on_its_platforms(op)]
)
def test_vmap_is_the_calls_stacked(op: str, platform: str) -> None:
    """Of each kind of case. The calls one by one are made on the CPU, without XLA."""
    for case, results in mapped_in_one_program(op, platform).items():
        calls, attributes = members(op, case)
        want = one_by_one(op, calls, attributes, mapped_of(op, case))
        least = running.least_tolerance(op, calls[0], platform)
        for result, expected in zip(map(np.asarray, results), want, strict=True):
            assert result.dtype == expected.dtype, case
            running.check(op, result, expected.astype(np.float64), f"{case}: result", least)


# Of each op's example, the operands that vmap takes; the others are shared by the whole batch.
MAPPED = {
    "convert_fp8": {"x"},
    "copy_blocks": set(),  # one cache for all
    "dynamic_per_token_scaled_fp8_quant": {"x"},
    "dynamic_scaled_fp8_quant": set(),  # one scale for all
    "dynamic_scaled_int8_azp_quant": {"x"},
    "dynamic_scaled_int8_quant": {"x"},
    "fatrelu_and_mul": {"x"},
    "flash_attn_varlen": {"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"},
    "flash_attn_varlen_backward": {
        *("dout", "q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k")
    },
    "fused_add_rms_norm": {"x", "residual"},
    "fused_add_rms_norm_static_fp8_quant": {"x", "residual"},
    "fused_experts": {"x", "weights", "ids"},
    "fused_experts_quantized": {"x", "weights", "ids"},
    "fused_linear_quantized": {"x"},
    "fused_qk_norm_rope": {"positions", "qkv"},
    "gather_cache": set(),
    "gelu_and_mul": {"x"},
    "gelu_fast": {"x"},
    "gelu_new": {"x"},
    "gelu_quick": {"x"},
    "gelu_tanh_and_mul": {"x"},
    "grouped_matmul": set(),  # intarsia.jax.grouped_matmul has one
    "grouped_matmul_quantized": set(),  # its groups lie in one result
    "grouped_matmul_weight_gradient": set(),  # its result has no axis for one
    "layer_norm": {"x"},
    "layer_norm_dynamic_per_token_quant": {"x"},
    "layer_norm_static_fp8_quant": {"x"},
    "linear": {"x"},
    "linear_quantized": {"x"},
    "linear_quantized_int8": {"x"},
    "merge_attn_states": {"prefix_out", "prefix_lse", "suffix_out", "suffix_lse"},
    "mul_and_silu": {"x"},
    "paged_attention": {"query", "seqused_k", "block_table", "cu_seqlens_q"},
    "per_token_group_fp8_quant": {"x"},
    "per_token_group_quant_int8": {"x"},
    "reshape_and_cache_flash": set(),  # one cache for all
    "rms_norm": {"x"},
    "rms_norm_dynamic_per_token_quant": {"x"},
    "rms_norm_per_block_quant": {"x"},
    "rms_norm_static_fp8_quant": {"x"},
    "rotary_embedding": {"positions", "query", "key"},
    "rotary_embedding_and_cache": set(),  # one cache for all
    "scaled_matmul": {"x", "x_scales"},
    "silu_and_mul": {"x"},
    "silu_and_mul_quant": {"x"},
    "silu_and_mul_with_clamp": {"x"},
    "simple_add": {"a", "b"},
    "static_scaled_fp8_quant": {"x"},
    "static_scaled_int8_quant": {"x"},
    "swap_blocks": set(),
    "swigluoai_and_mul": {"x"},
    "topk_router": {"logits"},
}


def test_each_op_says_what_can_be_mapped() -> None:
    missing = [op for op in OPS if op not in MAPPED]
    rows = {op: can_be_mapped(op, *members(op, wire_case(op))) for op in missing}
    assert not rows, f"MAPPED has no rows for these ops; if they are right, add {rows}"
    assert sorted(MAPPED) == OPS


def wire_case(op: str):
    ((case, _),) = support.cases(op, "wire").items()
    return case


@pytest.mark.parametrize("op", sorted(MAPPED))
def test_what_can_be_mapped(op: str) -> None:
    assert can_be_mapped(op, *members(op, wire_case(op))) == MAPPED[op]


@given(st.data())
@settings(max_examples=20)
def test_any_operands_may_be_mapped(data) -> None:
    """Those that are not are the same for all."""
    every = [(op, case) for op in OPS for case in kinds_of_cases(op)]
    op, case = data.draw(st.sampled_from(every), "case")
    calls, attributes = members(op, case, 2)
    possible = sorted(can_be_mapped(op, calls, attributes))
    if not possible:
        return
    mapped = data.draw(st.sets(st.sampled_from(possible), min_size=1), "mapped")
    want = one_by_one(op, calls, attributes, mapped)
    got = call_mapped(op, calls, attributes, mapped, data.draw(st.integers(0, 2), "axis"))
    for result, expected in zip(got, want, strict=True):
        running.check(op, result, expected.astype(np.float64))


def ragged_batch(lens_q: list[int], lens_k: list[int], rows: int, keys: int, first=(0, 0)):
    """One member of a batch of dense attention calls, with padding behind its sequences.

    first: rows, and keys, in front of them.
    """
    rng = np.random.default_rng(sum(lens_q))
    q = rng.standard_normal((rows, 4, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, keys, 2, 16)).astype(np.float32)
    starts = [np.cumsum(x).astype(np.int32) for x in ((first[0], *lens_q), (first[1], *lens_k))]
    return q, k, v, *starts


def test_padding_of_each_member_stays_padding() -> None:
    """Rows that belong to no sequence give 0 and -inf, also between the members of a batch."""
    batch = [
        ragged_batch([0, 3, 1], [2, 2, 1], 7, 9, first=(1, 2)),
        ragged_batch([3, 0, 2], [4, 1, 2], 7, 9),
        ragged_batch([2, 0, 1], [3, 1, 2], 7, 9, first=(2, 3)),
        ragged_batch([0, 0, 0], [0, 3, 0], 7, 9),
        ragged_batch([1, 2, 4], [1, 3, 5], 7, 9),
        ragged_batch([1, 1, 2], [2, 2, 1], 7, 9, first=(3, 4)),
    ]

    def attend(q, k, v, starts_q, starts_k):
        return ij.flash_attn_varlen(
            q, k, v, starts_q, cu_seqlens_k=starts_k, is_causal=True, return_lse=True
        )

    out, lse = jax.vmap(attend)(*map(jnp.stack, zip(*batch, strict=True)))
    for i, member in enumerate(batch):
        want_out, want_lse = attend(*member)
        running.check("flash_attn_varlen", np.asarray(out[i]), np.asarray(want_out, np.float64))
        running.check("flash_attn_varlen", np.asarray(lse[i]), np.asarray(want_lse, np.float64))
        padding = np.r_[: member[3][0], member[3][-1] : 7]
        assert not np.asarray(out[i, padding]).any()
        assert np.isneginf(np.asarray(lse[i][:, padding])).all()


@pytest.mark.parametrize("sinks", [None, np.ones(4, np.float32)], ids=["plain", "sinks"])
def test_each_member_has_its_number_of_sequences(sinks) -> None:
    rng = np.random.default_rng(0)
    caches = tuple(rng.standard_normal((6, 8, 2, 16)).astype(np.float32) for _ in range(2))
    query = rng.standard_normal((3, 4, 4, 16)).astype(np.float32)
    table = rng.integers(0, 6, (3, 3, 2)).astype(np.int32)
    lens = rng.integers(2, 17, (3, 3)).astype(np.int32)
    starts = np.array([[0, 1, 3, 4], [1, 2, 3, 4], [2, 3, 3, 4]], np.int32)
    counts = np.array([2, 0, 3], np.int32)

    def attend(q, *rest):
        return ij.paged_attention(q, caches, *rest, sinks=sinks, return_lse=True)

    got = jax.vmap(attend)(query, lens, table, starts, counts)
    for i in range(3):
        want = attend(query[i], lens[i], table[i], starts[i], counts[i])
        for result, expected in zip(got, want, strict=True):
            running.check(
                "flash_attn_varlen", np.asarray(result[i]), np.asarray(expected, np.float64)
            )
    assert not np.asarray(got[0][1]).any() and np.asarray(got[0][2]).any()


def test_starts_of_one_member_do_not_reach_the_next() -> None:
    q, k, v, starts_q, starts_k = ragged_batch([3, 2], [3, 2], 5, 5)
    wrong = np.array([0, 40, -7], np.int32)

    def attend(starts):
        return ij.flash_attn_varlen(q, k, v, starts, cu_seqlens_k=starts_k)

    got = jax.vmap(attend)(np.stack([wrong, starts_q]))
    running.check("flash_attn_varlen", np.asarray(got[1]), np.asarray(attend(starts_q), np.float64))


def test_maps_nest_and_mix_with_other_transformations() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 8)).astype(np.float32)
    weight = np.linspace(0.5, 2, 8, dtype=np.float32)
    want = np.asarray(ij.rms_norm(x, weight))

    def norm(x):
        return ij.rms_norm(x, weight)

    nested = jax.vmap(jax.vmap(norm, in_axes=1, out_axes=1))
    np.testing.assert_array_equal(np.asarray(jax.jit(nested)(x)), want)

    def steps(x):
        return jax.lax.scan(lambda carry, _: (norm(carry), None), x, length=2)[0]

    np.testing.assert_array_equal(np.asarray(jax.vmap(steps)(x)), np.asarray(norm(want)))
    assert str(jax.make_jaxpr(jax.vmap(norm))(x)).count("ffi_call[") == 1


def test_gradients_of_attention_are_mapped() -> None:
    """Sinks, which the members share, get a gradient from each member."""
    batch = [ragged_batch(lens, lens, 6, 6) for lens in ([3, 2], [0, 6], [1, 4])]
    batch.append(ragged_batch([2, 1], [1, 1], 6, 6, first=(3, 2)))
    sinks = np.random.default_rng(1).standard_normal(4).astype(np.float32)

    def loss(q, k, v, sinks, starts, starts_k):
        out, lse = ij.flash_attn_varlen(
            q, k, v, starts, cu_seqlens_k=starts_k, is_causal=True, sinks=sinks, return_lse=True
        )
        return jnp.sum(out**2) + jnp.sum(jnp.where(jnp.isneginf(lse), 0, lse))

    slope = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    q, k, v, *starts = map(jnp.stack, zip(*batch, strict=True))
    got = jax.vmap(slope, (0, 0, 0, None, 0, 0))(q, k, v, sinks, *starts)
    losses = jax.vmap(loss, (0, 0, 0, None, 0, 0))
    *same, dsinks = jax.grad(lambda *xs: losses(*xs, *starts).sum(), (0, 1, 2, 3))(q, k, v, sinks)
    for gradient, expected in zip(same, got, strict=False):
        np.testing.assert_allclose(np.asarray(gradient), np.asarray(expected), atol=1e-5)
    np.testing.assert_allclose(np.asarray(dsinks), np.asarray(got[3].sum(axis=0)), atol=1e-5)
    for i, (q, k, v, *starts) in enumerate(batch):
        want = slope(q, k, v, sinks, *starts)
        assert np.asarray(want[3]).any()
        for gradient, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(gradient[i]), np.asarray(expected), atol=1e-5)


def test_what_cannot_be_mapped_says_what_to_do() -> None:
    q, k, v, *starts = ragged_batch([3, 2], [3, 2], 5, 5)

    def attend(sinks):
        return ij.flash_attn_varlen(q, k, v, starts[0], cu_seqlens_k=starts[1], sinks=sinks)

    with pytest.raises(NotImplementedError, match=r"sinks \[4\] is shared.* jax\.lax\.map"):
        jax.vmap(attend)(np.zeros((3, 4), np.float32))

    operands, attributes = members("flash_attn_varlen_backward", "sinks", 1)
    names = [row["name"] for row in running.LIBRARY.find("flash_attn_varlen_backward").operands]
    dout = names.index("dout")

    def backward(x):
        given = [x if i == dout else operand for i, operand in enumerate(operands[0])]
        return ij.call("flash_attn_varlen_backward", given, **attributes)

    with pytest.raises(NotImplementedError, match=r"its result dsinks has no axis.*jax\.lax\.scan"):
        jax.vmap(backward)(operands[0][dout][None])


def test_an_empty_batch() -> None:
    assert jax.vmap(ij.simple_add)(jnp.zeros((0, 3)), jnp.zeros((0, 3))).shape == (0, 3)
    q, k, v, starts_q, starts_k = ragged_batch([3, 2], [3, 2], 5, 5)
    none = [np.zeros((0, *x.shape), x.dtype) for x in (q, k, v, starts_q)]
    out = jax.vmap(lambda *xs: ij.flash_attn_varlen(*xs, cu_seqlens_k=starts_k))(*none)
    assert out.shape == (0, 5, 4, 16)
