"""Weights that are read part by part: the arrays that come of whole ones, and no more bytes than are needed."""

import gguf
import jax
import numpy as np
import pytest
import tiny_models
from gguf_tensors import write_out
from intarsia.models import Engine, ModelParallel, load_model, open_checkpoint
from intarsia.models.gguf_file import Reader, open_gguf, read_part, read_whole
from intarsia.models.lazy import LazyArray
from intarsia.models.linear import NarrowMatrix
from test_engine import GREEDY, tokens_of

PROMPTS = [[5, 9, 200, 31], [7]]


def _both(path, tensor, experts=1):
    """A model's weights as loaded whole and then spread, and as read in parts."""
    config, whole = load_model(path)
    parallel = ModelParallel(config, tensor, experts)
    return parallel, parallel.place(whole), load_model(path, parallel=parallel)[1]


def _check(expected, got):
    assert jax.tree.structure(expected) == jax.tree.structure(got)
    for (path, a), b in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(got), strict=True):
        assert a.sharding == b.sharding and a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=str(path))


@pytest.mark.parametrize(
    ("kind", "size"),
    [("directory", 2), ("gguf", 4), *(pytest.param(*row, marks=pytest.mark.full) for row in (("directory", 4), ("gguf", 2)))],
)  # fmt: skip
def test_llama(write_directory, write_gguf, hf_config, tiny_weights, kind, size) -> None:
    gguf = kind == "gguf"
    path = write_gguf(tiny_weights) if gguf else write_directory(hf_config, tiny_weights)
    parallel, expected, got = _both(path, size)
    _check(expected, got)
    config = open_checkpoint(path).config
    engine = Engine(config, got, parallel=parallel, max_num_seqs=2, max_model_len=64)
    one = Engine(*load_model(path), max_num_seqs=2, max_model_len=64)
    assert tokens_of(engine.generate(PROMPTS, GREEDY)) == tokens_of(one.generate(PROMPTS, GREEDY))
    with pytest.raises(ValueError, match="parallel is given, expected no sizes beside it"):
        Engine(config, got, parallel=parallel, tensor_parallel=2)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mixtral", (2,)),
        ("mixtral", (1, 4)),
        ("qwen3_moe", (2, 2)),
        ("gpt_oss", (4,)),
        ("gpt_oss", (1, 2)),
        ("gpt_oss", (2, 2)),
    ],
)
def test_mixtures(tmp_path, name, sizes) -> None:
    _, expected, got = _both(tiny_models.write(tmp_path, name), *sizes)
    _check(expected, got)


def test_quantized_weights_are_those_of_the_whole(write_directory, hf_config, tiny_weights) -> None:
    path = write_directory(hf_config, tiny_weights)
    config, whole = load_model(path, quantize="fp8")
    parallel = ModelParallel(config, 2)
    _check(parallel.place(whole), load_model(path, quantize="fp8", parallel=parallel)[1])


def test_matrices_in_16_bits_beside_f32_are_spread(
    write_directory, hf_config, tiny_weights
) -> None:
    in_f16 = {name: a.astype(np.float16) for name, a in tiny_weights.items()}
    path = write_directory(hf_config, in_f16)
    config, params = load_model(path, quantize="file")
    assert isinstance(params["layers"][1]["w_gate_up"], NarrowMatrix)
    engine = Engine(config, params, max_num_seqs=2, max_model_len=64)
    parallel = ModelParallel(config, 2)
    _, spread = load_model(path, quantize="file", parallel=parallel)
    others = Engine(config, spread, parallel=parallel, max_num_seqs=2, max_model_len=64)
    made = [tokens_of(each.generate(PROMPTS, GREEDY)) for each in (engine, others)]
    assert made[0] == made[1]


@pytest.mark.parametrize("order", list(gguf.GGUFEndian))
def test_arrays_of_a_gguf_header(tmp_path, order) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", endianess=order)
    arrays = {"x": ["", "ab", "日本"], "y": [1, 2, -3], "z": [0.5, 2.0]}
    for name, array in arrays.items():
        writer.add_array(name, array)
    write_out(writer)
    fields = Reader(str(tmp_path / "x.gguf")).fields
    assert {name: fields[name].contents() for name in arrays} == arrays
    assert fields["x"].contents(2) == "日本"


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType[k] for k in ("Q8_0", "F16", "BF16")])
def test_parts_of_a_gguf_matrix(tmp_path, kind) -> None:
    """Columns within a block, at its edges, and over several."""
    matrix = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    codes = gguf.quantize(matrix, kind)
    writer.add_tensor("x", codes, raw_dtype=kind)
    write_out(writer)
    [tensor] = open_gguf(tmp_path / "x.gguf").tensors
    whole = gguf.dequantize(codes, kind)
    np.testing.assert_array_equal(read_whole(tensor).astype(np.float32), whole)
    for rows in (slice(0, 6), slice(2, 5)):
        for columns in (slice(0, 128), slice(32, 64), slice(5, 9), slice(31, 97)):
            np.testing.assert_array_equal(read_part(tensor, (rows, columns)), whole[rows, columns])


def test_a_wrong_shape_is_said(write_directory, hf_config, tiny_weights) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    tiny_weights[name] = tiny_weights[name][:, :-1].copy()
    path = write_directory(hf_config, tiny_weights)
    config = open_checkpoint(path).config
    with pytest.raises(ValueError, match=f"{name} has shape .48, 95., expected .48, 96."):
        load_model(path, parallel=ModelParallel(config, 2))


def test_parts_are_read_and_no_more() -> None:
    source = np.arange(60.0).reshape(12, 5)
    read = []

    def lazy(first: int, last: int) -> LazyArray:
        def cut(index):
            read.append(source[first:last][index].size)
            return source[first:last][index]

        return LazyArray((last - first, 5), cut)

    joined = np.concatenate([lazy(0, 4), lazy(4, 12)])
    assert joined.shape == (12, 5) and not read
    np.testing.assert_array_equal(joined[2:6, 1:3], source[2:6, 1:3])
    assert read == [4, 4]
    read.clear()
    got = joined.take(np.array([7, 8, -1, -1, 0, 8]), 0)
    np.testing.assert_array_equal(got[[0, 1, 4, 5]], source[[7, 8, 0, 8]])
    assert not got[2:4].any()
    stacked = np.stack([lazy(0, 4), lazy(4, 8), lazy(8, 12)]).astype(np.float32).swapaxes(1, 2)
    assert stacked.shape == (3, 5, 4)
    read.clear()
    expected = source.reshape(3, 4, 5).swapaxes(1, 2)[1:, 2:3]
    np.testing.assert_array_equal(stacked[1:, 2:3, :], expected)
    assert read == [4, 4] and stacked[:1, :1, :1].dtype == np.float32
