"""`intarsia.repack`: each format against its definition, to the bit, and back."""

import gguf
import numpy as np
import pytest
from drawn import SEEDS
from hypothesis import given
from hypothesis import strategies as st
from intarsia import repack

# Bytes of a block, and where its f16 numbers lie.
BLOCKS = {
    "Q4_0": (18, [0]),
    "Q4_1": (20, [0, 2]),
    "Q5_0": (22, [0]),
    "Q5_1": (24, [0, 2]),
    "Q8_0": (34, [0]),
    "Q4_K": (144, [0, 2]),
    "Q5_K": (176, [0, 2]),
    "Q6_K": (210, [208]),
}


def blocks_of(type: str, rows: int, count: int, seed: int) -> np.ndarray:
    """Random bits, whose f16 numbers are finite."""
    size, at = BLOCKS[type]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, count, size)).astype(np.uint8)
    for i in at:
        numbers = rng.standard_normal((rows, count, 1)).astype(np.float16)
        blocks[..., i : i + 2] = numbers.view(np.uint8)
    return blocks.reshape(rows, count * size)


def test_all_types_are_tested() -> None:
    assert tuple(BLOCKS) == repack.GGUF_TYPES


@given(st.sampled_from(sorted(BLOCKS)), st.integers(1, 40), st.integers(1, 3), SEEDS)
def test_a_gguf_block_is_what_ggml_says(type, rows, count, seed) -> None:
    """The numbers are those of the gguf package, to the bit; the codes come back, and no bits are lost."""
    data = blocks_of(type, rows, count, seed)
    weight = repack.from_gguf(data, type)
    want = gguf.dequantize(data, gguf.GGMLQuantizationType[type])
    np.testing.assert_array_equal(repack.decoded(weight), want)
    again = repack.from_codes(
        repack.codes_of(weight), *repack.factors_of(weight), **weight.attributes
    )
    for a, b in zip(weight.arrays, again.arrays, strict=True):
        assert (a is None and b is None) or a.tobytes() == b.tobytes()


@pytest.mark.parametrize("type", BLOCKS)
def test_packing_loses_nothing_and_adds_little(type) -> None:
    """Different blocks are packed into different bits, of about as many bytes as they have."""
    data = blocks_of(type, 16, 4, 7)
    whole = repack.from_gguf(data, type)
    assert whole.nbytes <= data.nbytes * 1.03
    flipped = data.copy()
    rng = np.random.default_rng(1)
    for bit in rng.integers(0, 8 * data.shape[1], 64):
        flipped[3] = data[3]
        flipped[3, bit // 8] ^= 1 << bit % 8
        other = repack.from_gguf(flipped, type)
        pairs = zip(whole.arrays, other.arrays, strict=True)
        bits = sum(
            np.unpackbits(a.view(np.uint8) ^ b.view(np.uint8)).sum()
            for a, b in pairs
            if a is not None
        )
        assert bits == 1


def test_many_rows_are_packed_in_parts() -> None:
    data = blocks_of("Q4_K", 4096 + 37, 1, 3)
    weight = repack.from_gguf(data, "Q4_K")
    assert weight.shape == (4133, 256)
    want = gguf.dequantize(data, gguf.GGMLQuantizationType.Q4_K)
    np.testing.assert_array_equal(repack.decoded(weight), want)


def test_neighbours_in_one_format_become_one() -> None:
    parts = [repack.from_gguf(blocks_of("Q5_0", rows, 2, rows), "Q5_0") for rows in (32, 16, 5)]
    other = repack.from_gguf(blocks_of("Q8_0", 16, 2, 0), "Q8_0")
    merged = repack.joined([*parts, other, parts[0]])
    assert [w.rows for w in merged] == [53, 16, 32]
    want = np.concatenate([repack.decoded(w) for w in (*parts, other, parts[0])])
    np.testing.assert_array_equal(np.concatenate([repack.decoded(w) for w in merged]), want)
    ragged = repack.joined([parts[2], parts[0]])
    assert [w.rows for w in ragged] == [5, 32]


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match="type is 'IQ2_XXS', expected one of Q4_0, "):
        repack.from_gguf(np.zeros((1, 66), np.uint8), "IQ2_XXS")
    with pytest.raises(
        ValueError, match=r"data is uint8 \[1, 19\], expected uint8 rows of blocks of 18"
    ):
        repack.from_gguf(np.zeros((1, 19), np.uint8), "Q4_0")
    with pytest.raises(ValueError, match="a code is 16, expected less than 16"):
        repack.from_codes(
            np.full((1, 32), 16, np.uint8), np.ones((1, 1), np.float32), format="u4", group=32
        )
