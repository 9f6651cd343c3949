"""rotary_embedding: what it computes, in NumPy f64; its cases; plain XLA's way."""

import math

import numpy as np

# Named after the models whose heads they are. `tokens` is the shape of positions.
CASES = {
    "example": dict(tags="ci wire", tokens=(2,), h=4, hk=2, d=64, max_position=16),
    "llama3_8b_decode": dict(tags="ci bench bench_cpu", tokens=(16,), h=32, hk=8, d=128),
    "llama3_8b_prefill": dict(tags="bench", tokens=(4096,), h=32, hk=8, d=128),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", tokens=(256,), h=32, hk=8, d=128),
    "smollm2_decode": dict(tags="ci bench_cpu", tokens=(1,), h=9, hk=3, d=64),
    "gpt_j_partial": dict(tags="ci", tokens=(5,), h=4, hk=4, d=256, r=64, is_neox=False),
    "glm4_partial": dict(tags="ci", tokens=(7,), h=6, hk=2, d=128, r=64),
    "deepseek_tail": dict(
        tags="ci", tokens=(3,), h=2, hk=1, d=192, r=64, rope_dim_offset=128, is_neox=False
    ),
    "flat_heads": dict(tags="ci", tokens=(5,), h=4, hk=2, d=64, flat=True),
    "batch_and_sequence": dict(tags="ci", tokens=(2, 3), h=4, hk=2, d=64, index=np.int64),
    "batch_flat_no_key": dict(tags="ci", tokens=(2, 3), h=4, hk=None, d=64, flat=True),
    "f32_table": dict(tags="ci", tokens=(4,), h=2, hk=1, d=64, table_dtype=np.float32),
    "inverse": dict(tags="ci", tokens=(4,), h=2, hk=1, d=96, inverse=True),
    "odd_pairs": dict(tags="ci", tokens=(3,), h=3, hk=1, d=34, r=22),
    "outside_the_table": dict(tags="ci beyond_plain", tokens=(6,), h=2, hk=1, d=64, outside=True),
    "empty": dict(tags="ci", tokens=(0,), h=2, hk=1, d=64),
}
MAX_POSITION = 8192


def cos_sin_table(dtype, r, max_position=MAX_POSITION, base=10000.0):
    """[max_position, r]: the cosines, then the sines, of r/2 angles a position."""
    frequency = base ** (-np.arange(0, r, 2) / r)
    angle = np.arange(max_position)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1).astype(dtype)


def arguments(
    rng,
    dtype,
    *,
    tokens,
    h,
    hk,
    d,
    r=None,
    flat=False,
    outside=False,
    index=np.int32,
    table_dtype=None,
    max_position=MAX_POSITION,
    **attributes,
):
    """Random operands in spec order, and attributes."""
    positions = rng.integers(0, max_position, tokens).astype(index)
    if outside:
        positions[..., :4] = [-1, max_position, np.iinfo(index).max, np.iinfo(index).min]

    def heads(count):
        shape = (*tokens, count * d) if flat else (*tokens, count, d)
        return rng.standard_normal(shape).astype(dtype)

    operands = [
        positions,
        heads(h),
        cos_sin_table(table_dtype or dtype, r or d, max_position),
        heads(hk) if hk else None,
    ]
    return operands, attributes | (dict(head_size=d) if flat else {})


def reference(
    positions,
    query,
    cos_sin_cache,
    key=None,
    *,
    head_size=None,
    is_neox=True,
    rope_dim_offset=0,
    inverse=False,
):
    """The results in spec order. Operands are f64, positions integers."""
    max_position, r = cos_sin_cache.shape
    inside = (positions >= 0) & (positions < max_position)
    angles = cos_sin_cache[np.where(inside, positions, 0)]
    cos = np.where(inside[..., None], angles[..., : r // 2], 1.0)[..., None, :]
    sin = np.where(inside[..., None], angles[..., r // 2 :], 0.0)[..., None, :]
    if inverse:
        sin = -sin

    def turn(x):
        d = x.shape[-1] if x.ndim == positions.ndim + 2 else head_size
        turned = x.reshape(*positions.shape, math.prod(x.shape[positions.ndim :]) // d, d).copy()
        part = turned[..., rope_dim_offset : rope_dim_offset + r]  # a view: the rest stays as it is
        first = np.s_[..., : r // 2] if is_neox else np.s_[..., ::2]
        second = np.s_[..., r // 2 :] if is_neox else np.s_[..., 1::2]
        x1, x2 = part[first].copy(), part[second].copy()
        part[first], part[second] = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        return turned.reshape(x.shape)

    return [turn(query)] + ([] if key is None else [turn(key)])


def floor(dtype_bytes, *, tokens, h, hk, d, r=None, **_):
    """The least a call must do: (bytes moved, flops)."""
    t = math.prod(tokens)
    return t * (2 * (h + (hk or 0)) * d + (r or d)) * dtype_bytes, 0


def plain_xla(
    positions,
    query,
    cos_sin_cache,
    key=None,
    *,
    head_size=None,
    is_neox=True,
    rope_dim_offset=0,
    inverse=False,
):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax.numpy as jnp

    r = cos_sin_cache.shape[1]
    # XLA clamps an index that is outside, so this is right only inside the table.
    angles = cos_sin_cache[positions].astype(jnp.float32)[..., None, :]
    cos, sin = jnp.split(angles, 2, axis=-1)
    if inverse:
        sin = -sin

    def turn(x):
        d = x.shape[-1] if x.ndim == positions.ndim + 2 else head_size
        heads = x.reshape(*positions.shape, math.prod(x.shape[positions.ndim :]) // d, d)
        head, part, tail = jnp.split(heads, [rope_dim_offset, rope_dim_offset + r], axis=-1)
        f32 = part.astype(jnp.float32)
        x1, x2 = jnp.split(f32, 2, axis=-1) if is_neox else (f32[..., ::2], f32[..., 1::2])
        pair = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        turned = (
            jnp.concatenate(pair, axis=-1)
            if is_neox
            else jnp.stack(pair, axis=-1).reshape(part.shape)
        )
        return jnp.concatenate([head, turned.astype(x.dtype), tail], axis=-1).reshape(x.shape)

    return [turn(query)] + ([] if key is None else [turn(key)])
