"""The functions of flash-attn3-jax against a reference in NumPy f64, with that project's alignment: at the bottom right."""

import functools

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import P
from sharded import DEVICES, mesh_of


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def attend(q, k, v, *, scale=None, is_causal=False, window=(-1, -1)):
    """One sequence in f64: q [n, h, d], k and v [m, hk, d]; out and lse [n, h]."""
    (n, h, d), m = q.shape, len(k)
    k, v = (np.repeat(x.astype(np.float64), h // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("nhd,mhd->nhm", q.astype(np.float64), k) * (scale or d**-0.5)
    i, j = np.arange(n)[:, None] + m - n, np.arange(m)
    right = 0 if is_causal else window[1]
    seen = np.ones((n, m), bool)
    if window[0] >= 0:
        seen &= j >= i - window[0]
    if right >= 0:
        seen &= j <= i + right
    scores[~np.broadcast_to(seen[:, None], scores.shape)] = -np.inf
    largest = scores.max(-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + largest, -np.inf)[..., 0]
    return np.einsum("nhm,mhd->nhd", weights / np.maximum(total, 1e-300), v), lse


def check(got, want):
    running.check("flash_attn_varlen", np.asarray(got), want)


WINDOWS = st.sampled_from([(-1, -1), (3, 0), (2, 5), (-1, 2), (4, -1)])


@running.on_each_platform
@settings(max_examples=15)
@given(data=st.data(), is_causal=st.booleans(), window=WINDOWS, seed=st.integers(0, 99))
def test_flash_mha(platform, data, is_causal, window, seed):
    b, n, m = (data.draw(st.integers(1, most)) for most in (3, 20, 20))
    hk, group = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 4]))
    d = data.draw(st.sampled_from([8, 59, 64]))
    q, k, v = normal(seed, (b, n, hk * group, d), (b, m, hk, d), (b, m, hk, d))
    options = {"is_causal": is_causal}
    with jax.default_device(jax.devices(platform)[0]):
        got = jax.jit(lambda *x: ij.flash_mha(*x, window_size=window, **options))(q, k, v)
    check(
        got, np.stack([attend(*x, window=window, **options)[0] for x in zip(q, k, v, strict=True)])
    )


