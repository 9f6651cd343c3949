"""vLLM's own compiled ops inside JAX programs give what ours give. `make test-bridge-vllm` runs those for CPUs."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
import torch
from bridged import RNG, need_op, normal
from intarsia.torch import bridge

BF16 = jnp.bfloat16
# A few roundings to bf16, not in the same places: vLLM's rms_norm rounds before the weight as well.
TOLERANCE = 6e-3


def close(got: jax.Array, want: jax.Array) -> None:
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    assert support.relative_error(got, want) < TOLERANCE


@pytest.mark.parametrize("dtype", [jnp.float32, BF16])
def test_rms_norm(dtype: jnp.dtype, pytestconfig: pytest.Config) -> None:
    need_op("_C::rms_norm", pytestconfig)
    x, weight = normal(13, 128, dtype=dtype), normal(128, dtype=dtype)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    theirs = jax.jit(lambda x, w: bridge.call("_C::rms_norm", out, x, w, 1e-5))(x, weight)
    close(theirs, ij.rms_norm(x, weight, eps=1e-5))


def test_fused_add_rms_norm_writes_in_place(pytestconfig: pytest.Config) -> None:
    need_op("_C::fused_add_rms_norm", pytestconfig)
    x, residual, weight = normal(13, 128), normal(13, 128), normal(128)
    want = ij.fused_add_rms_norm(x, residual, weight, eps=1e-5)
    addresses = [x.unsafe_buffer_pointer(), residual.unsafe_buffer_pointer()]
    step = jax.jit(
        lambda x, r, w: bridge.call("_C::fused_add_rms_norm", x, r, w, 1e-5), donate_argnums=(0, 1)
    )
    got = step(x, residual, weight)
    assert [y.unsafe_buffer_pointer() for y in got] == addresses
    for theirs, ours in zip(got, want, strict=True):
        close(theirs, ours)


# A batch for a paged cache: sequences of these lengths, whole.
LENGTHS = np.array([20, 40, 1], np.int32)
PAGES, PAGE, HEADS, KV_HEADS, HEAD_DIM = 8, 32, 4, 2, 64
TABLE = np.array([[3, 0], [1, 5], [7, 0]], np.int32)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
SLOTS = np.concatenate(
    [TABLE[i, np.arange(n) // PAGE] * PAGE + np.arange(n) % PAGE for i, n in enumerate(LENGTHS)]
).astype(np.int32)


def test_a_paged_cache_is_written_and_attended_to(pytestconfig: pytest.Config) -> None:
    """vLLM's CPU cache holds [p, hk, s, d]; its keys lie transposed within a page."""
    need_op("_C::cpu_attn_reshape_and_cache", pytestconfig)
    tokens = int(STARTS[-1])
    q = normal(tokens, HEADS, HEAD_DIM, dtype=BF16)
    k, v = (normal(tokens, KV_HEADS, HEAD_DIM, dtype=BF16) for _ in range(2))
    old = RNG.standard_normal((2, PAGES, KV_HEADS, PAGE, HEAD_DIM))
    old = old.astype(BF16)
    # vLLM's plan of a batch points into itself, so it must stay where torch made it: JAX is lent it.
    plan = scheduled()
    metadata = jnp.from_dlpack(plan)
    assert metadata.unsafe_buffer_pointer() == plan.data_ptr()

    def step(q, k, v, key_cache, value_cache, metadata):
        key_cache, value_cache = bridge.op("_C::cpu_attn_reshape_and_cache", via="python")(
            k, v, key_cache, value_cache, bridge.int64(SLOTS), "vec"
        )
        out = bridge.call(
            "_C::cpu_attention_with_kv_cache", q, key_cache, value_cache,
            jax.ShapeDtypeStruct(q.shape, q.dtype), STARTS, LENGTHS, HEAD_DIM**-0.5, True, None,
            -1, -1, TABLE, 0.0, metadata, None,
        )  # fmt: skip
        return out, key_cache, value_cache

    transposed = np.swapaxes(old[0], -1, -2).reshape(old[0].shape)
    caches = [jnp.asarray(transposed), jnp.asarray(old[1])]
    addresses = [x.unsafe_buffer_pointer() for x in caches]
    theirs, *written = jax.jit(step, donate_argnums=(3, 4))(q, k, v, *caches, metadata)
    assert [x.unsafe_buffer_pointer() for x in written] == addresses

    ours = ij.reshape_and_cache_flash(k, v, tuple(map(jnp.asarray, old)), SLOTS, layout="HND")
    keys = np.asarray(written[0]).reshape(PAGES, KV_HEADS, HEAD_DIM, PAGE)
    assert np.array_equal(np.swapaxes(keys, -1, -2), np.asarray(ours[0]))
    assert np.array_equal(np.asarray(written[1]), np.asarray(ours[1]))
    want = ij.flash_attn_varlen(
        q, *ours, STARTS, seqused_k=LENGTHS, block_table=TABLE, is_causal=True, layout="HND"
    )
    close(theirs, want)


def scheduled() -> torch.Tensor:
    lengths, starts = map(torch.from_numpy, (LENGTHS, STARTS))
    return torch.ops._C.get_scheduler_metadata(
        len(LENGTHS),
        HEADS,
        KV_HEADS,
        HEAD_DIM,
        lengths,
        torch.bfloat16,
        starts,
        True,
        -1,
        "vec",
        True,
    )
