"""MaxText's AttentionOp with the method of examples/maxtext_attention.py, in the process that test_maxtext.py has prepared."""

import runpy
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import running
import support
from maxtext.common.common_types import AttentionType
from maxtext.layers import attention_op
from maxtext.layers.attention_op import AttentionOp

HEADS, KV_HEADS, DIM, LENGTH = 4, 2, 64, 12


def expected(q, k, v, ids, window=None, cap=None, sinks=None):
    """Causal attention within segments, in f64; MaxText scales q beforehand."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    mask = (ids[:, :, None] == ids[:, None, :]) & np.tri(LENGTH, dtype=bool)
    mask &= ~np.tri(LENGTH, k=-(window or LENGTH), dtype=bool)
    weights = np.where(mask[:, None], np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    total = total if sinks is None else total + np.exp(np.asarray(sinks))[:, None, None]
    return np.where(ids[..., None, None] > 0, np.einsum("bhqk,bkhd->bqhd", weights / total, v), 0)


def check(dtype, kind=AttentionType.GLOBAL, window=None, cap=None, sinks=None) -> None:
    config = SimpleNamespace(
        attention_type=kind.value,
        context_parallel_strategy="all_gather",
        logical_axis_rules=[],
        ulysses_context_sharding="",
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    op = AttentionOp(
        config,
        mesh,
        "cudnn_flash_te",
        max_target_length=LENGTH,
        num_query_heads=HEADS,
        num_kv_heads=KV_HEADS,
        dtype=dtype,
        attention_type=kind,
        attn_logits_soft_cap=cap,
        sliding_window_size=window,
    )
    rng = np.random.default_rng(0)
    shapes = [(2, LENGTH, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)
    q = q / 8
    ids = np.array([[1] * 4 + [2] * 5 + [0] * 3, [1] * LENGTH])
    places = jnp.tile(jnp.arange(LENGTH), (2, 1))
    attend = jax.jit(lambda q, k, v, ids: op(q, k, v, ids, places, "train", sinks=sinks))
    want = expected(q, k, v, ids, window, cap, sinks)
    running.check("flash_attn_varlen", np.asarray(attend(q, k, v, jnp.asarray(ids))), want)


def main() -> None:
    attention_op.KVTensor = type("KVTensor", (), {})  # quantized keys, of a library that is absent
    hook = runpy.run_path(str(support.ROOT / "examples" / "maxtext_attention.py"))
    AttentionOp.cudnn_flash_attention = hook["cudnn_flash_attention"]
    check(jnp.float32)
    check(jnp.bfloat16)
    check(jnp.float32, AttentionType.LOCAL_SLIDING, window=3, cap=5.0)
    check(jnp.float32, sinks=jnp.array([1.0, -1.0, 0.5, 2.0]))
