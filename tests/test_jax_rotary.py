"""M-RoPE: positions [3, t] against vLLM's two ways of choosing a position for each pair, written out."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from intarsia_src.rotary.reference import cos_sin_table

SECTIONS = (6, 5, 5)
T, H, D = 7, 3, 40


def operands():
    rng = np.random.default_rng(0)
    positions = rng.integers(0, 50, (3, T)).astype(np.int32)
    query, key = (rng.standard_normal((T, h, D)).astype(np.float32) for h in (H, 1))
    return positions, query, cos_sin_table(np.float32, 32, 50), key


def by_hand(positions, x, table, interleaved, is_neox):
    """As MRotaryEmbedding.forward_native of vLLM 0.13: sections cut out of each axis's cosines and sines."""
    cos, sin = np.split(table[positions].astype(np.float64), 2, axis=-1)  # [3, t, r / 2]

    def chosen(y):
        if not interleaved:
            parts = np.split(y, np.cumsum(SECTIONS)[:-1], axis=-1)
            return np.concatenate([part[i] for i, part in enumerate(parts)], axis=-1)
        out = y[0].copy()
        for axis in (1, 2):
            out[:, axis : SECTIONS[axis] * 3 : 3] = y[axis][:, axis : SECTIONS[axis] * 3 : 3]
        return out

    cos, sin = chosen(cos)[:, None], chosen(sin)[:, None]
    part, rest = x[..., :32].astype(np.float64), x[..., 32:]
    x1, x2 = (part[..., :16], part[..., 16:]) if is_neox else (part[..., ::2], part[..., 1::2])
    pair = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    turned = np.concatenate(pair, -1) if is_neox else np.stack(pair, -1).reshape(part.shape)
    return np.concatenate([turned, rest], axis=-1)


@running.on_each_platform
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("interleaved", [False, True])
def test_each_pair_takes_its_axis(platform, interleaved, is_neox):
    positions, query, table, key = operands()
    options = {"sections": SECTIONS, "interleaved": interleaved, "is_neox": is_neox}
    with jax.default_device(jax.devices(platform)[0]):
        got = ij.multimodal_rotary_embedding(positions, query, table, key, **options)
        alone = ij.multimodal_rotary_embedding(positions, query, table, **options)
        flat = ij.multimodal_rotary_embedding(
            positions, query.reshape(T, H * D), table, head_size=D, **options
        )
    for result, x in zip(got, (query, key), strict=True):
        running.check(
            "rotary_embedding",
            np.asarray(result),
            by_hand(positions, x, table, interleaved, is_neox),
        )
    assert np.array_equal(alone, got[0]) and np.array_equal(flat.reshape(query.shape), got[0])


def test_text_has_the_bits_of_plain_rope() -> None:
    """Three equal positions are one."""
    positions, query, table, key = operands()
    positions = np.broadcast_to(positions[0], positions.shape)
    got = ij.multimodal_rotary_embedding(positions, query, table, key, sections=SECTIONS)
    for x, y in zip(got, ij.rotary_embedding(positions[0], query, table, key), strict=True):
        assert np.array_equal(x, y)


def test_gradients_and_vmap() -> None:
    positions, query, table, key = operands()
    plain = support.op_module("rotary_embedding").plain_xla
    axes = np.repeat(np.arange(3, dtype=np.int32), SECTIONS)

    def ours(query, table, key):
        out = ij.multimodal_rotary_embedding(positions, query, table, key, sections=SECTIONS)
        return sum(jnp.sum(jnp.sin(x)) for x in out)

    def theirs(query, table, key):
        out = plain(positions.T, query, table, key, axes)
        return sum(jnp.sum(jnp.sin(x)) for x in out)

    @jax.jit
    def gradients(*floats):
        return [jax.grad(f, argnums=(0, 1, 2))(*floats) for f in (ours, theirs)]

    got, want = gradients(query, table, key)
    for dx, expected in zip(got, want, strict=True):
        assert support.relative_error(np.asarray(dx), expected) < 1e-5

    def turn(positions, query):
        return ij.multimodal_rotary_embedding(positions, query, table, sections=SECTIONS)

    batch = np.stack([positions, positions[::-1]], axis=1), np.stack([query, 2 * query])
    mapped = jax.vmap(turn, in_axes=(1, 0))(*batch)
    assert np.array_equal(mapped[1], turn(positions[::-1], 2 * query))


def test_what_does_not_fit_is_refused() -> None:
    positions, query, table, _ = operands()
    with pytest.raises(ValueError, match=r"positions has shape \[2, 7\], expected \[3, ...\]"):
        ij.multimodal_rotary_embedding(positions[:2], query, table, sections=SECTIONS)
    with pytest.raises(ValueError, match=r"sections=\(6, 5, 6\) are 17 pairs, expected r/2=16"):
        ij.multimodal_rotary_embedding(positions, query, table, sections=(6, 5, 6))
    with pytest.raises(
        ValueError, match=r"rotary_embedding: pair_axes has pairs=3, expected r/2=16"
    ):
        ij.rotary_embedding(positions.T, query, table, None, np.zeros(3, np.int32))


@pytest.mark.parametrize("sections", [(5, -2, 1), (1.0, 1.0, 2.0), 4])
def test_sections_that_are_none(sections) -> None:
    query, table = np.ones((5, 2, 8), np.float32), np.ones((7, 8), np.float32)
    with pytest.raises(ValueError, match=r"^multimodal_rotary_embedding: sections=.*, expected a"):
        ij.multimodal_rotary_embedding(np.zeros((3, 5), int), query, table, sections=sections)


@pytest.mark.parametrize("position", [3, 99, -1, 2**32 + 3, 2**40])
def test_a_position_outside_the_table_has_no_gradient(position: int) -> None:
    with jax.enable_x64(True):
        query, table = np.ones((1, 1, 4), np.float32), np.ones((9, 4), np.float32)
        rotated = lambda t: ij.rotary_embedding(np.array([position]), query, t).sum()  # noqa: E731
        gradient = jax.grad(rotated)(table)
    assert np.flatnonzero(gradient.any(axis=1)).tolist() == ([3] if position == 3 else [])
