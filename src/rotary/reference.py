"""Rotary embedding: random operands, what it computes in NumPy f64, plain XLA's way."""

import math

import numpy as np

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
    sections=None,
    interleaved=False,
    **attributes,
):
    """Random operands in spec order, and attributes. `sections`: pairs of each of a token's positions (M-RoPE)."""
    shape = tokens if sections is None else (*tokens, len(sections))
    positions = rng.integers(0, max_position, shape).astype(index)
    pair_axes = None if sections is None else axes_of_pairs(sections, interleaved).astype(index)
    if outside and sections is not None:
        positions[:2], pair_axes[:2] = [[-1], [max_position]], [-1, len(sections)]
    elif outside:
        positions[..., :4] = [-1, max_position, np.iinfo(index).max, np.iinfo(index).min]

    def heads(count):
        shape = (*tokens, count * d) if flat else (*tokens, count, d)
        return rng.standard_normal(shape).astype(dtype)

    operands = [
        positions,
        heads(h),
        cos_sin_table(table_dtype or dtype, r or d, max_position),
        heads(hk) if hk else None,
        pair_axes,
    ]
    return operands, attributes | (dict(head_size=d) if flat else {})


def axes_of_pairs(sections, interleaved=False):
    """Which position each pair takes: section after section, or in turn (Qwen3-VL) while a later section lasts."""
    if not interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    axes = np.zeros(sum(sections), int)
    for axis, count in enumerate(sections):
        if axis > 0:
            axes[axis : count * len(sections) : len(sections)] = axis
    return axes


def reference(
    positions,
    query,
    cos_sin_cache,
    key=None,
    pair_axes=None,
    *,
    head_size=None,
    is_neox=True,
    rope_dim_offset=0,
    inverse=False,
):
    """The results in spec order. Operands are f64, positions integers."""
    max_position, r = cos_sin_cache.shape
    pair = np.arange(r // 2)
    if pair_axes is None:
        positions = positions[..., None]
        of_pairs = np.broadcast_to(positions, (*positions.shape[:-1], r // 2))
    else:
        exists = (pair_axes >= 0) & (pair_axes < positions.shape[-1])
        of_pairs = np.where(exists, positions[..., np.where(exists, pair_axes, 0)], -1)
    positions = positions[..., 0]
    inside = (of_pairs >= 0) & (of_pairs < max_position)
    row = np.where(inside, of_pairs, 0)
    cos = np.where(inside, cos_sin_cache[row, pair], 1.0)[..., None, :]
    sin = np.where(inside, cos_sin_cache[row, r // 2 + pair], 0.0)[..., None, :]
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


def plain_xla(
    positions,
    query,
    cos_sin_cache,
    key=None,
    pair_axes=None,
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
    if pair_axes is None:
        angles = cos_sin_cache[positions].astype(jnp.float32)[..., None, :]
        cos, sin = jnp.split(angles, 2, axis=-1)
    else:
        row, pair = positions[..., pair_axes], jnp.arange(r // 2)
        cos, sin = (
            cos_sin_cache[row, first + pair].astype(jnp.float32)[..., None, :]
            for first in (0, r // 2)
        )
        positions = positions[..., 0]
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
