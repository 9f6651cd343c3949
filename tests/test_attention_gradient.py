"""The gradient of attention: its reference against differences, jax.grad against plain JAX, drawn batches."""

import functools

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from hypothesis import given
from hypothesis import strategies as st
from intarsia_src.attention import gradient, plain_xla
from intarsia_src.attention import reference as f64

OP = "flash_attn_varlen_backward"
MODULE = support.op_module(OP)

_LENS = ((3, 5), (2, 2), (0, 3), (2, 0), (4, 3))


# ---------------------------------------------------------------------------- the reference


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"right": 0, "left": 2},
        {"softcap": 0.7, "scale": 0.9},
        {"slopes": "sequence", "right": 0},
        {"sinks": True, "dlse": True, "softcap": 2.0},
    ],
    ids=str,
)
def test_reference_against_finite_differences(options):
    """In f64, entry by entry: the central difference of sum(dout * out) + sum(dlse * lse)."""
    rng = np.random.default_rng(5)
    options = dict(options)
    sizes = dict(lens=_LENS, h=2, hk=1, d=8, padding=1, key_padding=1)
    extra = dict(sinks=options.pop("sinks", False), dlse=options.pop("dlse", False))
    operands, _ = MODULE.arguments(
        rng, np.float64, **sizes, **extra, alibi=options.pop("slopes", None)
    )
    dout, q, k, v, _, _, cu_seqlens_q, cu_seqlens_k, _, slopes, sinks, dlse = operands
    options = {"scale": 0.4} | options

    def forward(q, k, v, sinks):
        keys = f64.dense_keys(k, v, cu_seqlens_k)
        return f64.attend_ragged(q, cu_seqlens_q, keys, alibi_slopes=slopes, sinks=sinks, **options)

    def loss(*inputs):
        out, lse = forward(*inputs)
        rows = np.isfinite(lse)
        return (dout * out).sum() + (0 if dlse is None else (dlse[rows] * lse[rows]).sum())

    inputs = [q, k, v, None if sinks is None else sinks.astype(np.float64)]
    out, lse = forward(*inputs)
    got = gradient.backward(
        dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, None, slopes, inputs[3], dlse,
        **options,
    )  # fmt: skip
    step = 1e-5
    for x, dx in zip(inputs, got, strict=False):
        for at in np.ndindex(x.shape):
            kept = x[at]
            x[at] = kept + step
            above = loss(*inputs)
            x[at] = kept - step
            below = loss(*inputs)
            x[at] = kept
            assert abs((above - below) / (2 * step) - dx[at]) < 1e-7


# ---------------------------------------------------------------------------- jax.grad


def inputs(seed=0, lens=((3, 3), (2, 6), (9, 40)), h=4, hk=2, d=32, dtype=np.float32):
    operands, _ = MODULE.arguments(
        np.random.default_rng(seed), dtype, lens=lens, h=h, hk=hk, d=d, sinks=True, dlse=True
    )
    names = ("dout", "q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k")
    given = dict(zip(names, operands, strict=False))
    return given | {"sinks": operands[10], "dlse": operands[11]}


def ours(x, q, k, v, sinks=None, **options):
    return intarsia.jax.flash_attn_varlen(
        q, k, v, x["cu_seqlens_q"], cu_seqlens_k=x["cu_seqlens_k"], sinks=sinks, **options
    )


def plain(x, q, k, v, sinks=None, *, is_causal=False, window=(-1, -1), return_lse=False, **options):
    starts_q, starts_k = (jnp.asarray(x[f"cu_seqlens_{side}"]) for side in "qk")
    row = starts_k[:-1, None] + np.arange(len(x["k"]))
    options = {"scale": q.shape[-1] ** -0.5} | options
    results = plain_xla.attend(
        q, *(a[jnp.minimum(row, len(a) - 1)] for a in map(jnp.asarray, (k, v))),
        jnp.diff(starts_k), row < len(x["k"]), starts_q, sinks=sinks,
        max_len_q=len(x["q"]), left=window[0], right=0 if is_causal else window[1], **options,
    )  # fmt: skip
    return results if return_lse else results[0]


