"""Sums of rows in a fixed order, and gradients of experts, which have no sum in another."""

from collections.abc import Iterator
from typing import Any

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import SEEDS
from hypothesis import given
from hypothesis import strategies as st
from intarsia.jax._segments import sums_of_rows
from jax import P, lax
from sharded import DEVICES, mesh_of, normal

# Around passes of eight, and few, as every size compiles.
ROWS, COUNTS = st.sampled_from([0, 1, 8, 9, 65, 600]), st.sampled_from([0, 1, 5, 20])


@given(seed=SEEDS, m=ROWS, count=COUNTS, most=st.integers(1, 20))
def test_sums_of_rows(seed: int, m: int, count: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-99, 99, (m, 3)).astype(np.float32)  # of which every sum is exact
    owners = rng.integers(-2, most, m).astype(np.int32)
    want = [values[owners == owner].sum(0) for owner in range(count)]
    got = jax.jit(sums_of_rows, static_argnums=2)(values, owners, count)
    np.testing.assert_array_equal(got, np.reshape(want, (count, 3)))


def test_vmap_is_the_sums_one_by_one() -> None:
    values, owners = normal(3, 30, 2), np.arange(90).reshape(3, 30) ** 2 % 7
    sums = jax.jit(lambda v, o: sums_of_rows(v, o, 7))
    for member, v, o in zip(jax.vmap(sums)(values, owners), values, owners, strict=True):
        np.testing.assert_array_equal(member, sums(v, o))


@pytest.mark.parametrize("of_x", [P(), P(None, "x")], ids=["x is one for all", "x differs"])
def test_gradients_within_shard_map(of_x: P) -> None:
    """Each device takes rows of its own."""
    mesh = mesh_of(x=DEVICES)
    rows = np.random.default_rng(1).integers(-1, 5, (DEVICES, 40)).astype(np.int32)
    x, w, bias = normal(4, 6 * (DEVICES if of_x else 1)), normal(3, 6, 7), normal(3, 7)

    def each(x, w, bias, rows):
        out = ij.grouped_matmul(x, w, jnp.array([20, 0, 17]), rows=rows, bias=bias)
        return (out**2).sum()

    def sharded(x, w, bias):
        def local(x, w, bias, rows):
            return lax.psum(each(x, w, bias, rows[0]), "x")

        specs = (of_x, P(), P(), P("x"))
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())(x, w, bias, rows)

    def whole(x, w, bias):
        parts = jnp.split(x, DEVICES, 1) if of_x else [x] * DEVICES
        return sum(each(part, w, bias, own) for part, own in zip(parts, rows, strict=True))

    got = jax.jit(jax.grad(sharded, (0, 1, 2)))(x, w, bias)
    want = jax.jit(jax.grad(whole, (0, 1, 2)))(x, w, bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), got, want)


def test_a_number_that_is_none_stays_with_its_owner() -> None:
    values = normal(40, 3)
    values[7] = np.nan
    got = jax.jit(sums_of_rows, static_argnums=2)(values, np.arange(40) // 14, 3)
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _loss_with_rows(x, w, bias):
    sizes, rows = jnp.array([3, 0, 5]), jnp.array([0, 1, 1, 2, 3, 3, 3, -1])
    return (ij.grouped_matmul(x, w, sizes, rows=rows, bias=bias) ** 2).sum()


def _loss_of_experts(on_input: bool):
    ids = jnp.array([[0, 2], [1, 0], [2, 1], [5, 2]])

    def loss(x, w1, w2, weights, w1_bias, w2_bias):
        out = ij.fused_experts(
            x, w1, w2, weights, ids, w1_bias, w2_bias, apply_router_weight_on_input=on_input
        )
        return (out**2).sum()

    return loss


_EXPERTS = (normal(4, 6), normal(3, 10, 6), normal(3, 6, 5), normal(4, 2), normal(3, 10), normal(3, 6))  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "floats"),
    [
        (_loss_with_rows, (normal(4, 6), normal(3, 6, 7), normal(3, 7))),
        (_loss_of_experts(False), _EXPERTS),
        (_loss_of_experts(True), _EXPERTS),
    ],
    ids=["grouped_matmul", "fused_experts", "weights on the input"],
)
def test_gradients_add_no_floats_by_scatters(loss, floats) -> None:
    """On GPUs XLA's scatters add by atomics, whose order differs from run to run."""
    gradient = jax.make_jaxpr(jax.grad(loss, tuple(range(len(floats)))))(*floats)
    every = list(_equations(gradient.jaxpr))
    assert any(e.primitive.name == "ffi_call" for e in every)
    scattered = [e for e in every if e.primitive.name == "scatter-add"]
    assert not [e for e in scattered if jnp.issubdtype(e.outvars[0].aval.dtype, jnp.floating)]
