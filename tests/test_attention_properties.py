"""Drawn ragged batches, with every variant of attention, against the reference in NumPy f64."""

import ml_dtypes
import numpy as np
import running
import support
from drawn import DTYPES, INDEX_DTYPES, SEEDS, cache_layouts, check
from hypothesis import given
from hypothesis import strategies as st
from intarsia_src.core.cache_layout import FP8_CACHES, pages_of

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
# One for all, one a head, one a head and sequence.
FORMS = st.sampled_from(["tensor", "head", "sequence"])
# Indices that are nonsense, whatever the sizes.
RUBBISH = st.sampled_from([-1, -(2**31), 2**31 - 1])


@st.composite
def batches(draw, page):
    """(queries, keys) of each sequence: empty ones, single ones, ends of pages, ends of tiles."""
    edges = [n + by for n in (page, 2 * page, 64, 128) for by in (-1, 0, 1)]
    keys = st.one_of(
        st.integers(0, 3), st.sampled_from([n for n in edges if n >= 0]), st.integers(0, 200)
    )
    queries = st.one_of(st.integers(0, 2), st.integers(0, 40))
    return draw(st.lists(st.tuples(queries, keys), max_size=5))


@st.composite
def calls(draw, paged):
    """What both ops take."""
    page = draw(st.integers(1, 20))
    hk = draw(st.integers(1, 3))
    sizes = {
        "lens": draw(batches(page)),
        "h": hk * draw(st.sampled_from([1, 2, 3, 8])),
        "hk": hk,
        "d": 8 * draw(st.one_of(st.integers(1, 32), st.sampled_from([8, 16, 24]))),
        "padding": draw(st.integers(0, 5)),
        "index": draw(INDEX_DTYPES),
        "softcap": draw(st.sampled_from([0.0, 0.7, 30.0, 1e6])),
        "scale": draw(st.sampled_from([None, 0.02, 0.5])),
        "sinks": draw(st.booleans()),
        "return_lse": draw(st.booleans()),
        "kv": draw(st.sampled_from([None, None, E4M3, E5M2])),
        "attention_chunk": draw(st.just(0) | st.integers(1, 70) | st.just(2**40)),
    }
    if sizes["kv"]:
        sizes["scales"] = draw(st.none() | FORMS)
    if paged:
        layout, layers = draw(cache_layouts())
        layer = 0 if layers is None else draw(st.integers(-1, layers))
        sizes |= {"page": page, "layout": layout, "layers": layers, "layer": layer}
        names = [name for name, kv in FP8_CACHES.items() if kv == sizes["kv"]]
        sizes["kv_cache_dtype"] = draw(st.sampled_from(["auto", *names]))
    return support.DTYPES[draw(DTYPES)], sizes


@st.composite
def varlen_calls(draw, paged):
    """What flash_attn_varlen takes beyond it."""
    dtype, sizes = draw(calls(paged))
    sizes |= {
        "is_causal": draw(st.booleans()),
        "window_left": draw(st.sampled_from([-1, -1, 0, 1, 17, 2**40])),
        "window_right": draw(st.sampled_from([-1, -1, 0, 1, 17, 2**40])),
        "alibi": draw(st.sampled_from([None, "head", "sequence"])),
        "leftpad": draw(st.booleans()),
        "fp8_q": sizes["kv"] is not None and draw(st.booleans()),
    }
    if not paged:
        sizes |= {"used": draw(st.booleans()), "dv": None}
        if sizes["d"] == 192 and draw(st.booleans()):
            sizes["dv"] = 128
    return dtype, sizes


def without_nan(arrays, kv_cache_dtype="auto"):
    """Blanks what was to be seen by nobody, now that somebody sees it."""
    for x in arrays:
        if x is not None:
            x[np.isnan(x.view(FP8_CACHES[kv_cache_dtype]) if x.dtype == np.uint8 else x)] = 0


