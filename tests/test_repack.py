"""`intarsia.repack`: each format against its definition, to the bit, and back."""

import intarsia.jax as ij
import ml_dtypes
import numpy as np
import pytest
import support
from drawn import SEEDS
from hypothesis import given
from hypothesis import strategies as st
from intarsia import repack
from packed_words import words_of

gguf = pytest.importorskip("gguf", reason="pip install intarsia[models] has it")

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


def test_neighbors_in_one_format_become_one() -> None:
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
    codes = np.zeros((20, 64), np.uint8)
    for scales in ((17, 2), (20, 1), (20, 3)):
        with pytest.raises(
            ValueError, match=rf"scales are \[{scales[0]}, {scales[1]}\], expected \[20, 2\]"
        ):
            repack.from_codes(codes, np.ones(scales, np.float32), format="u4", group=32)
    with pytest.raises(ValueError, match=r"outer_scales are \[17, 1\], expected \[1\] or \[20, a"):
        repack.from_codes(
            codes,
            np.ones((20, 2), np.uint8),
            None,
            np.ones((17, 1), np.float32),
            format="u4",
            group=32,
        )


# ------------------------------------------------------------------------------- formats of checkpoints


def draw_codes(bits: int, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns)).astype(np.uint8)


def scales_of(rows: int, groups: int, dtype=np.float16) -> np.ndarray:
    return np.random.default_rng(9).uniform(0.01, 1, (rows, groups)).astype(dtype)


