"""intarsia.h as a C caller meets it who makes mistakes: null pointers, absurd counts and sizes, overlaps."""

import ctypes

import native_calls
import numpy as np
import pytest
import running
from intarsia import _native

LIBRARY = running.LIBRARY
DOOR = ctypes.CDLL(str(LIBRARY.path))
DOOR.intarsia_error.restype = ctypes.c_char_p
DOOR.intarsia_handlers.restype = ctypes.c_void_p
X = np.ones((2, 4), np.float32)
MOST = 2**64 - 1


def tensors(*arrays: np.ndarray | None):
    """As C has them; None: f32 [2, 4] without an address."""
    rows = (_native._Tensor * len(arrays))()
    for row, x in zip(rows, arrays, strict=True):
        row.data = None if x is None else x.ctypes.data
        row.dtype, row.rank, row.dims[:2] = 0, 2, (2, 4)
    return rows


def attributes(*values: tuple[bytes, float]):
    rows = (_native._Attribute * len(values))()
    for row, (name, value) in zip(rows, values, strict=True):
        row.name, row.type, row.f64 = name, 3, value
    return rows


def infer(op=b"simple_add", operands=(X, X), count=None, given=(), results=True, num_results=True):
    rows = operands if operands is None else tensors(*operands)
    some = given if given is None or isinstance(given, int) else attributes(*given)
    return DOOR.intarsia_infer(
        op, rows, ctypes.c_size_t(len(operands) if count is None else count),
        None if isinstance(some, int) else some,
        ctypes.c_size_t(some if isinstance(some, int) else len(some)),
        (_native._Result * 6)() if results else None,
        ctypes.byref(ctypes.c_size_t()) if num_results else None,
    )  # fmt: skip


def call(operands, results, num_results=None, op=b"simple_add"):
    return DOOR.intarsia_call(
        op, b"Host", tensors(*operands), ctypes.c_size_t(len(operands)), None, ctypes.c_size_t(0),
        results and tensors(*results), ctypes.c_size_t(num_results or len(results)), None,
    )  # fmt: skip


def said() -> str:
    return DOOR.intarsia_error().decode()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"op": None}, "the op's name is null"),
        ({"operands": None, "count": 2}, "simple_add: operands is null, expected 2 tensors"),
        ({"count": MOST}, f"simple_add: got {MOST} operands, expected 2, absent ones as"),
        ({"given": 1}, "simple_add: attributes is null, expected 1 attributes"),
        ({"results": False}, "simple_add: results is null, expected an address"),
        ({"num_results": False}, "simple_add: num_results is null, expected an address"),
        (
            {"op": b"rms_norm", "operands": (X,), "given": [(b"eps", 1.0)] * 3},
            "rms_norm: got 3 attributes, expected at most 2",
        ),
        ({"op": b"rms_norm", "operands": (X,), "given": [(None, 1.0)]}, "attribute's name is null"),
    ],
)
def test_infer_refuses_null_and_absurd_counts(changed, message) -> None:
    assert infer() == 0
    assert infer(**changed) == 3
    assert message in said()


def test_call_refuses_what_is_not_aligned() -> None:
    """A GPU would stop for good at such an address."""
    memory = bytearray(X.nbytes + 4)
    between = np.frombuffer(memory, np.uint8, X.nbytes, offset=2).view(np.float32).reshape(X.shape)
    want = " lies {} bytes beyond a multiple of 4, expected one, as f32 has"
    beyond = between.ctypes.data % 4
    assert call((X, between), (np.zeros_like(X),)) == 3
    assert "b" + want.format(beyond) in said()
    assert call((X, X), (between,)) == 3
    assert "result out" + want.format(beyond) in said() and not any(memory)


def test_call_refuses_null() -> None:
    out = np.zeros_like(X)
    assert call((X, X), (out,)) == 0 and (out == 2).all()
    for operands, results, num_results, message in (
        ((X, None), (out,), None, "b has shape [2, 4] and data null, expected an address"),
        ((X, X), (None,), None, "result out has shape [2, 4] and data null, expected an address"),
        ((X, X), None, 1, "results is null, expected 1 tensors"),
    ):
        assert call(operands, results, num_results) == 3
        assert said() == f"simple_add: {message}"


