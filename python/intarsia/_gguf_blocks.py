"""GGUF's quantized matrices, rows of blocks of bytes, packed as `intarsia.repack` packs others.

ggml/src/ggml-common.h has the blocks, ggml/src/ggml-quants.c what they stand for.
"""

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np

from intarsia._packing import FORMATS, PackedWeight, from_codes, from_pairs, packed_by_rows


def _f16(blocks: np.ndarray, at: int) -> np.ndarray:
    return blocks[..., at : at + 2].copy().view(np.float16)[..., 0]


def _nibbles(part: np.ndarray) -> np.ndarray:
    """The lower halves of some bytes, then the upper ones, along the last axis."""
    return np.concatenate([part & 15, part >> 4], axis=-1)


def _bits(part: np.ndarray) -> np.ndarray:
    return np.unpackbits(part, axis=-1, bitorder="little")


def _matrix(parts: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(parts.reshape(len(parts), -1))


def _q4_or_q5(blocks: np.ndarray, format: str) -> PackedWeight:
    """A scale, a minimum where no number of the format's own is taken away, the fifth bits, if there are, and the others."""
    minimums, has_fifth = format in ("u4", "u5"), FORMATS[format].bits == 5
    at = 4 if minimums else 2
    codes = _nibbles(blocks[..., at + 4 * has_fifth :])
    if has_fifth:
        codes |= _bits(blocks[..., at : at + 4]) << 4
    return from_codes(
        _matrix(codes),
        _f16(blocks, 0),
        _f16(blocks, 2) if minimums else None,
        format=format,
        group=32,
        zeros_are="minimums" if minimums else "points",
    )


def _q8_0(blocks: np.ndarray) -> PackedWeight:
    return from_codes(_matrix(blocks[..., 2:]), _f16(blocks, 0), format="i8", group=32)


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 8 scales and 8 minimums of Q4_K's and Q5_K's blocks, 6 bits each of 12 bytes."""
    first, second, third = (packed[..., i : i + 4] for i in (0, 4, 8))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=-1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=-1)
    return _matrix(scales), _matrix(minimums)


def _q4_k_or_q5_k(blocks: np.ndarray, format: str) -> PackedWeight:
    scales, minimums = _six_bits(blocks[..., 4:16])
    codes = blocks[..., -128:]
    codes = _nibbles(codes.reshape(*codes.shape[:-1], 4, 32)).reshape(*codes.shape[:-1], 8, 32)
    if format == "u5":
        # Bit i of a byte belongs to the i-th 32 columns.
        codes |= _bits(blocks[..., 16:48, None]).swapaxes(-1, -2) << 4
    return from_codes(
        _matrix(codes),
        scales,
        minimums,
        _f16(blocks, 0),
        -_f16(blocks, 2),
        format=format,
        group=32,
        zeros_are="minimums",
    )


def _q6_k(blocks: np.ndarray) -> PackedWeight:
    lead = blocks.shape[:-1]
    low = _nibbles(blocks[..., :128].reshape(*lead, 2, 64)).reshape(*lead, 2, 4, 32)
    pairs = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    high = pairs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = _matrix(blocks[..., 192:208]).view(np.int8)
    return from_codes(
        _matrix(low | high << 4), scales, None, _f16(blocks, 208), format="u6b32", group=16
    )


_OF_BLOCKS: dict[str, tuple[int, Callable[[np.ndarray], PackedWeight]]] = {
    "Q4_0": (18, functools.partial(_q4_or_q5, format="u4b8")),
    "Q4_1": (20, functools.partial(_q4_or_q5, format="u4")),
    "Q5_0": (22, functools.partial(_q4_or_q5, format="u5b16")),
    "Q5_1": (24, functools.partial(_q4_or_q5, format="u5")),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, functools.partial(_q4_k_or_q5_k, format="u4")),
    "Q5_K": (176, functools.partial(_q4_k_or_q5_k, format="u5")),
    "Q6_K": (210, _q6_k),
}
GGUF_TYPES = tuple(_OF_BLOCKS)
"""ggml's types that `from_gguf` takes: those of integers."""


def from_gguf(data: np.ndarray, type: str) -> PackedWeight:
    """Packs a tensor of a GGUF file.

    Args:
        data: [rows, bytes of a row] u8, as `gguf.GGUFReader` gives it.
        type: One of `GGUF_TYPES`.
    """
    if type not in _OF_BLOCKS:
        raise ValueError(f"repack: type is {type!r}, expected one of {', '.join(GGUF_TYPES)}")
    size, pack = _OF_BLOCKS[type]
    return _packed(data, size, pack)


def from_gguf_mxfp4(data: np.ndarray) -> PackedWeight:
    """Packs a tensor of ggml's type MXFP4: blocks of a power of two and 32 numbers in e2m1.

    Args:
        data: [rows, bytes of a row] u8, as `gguf.GGUFReader` gives it.

    Raises:
        ValueError: The data are no rows of whole blocks.
    """
    return _packed(data, 17, _mxfp4)


def _mxfp4(blocks: np.ndarray) -> PackedWeight:
    scales = np.ascontiguousarray(blocks[..., 0]).view(ml_dtypes.float8_e8m0fnu)
    # Neighbors are the same halves of two bytes, first the lower ones.
    even, odd = blocks[..., 1::2], blocks[..., 2::2]
    pairs = np.concatenate([(even & 15) | odd << 4, even >> 4 | (odd & 240)], axis=-1)
    return from_pairs(_matrix(pairs), scales, format="e2m1", group=32)


def _packed(
    data: np.ndarray, size: int, pack: Callable[[np.ndarray], PackedWeight]
) -> PackedWeight:
    said = f"repack: data is {data.dtype} {[*data.shape]}, expected"
    if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] % size:
        raise ValueError(f"{said} uint8 rows of blocks of {size}")
    if data.size == 0:
        raise ValueError(f"{said} a block of {size} at least")
    blocks = np.asarray(data).reshape(len(data), -1, size)
    # A byte is two codes or less.
    return packed_by_rows(len(data), 2 * data.shape[1], lambda rows: pack(blocks[rows]))
