"""`examples/flax_layer.py`: the block is that of plain jnp, and it learns."""

import itertools
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support

pytest.importorskip("flax")

EXAMPLE = support.ROOT / "examples" / "flax_layer.py"


def norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight


def plain(block, x, starts):
    """The same by jax.numpy, sequence by sequence."""
    d = block.dim
    qkv = (norm(x, block.norms[0]) @ block.qkv[...].T).reshape(len(x), -1, d)
    q, k, v = jnp.split(qkv, [block.heads, block.heads + block.kv_heads], axis=1)
    k, v = (jnp.repeat(a, block.heads // block.kv_heads, axis=1) for a in (k, v))
    parts = []
    for begin, end in itertools.pairwise(starts):
        rows = slice(begin, end)
        scores = jnp.einsum("qhd,khd->hqk", q[rows], k[rows]) * d**-0.5
        scores = jnp.where(jnp.tri(end - begin, dtype=bool), scores, -jnp.inf)
        parts.append(jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v[rows]))
    x = x + jnp.concatenate(parts).reshape(x.shape) @ block.out[...].T
    gate, up = jnp.split(norm(x, block.norms[1]) @ block.gate_up[...].T, 2, axis=-1)
    return x + (jax.nn.silu(gate) * up) @ block.down[...].T


def test_the_block_is_that_of_plain_jnp() -> None:
    from flax import nnx

    module = runpy.run_path(str(EXAMPLE))
    block = module["Block"](64, heads=4, kv_heads=2, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(2), (10, 64))
    with jax.default_matmul_precision("highest"):
        got = block(x, jnp.array([0, 4, 10]))
        want = jax.jit(lambda x: plain(block, x, [0, 4, 10]))(x)
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_it_learns() -> None:
    losses = runpy.run_path(str(EXAMPLE))["main"]()
    assert losses[-1] < 0.6 * losses[0] and min(losses) == losses[-1]
