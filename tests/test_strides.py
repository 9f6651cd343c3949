"""Operands that lie apart in wider memory, and axes of one element, whose stride may be anything.

torch gives an axis of size 1 any stride: a slice of one token has one, and a cache of one page. The library
must not look at it. What lies between the elements of a view is nobody's to read or to write.
"""

import math

import numpy as np
import pytest
import running
import support
from drawn import SEEDS
from hypothesis import given
from hypothesis import strategies as st
from intarsia import _dtypes, _native

# Of an axis with one element; in elements.
WILD = [0, 1, -1, 3, 10**8, -(2**40), 2**62, -(2**63)]


class Scattered:
    """An array as a view of memory that holds NaN elsewhere; the axes `widened` have room to spare."""

    def __init__(self, x: np.ndarray, widened, rng: np.random.Generator):
        room = [int(rng.integers(1, 4)) if axis in widened else 0 for axis in range(x.ndim)]
        inside = (slice(n // 2, n // 2 + s) for n, s in zip(room, x.shape, strict=True))
        self.slices = (..., *inside)  # a view, of a scalar too
        self.memory = np.empty([n + s for n, s in zip(room, x.shape, strict=True)], x.dtype)
        self.memory.reshape(-1).view(np.uint8).fill(0xFF)
        self.view = self.memory[self.slices]
        self.view[...] = x
        strides = tuple(
            int(rng.choice(WILD)) if size == 1 else stride // x.itemsize
            for size, stride in zip(x.shape, self.view.strides, strict=True)
        )
        name = _dtypes.name_of(x.dtype)
        self.tensor = _native.Tensor(x.shape, name, self.view.ctypes.data, strides)

    def outside(self) -> bytes:
        rest = self.memory.copy()
        rest[self.slices] = 0
        return rest.tobytes()


def run_scattered(op, operands, attributes, widened, rng, in_place):
    """The results on scattered operands; `in_place`: in an operand wherever the spec allows it."""
    row = running.LIBRARY.find(op)
    names = [info["name"] for info in row.operands]
    scattered = [
        None if x is None else Scattered(x, widened(info, x), rng)
        for info, x in zip(row.operands, operands, strict=False)
    ]
    tensors = [x and x.tensor for x in scattered]
    before = [x and x.outside() for x in scattered]
    results, arrays = [], []
    inferred = running.LIBRARY.infer(op, tensors, attributes)
    for info, result in zip(row.results, inferred, strict=True):
        shared = info["alias"] or (in_place and info["mutates"])
        if result is None:
            results.append(None)
        elif shared:
            operand = scattered[names.index(shared)]
            results.append(operand.tensor)
            arrays.append((operand.view, False))
        else:
            array = np.empty(result.shape, _dtypes.numpy_dtype(result.dtype))
            array.reshape(-1).view(np.uint8).fill(0xFF)
            results.append(running.tensor(array))
            arrays.append((array, result.workspace))
    running.LIBRARY.call(op, "Host", tensors, attributes, results)
    for info, x, outside in zip(row.operands, scattered, before, strict=False):
        assert x is None or x.outside() == outside, f"{op} wrote beside {info['name']}"
    return [array for array, hidden in arrays if not hidden]


def check_scattered(op, operands, attributes, widened, rng, in_place) -> None:
    want = running.run_native(op, operands, attributes)
    got = run_scattered(op, operands, attributes, widened, rng, in_place)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.tobytes() == b.tobytes(), f"{op}: result {i} differs"


def of_rows(info, x):
    """The axes that may lie apart. Rows of "even_rows" may only evenly, as those of a rotary embedding's tokens."""
    if info["access"] == "even_rows":
        return {0, x.ndim - 1}
    return range(x.ndim) if info["access"] == "rows" else ()


def _calls():
    for op in support.op_names():
        if op == "rotary_embedding":
            continue
        for name, sizes in support.cases(op, "ci").items():
            yield pytest.param(op, sizes, id=f"{op}-{name}")


@pytest.mark.parametrize(("op", "sizes"), _calls())
def test_operands_may_lie_apart(op, sizes) -> None:
    rng = np.random.default_rng(0)
    operands, attributes = support.op_module(op).arguments(rng, np.float32, **sizes)
    for in_place in (False, True):
        check_scattered(op, operands, attributes, of_rows, rng, in_place)


ONE_OF_EACH = {
    "rms_norm": dict(t=1, n=64),
    "fused_add_rms_norm": dict(t=1, n=64),
    "silu_and_mul": dict(t=1, n=64),
    "reshape_and_cache_flash": dict(t=1, hk=1, d=8, page=1),
    "rotary_embedding_and_cache": dict(t=1, h=1, hk=1, d=8, page=1),
    "paged_attention": dict(lens=((1, 1),), h=1, hk=1, d=8, page=1),
    "flash_attn_varlen": dict(lens=((1, 1),), h=1, hk=1, d=8),
    "flash_attn_varlen_backward": dict(lens=((1, 1),), h=1, hk=1, d=8),
}


@pytest.mark.parametrize("op", ONE_OF_EACH)
@pytest.mark.parametrize("seed", range(5))
def test_axes_of_one_element_may_have_any_stride(op, seed) -> None:
    rng = np.random.default_rng(seed)
    operands, attributes = support.op_module(op).arguments(rng, np.float32, **ONE_OF_EACH[op])
    for in_place in (False, True):
        check_scattered(op, operands, attributes, of_rows, rng, in_place)


@given(
    tokens=st.lists(st.sampled_from([1, 1, 2, 3]), max_size=4),
    heads=st.tuples(st.integers(1, 3), st.none() | st.integers(1, 3)),
    flat=st.booleans(),
    in_place=st.booleans(),
    seed=SEEDS,
)
def test_rotary_embedding_walks_over_any_axes_of_tokens(tokens, heads, flat, in_place, seed):
    rng = np.random.default_rng(seed)
    operands, attributes = support.op_module("rotary_embedding").arguments(
        rng, np.float32, tokens=tuple(tokens), h=heads[0], hk=heads[1], d=8, flat=flat
    )

    def widened(info, x):
        if info["access"] != "even_leading":
            return ()
        several = [axis for axis, size in enumerate(tokens) if size > 1] or [0]
        return [axis for axis in range(x.ndim) if not several[0] < axis <= several[-1]]

    check_scattered("rotary_embedding", operands, attributes, widened, rng, in_place)


def test_tokens_at_uneven_distances_are_refused() -> None:
    memory, positions = np.zeros((3, 5, 1, 4, 2, 8), np.float32), np.zeros((3, 1, 1, 2), np.int32)
    query, table = memory[:, :1, :, 1:3], np.zeros((9, 8), np.float32)
    operands = [running.tensor(x) for x in (positions, query, table)]
    with pytest.raises(ValueError, match="query has 4 leading axes at uneven distances"):
        running.LIBRARY.infer("rotary_embedding", [*operands, None], {})


NORMS = {
    "rms_norm": [],
    "fused_add_rms_norm": ["residual"],
    "layer_norm": [],
    "fused_add_rms_norm_static_fp8_quant": ["residual"],
    "rms_norm_dynamic_per_token_quant": ["residual"],
    "rms_norm_static_fp8_quant": [],
}


@pytest.mark.parametrize("op", NORMS)
def test_rows_of_a_norm_lie_apart_evenly(op):
    """A slice of a product, which the norms that write their operands write where it lies."""
    names = ["x", *NORMS[op]]
    rng = np.random.default_rng(0)
    for shape in ((5, 96), (2, 3, 96), (2, 1, 3, 7), (5, 1)):
        operands, attributes = support.op_module(op).arguments(rng, np.float32, t=5, n=shape[-1])
        for i, row in enumerate(running.LIBRARY.find(op).operands):
            if row["name"] in names:
                operands[i] = rng.standard_normal(shape).astype(np.float32)

        def last(info, x):
            return {x.ndim - 1} if info["name"] in names else ()

        for in_place in (False, True):
            check_scattered(op, operands, attributes, last, rng, in_place)
    apart = running.tensor(rng.standard_normal((2, 5, 8)).astype(np.float32)[:, :3])
    operands = [
        apart if row["name"] in names else None for row in running.LIBRARY.find(op).operands
    ]
    with pytest.raises(ValueError, match=f"{op}: x has rows at uneven distances, expected even"):
        running.LIBRARY.infer(op, operands, {})


@pytest.mark.parametrize("strides", [(2**62, 8, 1), (2**60, 2**60, 1), (-(2**63), 8, 1)])
def test_a_view_beyond_all_memory_is_refused(strides) -> None:
    query = _native.Tensor((3, 2, 64), "f32", None, strides)
    positions, table = _native.Tensor((3,), "i32"), _native.Tensor((9, 64), "f32")
    with pytest.raises(
        ValueError, match=r"rotary_embedding: query has strides .* below 2.63 bytes"
    ):
        running.LIBRARY.infer("rotary_embedding", [positions, query, table, None], {})


def test_a_slice_of_one_token_of_several() -> None:
    """The layouts of a decode step, as torch slices them: they are legal, and only they are written."""
    module = support.op_module("rotary_embedding")
    for shape, index in (((5, 4, 2, 16), np.s_[:, :1]), ((5, 1, 4, 2, 16), np.s_[:, :, :1])):
        memory = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        kept, query = memory.copy(), memory[index]
        positions = np.arange(math.prod(query.shape[:-2]), dtype=np.int32).reshape(query.shape[:-2])
        table = np.random.default_rng(1).standard_normal((9, 16)).astype(np.float32)
        want, *_ = module.reference(positions, query.astype(np.float64), table)
        tensors = [running.tensor(x) for x in (positions, query, table)]
        results = [tensors[1], None]
        running.LIBRARY.call("rotary_embedding", "Host", [*tensors, None], {}, results)
        running.check("rotary_embedding", query, want)
        query[...] = kept[index]
        np.testing.assert_array_equal(memory, kept)
