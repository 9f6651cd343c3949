"""The attention functions of intarsia.jax hand every keyword to the op."""

import inspect

import intarsia.jax
import jax
import numpy as np
import pytest
import running
from test_ops import make

CALLS = [
    ("flash_attn_varlen", "alibi_softcap_window"),
    ("flash_attn_varlen", "192_128_gqa_all_variants"),
    ("flash_attn_varlen", "leftpad_paged_window_alibi"),
    ("flash_attn_varlen", "fp8_all_variants_paged"),
    ("flash_attn_varlen", "e4m3_kv_paged_layers"),
    ("flash_attn_varlen", "uint8_as_e5m2"),
    ("paged_attention", "padded_batch"),
    ("paged_attention", "e4m3_combined_layers"),
    ("paged_attention", "uint8_as_e5m2_combined"),
    ("paged_attention", "e5m2_softcap_window_sinks"),
    ("paged_attention", "chunks_and_window"),
]


def keywords(op: str, operands: list, attributes: dict) -> dict:
    """What a user writes: operands and attributes of the op by the function's names."""
    names = [operand["name"] for operand in running.LIBRARY.find(op).operands]
    given = dict(zip(names, operands, strict=True)) | attributes
    if op == "paged_attention":
        caches = given.pop("key_cache"), given.pop("value_cache")
        given["kv_cache"] = caches[0] if caches[1] is None else caches
    else:
        given["window"] = given.pop("window_left", -1), given.pop("window_right", -1)
    return given


@pytest.mark.parametrize(("op", "case"), CALLS)
def test_the_function_is_the_op(op: str, case: str) -> None:
    operands, attributes = make(op, case, "bf16")
    function = getattr(intarsia.jax, op)
    given = keywords(op, operands, attributes)
    assert given.keys() <= inspect.signature(function).parameters.keys()
    is_array = {
        name for name, x in given.items() if isinstance(x, np.ndarray | tuple) and name != "window"
    }
    arrays = {name: given.pop(name) for name in is_array}
    with running.wide_indices(operands):
        got = jax.jit(lambda arrays: function(**arrays, **given))(arrays)
    want = running.run(op, operands, attributes)
    got = got if isinstance(got, tuple) else (got,)
    for result, expected in zip(got, want, strict=True):
        assert np.asarray(result).tobytes() == expected.tobytes()


def test_scales_may_be_numbers() -> None:
    operands, attributes = make("paged_attention", "e4m3", "bf16")
    given = keywords("paged_attention", operands, attributes)
    arrays = {name: x for name, x in given.items() if name not in attributes}
    out, _ = intarsia.jax.paged_attention(
        **arrays | {"k_scale": 0.5, "v_scale": 2.0}, return_lse=True
    )
    names = [operand["name"] for operand in running.LIBRARY.find("paged_attention").operands]
    operands[names.index("k_scale")] = np.full(1, 0.5, np.float32)
    operands[names.index("v_scale")] = np.full(1, 2, np.float32)
    want = running.run("paged_attention", operands, attributes)
    assert np.asarray(out).tobytes() == want[0].tobytes()


@pytest.mark.parametrize("count", [-1, 10**6])
def test_a_number_of_sequences_that_is_none(count: int) -> None:
    """In an array, which nobody reads before the kernel, it counts as the nearest number that is one."""
    operands, attributes = make("paged_attention", "combined_mixed", "f32")
    given = keywords("paged_attention", operands, attributes) | {"return_lse": False}
    b = len(given["seqused_k"])
    with pytest.raises(ValueError, match=f"num_seqs is {count}, expected 0 to b={b}, as cu"):
        intarsia.jax.paged_attention(**given | {"num_seqs": count})
    far, near = (
        intarsia.jax.paged_attention(**given | {"num_seqs": np.array([n], np.int32)})
        for n in (count, min(max(count, 0), b))
    )
    np.testing.assert_array_equal(far, near)


@pytest.mark.parametrize("window", [3, None, (0, 0, 9)])
def test_a_window_that_is_no_pair(window) -> None:
    x, starts = np.ones((4, 2, 16), np.float32), np.array([0, 4])
    with pytest.raises(ValueError, match=r"flash_attn_varlen: window is .*, expected a pair: keys"):
        intarsia.jax.flash_attn_varlen(x, x, x, starts, cu_seqlens_k=starts, window=window)
    with pytest.raises(ValueError, match=r"^flash_mha: window_size is .*, expected a pair: keys"):
        intarsia.jax.flash_mha(x[None], x[None], x[None], window_size=window)


def test_a_pair_without_values() -> None:
    x, cache = np.ones((3, 4, 16), np.float32), np.ones((8, 16, 2, 16), np.float32)
    rest = np.array([5, 7]), np.array([[3, 0], [1, 6]]), np.array([0, 1, 3])
    with pytest.raises(ValueError, match="paged_attention: value_cache is missing from the pair"):
        intarsia.jax.paged_attention(x, (cache, None), *rest)
    with pytest.raises(ValueError, match="reshape_and_cache_flash: value_cache is missing"):
        intarsia.jax.reshape_and_cache_flash(x[:, :2], x[:, :2], (cache, None), np.arange(3))


def test_a_layout_of_keys_that_are_dense() -> None:
    q = np.ones((2, 1, 8), np.float32)
    starts = np.array([0, 2], np.int32)
    with pytest.raises(ValueError, match="layout is 'HND', expected NHD or none without a block"):
        intarsia.jax.flash_attn_varlen(q, q, q, starts, cu_seqlens_k=starts, layout="HND")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"num_seqs": np.ones(2, np.int32)}, ValueError, r"num_seqs has shape \[2\], expected one"),
        ({"num_seqs": 1.5}, ValueError, "num_seqs has dtype float32, expected int32 or int64"),
        ({"num_seqs": 3, "cu_seqlens_q": [0, 1, 2]}, ValueError, "num_seqs is 3, expected 0 to b=2"),
        ({"sinks": "x"}, TypeError, "sinks is a str, expected an array"),
        ({"k_scale": "x"}, TypeError, "k_scale is a str, expected an array"),
        ({"softcap": float("inf")}, ValueError, "softcap is inf, expected 0 .none. or a finite number"),
        ({"softcap": float("nan")}, ValueError, "softcap is nan, expected 0 .none. or a finite number"),
        ({"softcap": -1.0}, ValueError, "softcap is -1.*, expected 0 .none. or a finite number"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)  # fmt: skip
def test_what_is_wrong_is_named(change, error, says: str) -> None:
    x, caches = np.ones((2, 4, 16), np.float32), (np.ones((8, 16, 2, 16), np.float32),) * 2
    given = {"query": x, "kv_cache": caches, "seqused_k": [5, 7], "block_table": [[3, 0], [1, 6]]}
    given |= {"cu_seqlens_q": [0, 1, 2], "num_seqs": 1}
    intarsia.jax.paged_attention(**given)
    with pytest.raises(error, match=f"^paged_attention: {says}"):
        intarsia.jax.paged_attention(**given | change)
