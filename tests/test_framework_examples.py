"""The examples for Equinox, Keras and MaxText's attention: the layers are those of plain jnp, and they learn."""

import importlib.util
import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from test_flax_example import norm

EXAMPLES = support.ROOT / "examples"


def mask_of(ids: jax.Array) -> jax.Array:
    """Which keys a query sees: those of its segment up to itself. [b, s, s]"""
    return (ids[:, :, None] == ids[:, None, :]) & jnp.tri(ids.shape[1], dtype=bool)


def attention(q, k, v, mask, scale):
    """[b, s, h, d], softmax over what the mask has."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def plain(x, layer, mask):
    """Either layer, of [b, s, n]."""
    width, heads, kv_heads = x.shape[-1], layer.heads, layer.kv_heads
    rows = (norm(x, jnp.asarray(layer.norm)) @ jnp.asarray(layer.qkv).T).reshape(*x.shape[:2], -1, width // heads)  # fmt: skip
    q, k, v = jnp.split(rows, [heads, heads + kv_heads], axis=2)
    y = attention(q, k, v, mask, (width // heads) ** -0.5)
    return x + y.reshape(x.shape) @ jnp.asarray(layer.out).T


def test_equinox() -> None:
    pytest.importorskip("equinox")
    module = runpy.run_path(str(EXAMPLES / "equinox_layer.py"))
    layer = module["Attention"](64, heads=4, kv_heads=2, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(2), (10, 64))
    ids = jnp.array([[0] * 4 + [1] * 6])
    with jax.default_matmul_precision("highest"):
        want = jax.jit(lambda x: plain(x[None], layer, mask_of(ids))[0])(x)
        np.testing.assert_allclose(layer(x, jnp.array([0, 4, 10])), want, rtol=2e-4, atol=2e-4)
    losses = module["main"]()
    assert losses[-1] < 0.7 * losses[0] and min(losses) == losses[-1]


KERAS = """
import runpy, sys
sys.path.insert(0, sys.argv[2])
import jax, numpy as np, test_framework_examples as tests, jax.numpy as jnp
module = runpy.run_path(sys.argv[1])
x = jax.random.normal(jax.random.key(2), (2, 10, 64))
layer = module["Attention"](4, 2)
got = layer(x)
weights = tests.SimpleNamespace(heads=4, kv_heads=2, norm=layer.norm.value, qkv=layer.qkv.value, out=layer.out.value)
with jax.default_matmul_precision("highest"):
    want = tests.plain(x, weights, tests.mask_of(jnp.zeros((2, 10))))
np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
losses = module["main"]()
assert losses[-1] < 0.7 * losses[0] and min(losses) == losses[-1], losses
"""


@pytest.mark.full
def test_keras() -> None:
    """In a process of its own: Keras reads its backend when it is imported."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("no keras")
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KERAS, EXAMPLES / "keras_layer.py", support.ROOT / "tests"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["global", "local_sliding"])
def test_maxtext(kind: str) -> None:
    """Called as in older MaxTexts, without positions and sinks; test_maxtext.py has the AttentionOp of a newer one."""
    module = runpy.run_path(str(EXAMPLES / "maxtext_attention.py"))
    op = SimpleNamespace(
        attention_type=SimpleNamespace(value=kind), sliding_window_size=3, attn_logits_soft_cap=None
    )
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((2, 9, n, 64)), jnp.float32) for n in (4, 2, 2))
    q = q / 8
    ids = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1]])
    attend = jax.jit(lambda *xs: module["cudnn_flash_attention"](op, *xs, model_mode="train"))
    near = jnp.tri(9, dtype=bool) & ~jnp.tri(9, k=-3, dtype=bool)
    mask = mask_of(ids) & (near if kind == "local_sliding" else True)
    with jax.default_matmul_precision("highest"):
        seen = jax.jit(attention)(q, k, v, mask, 1.0)
    want = np.where(np.asarray(ids)[..., None, None] > 0, seen, 0)
    np.testing.assert_allclose(attend(q, k, v, ids), want, rtol=2e-4, atol=2e-4)
    slope = jax.jit(jax.grad(lambda x: (attend(x, k, v, ids) * want).sum()))(q)
    assert np.isfinite(slope).all() and not np.asarray(slope)[0, 7:].any()
    alone = module["cudnn_flash_attention"](op, q, k, v, None)
    np.testing.assert_allclose(alone[1], want[1], rtol=2e-4, atol=2e-4)


def test_maxtext_refuses_what_is_not_built() -> None:
    module = runpy.run_path(str(EXAMPLES / "maxtext_attention.py"))
    op = SimpleNamespace(attention_type=SimpleNamespace(value="chunk"))
    with pytest.raises(NotImplementedError, match="attention_type is chunk"):
        module["cudnn_flash_attention"](op, *[jnp.ones((1, 2, 2, 64))] * 3, None)
