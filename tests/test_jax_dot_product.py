"""`dot_product_attention` against JAX's own, and against its masks in NumPy f64."""

import functools
import inspect

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import P
from sharded import DEVICES, mesh_of


def batch(b, t, s, h, hk, d, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((b, t, h, d), (b, s, hk, d), (b, s, hk, d))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def reference(q, k, v, *, scale=None, is_causal=False, rows=None, keys=None, window=None):
    """out and lse in f64 by JAX's documentation; a row that sees nothing gives 0 and -inf."""
    (b, t, h, d), s = q.shape, k.shape[1]
    group = h // k.shape[2]
    k, v = (np.repeat(x.astype(np.float64), group, axis=2) for x in (k, v))
    scores = np.einsum("bthd,bshd->bths", q.astype(np.float64), k)
    scores *= d**-0.5 if scale is None else scale
    i, j = np.arange(t)[:, None], np.arange(s)
    seen = np.ones((b, t, s), bool)
    if is_causal:
        seen &= j <= i
    if window is not None:
        seen &= (i - window[0] <= j) & (j <= i + window[1])
    if rows is not None:
        seen &= i < rows[:, None, None]
    if keys is not None:
        seen &= j < keys[:, None, None]
    scores[~np.broadcast_to(seen[:, :, None], scores.shape)] = -np.inf
    largest = scores.max(-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + largest)[..., 0]
    out = np.einsum("bths,bshd->bthd", weights / np.maximum(total, 1e-300), v)
    return out, np.where(total[..., 0] > 0, lse, -np.inf)


@st.composite
def calls(draw):
    sizes = st.one_of(st.integers(1, 9), st.sampled_from([16, 33]))
    b, t, s, hk = draw(st.integers(1, 3)), draw(sizes), draw(sizes), draw(st.integers(1, 2))
    h, d = hk * draw(st.sampled_from([1, 3])), draw(st.sampled_from([8, 20, 64]))
    side = st.integers(0, 12)
    lengths = st.lists(st.integers(-1, 40), min_size=b, max_size=b).map(np.int32)
    options = {
        "is_causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.3])),
        "rows": draw(st.none() | lengths),
        "keys": draw(st.none() | lengths),
        "window": draw(st.none() | st.tuples(side, side)),
    }
    return (b, t, s, h, hk, d), options


@running.on_each_platform
@settings(max_examples=25)
@given(call=calls(), seed=st.integers(0, 99))
def test_drawn_calls(platform, call, seed):
    sizes, options = call
    q, k, v = batch(*sizes, seed=seed)
    step = functools.partial(
        ij.dot_product_attention,
        scale=options["scale"],
        is_causal=options["is_causal"],
        query_seq_lengths=options["rows"],
        key_value_seq_lengths=options["keys"],
        local_window_size=options["window"],
        return_residual=True,
    )
    with jax.default_device(jax.devices(platform)[0]):
        out, lse = jax.jit(step)(q, k, v)  # one program, not one an operation
    want, want_lse = reference(q, k, v, **options)
    running.check("flash_attn_varlen", np.asarray(out), want)
    seen = np.isfinite(want_lse)
    np.testing.assert_array_equal(np.isneginf(lse), ~seen)
    np.testing.assert_allclose(np.asarray(lse)[seen], want_lse[seen], rtol=1e-5, atol=1e-5)


# T and S differ in both directions: there top left and bottom right are different.
OPTIONS = [
    {},
    {"is_causal": True},
    {"local_window_size": 3},
    {"is_causal": True, "local_window_size": (2, 0), "query_seq_lengths": (4, 9)},
    {"is_causal": True, "key_value_seq_lengths": (3, 8)},
    {"local_window_size": (3, 1), "key_value_seq_lengths": (5, 8), "query_seq_lengths": (6, 7)},
]


def as_arrays(options: dict) -> dict:
    return {
        name: np.array(x, np.int32) if name.endswith("lengths") else x
        for name, x in options.items()
    }


@running.on_each_platform
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
@pytest.mark.parametrize(("t", "s"), [(9, 14), (14, 9)])
def test_values_and_gradients_are_those_of_jax(platform, t, s, options):
    arrays = batch(2, t, s, 4, 2, 16)
    options = as_arrays(options)
    weight = np.random.default_rng(1).standard_normal((2, t, 4, 16)).astype(np.float32)
    # A row that sees nothing is the one difference.
    names = {
        "query_seq_lengths": "rows",
        "key_value_seq_lengths": "keys",
        "local_window_size": "window",
    }
    plain = {names.get(name, name): x for name, x in options.items()}
    if isinstance(plain.get("window"), int):
        plain["window"] = (plain["window"],) * 2
    seen = np.isfinite(reference(*arrays, **plain)[1])

    def loss(function):
        def of(*arrays):
            out, residual = function(*arrays, return_residual=True, **options)
            # The residual has no gradient there, nor here.
            return jnp.sum(out * weight * seen[..., None]) + jnp.sum(jnp.where(seen, residual, 0))

        return jax.jit(jax.value_and_grad(of, argnums=(0, 1, 2)))

    highest = jax.default_matmul_precision("highest")
    with jax.default_device(jax.devices(platform)[0]), highest:
        got, got_gradients = loss(ij.dot_product_attention)(*arrays)
        want, want_gradients = loss(jax.nn.dot_product_attention)(*arrays)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    for dx, expected in zip(got_gradients, want_gradients, strict=True):
        assert support.relative_error(dx, expected) < 2e-5


def test_without_an_axis_of_batches() -> None:
    q, k, v = (x[0] for x in batch(1, 5, 7, 4, 2, 16))

    @jax.jit
    def both(*arrays):
        functions = ij.dot_product_attention, jax.nn.dot_product_attention
        return [f(*arrays, is_causal=True, return_residual=True) for f in functions]

    (out, residual), (want, lse) = both(q, k, v)
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(residual, lse, atol=1e-6)


def test_vmap_is_one_call_for_all() -> None:
    q, k, v = batch(6, 5, 7, 4, 2, 16)
    lengths = np.array([7, 3, 1, 6, 2, 5], np.int32)

    def attend(q, k, v, lengths):
        return ij.dot_product_attention(
            q, k, v, is_causal=True, key_value_seq_lengths=lengths, local_window_size=(2, 9)
        )

    cut = [x.reshape(3, 2, *x.shape[1:]) for x in (q, k, v, lengths)]
    got = jax.jit(jax.vmap(attend))(*cut)
    np.testing.assert_allclose(got.reshape(q.shape), jax.jit(attend)(q, k, v, lengths), atol=1e-6)


def test_within_shard_map_each_device_has_its_own() -> None:
    arrays = batch(DEVICES, 6, 6, 2, 1, 16)
    lengths = np.arange(DEVICES, dtype=np.int32)
    mesh = mesh_of(data=DEVICES)

    def loss(q, k, v, lengths):
        out = ij.dot_product_attention(q, k, v, is_causal=True, query_seq_lengths=lengths)
        return jax.lax.psum(jnp.sum(out**2), "data")

    def gradients(*arrays):
        return jax.grad(loss, argnums=(0, 1, 2))(*arrays)

    cut = jax.shard_map(
        gradients, mesh=mesh, in_specs=P("data"), out_specs=(P("data"),) * 3, check_vma=True
    )
    got = jax.jit(cut)(*arrays, lengths)

    def whole(q, k, v):
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, query_seq_lengths=lengths)
        return jnp.sum(out**2)

    want = jax.jit(jax.grad(whole, argnums=(0, 1, 2)))(*arrays)
    for dx, expected in zip(got, want, strict=True):
        assert support.relative_error(np.asarray(dx), expected) < 2e-5