def test_flash_mha_under_grad_vmap_and_shard_map() -> None:
    arrays = normal(0, (DEVICES, 7, 4, 16), (DEVICES, 9, 2, 16), (DEVICES, 9, 2, 16))

    def one_by_one(q, k, v):
        out = [ij.flash_mha(*(x[i : i + 1] for x in (q, k, v)), is_causal=True) for i in range(8)]
        return jnp.concatenate(out)

    def by_vmap(q, k, v):
        cut = [x.reshape(4, 2, *x.shape[1:]) for x in (q, k, v)]
        return jax.vmap(lambda *x: ij.flash_mha(*x, is_causal=True))(*cut).reshape(q.shape)

    mesh = mesh_of(data=DEVICES)
    by_devices = jax.shard_map(
        lambda *x: ij.flash_mha(*x, is_causal=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
    )

    def gradients(function):
        return jax.jit(jax.grad(lambda *x: jnp.sum(jnp.sin(function(*x))), argnums=(0, 1, 2)))

    want = gradients(one_by_one)(*arrays)
    for function in (by_vmap, by_devices):
        for dx, expected in zip(gradients(function)(*arrays), want, strict=True):
            np.testing.assert_allclose(dx, expected, atol=2e-6)


def test_flash_mha_varlen() -> None:
    """By position as in flash-attn3-jax; a sequence without queries, one without keys, rows behind the last."""
    q, k, v = normal(0, (12, 4, 20), (14, 2, 20), (14, 2, 20))
    starts_q, starts_k = np.array([0, 3, 3, 10], np.int32), np.array([0, 5, 9, 14], np.int32)
    used = np.array([4, 4, 5], np.int32)
    got = ij.flash_mha_varlen(q, k, v, starts_q, starts_k, used, 7, 5, 0.4, True, (3, -1))
    want = np.zeros(q.shape)
    for i, n in enumerate(used):
        rows, first = slice(starts_q[i], starts_q[i + 1]), starts_k[i]
        keys = slice(first, first + n)
        want[rows] = attend(q[rows], k[keys], v[keys], scale=0.4, is_causal=True, window=(3, -1))[0]
    check(got, want)
    alone = ij.flash_mha_varlen(q[:10], k[:10], v[:10], starts_q, is_causal=True)
    again = ij.flash_mha_varlen(q[:10], k[:10], v[:10], starts_q, starts_q, is_causal=True)
    assert np.array_equal(alone, again)


def turned(x, positions, cos, sin):
    """Pairs (2i, 2i + 1) of heads [n, h, d] by the angles of positions [n]."""
    x, r = x.astype(np.float64), 2 * cos.shape[1]
    c, s = (table[positions][:, None].astype(np.float64) for table in (cos, sin))
    even, odd = x[..., 0:r:2].copy(), x[..., 1:r:2].copy()
    x[..., 0:r:2], x[..., 1:r:2] = even * c - odd * s, odd * c + even * s
    return x


@running.on_each_platform
@settings(max_examples=15)
@given(data=st.data(), is_causal=st.booleans(), window=WINDOWS, seed=st.integers(0, 99))
def test_flash_mha_with_kvcache(platform, data, is_causal, window, seed):
    b, n, new, size = 2, data.draw(st.integers(1, 5)), data.draw(st.integers(0, 4)), 8
    paged, d = data.draw(st.booleans()), data.draw(st.sampled_from([16, 20]))
    rows = 6 if paged else 5
    q, k_cache, v_cache, k, v = normal(
        seed, (b, n, 4, d), (rows, size, 2, d), (rows, size, 2, d), (b, new, 2, d), (b, new, 2, d)
    )
    cos, sin = (f(np.arange(40)[:, None] * np.array([0.5, 0.1])) for f in (np.cos, np.sin))
    cos, sin = cos.astype(np.float32), sin.astype(np.float32)
    table = np.array([[4, 1], [0, 5]], np.int32) if paged else np.array([[3], [1]], np.int32)
    room = table.shape[1] * size
    lengths = np.array([data.draw(st.integers(0, room - new)) for _ in range(b)], np.int32)
    leftpad = np.minimum(lengths, 2) * data.draw(st.integers(0, 1))
    rotate = new > 0 and data.draw(st.booleans())
    given_arrays = {"cache_seqlens": lengths, "cache_leftpad": leftpad}
    given_arrays |= {"page_table": table} if paged else {"cache_batch_idx": table[:, 0]}
    if new:
        given_arrays |= {"k": k, "v": v}
    if rotate:
        given_arrays |= {"rotary_cos": cos, "rotary_sin": sin}
    step = functools.partial(
        ij.flash_mha_with_kvcache, is_causal=is_causal, window_size=window, return_softmax_lse=True
    )
    with jax.default_device(jax.devices(platform)[0]):
        out, lse = jax.jit(step)(q, k_cache, v_cache, **given_arrays)
    local = is_causal or window != (-1, -1)
    for i in range(b):
        at = lengths[i] + np.arange(max(n, new))
        query = turned(q[i], at[:n] if local else np.full(n, at[0]), cos, sin) if rotate else q[i]
        key = turned(k[i], at[:new], cos, sin) if rotate else k[i]
        cached = [x[table[i]].reshape(-1, 2, d)[: lengths[i]] for x in (k_cache, v_cache)]
        keys = np.concatenate([cached[0], key])[leftpad[i] :]
        values = np.concatenate([cached[1], v[i]])[leftpad[i] :]
        want, want_lse = attend(query, keys, values, is_causal=is_causal, window=window)
        check(out[i], want)
        seen = np.isfinite(want_lse.T)
        np.testing.assert_array_equal(np.isneginf(lse[i]), ~seen)
        np.testing.assert_allclose(np.asarray(lse[i])[seen], want_lse.T[seen], atol=1e-5)


def test_a_cache_is_full_unless_its_length_is_given() -> None:
    q, k, v = normal(0, (2, 3, 4, 16), (2, 8, 2, 16), (2, 8, 2, 16))
    full = ij.flash_mha_with_kvcache(q, k, v, is_causal=True)
    assert np.array_equal(full, ij.flash_mha_with_kvcache(q, k, v, cache_seqlens=8, is_causal=True))
    check(full, np.stack([attend(*x, is_causal=True)[0] for x in zip(q, k, v, strict=True)]))


@pytest.mark.parametrize("page", [4, 2**30])
def test_keys_of_no_page_are_not_written(page: int) -> None:
    """Where 2**30 pages of 4 slots are 0 in int32, they became another sequence's."""
    q, cache = np.ones((2, 1, 1, 8), np.float32), np.zeros((4, 4, 1, 8), np.float32)
    new = q * np.array([5, 1], np.float32)[:, None, None, None]
    table, lengths = np.array([[page], [0]], np.int32), np.array([0, 1], np.int32)
    out = ij.flash_mha_with_kvcache(
        q, cache, cache, new, new, cache_seqlens=lengths, page_table=table
    )
    assert not out[0].any()
    check(out[1, :, :], attend(q[1], *[np.stack([cache[0, 0], new[1, 0]])] * 2)[0])


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"k"}, "k is given without v"),
        ({"v"}, "v is given without k"),
        ({"k", "v"}, "k is given without cache_seqlens"),
        ({"rotary_cos", "rotary_sin"}, "rotary_cos is given without k"),
        ({"rotary_cos"}, "rotary_cos is given without rotary_sin"),
        ({"page_table", "cache_batch_idx"}, "cache_batch_idx is given with page_table"),
    ],
)
def test_arguments_that_do_not_go_together(names, says):
    q, k, v = normal(0, (2, 3, 4, 16), (2, 8, 2, 16), (2, 1, 2, 16))
    given_arrays = {
        "k": v, "v": v, "rotary_cos": k, "rotary_sin": k,
        "page_table": np.zeros((2, 1), np.int32), "cache_batch_idx": np.zeros(2, np.int32),
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"^flash_mha_with_kvcache: {says}"):
        ij.flash_mha_with_kvcache(q, k, k, **{name: given_arrays[name] for name in names})


