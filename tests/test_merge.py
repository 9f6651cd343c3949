"""Attention in two parts: merge_attn_states, and cascade attention on top of it."""

from dataclasses import dataclass

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from hypothesis import given
from hypothesis import strategies as st
from intarsia_src.attention import operands
from intarsia_src.attention import reference as attention
from intarsia_src.core.operands import random_array

DTYPES = st.sampled_from(sorted(support.DTYPES))
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def states(draw):
    dtype = draw(DTYPES)
    sizes = {
        "t": draw(st.integers(0, 40)),
        "h": draw(st.integers(1, 6)),
        "d": draw(st.integers(0, 70) | st.sampled_from([128, 256, 2500])),
        "empty": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    }
    rng = np.random.default_rng(draw(SEEDS))
    arrays, _ = support.op_module("merge_attn_states").arguments(
        rng, support.DTYPES[dtype], **sizes
    )
    far = draw(st.sampled_from([0.0, 0.0, 50.0, 1e4]))  # one set outweighs the other
    arrays[1] = (arrays[1] + far).astype(np.float32)
    return arrays


@running.on_each_platform
@given(arrays=states())
def test_merge_attn_states(platform, arrays):
    got = running.run_any("merge_attn_states", arrays, {}, platform)
    running.check_against_reference("merge_attn_states", arrays, {}, got)
    prefix_out, prefix_lse, suffix_out, suffix_lse = arrays
    # A set that is empty leaves the other one as it was; two of them leave the prefix.
    no_prefix, no_suffix = np.isinf(prefix_lse), np.isinf(suffix_lse)
    for only, out, lse in (
        (no_suffix, prefix_out, np.where(no_prefix, -np.inf, prefix_lse)),
        (no_prefix & ~no_suffix, suffix_out, suffix_lse),
    ):
        np.testing.assert_array_equal(got[0][only.T], out[only.T])  # 0 may lose its sign
        np.testing.assert_array_equal(got[1][only], lse[only])


@running.on_each_platform
@given(seed=SEEDS, keys=st.integers(1, 60), data=st.data())
def test_merging_two_sets_of_keys_is_attention_to_both(platform, seed, keys, data):
    rng = np.random.default_rng(seed)
    cut = data.draw(st.integers(0, keys))
    t, h, hk, d = 5, 4, 2, 16
    q, k, v = (rng.standard_normal((n, heads, d)) for n, heads in ((t, h), (keys, hk), (keys, hk)))

    def attend(part):
        return attention.attend(q, k[part], v[part], np.ones(len(k[part]), bool), scale=0.25)

    parts = [
        np.ascontiguousarray(x, np.float32)
        for part in (slice(0, cut), slice(cut, keys))
        for x in attend(part)
    ]
    got = running.run_any("merge_attn_states", parts, {}, platform)
    for result, want in zip(got, attend(slice(0, keys)), strict=True):
        running.check("merge_attn_states", result, want)


@running.on_each_platform
def test_a_nan_lse_is_not_hidden(platform):
    out = np.ones((1, 3, 8), np.float32)
    nan, some = np.float32([[np.nan], [0], [np.nan]]), np.float32([[0], [np.nan], [-np.inf]])
    merged, lse = running.run_any("merge_attn_states", [out, nan, out, some], {}, platform)
    assert np.isnan(merged).all() and np.isnan(lse).all()


@pytest.mark.parametrize(
    ("at", "shape", "message"),
    [
        (1, (5, 3), r"prefix_lse has h=5 but prefix_out has h=3"),
        (2, (5, 3, 9), r"suffix_out has d=9 but prefix_out has d=8"),
        (3, (3, 6), r"suffix_lse has t=6 but prefix_out has t=5"),
    ],
)
def test_shapes_that_do_not_fit_are_named(at, shape, message):
    shapes = [(5, 3, 8), (3, 5), (5, 3, 8), (3, 5)]
    shapes[at] = shape
    arrays = [np.zeros(s, np.float32) for s in shapes]
    with pytest.raises(ValueError, match=f"merge_attn_states: {message}"):
        running.run("merge_attn_states", arrays, {})


# ---------------------------------------------------------------------------- cascade attention


@dataclass(frozen=True)
class Cascade:
    """A batch behind a shared prefix: operands of cascade_attention, and what they should give."""

    query: np.ndarray
    kv_cache: tuple | np.ndarray
    operands: list
    layer: np.ndarray | None
    out: np.ndarray
    lse: np.ndarray


