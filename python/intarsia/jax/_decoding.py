"""Whether a GPU decodes weights in codes first, for a product of XLA's or of the op of plain weights."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from intarsia import _environment
from intarsia._packing import FORMATS, PackedWeight


class Fewest(NamedTuple):
    """Rows of x from which weights are decoded first.

    docs/notebook/many_rows_of_codes.md has the figures.
    """

    rows: int
    by_wgmma: int
    """On Hopper, if wgmma multiplies their codes fast."""
    slowly: int
    """If only the slowest kernels multiply their codes."""


LINEAR = Fewest(512, 1024, 128)
EXPERTS = Fewest(2048, 16384, 512)


def pays(
    x: jax.Array,
    scales: Sequence[jax.Array | None],
    zeros: Sequence[jax.Array | None],
    fewest: Fewest,
    are_multiplied: Callable[[], bool],
    are_slow: Callable[[], bool],
) -> bool:
    """Whether weights are to be numbers of x's type on a GPU.

    Few rows touch no device: JAX starts its backends when it is asked for one.

    Args:
      x: [..., k].
      scales: of each of the weights, and outer ones.
      zeros: likewise.
      fewest: the rows that it takes.
      are_multiplied: says whether Hopper multiplies the codes fast by wgmma.
      are_slow: says whether the GPU has no fast kernel for them at all.
    """
    rows = x.size // max(x.shape[-1], 1)
    # f16 may not hold them, unless their scales are f16 as well, and zeros that are no bytes.
    factors = [s for s in scales if s is not None]
    factors += [z for z in zeros if z is not None and z.dtype.itemsize > 1]
    fits = all(x.dtype == jnp.bfloat16 or x.dtype == f.dtype == jnp.float16 for f in factors)
    if not fits or rows < fewest.slowly:
        return False
    if rows < fewest.rows:
        return are_slow()
    return rows >= fewest.by_wgmma or not (are_multiplied() and is_hopper())


def is_hopper() -> bool:
    """Whether JAX's first device is a GPU of compute capability 9.0, which nothing holds back to an older one's kernels."""
    capability = getattr(jax.devices()[0], "compute_capability", None)
    return capability == "9.0" and _environment.held_back_to() in (None, "90")


_WHOLE_BYTES = ("i8", "e4m3")


def are_rare(format: str, group: int, outer_scales: Any) -> bool:
    """Whether portable kernels are slow with such weights: 5 and 6 bits, groups of 16 columns, and outer scales."""
    return FORMATS[format].bits in (5, 6) or group == 16 or outer_scales is not None


def are_of_hopper(
    x: jax.Array | jax.ShapeDtypeStruct,
    scales: Any,
    zeros: Any,
    outer_scales: Any = None,
    *,
    format: str,
    group: int,
    zeros_are: str,
    **_: Any,
) -> bool:
    """Whether Hopper's kernels for many rows take such weights: 4 and 8 bits in groups of 128 columns, mxfp4 and nvfp4.

    src/matmul/cuda/quantized_plan_hopper.cc has the rules.
    """
    k = x.shape[-1]
    if format == "e2m1":
        if zeros is not None or x.dtype != jnp.bfloat16:
            return False
        if group == 16:
            one_a_row = (
                outer_scales is None or outer_scales.ndim == 1 or outer_scales.shape[-2] == 1
            )
            return scales.dtype == jnp.float8_e4m3fn and one_a_row
        return scales.dtype == jnp.float8_e8m0fnu and group == 32 and outer_scales is None
    if outer_scales is not None:
        return False
    wide = (group or -(-k // 32) * 32) % 128 == 0 and scales.dtype.itemsize > 1
    if zeros is None:
        return wide and format in ("u4b8", *_WHOLE_BYTES)
    return wide and format == "u4" and zeros_are == "points" and zeros.dtype == jnp.uint8


def decode_late(
    x: jax.Array, scales: Any, zeros: Any, outer_scales: Any, *, format: str, **form: Any
) -> bool:
    """Whether linear layers of such weights are decoded first from `LINEAR.by_wgmma` rows on: those of 4 bits.

    With 512 rows 8 bits take 310 and 341 us in codes, 263 and 267 decoded first (docs/notebook/many_rows_of_codes.md).
    """
    return format not in _WHOLE_BYTES and are_of_hopper(
        x, scales, zeros, outer_scales, format=format, **form
    )


def gain_by_codes(weight: PackedWeight) -> bool:
    """Whether a Hopper decodes with such a matrix, or such experts, faster than with plain numbers, x in bf16, in batches as well.

    Beyond `are_of_hopper` there are kernels for few rows of int4 and int8 in groups of 32 and 64 columns.
    docs/notebook/formats_of_files.md and weights_in_codes.md have the figures.
    """
    plain = weight.zeros is None and weight.outer_scales is None
    if plain and weight.format in ("u4b8", "i8") and weight.group in (32, 64):
        return weight.scales.dtype.itemsize > 1
    x = jax.ShapeDtypeStruct((1, weight.columns), jnp.bfloat16)
    return are_of_hopper(x, *weight.arrays[1:4], **weight.attributes)