def expanded(factors: np.ndarray, columns: int) -> np.ndarray:
    return np.repeat(factors.astype(np.float32), columns // factors.shape[1], axis=1)


@pytest.mark.parametrize(("groups", "columns"), [(1, 128), (2, 128), (4, 128), (1, 8), (1, 13)])
def test_awq(groups, columns) -> None:
    rows = 48
    codes, zeros, scales = (
        draw_codes(4, rows, columns),
        draw_codes(4, rows, groups, 1),
        scales_of(rows, groups),
    )
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    words = words_of(codes.T, 4, order)
    words.flags.writeable = False  # as of a mapped file
    weight = repack.from_awq(words, words_of(zeros.T, 4, order), scales.T)
    want = (codes - expanded(zeros, columns)) * expanded(scales, columns)
    np.testing.assert_array_equal(repack.decoded(weight), want)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("less_one", [False, True])
def test_gptq(bits, less_one) -> None:
    rows, columns, groups = 40, 96, 3
    codes, scales = draw_codes(bits, rows, columns), scales_of(rows, groups)
    zeros = np.maximum(draw_codes(bits, rows, groups, 1), 1)
    qweight = words_of(codes, bits).T
    qzeros = words_of((zeros - less_one).T, bits)
    weight = repack.from_gptq(
        qweight, qzeros, scales.T, np.arange(columns) // 32, bits=bits, zeros_less_one=less_one
    )
    want = (codes - expanded(zeros, columns)) * expanded(scales, columns)
    np.testing.assert_array_equal(repack.decoded(weight), want)
    symmetric = repack.from_gptq(qweight, None, scales.T, bits=bits)
    want = (codes - np.float32(1 << (bits - 1))) * expanded(scales, columns)
    np.testing.assert_array_equal(repack.decoded(symmetric), want)
    with pytest.raises(NotImplementedError, match="act-order"):
        repack.from_gptq(qweight, qzeros, scales.T, np.arange(columns)[::-1] // 32, bits=bits)
    largest = words_of(np.full((groups, rows), (1 << bits) - 1), bits)
    with pytest.raises(ValueError, match=f"qzeros has {1 << bits}, expected less than {1 << bits}"):
        repack.from_gptq(qweight, largest, scales.T, bits=bits)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(bits) -> None:
    rows, columns, groups = 24, 64, 2
    codes, scales = draw_codes(bits, rows, columns), scales_of(rows, groups)
    zeros = draw_codes(bits, rows, groups, 1)
    packed = words_of(codes, bits)
    weight = repack.from_compressed_tensors(packed, scales, words_of(zeros.T, bits).T, bits=bits)
    want = (codes - expanded(zeros, columns)) * expanded(scales, columns)
    np.testing.assert_array_equal(repack.decoded(weight), want)
    symmetric = repack.from_compressed_tensors(packed, scales[:, :1], bits=bits)
    want = (codes - np.float32(1 << (bits - 1))) * expanded(scales[:, :1], columns)
    np.testing.assert_array_equal(repack.decoded(symmetric), want)


@pytest.mark.parametrize("bits", [2, 3, 5])
def test_codes_of_other_sizes_are_refused(bits) -> None:
    words, scales = np.zeros((8, 8), np.int32), np.ones((8, 1), np.float32)
    text = f"repack: codes have {bits} bits, expected 4 or 8"
    with pytest.raises(NotImplementedError, match=text):
        repack.from_compressed_tensors(words, scales, bits=bits)
    with pytest.raises(NotImplementedError, match=text):
        repack.from_gptq(words, None, scales.T, bits=bits)


@pytest.mark.parametrize("shape", [(), (1,), (20,), (20, 1), (20, 3)])
def test_int8_and_fp8(shape) -> None:
    rng = np.random.default_rng(2)
    scale = rng.uniform(0.1, 1, shape).astype(np.float32)
    codes = rng.integers(-128, 128, (20, 96)).astype(np.int8)
    numbers = rng.standard_normal((20, 96)).astype(ml_dtypes.float8_e4m3fn)
    by = expanded(
        np.broadcast_to(
            scale.reshape(-1, max(scale.size // 20, 1)), (20, max(scale.size // 20, 1))
        ),
        96,
    )
    np.testing.assert_array_equal(repack.decoded(repack.from_int8(codes, scale)), codes * by)
    np.testing.assert_array_equal(
        repack.decoded(repack.from_fp8(numbers, scale)), numbers.astype(np.float32) * by
    )


def test_fp8_in_blocks() -> None:
    """Blocks of 128 by 128, of which the last ones are smaller."""
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((200, 320)).astype(ml_dtypes.float8_e4m3fn)
    scale = rng.uniform(0.1, 1, (2, 3)).astype(np.float32)
    weight = repack.from_fp8(numbers, scale, block=(128, 128))
    by = np.repeat(np.repeat(scale, 128, 0)[:200], 128, 1)[:, :320]
    np.testing.assert_array_equal(repack.decoded(weight), numbers.astype(np.float32) * by)
    x = rng.standard_normal((3, 320), np.float32)
    assert support.relative_error(ij.linear_packed(x, weight), x @ repack.decoded(weight).T) < 2e-6


def test_mxfp4_and_nvfp4() -> None:
    codes = draw_codes(4, 20, 96)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    powers = np.random.default_rng(4).integers(100, 140, (20, 3)).astype(np.uint8)
    want = numbers * expanded(2.0 ** (powers.astype(np.float32) - 127), 96)
    for blocks in (packed, packed.reshape(20, 3, 16)):
        np.testing.assert_array_equal(repack.decoded(repack.from_mxfp4(blocks, powers)), want)
    scales = scales_of(20, 6, ml_dtypes.float8_e4m3fn)
    of_all = np.float32(0.25)
    want = numbers * expanded(scales.astype(np.float32) * of_all, 96)
    for weight in (
        repack.from_nvfp4(packed, scales, of_all),
        repack.from_nvfp4(packed, scales, 1 / of_all, divides=True),
    ):
        np.testing.assert_array_equal(repack.decoded(weight), want)
        x = np.random.default_rng(5).standard_normal((2, 96), np.float32)
        assert support.relative_error(ij.linear_packed(x, weight), x @ want.T) < 2e-6
    of_rows = np.repeat(np.float32([0.3, 0.7]), 10)  # of two layers in one
    want = numbers * expanded(scales.astype(np.float32) * of_rows[:, None], 96)
    weight = repack.from_nvfp4(packed, scales, of_rows)
    np.testing.assert_array_equal(repack.decoded(weight), want)
    assert support.relative_error(ij.linear_packed(x, weight), x @ want.T) < 2e-6


def test_groups_that_columns_do_not_share_evenly_are_told() -> None:
    with pytest.raises(ValueError, match="96 columns, expected a multiple of the 5 groups"):
        repack.from_int8(np.zeros((4, 96), np.int8), np.ones((4, 5), np.float32))


def test_codes_of_another_dtype() -> None:
    scale = np.ones(16, np.float32)
    with pytest.raises(ValueError, match="weight is float32, expected float8_e4m3fn"):
        repack.from_fp8(np.ones((16, 32), np.float32), scale)
    with pytest.raises(ValueError, match="weight is uint8, expected int8"):
        repack.from_int8(np.ones((16, 32), np.uint8), scale)
    with pytest.raises(ValueError, match=r"codes are int32 \[16, 32\], expected \[rows, columns\]"):
        repack.from_codes(np.ones((16, 32), np.int32), scale[:, None], format="u4", group=0)
    with pytest.raises(ValueError, match="format is 'q4', expected u4 or"):
        repack.from_codes(np.ones((16, 32), np.uint8), scale[:, None], format="q4", group=0)


def test_factors_of_another_shape() -> None:
    codes = np.ones((16, 64), np.int8)
    with pytest.raises(
        ValueError, match=r"scale has shape \[2, 16\], expected \[\], \[1\], \[16\]"
    ):
        repack.from_int8(codes, np.ones((2, 16), np.float32))
    with pytest.raises(ValueError, match="global_scale is None"):
        repack.from_nvfp4(codes.view(np.uint8), np.ones((16, 8), np.float32), None)
    for shape in ((16,), (16, 3), (8, 1), (16, 0)):
        with pytest.raises(ValueError, match=r"outer_scales are .*, expected \[1\] or \[16, a div"):
            repack.from_codes(
                *(codes, np.ones((16, 2), np.float32), None, np.ones(shape, np.float32)),
                format="i8",
                group=32,
            )
    with pytest.raises(ValueError, match="bits is 5, expected 4 or 8"):
        repack.round_to_nearest(np.ones((16, 64), np.float32), 5)
