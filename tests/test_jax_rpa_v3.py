"""`intarsia.jax.rpa_v3` against v3's contract, computed sequence by sequence, and by the calls of engines written for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
from intarsia.jax import rpa_v3, rpa_v3_hd64
from intarsia.jax.rpa_v3 import ragged_paged_attention
from intarsia.jax.rpa_v3_hd64 import ragged_paged_attention_hd64


def packing(dtype) -> int:
    return 4 // jnp.dtype(dtype).itemsize


def batch(dtype, h=4, hk=2, d=64, wide=128, cache_dtype=None, seed=0, first=0):
    """Three real sequences of four: a decode step, a whole prompt, a chunk; and three rows of padding, `first` of them in front."""
    rng = np.random.default_rng(seed)
    cache_dtype = cache_dtype or dtype
    lens_q, lens_k = np.array([1, 5, 7, 0]), np.array([19, 5, 16, 3], np.int32)
    pages, page, m, parts = 20, 8, 4, packing(cache_dtype)
    room = -(-2 * hk // parts)
    cache = np.zeros((pages, page, room * parts, wide), np.float32)
    cache[:, :, : 2 * hk, :d] = rng.standard_normal((pages, page, 2 * hk, d))
    q, k, v = (rng.standard_normal((16, n, d)).astype(np.float32) for n in (h, hk, hk))
    table = rng.permutation(pages)[: 4 * m].astype(np.int32)
    starts = np.cumsum([first, *lens_q]).astype(np.int32)
    cache = jnp.asarray(cache.reshape(pages, page, room, parts, wide), cache_dtype)
    arrays = (
        jnp.asarray(q, dtype),
        jnp.asarray(k, cache_dtype),
        jnp.asarray(v, cache_dtype),
        cache,
    )
    return *arrays, *map(jnp.asarray, (lens_k, table, starts, np.array([1, 1, 3], np.int32)))


def expected(
    operands,
    sm_scale=1.0,
    sliding_window=None,
    soft_cap=None,
    k_scale=1.0,
    v_scale=1.0,
    update=True,
    use_causal_mask=True,
    sinks=None,
):
    """out of the real rows, and the cache, in f64."""
    q, k, v, cache, lens, table, starts, distribution = (np.asarray(x.astype(jnp.float32) if x.dtype.itemsize < 4 else x) for x in operands)  # fmt: skip
    hk, d, page = k.shape[1], k.shape[2], cache.shape[1]
    flat = cache.reshape(*cache.shape[:2], -1, cache.shape[-1]).copy()
    table = table.reshape(len(lens), -1)
    out = np.zeros(q.shape)
    for i in range(distribution[-1]):
        rows = range(starts[i], starts[i + 1])
        for place, row in enumerate(rows, lens[i] - len(rows)):
            if update:
                cell = flat[table[i, place // page], place % page]
                cell[: 2 * hk : 2, :d], cell[1 : 2 * hk : 2, :d] = k[row], v[row]
        seen = flat[table[i]].reshape(-1, *flat.shape[2:])[: lens[i]].astype(np.float64)
        for place, row in enumerate(rows, lens[i] - len(rows)):
            first = 0 if sliding_window is None else max(0, place + 1 - sliding_window)
            for head in range(q.shape[1]):
                last = place + 1 if use_causal_mask else lens[i]
                pair = head * hk // q.shape[1]
                keys, vals = (seen[first:last, 2 * pair + j, :d] for j in (0, 1))
                scores = keys @ q[row, head] * sm_scale * k_scale
                if soft_cap:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores - scores.max())
                total = weights.sum() + (0 if sinks is None else np.exp(sinks[head] - scores.max()))
                out[row, head] = weights @ vals / total * v_scale
    return out, flat.reshape(cache.shape)


OPTIONS = [
    {},
    {"sm_scale": 0.125, "sliding_window": 4},
    {"sm_scale": 0.2, "soft_cap": 5.0},
    {"sm_scale": 0.125, "k_scale": 0.5, "v_scale": 3.0},
    {"sm_scale": 0.125, "use_causal_mask": False},
    {"sm_scale": 0.125, "use_causal_mask": False, "sliding_window": 4},
]


@pytest.mark.parametrize(("dtype", "hk"), [(jnp.float32, 2), (jnp.bfloat16, 1), (jnp.bfloat16, 2)])
def test_it_computes_what_v3_does(dtype, hk: int) -> None:
    operands = batch(dtype, hk=hk)
    run = jax.jit(lambda *xs: [ragged_paged_attention(*xs, **options) for options in OPTIONS])
    for (out, cache), options in zip(run(*operands), OPTIONS, strict=True):
        want, want_cache = expected(operands, **options)
        running.check("paged_attention", np.asarray(out), want)
        np.testing.assert_array_equal(np.asarray(cache, np.float32), want_cache)
        assert out.dtype == dtype and not np.asarray(out)[13:].any()


def test_fp8_caches_and_padded_heads() -> None:
    """A cache of bytes has four heads in a word, two of them padding here; queries in 8 bits too."""
    operands = batch(jnp.bfloat16, hk=1, cache_dtype=jnp.float8_e4m3fn)
    assert operands[3].shape[2:] == (1, 4, 128)
    scales = {"sm_scale": 0.125, "k_scale": 0.5, "v_scale": 2.0}
    out, cache = ragged_paged_attention(*operands, **scales)
    want, want_cache = expected(operands, **scales)
    running.check("paged_attention", np.asarray(out), want)
    np.testing.assert_array_equal(np.asarray(cache, np.float32), want_cache)
    rounded = (operands[0] / 0.5).astype(jnp.float8_e4m3fn).astype(jnp.bfloat16)
    want, _ = expected((rounded, *operands[1:]), **scales | {"sm_scale": 0.0625})
    out, _ = ragged_paged_attention(*operands, **scales, q_scale=0.5, out_dtype=jnp.float32)
    running.check("paged_attention", np.asarray(out.astype(jnp.bfloat16)), want)
    assert out.dtype == jnp.float32


@pytest.mark.parametrize(("dtype", "hk"), [(jnp.float32, 2), (jnp.bfloat16, 1)])
def test_heads_of_64_with_sinks(dtype, hk: int) -> None:
    """A head's K and V share 128 numbers of kernel_hd64's cache, which lie as heads of K and V in turn do."""
    q, k, v, _, *metadata = batch(dtype, hk=hk)
    shape = rpa_v3_hd64.get_kv_cache_shape(20, 8, hk, 64, dtype)
    cache = np.zeros((20, 8, shape[2] * shape[3], 128), np.float32)
    cache[:, :, :hk] = np.random.default_rng(1).standard_normal((20, 8, hk, 128))
    cache = jnp.asarray(cache.reshape(shape), dtype)
    sinks = jnp.array([1.0, -1.0, 0.5, 3.0])
    options = {"sm_scale": 0.125, "sliding_window": 6, "soft_cap": 5.0}
    run = jax.jit(lambda *xs: ragged_paged_attention_hd64(*xs, **options, debug_mode=False))
    out, after = run(q, k, v, cache, *metadata, sinks)
    operands = (q, k, v, cache.reshape(20, 8, -1, 2, 64), *metadata)
    want, want_cache = expected(operands, **options, sinks=sinks)
    running.check("paged_attention", np.asarray(out), want)
    np.testing.assert_array_equal(np.asarray(after, np.float32), want_cache.reshape(shape))
    assert out.dtype == dtype and out.shape == q.shape


def test_shapes_of_caches() -> None:
    assert rpa_v3.get_kv_cache_shape(20, 8, 1, 64, jnp.float32) == (20, 8, 2, 1, 128)
    assert rpa_v3.get_kv_cache_shape(20, 8, 3, 192, jnp.bfloat16) == (20, 8, 3, 2, 256)
    assert rpa_v3.get_kv_cache_shape(20, 8, 1, 128, jnp.float8_e4m3fn) == (20, 8, 1, 4, 128)
    assert rpa_v3_hd64.get_kv_cache_shape(20, 8, 3, 64, jnp.bfloat16) == (20, 8, 2, 2, 128)


def test_starts_of_no_real_sequence_may_be_any() -> None:
    *operands, starts, distribution = batch(jnp.float32)
    for use_causal_mask in (True, False):
        options = {"use_causal_mask": use_causal_mask}
        want = ragged_paged_attention(*operands, starts, distribution, **options)
        got = ragged_paged_attention(*operands, starts.at[-1].set(1), distribution, **options)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("use_causal_mask", [True, False])
def test_rows_in_front_of_the_first_sequence_are_padding(use_causal_mask: bool) -> None:
    operands = batch(jnp.float32, first=2)
    options = {"sm_scale": 0.125, "use_causal_mask": use_causal_mask}
    out, cache = ragged_paged_attention(*operands, **options)
    want, want_cache = expected(operands, **options)
    running.check("paged_attention", np.asarray(out), want)
    np.testing.assert_array_equal(np.asarray(cache), want_cache)
    assert not np.asarray(out)[:2].any()


@pytest.mark.parametrize(
    ("length", "pages"), [(10, (2, 3)), (1, (2**30, 3)), (1, (-(2**30), 3)), (1, (4, 3))]
)
def test_what_is_out_of_range_is_not_written(length: int, pages: tuple[int, int]) -> None:
    """2**30 pages of 4 slots are 0 in int32, and a place behind the table is not one of its last page."""
    one, cache = jnp.ones((1, 1, 64)), jnp.zeros((4, 4, 2, 1, 128))
    in_turn = cache[:, :, :1]  # kernel_hd64's: K and V of a head share 128 numbers
    metadata = [jnp.array(x, jnp.int32) for x in ([length], pages, [0, 1], [0, 0, 1])]
    assert not ragged_paged_attention(one, one, one, cache, *metadata)[1].any()
    assert not ragged_paged_attention_hd64(one, one, one, in_turn, *metadata)[1].any()


def test_layers_that_share_a_cache_do_not_write() -> None:
    operands = batch(jnp.float32)
    out, cache = ragged_paged_attention(*operands, sm_scale=0.125, update_kv_cache=False)
    running.check("paged_attention", np.asarray(out), expected(operands, 0.125, update=False)[0])
    np.testing.assert_array_equal(cache, operands[3])


def test_an_engine_written_for_tpus_runs() -> None:
    """Its step: layers hand on one donated cache each, all options by name, the tuning ones as on a TPU."""

    def step(layers, caches, x, metadata):
        done = []
        for layer, cache in zip(layers, caches, strict=True):
            q, k, v = (jnp.einsum("tn,nhd->thd", x, w) for w in layer["qkv"])
            out, cache = ragged_paged_attention(
                q, k, v, cache, *metadata,
                sm_scale=64**-0.5, sliding_window=None, soft_cap=None, q_scale=None, k_scale=None, v_scale=None,
                chunk_prefill_size=None, d_block_sizes=(1, 128, 1, 128), m_block_sizes=None, vmem_limit_bytes=100 << 20,
            )  # fmt: skip
            x = x + jnp.einsum("thd,hdn->tn", out, layer["o"])
            done.append(cache)
        return x, done

    _, _, _, cache, *metadata = batch(jnp.float32, h=4, hk=2)
    rng = np.random.default_rng(1)
    weight = lambda *shape: jnp.asarray(0.1 * rng.standard_normal(shape), jnp.float32)  # noqa: E731
    layers = [
        {"qkv": [weight(32, n, 64) for n in (4, 2, 2)], "o": weight(4, 64, 32)} for _ in range(2)
    ]
    x = weight(16, 32)
    want, want_caches = np.asarray(x, np.float64), []
    for layer in layers:
        qkv = [jnp.einsum("tn,nhd->thd", jnp.asarray(want, jnp.float32), w) for w in layer["qkv"]]
        out, after = expected((*qkv, cache, *metadata), sm_scale=64**-0.5)
        want_caches.append(after)
        want = want + np.einsum("thd,hdn->tn", out, np.asarray(layer["o"]))
    caches = [jnp.copy(cache) for _ in layers]
    places = [c.unsafe_buffer_pointer() for c in caches]
    got, caches = jax.jit(step, donate_argnums=1)(layers, caches, x, metadata)
    assert [c.unsafe_buffer_pointer() for c in caches] == places
    np.testing.assert_allclose(got, want, atol=1e-4)
    for cache, after in zip(caches, want_caches, strict=True):
        np.testing.assert_allclose(cache, after, atol=1e-4)


def test_what_it_refuses() -> None:
    operands = batch(jnp.float32)
    with pytest.raises(ValueError, match="soft_cap is 0, expected None"):
        ragged_paged_attention(*operands, soft_cap=0)
    q, k, v, cache, *rest = operands
    with pytest.raises(
        ValueError, match="has 2 heads of 128, expected an even number of at least 4"
    ):
        ragged_paged_attention(q, k, v, cache[:, :, :2], *rest)
    with pytest.raises(ValueError, match=r"expected \[t, h, d\]"):
        ragged_paged_attention(q, k, v, cache[:, :, 0], *rest)
    with pytest.raises(ValueError, match=r"expected \[t, h, 64\] and \[p, s, c, packing, 128\]"):
        ragged_paged_attention_hd64(q[..., :32], k, v, cache, *rest)
    with pytest.raises(ValueError, match=r"expected \[t, h, d\]"):
        ragged_paged_attention(q, k[..., :32], v[..., :32], cache, *rest)
    op, q, k, v = "ragged_paged_attention_hd64", q[..., :64], k[..., :64], v[..., :64]
    with pytest.raises(ValueError, match=f"{op}: kv_cache has 1 heads, expected at least the 2 of"):
        ragged_paged_attention_hd64(q, k, v, cache[:, :, :1, :1], *rest)
    with pytest.raises(ValueError, match=f"{op}: soft_cap is 0"):
        ragged_paged_attention_hd64(q, k, v, cache, *rest, soft_cap=0)
    with pytest.raises(ValueError, match="actual_head_dim is 128, expected 64"):
        rpa_v3_hd64.get_kv_cache_shape(20, 8, 2, 128, jnp.float32)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kv_lens": np.ones(2, np.float32)}, r"kv_lens has dtype float32, expected int32"),
        ({"kv_lens": np.zeros(0, np.int32)}, r"kv_lens has shape \[0\], expected .* b above 0"),
        ({"kv_lens": np.array([2**40, 1])}, "kv_lens has values beyond int32"),
        ({"page_indices": np.arange(3)}, r"page_indices has shape \[3\], expected \[b \* m\], b=2"),
        ({"page_indices": np.array([2**40, 1])}, "page_indices has values beyond int32"),
        ({"cu_q_lens": np.arange(4)}, r"cu_q_lens has shape \[4\], expected \[3\]"),
        ({"distribution": np.int32(1)}, r"distribution has shape \[\], expected \[3\]"),
        ({"queries": np.ones((3, 3, 64))}, "queries has 3 heads, expected a multiple of the 2 of keys"),
        ({x: np.ones((3, 0, 64)) for x in ("keys", "values")}, "queries has 4 heads, expected a multiple of the 0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("function", [ragged_paged_attention, ragged_paged_attention_hd64])
def test_operands_that_do_not_fit(function, change, says: str) -> None:
    given = {"queries": np.ones((3, 4, 64)), "keys": np.ones((3, 2, 64)), "values": np.ones((3, 2, 64))}  # fmt: skip
    given |= {"kv_cache": np.zeros((4, 4, 4, 1, 128)), "kv_lens": np.array([2, 1])}
    given |= {"page_indices": np.arange(4), "cu_q_lens": np.array([0, 2, 3]), "distribution": np.array([0, 0, 2])}  # fmt: skip
    function(**given)
    with pytest.raises(ValueError, match=f"^{function.__name__}: {says}"):
        function(**given | change)