def make_cascade(
    dtype, lens, *, prefix, h, hk, d, page, layout="NHD", layers=None, index=np.int32, seed=0,
    first=0, padding=0, num_seqs=None, sinks=None, softcap=0.0,
):  # fmt: skip
    """lens: (queries, keys behind the prefix) of each sequence; everything that is unused is NaN.

    first, padding: rows in front of the sequences, and behind them.
    """
    rng = np.random.default_rng(seed)
    cache = operands.paged_cache(
        rng, dtype, [prefix, *(k for _, k in lens)], hk=hk, d=d, page=page, layout=layout,
        layers=layers, index=index,
    )  # fmt: skip
    starts = operands.starts([n for n, _ in lens], index) + index(first)
    query = random_array(rng, (starts[-1] + padding, h, d), dtype)
    parts = attention.paged_keys(cache, layout)

    def keys(i):
        return [np.concatenate(pair) for pair in zip(parts(0), parts(i + 1), strict=True)]

    out, lse = attention.attend_ragged(
        query.astype(np.float64), starts, keys, num_seqs=num_seqs, right=0, sinks=sinks,
        softcap=softcap,
    )  # fmt: skip
    caches = (cache.key_cache, cache.value_cache)
    return Cascade(
        query,
        caches if layout == "NHD" else caches[0],
        [cache.block_table[0], prefix, cache.seqused_k[1:], cache.block_table[1:], starts],
        cache.layer,
        out,
        lse,
    )


def run_cascade(cascade, platform, num_seqs=None, **options):
    with jax.default_device(jax.devices(platform)[0]):

        @jax.jit
        def step(query, kv_cache, layer, *operands):
            return intarsia.jax.cascade_attention(
                query, kv_cache, *operands, num_seqs, layer=layer, return_lse=True, **options
            )

        return [
            np.asarray(x)
            for x in step(cascade.query, cascade.kv_cache, cascade.layer, *cascade.operands)
        ]


LENS = [(1, 9), (3, 3), (1, 40), (0, 5), (6, 17)]


@running.on_each_platform
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        ("f32", dict(prefix=32)),
        ("f32", dict(prefix=37)),
        ("f32", dict(prefix=0)),
        ("f32", dict(prefix=8, h=2, hk=2, d=40)),
        ("f32", dict(prefix=300, layout="combined")),
        ("f32", dict(prefix=50, layers=3)),
        ("f32", dict(prefix=50, padding=4)),
        ("f32", dict(prefix=50, padding=4, num_seqs=3)),
        ("f32", dict(prefix=50, num_seqs=0)),
        ("f32", dict(prefix=50, first=3)),
        ("f32", dict(prefix=50, first=3, num_seqs=0, sinks=np.linspace(-2, 3, 4))),
        ("f32", dict(prefix=50, softcap=5.0)),
        ("f32", dict(prefix=50, padding=4, sinks=np.linspace(-2, 3, 4))),
        ("f16", dict(prefix=1000, h=8, hk=2, d=64)),
        ("bf16", dict(prefix=1000, h=8, hk=2, d=128)),
    ],
    ids=lambda x: x if isinstance(x, str) else "_".join(x),
)
def test_cascade_attention(dtype, sizes, platform):
    sizes = dict(h=4, hk=2, d=64, page=8) | sizes
    cascade = make_cascade(support.DTYPES[dtype], LENS, **sizes)
    options = {k: v for k, v in sizes.items() if k in ("num_seqs", "sinks", "softcap")}
    out, lse = run_cascade(cascade, platform, **options)
    running.check("merge_attn_states", out, cascade.out, "cascade")
    running.check("merge_attn_states", lse, cascade.lse, "cascade")
    padding = np.isneginf(cascade.lse)
    assert (padding == np.isneginf(lse)).all() and not out[padding.all(axis=0)].any()


@running.on_each_platform
def test_cascade_attention_is_paged_attention_over_both(platform):
    """The plain call over tables in which each sequence has the prefix's pages in front."""
    cascade = make_cascade(np.float32, LENS, prefix=48, h=4, hk=2, d=64, page=8)
    out, lse = run_cascade(cascade, platform)
    prefix_table, _, lens, table, starts = cascade.operands
    pages = np.tile(prefix_table[:6], (len(table), 1))
    with jax.default_device(jax.devices(platform)[0]):
        plain = intarsia.jax.paged_attention(
            cascade.query,
            cascade.kv_cache,
            lens + 48,
            np.hstack([pages, table]),
            starts,
            return_lse=True,
        )
    for got, want in zip((out, lse), plain, strict=True):
        running.check("merge_attn_states", got, np.asarray(want, np.float64), "cascade")