def test_handlers_may_be_asked_for_without_a_count() -> None:
    assert DOOR.intarsia_handlers(None) == DOOR.intarsia_handlers(ctypes.byref(ctypes.c_size_t()))


def test_devices_of_no_address() -> None:
    assert DOOR.intarsia_enable_peer_access(None, ctypes.c_size_t(2)) == 3
    assert said() == "devices is null, expected 2 of them"


def test_results_in_one_memory_are_refused() -> None:
    logits, both = np.ones((2, 4), np.float32), np.zeros((2, 2), np.float32)
    given = [native_calls.tensor(x) for x in (logits, None)]
    shared = [native_calls.tensor(x) for x in (both, both.view(np.int32))]
    with pytest.raises(ValueError, match=r"result ids shares memory with result weights, expected"):
        native_calls.LIBRARY.call("topk_router", "Host", given, {"top_k": 2}, shared)
    assert not both.any()


def test_attributes_are_told_as_kernels_have_them() -> None:
    rms_norm = {"op": b"rms_norm", "operands": (X,)}
    assert infer(**rms_norm, given=[(b"eps", 1e300)]) == 3
    assert said() == "rms_norm: eps is inf, expected a finite number of at least 0"
    assert infer(**rms_norm, given=[(b"eps", 1.0)] * 2) == 3
    assert said() == "rms_norm: attribute eps is given twice"


def test_a_result_over_a_part_of_an_operand_is_refused() -> None:
    memory = np.arange(64, dtype=np.float32)

    def part(first):
        return memory[first : first + 8].reshape(2, 4)

    kept = memory.copy()
    for first in (1, 7, 15):
        assert call((part(8), part(24)), (part(first),)) == 3
        assert said() == "simple_add: result out lies over a part of a, expected memory of its own"
        np.testing.assert_array_equal(memory, kept)
    assert call((part(8), part(24)), (part(8),)) == 0  # a itself
    np.testing.assert_array_equal(part(8), kept[8:16].reshape(2, 4) + kept[24:32].reshape(2, 4))
    assert call((part(8), part(24)), (part(16),)) == 0  # beside both


HUGE = 2**62


