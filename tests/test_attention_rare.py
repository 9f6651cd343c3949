"""Attention where an online softmax has its rare cases: maxima that rise by whole steps, one key above all others, an Inf
or a NaN that only some rows meet, a softcap that no score comes near. Each would have been wrong in a kernel of ours
once."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import running
import support

D, LEN_Q, LEN_K = 128, 160, 1280


def attend(q, k, v, platform, **options):
    cu = [np.array([0, x.shape[0]], np.int32) for x in (q, k)]
    with jax.default_device(jax.devices(platform)[0]):
        out = ij.flash_attn_varlen(q, k, v, cu[0], cu_seqlens_k=cu[1], is_causal=True, **options)
    return np.asarray(out, np.float64)


def wanted(q, k, v, scale, left=-1):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    position = np.arange(len(q))[:, None] + len(k) - len(q)
    key = np.arange(len(k))[None]
    seen = (key <= position) & ((left < 0) | (key >= position - left))
    scores = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    v = np.where(seen.any(0)[:, None, None], v, 0)
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)


def check(got, want, dtype):
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < {jnp.bfloat16: 5e-3, jnp.float16: 1e-3}[dtype], error


DTYPES = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])


@running.on_each_platform
@DTYPES
@pytest.mark.parametrize("seed", range(4))
def test_maxima_that_rise_by_whole_powers_of_two(platform, dtype, seed) -> None:
    """With a scale of ln 2, whole scores are whole powers: a maximum may rise to just where rescaling begins."""
    random = np.random.default_rng(seed)
    q = random.integers(-1, 2, (LEN_Q, 6, D))
    k = random.integers(-1, 2, (LEN_K, 2, D)) * (random.random((LEN_K, 2, D)) < 0.3)
    v = random.standard_normal((LEN_K, 2, D))
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    check(attend(q, k, v, platform, scale=float(np.log(2))), wanted(q, k, v, np.log(2)), dtype)


@running.on_each_platform
@DTYPES
def test_many_small_weights_beside_a_large_one(platform, dtype) -> None:
    """The last key's weight is 2^17 times each other's, and its V is 0."""
    q = jnp.zeros((LEN_Q, 4, D), dtype).at[:, :, 0].set(1)
    k = jnp.zeros((4 * LEN_K, 2, D), dtype).at[-LEN_Q, :, 0].set(17)
    v = jnp.ones((4 * LEN_K, 2, D), dtype).at[-LEN_Q].set(0)
    scale = float(np.log(2))
    check(attend(q, k, v, platform, scale=scale), wanted(q, k, v, scale), dtype)


@running.on_each_platform
@DTYPES
@pytest.mark.parametrize("group", [1, 3, 5])
def test_a_row_with_an_infinity_spoils_no_other(platform, dtype, group) -> None:
    random = np.random.default_rng(1)
    q, k, v = (
        jnp.asarray(random.standard_normal((n, h, D)), dtype)
        for n, h in ((LEN_Q, 2 * group), (LEN_K, 2), (LEN_K, 2))
    )
    spoiled = q.at[77, 0].set(jnp.inf)
    got = np.delete(attend(spoiled, k, v, platform), 77, 0)
    check(got, np.delete(wanted(q, k, v, D**-0.5), 77, 0), dtype)


@running.on_each_platform
@DTYPES
def test_what_lies_left_of_every_window_is_not_read(platform, dtype) -> None:
    random = np.random.default_rng(2)
    q, k, v = (
        jnp.asarray(random.standard_normal((n, h, D)), dtype)
        for n, h in ((LEN_Q, 4), (LEN_K, 2), (LEN_K, 2))
    )
    left = 100
    unseen = LEN_K - LEN_Q - left
    got = attend(q, *(x.at[:unseen].set(jnp.nan) for x in (k, v)), platform, window=(left, 0))
    check(got, wanted(q, k, v, D**-0.5, left), dtype)


@running.on_each_platform
@pytest.mark.parametrize("sequences", [1, 2, 4])
@pytest.mark.parametrize("poisoned", ["key", "query"])
@pytest.mark.parametrize("lse", [False, True], ids=["", "lse"])
def test_a_nan_of_one_sequence_while_decoding(platform, sequences, poisoned, lse) -> None:
    """It is in all results of its sequence and head, and in no other one."""
    random = np.random.default_rng(sequences)
    pages, page_size, heads, kv_heads = 40, 16, 32, 8
    used = np.array([300, 17, 640, 200][:sequences], np.int32)
    table = random.permutation(sequences * pages).astype(np.int32).reshape(sequences, pages)
    cache = random.standard_normal((2, sequences * pages, page_size, kv_heads, D))
    query = random.standard_normal((sequences, heads, D))
    starts = np.arange(sequences + 1, dtype=np.int32)

    def attend_all():
        with jax.default_device(jax.devices(platform)[0]):
            k, v = (jnp.asarray(x, jnp.bfloat16) for x in cache)
            q = jnp.asarray(query, jnp.bfloat16)
            results = ij.paged_attention(q, (k, v), used, table, starts, return_lse=lse)
            out, *lses = results if lse else [results]
            return [np.asarray(out, np.float32), *(np.asarray(x).T for x in lses)]

    clean = attend_all()
    if poisoned == "key":
        cache[0, table[0, 130 // page_size], 130 % page_size, 3, 5] = np.nan
    else:
        query[0, 14, 7] = np.nan
    got = attend_all()
    hit = np.zeros((sequences, heads), bool)
    hit[0, slice(12, 16) if poisoned == "key" else 14] = True
    for x, y in zip(got, clean, strict=True):
        assert np.isnan(x[hit]).all()
        np.testing.assert_array_equal(x[~hit], y[~hit])


@running.on_each_platform
@DTYPES
@pytest.mark.parametrize("keys", [LEN_K, 8 * LEN_K])  # the latter are cut into pieces
def test_a_nan_that_a_prompt_sees(platform, dtype, keys) -> None:
    """It is in out and lse of its KV head's rows."""
    random = np.random.default_rng(3)
    q, k, v = (
        jnp.asarray(random.standard_normal((n, h, D)), dtype)
        for n, h in ((LEN_Q, 4), (keys, 2), (keys, 2))
    )
    cu = [np.array([0, len(x)], np.int32) for x in (q, k)]
    with jax.default_device(jax.devices(platform)[0]):
        out, lse = ij.flash_attn_varlen(
            q, k.at[777, 1, 9].set(jnp.nan), v, cu[0], cu_seqlens_k=cu[1], is_causal=True,
            return_lse=True,
        )  # fmt: skip
    out, lse = np.asarray(out, np.float64), np.asarray(lse)
    assert np.isnan(out[:, 2:]).all() and np.isnan(lse[2:]).all()
    assert np.isfinite(lse[:2]).all()
    check(out[:, :2], wanted(q, k, v, D**-0.5)[:, :2], dtype)


@running.on_each_platform
@pytest.mark.parametrize("softcap", [1e4, 1e6, 1e9, 1e30, 3e38])
@pytest.mark.parametrize("lens", [((70, 90), (200, 3000)), ((1, 300), (2, 900))], ids=str)
@pytest.mark.parametrize(
    ("dtype", "kv"),
    [
        ("f32", None),
        ("f16", None),
        ("bf16", None),
        ("bf16", ml_dtypes.float8_e4m3fn),
        ("bf16", ml_dtypes.float8_e5m2),
    ],
)
def test_a_softcap_far_above_all_scores(platform, softcap, lens, dtype, kv) -> None:
    operands, attributes = support.op_module("flash_attn_varlen").arguments(
        np.random.default_rng(4), support.DTYPES[dtype], lens=lens, h=4, hk=2, d=D, kv=kv,
        scale=0.3, softcap=softcap, return_lse=True,
    )  # fmt: skip
    got = running.run_any("flash_attn_varlen", operands, attributes, platform)
    running.check_against_reference("flash_attn_varlen", operands, attributes, got, platform)