def spoil(draw, caches, seqused_k, block_table, sizes, attributes, leftpad_k=None):
    """Lengths beyond the table's room, and pages outside the cache in the middle of a sequence."""
    layer = None if sizes["layers"] is None else 0
    pages = len(pages_of(caches[0], sizes["layout"], 0, layer))
    room = block_table.shape[1] * sizes["page"]
    some_seen = False
    for i in range(len(seqused_k)):
        if draw(st.integers(0, 7)) == 0:
            at = draw(st.integers(0, block_table.shape[1] - 1))
            block_table[i, at] = draw(st.just(pages) | RUBBISH)
        if draw(st.integers(0, 15)) == 0:
            seqused_k[i] = draw(st.sampled_from([room, room + 1]) | RUBBISH)
            some_seen = True
        if leftpad_k is not None and draw(st.integers(0, 7)) == 0:
            leftpad_k[i] = draw(RUBBISH)
            some_seen = True
    if some_seen:
        without_nan(caches, attributes["kv_cache_dtype"])


@running.on_each_platform
@given(call=calls(paged=True), data=st.data(), seed=SEEDS)
def test_paged_attention(platform, call, data, seed):
    dtype, sizes = call
    sizes |= {
        "sliding_window": data.draw(st.none() | st.integers(1, 70)),
        "alibi": data.draw(st.sampled_from([None, None, "head", "sequence"])),
        "num_seqs": data.draw(st.none() | st.integers(-1, len(sizes["lens"]) + 2)),
    }
    module = support.op_module("paged_attention")
    operands, attributes = module.arguments(np.random.default_rng(seed), dtype, **sizes)
    spoil(data.draw, operands[1:3], operands[3], operands[4], sizes, attributes)
    check("paged_attention", operands, attributes, platform)


@running.on_each_platform
@given(call=calls(paged=True), data=st.data(), seed=SEEDS)
def test_sequences_end_where_cu_seqlens_q_was_largest(platform, call, data, seed):
    """Whatever it holds, no two sequences share a row, and every row is written."""
    dtype, sizes = call
    module = support.op_module("paged_attention")
    operands, attributes = module.arguments(np.random.default_rng(seed), dtype, **sizes)
    query, ends = operands[0], operands[5]
    ends += data.draw(st.integers(0, sizes["padding"]))  # rows in front of the first sequence
    falling = ends.copy()
    for i in range(1, len(ends)):
        if ends[i] == ends[i - 1]:
            falling[i] = data.draw(st.integers(-3, int(ends[i])))
    if ends[-1] == len(query):
        falling[-1] = max(falling[-1], data.draw(st.integers(0, 9)) + len(query))
    given_operands = [*operands[:5], falling, *operands[6:]]
    got = running.run_any("paged_attention", given_operands, attributes, platform)
    running.check_against_reference("paged_attention", operands, attributes, got, platform)


@running.on_each_platform
@given(call=varlen_calls(paged=True), data=st.data(), seed=SEEDS)
def test_flash_attn_varlen_paged(platform, call, data, seed):
    dtype, sizes = call
    module = support.op_module("flash_attn_varlen")
    operands, attributes = module.arguments(np.random.default_rng(seed), dtype, **sizes)
    seqused_k, block_table, leftpad_k = operands[5], operands[6], operands[10]
    spoil(data.draw, operands[1:3], seqused_k, block_table, sizes, attributes, leftpad_k)
    check("flash_attn_varlen", operands, attributes, platform)


@running.on_each_platform
@given(call=varlen_calls(paged=False), data=st.data(), seed=SEEDS)
def test_flash_attn_varlen_dense(platform, call, data, seed):
    dtype, sizes = call
    module = support.op_module("flash_attn_varlen")
    operands, attributes = module.arguments(np.random.default_rng(seed), dtype, **sizes)
    _, k, v, _, cu_seqlens_k, seqused_k = operands[:6]
    leftpad_k = operands[10]
    if seqused_k is not None:  # what no query sees may be anything
        for start, used, end in zip(cu_seqlens_k, seqused_k, cu_seqlens_k[1:], strict=False):
            k[start + used : end] = v[start + used : end] = np.nan
    if leftpad_k is not None and len(leftpad_k) and data.draw(st.integers(0, 3)) == 0:
        leftpad_k[data.draw(st.integers(0, len(leftpad_k) - 1))] = data.draw(RUBBISH)
        without_nan([k, v])
    check("flash_attn_varlen", operands, attributes, platform)