@pytest.mark.parametrize(
    ("op", "operands", "given", "message"),
    [
        (
            "rotary_embedding_and_cache",
            dict(positions=((3,), "i32"), qkv=((3, 4, 8), "f32"), cos_sin_cache=((5, 8), "f32"),
                 key_cache=((2, 4, 1, 8), "f32"), value_cache=((2, 4, 1, 8), "f32"),
                 slot_mapping=((3,), "i32")),
            {"num_heads": 2**63 - 1},
            "qkv has 4 heads, expected 4611686018427387904: num_heads=9223372036854775807 and",
        ),
        (
            "paged_attention",
            dict(query=((3, 4, 8), "f32"), key_cache=((0, 2**33, 1, 8), "f32"),
                 value_cache=((0, 2**33, 1, 8), "f32"), seqused_k=((0,), "i32"),
                 block_table=((0, 2**33), "i32"), cu_seqlens_q=((1,), "i32")),
            {},
            "block_table has m=8589934592 pages of key_cache's s=8589934592 slots, expected m",
        ),
        (
            "flash_attn_varlen_backward",
            dict(dout=((0, 0, 8), "f32"), q=((0, 0, 8), "f32"), k=((0, HUGE // 64, 8), "f32"),
                 v=((0, HUGE // 64, 8), "f32"), out=((0, 0, 8), "f32"), lse=((0, 0), "f32"),
                 cu_seqlens_q=((HUGE // 8,), "i32"), cu_seqlens_k=((HUGE // 8,), "i32")),
            {},
            "cu_seqlens_q has b=576460752303423487 and k has hk=72057594037927936; built are up",
        ),
    ],
)  # fmt: skip
def test_sizes_whose_product_overflows_are_refused(op, operands, given, message) -> None:
    names = [info["name"] for info in LIBRARY.find(op).operands]
    rows = [_native.Tensor(*operands[name]) if name in operands else None for name in names]
    with pytest.raises((ValueError, NotImplementedError), match=message) as error:
        LIBRARY.infer(op, rows, given)
    assert str(error.value).startswith(f"{op}: ")


@pytest.mark.parametrize(
    ("op", "shapes", "given"),
    [
        ("copy_blocks", [(2**40, 0, 3), (1, 2)], {"axis": "1"}),
        (
            "fused_qk_norm_rope",
            [(2**40,), (2**40, 0, 8), (5, 8), (8,), (8,)],
            {"num_heads_q": 0, "num_heads_k": 0},
        ),
        (
            "rotary_embedding",
            [(2**40,), (2**40, 0, 8), (5, 8), (2**40, 0, 8)],
            {},
        ),
    ],
)
def test_arrays_without_elements_take_no_time(op, shapes, given) -> None:
    """The fuzzers' findings: each ran for as long as an axis has entries, of nothing."""
    memory = np.zeros(64, np.int64)
    rows = LIBRARY.find(op).operands[: len(shapes)]
    dtypes = [{"block_mapping": "i32", "positions": "i32"}.get(row["name"], "f32") for row in rows]
    operands = [
        _native.Tensor(shape, dtype, memory.ctypes.data)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    results = [
        _native.Tensor(row.shape, row.dtype, memory.ctypes.data)
        for row in LIBRARY.infer(op, operands, given)
    ]
    LIBRARY.call(op, "Host", operands, given, results, None)


def without_memory(op, shapes, **given):
    """Runs a call in which every array without elements has no address; the results that have some."""
    memory = {}
    names = [row["name"] for row in LIBRARY.find(op).operands]

    def row(name, shape, dtype):
        if not np.prod(shape):
            return _native.Tensor(shape, dtype, None)
        garbage = np.nan if name.startswith("result") else 1  # which the op must write over
        kind = np.int32 if dtype == "i32" else np.float32
        memory[name] = np.full(shape, 0 if dtype == "i32" else garbage, kind)
        return _native.Tensor(shape, dtype, memory[name].ctypes.data)

    operands = [row(n, *shapes[n]) if n in shapes else None for n in names]
    results = []
    for i, found in enumerate(LIBRARY.infer(op, operands, given)):
        if found is not None and found.alias is not None:
            results.append(operands[found.alias])
        else:
            results.append(found and row(f"result {i}", found.shape, found.dtype))
    LIBRARY.call(op, "Host", operands, given, results, None)
    return [memory[f"result {i}"] for i in range(len(results)) if f"result {i}" in memory]


STARTS = {"cu_seqlens_q": ((3,), "i32"), "cu_seqlens_k": ((3,), "i32")}
CACHES = ("key_cache", "value_cache")


def test_arrays_without_elements_need_no_address() -> None:
    """What is added to a null pointer, make test-sanitize reports."""
    for heads, d, slots in ((0, 8, 4), (2, 0, 4), (2, 8, 0)):
        kv = ((3, heads, d), "f32")
        cache = {name: ((2, 5, slots, heads, d), "f32") for name in CACHES}
        tokens = {"key": kv, "value": kv, "slot_mapping": ((3,), "i32"), "layer": ((), "i32")}
        assert without_memory("reshape_and_cache_flash", tokens | cache) == []
    dense = {"q": ((3, 4, 8), "f32"), "k": ((0, 2, 8), "f32"), "v": ((0, 2, 8), "f32")} | STARTS
    (out,) = without_memory("flash_attn_varlen", dense)[:1]
    assert out.shape == (3, 4, 8) and not out.any()
    paged = {"query": ((3, 4, 8), "f32"), "seqused_k": ((2,), "i32"), "layer": ((), "i32")}
    paged |= {"block_table": ((2, 0), "i32"), "cu_seqlens_q": ((3,), "i32")}
    for pages, layers in ((0, 3), (5, 0)):
        cache = {name: ((layers, pages, 4, 2, 8), "f32") for name in CACHES}
        (out,) = without_memory("paged_attention", paged | cache)[:1]
        assert not out.any()