@running.on_each_platform
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "return_lse": True},
        {"window": (4, 1), "softcap": 3.0, "scale": 0.3},
        {"is_causal": True, "alibi_slopes": np.array([0.1, 0.2, 0.5, 1.0], np.float32)},
        {"is_causal": True, "sinks": True, "return_lse": True, "deterministic": True},
    ],
    ids=lambda options: "-".join(options) or "none",
)
def test_grad_is_that_of_plain_jax(platform, options):
    x, options = inputs(), dict(options)
    arguments = [x["q"], x["k"], x["v"], *([x["sinks"]] if options.pop("sinks", False) else [])]

    def loss(function, *arguments, **options):
        results = function(x, *arguments, **options)
        out, lse = results if options.get("return_lse") else (results, jnp.zeros(()))
        dlse = x["dlse"] if options.get("return_lse") else 0
        return jnp.sum(jnp.sin(out) * x["dout"]) + jnp.sum(lse * dlse)

    # Otherwise plain JAX multiplies in TF32 on a GPU.
    highest = jax.default_matmul_precision("highest")
    with jax.default_device(jax.devices(platform)[0]), highest:
        every = tuple(range(len(arguments)))
        got_loss, got = jax.jit(
            jax.value_and_grad(lambda *a: loss(ours, *a, **options), argnums=every)
        )(*arguments)
        options.pop("deterministic", None)
        want_loss, want = jax.jit(
            jax.value_and_grad(lambda *a: loss(plain, *a, **options), argnums=every)
        )(*arguments)
    np.testing.assert_allclose(got_loss, want_loss, rtol=1e-4)
    for dx, expected in zip(got, want, strict=True):
        assert support.relative_error(dx, expected) < 2e-5


def test_only_what_is_asked_for():
    """No gradient flows from a result that the loss does not use, nor to what is held fixed."""
    x = inputs()

    def of_lse(q):
        return ours(x, q, x["k"], x["v"], return_lse=True)[1].sum()

    def of_out(q):
        return ours(x, q, x["k"], x["v"], return_lse=True)[0].sum()

    def of_plain_lse(q):
        return plain(x, q, x["k"], x["v"], return_lse=True)[1].sum()

    of_lse, of_out_too, want = (
        jax.jit(jax.grad(f))(x["q"]) for f in (of_lse, of_out, of_plain_lse)
    )
    assert support.relative_error(of_lse, want) < 2e-5
    assert np.isfinite(of_out_too).all()
    text = jax.jit(jax.grad(of_out)).lower(x["q"]).as_text()
    assert text.count("intarsia.flash_attn_varlen_backward") == 1


def test_vmap_of_grad():
    x = inputs()
    batch = np.stack([x["q"], 2 * x["q"], -x["q"]])
    gradient = jax.grad(lambda q: jnp.sum(ours(x, q, x["k"], x["v"]) * x["dout"]))
    for got, q in zip(jax.vmap(gradient)(batch), batch, strict=True):
        np.testing.assert_allclose(got, gradient(q), rtol=1e-5, atol=1e-6)


def test_what_has_no_gradient_says_so():
    x = inputs()

    def grad(**options):
        return jax.grad(lambda q: ours(x, q, x["k"], x["v"], **options).sum())(x["q"])

    with pytest.raises(NotImplementedError, match="gradient with leftpad_k is not built"):
        grad(leftpad_k=np.zeros(3, np.int32))
    with pytest.raises(NotImplementedError, match="gradient with attention_chunk=4 is not built"):
        grad(attention_chunk=4)
    with pytest.raises(NotImplementedError, match="gradient of alibi_slopes is not built"):
        jax.grad(lambda s: ours(x, x["q"], x["k"], x["v"], alibi_slopes=s).sum())(np.ones(4, "f4"))
    with pytest.raises(NotImplementedError, match="gradient for dv=128 where q has d=192"):
        jax.grad(
            lambda q: ours(x, q, np.ones((49, 2, 192), "f4"), np.ones((49, 2, 128), "f4")).sum()
        )(np.ones((14, 4, 192), "f4"))
    with pytest.raises(NotImplementedError, match="flash_attn_varlen_backward: has no gradient"):
        jax.grad(lambda q: jnp.sum(jax.grad(lambda q: ours(x, q, x["k"], x["v"]).sum())(q)))(x["q"])

    def paged(q):
        caches = jnp.zeros((8, 16, 2, 32)), jnp.zeros((8, 16, 2, 32))
        lengths, table = np.full(3, 9, np.int32), np.zeros((3, 1), np.int32)
        return intarsia.jax.flash_attn_varlen(
            q, *caches, x["cu_seqlens_q"], seqused_k=lengths, block_table=table
        ).sum()

    with pytest.raises(NotImplementedError, match="gradient with block_table is not built"):
        jax.grad(paged)(x["q"])
    # Where no gradient flows back, each runs.
    got, out = jax.grad(lambda q: ((q**2).sum(), paged(q)), has_aux=True)(x["q"])
    np.testing.assert_allclose(got, 2 * x["q"])
    assert out == paged(x["q"])
    codes = [jnp.asarray(x[name], jnp.float8_e4m3fn) for name in "qkv"]
    jax.grad(lambda q: (q.sum(), ours(x, q, *codes[1:])), has_aux=True)(codes[0])
    for option in ({"leftpad_k": np.zeros(3, np.int32)}, {"attention_chunk": 4}):
        jax.grad(lambda q, o=option: (q.sum(), ours(x, q, x["k"], x["v"], **o)), has_aux=True)(
            x["q"]
        )


# ---------------------------------------------------------------------------- drawn batches