def test_the_signature_is_that_of_jax() -> None:
    ours = inspect.signature(ij.dot_product_attention).parameters
    theirs = inspect.signature(jax.nn.dot_product_attention).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_an_implementation_of_jax_is_jax() -> None:
    q, k, v = batch(1, 4, 4, 2, 2, 8)
    bias = np.ones((1, 2, 4, 4), np.float32) * np.arange(4, dtype=np.float32)
    got = ij.dot_product_attention(q, k, v, bias, implementation="xla")
    assert np.array_equal(got, jax.nn.dot_product_attention(q, k, v, bias))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"bias": np.zeros((1, 1, 4, 5), np.float32)}, NotImplementedError, "bias is not built"),
        ({"mask": np.ones((1, 1, 4, 5), bool)}, NotImplementedError, 'implementation="xla"'),
        ({"query": np.zeros((2, 4, 3, 8), np.float32)}, ValueError, r"expected a multiple of key's 2"),
        ({"query": np.zeros((4, 8), np.float32)}, ValueError, r"query has shape \[4, 8\], expected"),
        ({"value": np.zeros((2, 4, 2, 8), np.float32)}, ValueError, r"value has shape \[2, 4, 2, 8\] but"),
        ({"key_value_seq_lengths": np.zeros(3, np.int32)}, ValueError, r"int32 \[3\], expected int32 \[2\]"),
        ({"local_window_size": (-1, 2)}, ValueError, r"local_window_size is \(-1, 2\)"),
        ({"local_window_size": (2,)}, ValueError, r"local_window_size is \(2,\), expected a pair"),
        ({"local_window_size": (None, 1)}, ValueError, r"local_window_size is \(None, 1\), expected numbers"),
        ({"local_window_size": (1.5, 1)}, ValueError, r"local_window_size is \(1.5, 1\), expected numbers"),
        ({"local_window_size": "ab"}, ValueError, "local_window_size is 'ab', expected numbers"),
        ({"scale": "x"}, ValueError, "scale is 'x', expected a number"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_what_is_refused(change, error, says):
    q, k, v = batch(2, 4, 5, 4, 2, 8)
    with pytest.raises(error, match=f"^dot_product_attention: .*{says}"):
        ij.dot_product_attention(**{"query": q, "key": k, "value": v} | change)


def test_numbers_of_numpy_and_jax_are_numbers() -> None:
    q, k, v = batch(2, 4, 5, 4, 2, 8)
    got = ij.dot_product_attention(q, k, v, scale=jnp.float32(0.25), local_window_size=np.int64(2))
    want = ij.dot_product_attention(q, k, v, scale=0.25, local_window_size=2)
    assert np.array_equal(got, want)
    with pytest.raises(ValueError, match=r"scale is .*, expected a number that is known when"):
        jax.jit(lambda scale: ij.dot_product_attention(q, k, v, scale=scale))(0.25)
