"""Rotary embedding of tokens that have several positions (M-RoPE)."""

import operator
from collections.abc import Sequence
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from intarsia.jax import wire
from intarsia.jax._call import as_array


@overload
def multimodal_rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: None = None,
    *,
    sections: Sequence[int],
    interleaved: bool = False,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array: ...


@overload
def multimodal_rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: ArrayLike,
    *,
    sections: Sequence[int],
    interleaved: bool = False,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> tuple[jax.Array, jax.Array]: ...


def multimodal_rotary_embedding(
    positions: ArrayLike,
    query: ArrayLike,
    cos_sin_cache: ArrayLike,
    key: ArrayLike | None = None,
    *,
    sections: Sequence[int],
    interleaved: bool = False,
    head_size: int | None = None,
    is_neox: bool = True,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`rotary_embedding` of tokens with several positions each: in time, height and width of Qwen-VL's M-RoPE.

    Args:
      positions: int32 or int64 [axes, ...]: [3, t] as vLLM has them. One outside the table turns nothing;
        INTARSIA_CHECK=1 in the environment makes it an error.
      query: [..., h, d], or with `head_size` [..., h * d]; f32, f16 or bf16.
      cos_sin_cache: [max_pos, r]: cosines, then sines, of r/2 angles a position.
      key: as query, with heads of its own; default: none.
      sections: how many of the r/2 pairs take each axis (`mrope_section`: (16, 24, 24) of Qwen2-VL).
      interleaved: the axes take turns, pair by pair, while their section lasts; the first axis has what is left (Qwen3-VL).
        False: the first section's pairs come first, then the second's.
      head_size, is_neox, rope_dim_offset, inverse: as in `rotary_embedding`.

    Returns:
      The turned query, or (query, key). Both can be differentiated.

    Raises:
      ValueError: shapes, dtypes or sections do not fit.

    Source: Qwen2-VL, arXiv:2409.12191; vLLM's `MRotaryEmbedding`.

    Example:
      >>> query, key = multimodal_rotary_embedding(positions, query, table, key, sections=(16, 24, 24))
    """
    name = "multimodal_rotary_embedding"
    try:
        counts = tuple(map(operator.index, sections))
    except TypeError:
        counts = (-1,)
    if min(counts, default=0) < 0:
        raise ValueError(f"{name}: sections={sections!r}, expected a number of pairs for each axis")
    sections = counts
    positions = as_array(f"{name}: positions", positions)
    table = as_array(f"{name}: cos_sin_cache", cos_sin_cache)
    if positions.ndim == 0 or positions.shape[0] != len(sections):
        raise ValueError(
            f"{name}: positions has shape {list(positions.shape)}, expected [{len(sections)}, ...] for sections={sections}"
        )
    if 2 * sum(sections) != table.shape[-1]:
        raise ValueError(
            f"{name}: sections={sections} are {sum(sections)} pairs, expected r/2={table.shape[-1] // 2} of cos_sin_cache"
        )
    return wire.rotary_embedding(
        jnp.moveaxis(positions, 0, -1),
        query,
        table,
        key,
        _axes_of_pairs(sections, interleaved),
        head_size=head_size,
        is_neox=is_neox,
        rope_dim_offset=rope_dim_offset,
        inverse=inverse,
    )


def _axes_of_pairs(sections: Sequence[int], interleaved: bool) -> np.ndarray:
    """int32 [r / 2]: which position each pair takes."""
    if not interleaved:
        return np.repeat(np.arange(len(sections), dtype=np.int32), sections)
    axes = np.zeros(sum(sections), np.int32)
    for axis, count in enumerate(sections[1:], 1):
        axes[axis : count * len(sections) : len(sections)] = axis
    return axes