@running.on_each_platform
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("part", ["prefix", "sequence"])
def test_a_nan_in_one_part_of_a_cascade(platform, dtype, part):
    """It is in out and lse of the rows that see it, and in no other ones."""
    cascade = make_cascade(support.DTYPES[dtype], LENS, prefix=1000, h=8, hk=2, d=128, page=8)
    clean = run_cascade(cascade, platform)
    prefix_table, _, _, table, starts = cascade.operands
    pages, key = (prefix_table, 500) if part == "prefix" else (table[2], 7)
    cascade.kv_cache[0][pages[key // 8], key % 8, 1, 3] = np.nan
    got = run_cascade(cascade, platform)
    hit = np.zeros((len(cascade.query), 8), bool)
    hit[slice(None) if part == "prefix" else slice(*starts[2:4]), 4:] = True
    for x, y in zip(got, clean, strict=True):
        seen = hit if x.ndim == 3 else hit.T
        assert np.isnan(x[seen]).all() and np.isfinite(y).all()
        np.testing.assert_array_equal(x[~seen], y[~seen])


def test_growing_prefixes_compile_once():
    cascade = make_cascade(np.float32, LENS, prefix=48, h=4, hk=2, d=64, page=8)
    table, _, *rest = cascade.operands
    step = jax.jit(
        lambda n, seqs: intarsia.jax.cascade_attention(
            cascade.query, cascade.kv_cache, table, n, *rest, seqs
        )
    )
    for n in range(40, 49):
        jax.block_until_ready(step(jnp.array(n), jnp.array([n % 6])))
    assert step._cache_size() == 1


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (0, np.zeros((1, 4), np.int32), r"prefix_block_table has shape \(1, 4\), expected \[m\]"),
        (1, np.array([4, 5]), r"prefix_len has shape \(2,\), expected one number"),
        (
            0,
            np.ones(4, np.float32),
            "prefix_block_table has dtype float32, expected int32 or int64",
        ),
        (0, np.full(4, 2**40), "prefix_block_table has values beyond int32"),
        (1, 4.0, "prefix_len has dtype float32, expected int32 or int64"),
        (1, np.int64(2**40), "prefix_len has values beyond int32"),
        (4, np.int32(3), r"cu_seqlens_q has shape \(\), expected \[b \+ 1\]"),
        (4, np.zeros(0, np.int32), r"cu_seqlens_q has shape \(0,\), expected \[b \+ 1\]"),
        ("num_seqs", 1.5, "num_seqs has dtype float32, expected int32 or int64"),
        ("num_seqs", 9, "num_seqs is 9, expected 0 to b=5"),
        ("k_scale", np.ones((5, 2)), r"k_scale has shape \(5, 2\), expected \[1\] or \[hk\]"),
    ],
)
def test_what_a_cascade_cannot_take_is_named(at, wrong, message):
    cascade = make_cascade(np.float32, LENS, prefix=48, h=4, hk=2, d=64, page=8)
    options = {}
    if isinstance(at, str):
        options[at] = wrong
    else:
        cascade.operands[at] = wrong
    with pytest.raises(ValueError, match=f"^cascade_attention: {message}"):
        intarsia.jax.cascade_attention(
            cascade.query, cascade.kv_cache, *cascade.operands, **options
        )


def test_a_cascade_is_not_differentiated():
    cascade = make_cascade(np.float32, LENS, prefix=48, h=4, hk=2, d=64, page=8)

    def loss(query, kv_cache, sinks):
        return intarsia.jax.cascade_attention(query, kv_cache, *cascade.operands, sinks=sinks).sum()

    arrays = (cascade.query, cascade.kv_cache, np.zeros(4, np.float32))
    for at in range(3):
        with pytest.raises(NotImplementedError, match=r"cascade_attention: has no gradient, since"):
            jax.grad(loss, argnums=at)(*arrays)


@running.on_each_platform
def test_attention_in_two_parts_has_the_gradient_of_the_whole(platform):
    """Every query sees all keys: those of a prefix, and its sequence's."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 16)).astype(np.float32) for n in (7, 11, 11))
    weights = rng.standard_normal(q.shape).astype(np.float32)
    starts, prefix = np.array([0, 7], np.int32), 4

    def attend(q, k, v):
        ends = np.array([0, len(k)], np.int32)
        return intarsia.jax.flash_attn_varlen(q, k, v, starts, cu_seqlens_k=ends, return_lse=True)

    def in_parts(q, k, v):
        parts = [attend(q, k[:prefix], v[:prefix]), attend(q, k[prefix:], v[prefix:])]
        return intarsia.jax.merge_attn_states(*parts[0], *parts[1])

    def slopes(function):
        def loss(*arrays):
            out, lse = function(*arrays)
            return (out * weights).sum() + (lse**2).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)

    with jax.default_device(jax.devices(platform)[0]):
        for got, want in zip(slopes(in_parts), slopes(attend), strict=True):
            assert support.relative_error(np.asarray(got), np.asarray(want, np.float64)) < 1e-5