@st.composite
def backward_cases(draw):
    edges = [n + by for n in (16, 32, 64, 128) for by in (-1, 0, 1)]
    count = st.one_of(st.integers(0, 3), st.sampled_from(edges), st.integers(0, 200))
    group, hk = draw(st.sampled_from([1, 2, 3, 8])), draw(st.integers(1, 3))
    window = st.sampled_from([-1, -1, 0, 1, 17, 2**40])
    return draw(st.sampled_from(sorted(support.DTYPES))), {
        "lens": draw(st.lists(st.tuples(count, count), max_size=4)),
        "h": group * hk,
        "hk": hk,
        "d": 8 * draw(st.one_of(st.integers(1, 9), st.sampled_from([12, 16, 24, 32]))),
        "padding": draw(st.integers(0, 5)),
        "key_padding": draw(st.integers(0, 5)),
        "used": draw(st.booleans()),
        "index": draw(st.sampled_from([np.int32, np.int64])),
        "alibi": draw(st.sampled_from([None, None, "head", "sequence"])),
        "sinks": draw(st.booleans()),
        "dlse": draw(st.booleans()),
        "softcap": draw(st.sampled_from([0.0, 2.0, 30.0, 1e6])),
        "scale": draw(st.sampled_from([None, 0.02, 0.3])),
        "is_causal": draw(st.booleans()),
        "window_left": draw(window),
        "window_right": draw(window),
        "deterministic": draw(st.booleans()),
    }


@running.on_each_platform
@given(case=backward_cases(), seed=st.integers(0, 2**32 - 1))
def test_drawn_batches(platform, case, seed):
    dtype, sizes = case
    operands, attributes = MODULE.arguments(
        np.random.default_rng(seed), support.DTYPES[dtype], **sizes
    )
    dout, q, k, v, out, _, cu_seqlens_q, cu_seqlens_k, seqused_k, *_ = operands
    rows, keys = np.arange(len(q)) < cu_seqlens_q[-1], np.arange(len(k)) < cu_seqlens_k[-1]
    if seqused_k is not None:
        for start, used, end in zip(cu_seqlens_k, seqused_k, cu_seqlens_k[1:], strict=False):
            keys[start + used : end] = False
    for x in (q, dout, out):  # what belongs to no sequence may be anything
        x[~rows] = np.nan
    for x in (k, v):
        x[~keys] = np.nan
    got = running.run_any(OP, operands, attributes, platform)
    for x in (q, dout, out, k, v):
        x[np.isnan(x)] = 0
    running.check_against_reference(OP, operands, attributes, got, platform)
    assert not got[0][~rows].any() and not got[1][~keys].any() and not got[2][~keys].any()


@running.on_each_platform
@pytest.mark.parametrize("softcap", [1e4, 1e6, 1e9, 1e30, 3e38])
@pytest.mark.parametrize("dtype", sorted(support.DTYPES))
def test_a_softcap_far_above_all_scores(platform, softcap, dtype):
    operands, attributes = MODULE.arguments(
        np.random.default_rng(0), support.DTYPES[dtype], lens=((40, 70), (90, 300)), h=4, hk=2,
        d=128, scale=0.3, softcap=softcap,
    )  # fmt: skip
    got = running.run_any(OP, operands, attributes, platform)
    running.check_against_reference(OP, operands, attributes, got, platform)


@running.on_each_platform
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("starts_q", "starts_k", "used"),
    [
        ([0, 2**31 - 1, 5, 70], [0, 40, 10, 90], [3, -7, 2**31 - 1]),
        ([-9, 30, 20, 2**31 - 1], [-(2**31), 2**31 - 1, 0, 90], [90, 90, 90]),
        ([70, 0, 70, 0], [90, 0, 90, 0], [2**31 - 1, 5, 5]),
        ([0, 70, 0, 70], [0, 90, 0, 90], [90, 90, 90]),
    ],
)
def test_absurd_starts_count_as_the_largest_so_far(
    platform, deterministic, starts_q, starts_k, used
):
    operands, attributes = MODULE.arguments(
        np.random.default_rng(0), np.float32, lens=((30, 40), (20, 30), (20, 20)), h=4, hk=2, d=64,
        is_causal=True, sinks=True, deterministic=deterministic,
    )  # fmt: skip
    operands[6], operands[7] = np.array(starts_q, np.int32), np.array(starts_k, np.int32)
    operands[8] = np.array(used, np.int32)
    got = running.run_any(OP, operands, attributes, platform)
    assert not any(np.isnan(result).any() for result in got)  # all is written
    running.check_against_reference(OP, operands, attributes, got, platform)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_deterministic_means_the_same_bits(dtype):
    operands, attributes = MODULE.arguments(
        np.random.default_rng(0), support.DTYPES[dtype], lens=((700, 900), (900, 900)), h=8, hk=2,
        d=128, is_causal=True, deterministic=True,
    )  # fmt: skip
    run = functools.partial(running.run, OP, operands, attributes, "gpu")
    first = run()
    for _ in range(5):
        assert all(x.tobytes() == y.tobytes() for x, y in zip(first, run(), strict=True))
