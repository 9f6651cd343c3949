"""Attention in two parts: merge_attn_states, and cascade attention on top of it."""

import numpy as np
import pytest
import running
import support
from hypothesis import given
from hypothesis import strategies as st

support.op_module("paged_attention")  # puts src on sys.path
from attention import reference as attention  # noqa: E402

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
    operands, _ = support.op_module("merge_attn_states").arguments(
        rng, support.DTYPES[dtype], **sizes
    )
    far = draw(st.sampled_from([0.0, 0.0, 50.0, 1e4]))  # one set outweighs the other
    operands[1] = (operands[1] + far).astype(np.float32)
    return operands


@running.on_each_platform
@given(operands=states())
def test_merge_attn_states(platform, operands):
    got = running.run_any("merge_attn_states", operands, {}, platform)
    running.check_against_reference("merge_attn_states", operands, {}, got)
    prefix_out, prefix_lse, suffix_out, suffix_lse = operands
    # A set that is empty leaves the other one as it was, to the bit; two of them leave the prefix.
    no_prefix, no_suffix = np.isinf(prefix_lse), np.isinf(suffix_lse)
    for only, out, lse in (
        (no_suffix, prefix_out, np.where(no_prefix, -np.inf, prefix_lse)),
        (no_prefix & ~no_suffix, suffix_out, suffix_lse),
    ):
        assert got[0][only.T].tobytes() == out[only.T].tobytes()
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

    parts = [x.astype(np.float32) for p in (slice(0, cut), slice(cut, keys)) for x in attend(p)]
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
    operands = [np.zeros(s, np.float32) for s in shapes]
    with pytest.raises(ValueError, match=f"merge_attn_states: {message}"):
        running.run("merge_attn_states", operands, {})