def test_shapes_that_do_not_go_together() -> None:
    q, k = normal(0, (2, 3, 4, 16), (2, 8, 2, 8))
    with pytest.raises(ValueError, match=r"flash_mha: k has shape \[2, 8, 2, 8\], expected"):
        ij.flash_mha(q, k, k)
    with pytest.raises(ValueError, match=r"flash_mha_varlen: k has shape .* expected \[t, h, d\]"):
        ij.flash_mha_varlen(q[0], k, k, np.array([0, 3]))
    q, k = normal(0, (2, 1, 12), (2, 1, 9))  # both are padded to 16
    with pytest.raises(ValueError, match=r"flash_mha_varlen: k has shape \[2, 1, 9\], expected"):
        ij.flash_mha_varlen(q, k, q, np.array([0, 2]))


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": ones(3, 1, 2, 12)}, r"k_cache has shape \[2, 4, 1, 12\], expected a row for each of 3"),
        ({"q": ones(2, 1, 2, 10)}, r"k_cache has shape .*, expected \[rows, s, hk, 10\]"),
        ({"v_cache": ones(2, 4, 1, 10)}, r"v_cache has shape .*, expected \[2, 4, 1, 12\]"),
        ({"k": ones(3, 1, 1, 12)}, r"k has shape .*, expected \[2, n, 1, 12\]"),
        ({"v": ones(2, 1, 1, 14)}, r"v has shape .*, expected \[2, 1, 1, 12\]"),
        ({"rotary_cos": ones(8)}, r"rotary_cos has shape \[8\], expected \[positions, r / 2\]"),
        ({"rotary_sin": ones(8, 3)}, r"rotary_sin has shape \[8, 3\], expected \[8, 4\]"),
        ({"rotary_sin": ones(7, 4)}, r"rotary_sin has shape \[7, 4\], expected \[8, 4\]"),
        ({"cache_seqlens": ones(2)}, "cache_seqlens has dtype float32, expected int32"),
        ({"cache_seqlens": np.arange(3)}, r"cache_seqlens has shape \[3\], expected \[2\]"),
        ({"cache_seqlens": np.array([2**40, 1])}, "cache_seqlens has values beyond int32"),
        ({"cache_seqlens": np.int64(2**40)}, "cache_seqlens has values beyond int32"),
        ({"cache_seqlens": 2**40}, "cache_seqlens has values beyond int32"),
        ({"cache_batch_idx": ones(2)}, "cache_batch_idx has dtype float32, expected int32"),
        ({"cache_batch_idx": np.arange(3)}, r"cache_batch_idx has shape \[3\], expected \[2\]"),
        ({"page_table": np.arange(2)}, r"page_table has shape \[2\], expected \[2, m\]"),
        ({"cache_leftpad": np.arange(3)}, r"cache_leftpad has shape \[3\], expected \[2\]"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_operands_of_a_cache_that_do_not_fit(change, says) -> None:
    fitting = {"q": ones(2, 1, 2, 12), "k_cache": ones(2, 4, 1, 12), "v_cache": ones(2, 4, 1, 12)}
    fitting |= {"k": ones(2, 1, 1, 12), "v": ones(2, 1, 1, 12), "cache_seqlens": np.array([1, 2])}
    fitting |= {"rotary_cos": ones(8, 4), "rotary_sin": ones(8, 4)}
    ij.flash_mha_with_kvcache(**fitting)
    with pytest.raises(ValueError, match=f"^flash_mha_with_kvcache: {says}"):
        ij.flash_mha_with_kvcache(**fitting | change)


@pytest.mark.parametrize("function", [ij.flash_mha, ij.dot_product_attention])
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_numbers_of_8_bits_are_not_built(function, dtype) -> None:
    x = jnp.ones((1, 2, 1, 8), dtype)
    with pytest.raises(NotImplementedError, match=f"^{function.__name__}: q.* has dtype float8"):
        function(x, x, x)


def test_a_cache_of_8_bits_is_that_of_its_numbers() -> None:
    q, k, v = normal(0, (2, 1, 4, 16), (2, 8, 2, 16), (2, 8, 2, 16))
    q = q.astype(jnp.bfloat16)
    narrow = [x.astype(jnp.float8_e4m3fn) for x in (k, v)]
    got = ij.flash_mha_with_kvcache(q, *narrow, cache_seqlens=np.array([5, 8]))
    wide = [x.astype(jnp.bfloat16) for x in narrow]
    want = ij.flash_mha_with_kvcache(q, *wide, cache_seqlens=np.array([5, 8]))
    np.testing.assert_array_equal(got.astype(jnp.float32), want.astype(jnp.float32))
