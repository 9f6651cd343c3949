"""fused_qk_norm_rope: what it computes, in NumPy f64; its cases; plain XLA's way."""

import numpy as np
from intarsia_src.norm import reference as norms
from intarsia_src.rotary import reference as rotary

# Named after the models whose heads they are.
CASES = {
    "example": dict(tags="ci wire", t=2, h=4, hk=2, d=16, max_position=16),
    "qwen3_8b_decode": dict(tags="ci bench bench_cpu", t=16, h=32, hk=8, d=128),
    "qwen3_8b_prefill": dict(tags="bench", t=4096, h=32, hk=8, d=128),
    "qwen3_8b_prefill_short": dict(tags="bench_cpu", t=256, h=32, hk=8, d=128),
    "partial": dict(tags="ci", t=7, h=6, hk=2, d=128, r=64),
    "gptj_pairs": dict(tags="ci", t=5, h=4, hk=4, d=64, is_neox=False),
    "f32_table_and_weights": dict(tags="ci", t=4, h=2, hk=1, d=64, wide=True, index=np.int64),
    "gemma3_decode": dict(tags="ci", t=7, h=4, hk=1, d=256, wide=True),
    "odd_pairs": dict(tags="ci", t=3, h=3, hk=1, d=34, r=22),
    "outside_the_table": dict(tags="ci beyond_plain", t=6, h=2, hk=1, d=64, outside=True),
    "empty": dict(tags="ci", t=0, h=2, hk=1, d=64),
}


def arguments(rng, dtype, *, t, h, hk, d, wide=False, is_neox=True, **sizes):
    """Random operands in spec order, and attributes. `wide`: table and weights in f32."""
    other = np.float32 if wide else dtype
    (positions, query, table, key, *_), _ = rotary.arguments(
        rng, dtype, tokens=(t,), h=h, hk=hk, d=d, table_dtype=other, **sizes
    )
    value = rng.standard_normal((t, hk, d)).astype(dtype)
    weights = [norms.random_weight(rng, d, other) for _ in range(2)]
    qkv = np.concatenate([query, key, value], axis=1)
    return [positions, qkv, table, *weights], dict(
        num_heads_q=h, num_heads_k=hk, eps=1e-5, is_neox=is_neox
    )


def reference(
    positions,
    qkv,
    cos_sin_cache,
    q_weight,
    k_weight,
    *,
    num_heads_q,
    num_heads_k,
    eps=1e-6,
    is_neox=True,
):
    """The results in spec order. Operands are f64."""
    query, key, value = np.split(qkv, [num_heads_q, num_heads_q + num_heads_k], axis=1)
    query, key = norms.normed(query, q_weight, eps), norms.normed(key, k_weight, eps)
    turned = rotary.reference(positions, query, cos_sin_cache, key, is_neox=is_neox)
    return [np.concatenate([*turned, value], axis=1)]


def floor(dtype_bytes, *, t, h, hk, d, r=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    return t * (2 * (h + 2 * hk) * d + (r or d)) * dtype_bytes, 0


def plain_xla(
    positions,
    qkv,
    cos_sin_cache,
    q_weight,
    k_weight,
    *,
    num_heads_q,
    num_heads_k,
    eps=1e-6,
    is_neox=True,
):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    query, key, value = jnp.split(qkv, [num_heads_q, num_heads_q + num_heads_k], axis=1)
    wide = [
        norms.xla_normed(x.astype(jnp.float32), w.astype(jnp.float32), eps, "once")[0]
        for x, w in ((query, q_weight), (key, k_weight))
    ]
    query, key = rotary.plain_xla(positions, wide[0], cos_sin_cache, wide[1], is_neox=is_neox)
    turned = jnp.concatenate([query, key], axis=1).astype(qkv.dtype)
    return [jnp.concatenate([turned, value], axis=1)]
