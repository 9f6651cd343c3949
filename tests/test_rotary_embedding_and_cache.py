"""rotary_embedding_and_cache is rotary_embedding or fused_qk_norm_rope, then reshape_and_cache_flash, to the bit."""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import native_calls
import numpy as np
import pytest
import running
import support
from drawn import DTYPES, INDEX_DTYPES, SEEDS, cache_layouts
from hypothesis import given
from hypothesis import strategies as st

OP = "rotary_embedding_and_cache"
MODULE = support.op_module(OP)


@st.composite
def calls(draw):
    d = draw(st.integers(2, 70) | st.sampled_from([64, 128, 256]))
    r = draw(st.just(d // 2 * 2) | st.integers(1, d // 2).map(lambda half: 2 * half))
    t = draw(st.integers(0, 9))
    layout, layers = draw(cache_layouts())
    fp8 = draw(st.sampled_from([None, "fp8", "fp8_e5m2"]))
    norms = draw(st.sampled_from([None, "T", "f32"]))
    sizes = {
        "t": t,
        "h": draw(st.integers(1, 5)),
        "hk": draw(st.integers(1, 3)),
        "d": d,
        "r": r,
        "page": draw(st.integers(1, 5)),
        "slots": draw(st.integers(0, t)),
        "skip": t >= 4 and draw(st.booleans()),
        "outside": t >= 4 and draw(st.booleans()),
        "max_position": draw(st.integers(1, 40)),
        "is_neox": draw(st.booleans()),
        "rope_dim_offset": 0 if norms else draw(st.integers(0, d - r)),
        "norms": norms,
        "index": draw(INDEX_DTYPES),
        "table_dtype": support.DTYPES[draw(DTYPES)],
        "layout": layout,
        "layers": layers,
        "kv_cache_dtype": fp8 or "auto",
        "scales": draw(st.sampled_from([None, "tensor", "head"])) if fp8 else None,
    }
    if sizes["skip"]:
        sizes["slots"] = max(sizes["slots"], 4)
    dtype = support.DTYPES[draw(DTYPES)]
    return MODULE.arguments(np.random.default_rng(draw(SEEDS)), dtype, **sizes)


def one_after_the_other(operands: list, attributes: dict, platform: str) -> list[np.ndarray]:
    """The same by the two ops."""

    def norm_and_rotate(*operands, **of_norms):
        return running.run_any("fused_qk_norm_rope", dense(operands), of_norms, platform)

    def rotate(positions, query, table, key, **of_rotation):
        operands = [positions, query, table, key]
        return running.run_any("rotary_embedding", dense(operands), of_rotation, platform)

    def write(*operands, **of_cache):
        return running.run_any("reshape_and_cache_flash", dense(operands), of_cache, platform)

    def dense(operands):
        return [None if x is None else np.array(x, order="C") for x in operands]

    return MODULE.one_after_the_other(norm_and_rotate, rotate, write, operands, **attributes)


@running.on_each_platform
@given(call=calls())
def test_the_bits_of_the_two_ops(platform, call) -> None:
    operands, attributes = call
    got = running.run_any(OP, operands, attributes, platform)
    running.check_against_reference(OP, operands, attributes, got, platform)
    want = one_after_the_other(operands, attributes, platform)
    assert [x.tobytes() for x in got] == [x.tobytes() for x in want]


def test_strided_rows_are_read_where_they_lie() -> None:
    operands, attributes = MODULE.arguments(
        np.random.default_rng(0), np.float32, t=5, h=4, hk=2, d=16, page=4
    )
    want = running.run_native(OP, operands, attributes)
    wide = np.full((5, 11, 24), np.nan, np.float32)
    wide[:, 2:10, :16] = operands[1]
    operands[1] = wide[:, 2:10, :16]
    got = native_calls.run_where_they_lie(OP, operands, attributes)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def _example() -> tuple[list, dict]:
    (sizes,) = support.cases(OP, "wire").values()
    return MODULE.arguments(np.random.default_rng(0), np.float32, **sizes)


@pytest.mark.parametrize("combined", [False, True])
def test_a_cache_comes_back_in_its_form(combined: bool) -> None:
    (positions, qkv, table, key_cache, value_cache, slots, *_), attributes = _example()
    want = running.run_native(
        OP, [positions, qkv, table, key_cache, value_cache, slots], attributes
    )
    interleaved = np.stack([key_cache, value_cache], axis=3).reshape(*key_cache.shape[:2], -1, 64)
    cache = jnp.asarray(interleaved) if combined else [*map(jnp.asarray, (key_cache, value_cache))]
    query, written = ij.rotary_embedding_and_cache(
        positions, qkv, table, cache, slots, num_heads=attributes["num_heads"]
    )
    np.testing.assert_array_equal(query, want[0])
    assert isinstance(written, jax.Array if combined else list)
    pair = (written[:, :, ::2], written[:, :, 1::2]) if combined else written
    for got, expected in zip(pair, want[1:], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_every_keyword_reaches_the_op() -> None:
    sizes = {"t": 5, "h": 4, "hk": 2, "d": 32, "page": 4, "r": 16, "rope_dim_offset": 8}
    cache = {"layout": "HND", "layers": 2, "kv_cache_dtype": "fp8_e5m2", "scales": "head"}
    operands, attributes = MODULE.arguments(
        np.random.default_rng(0), np.float32, is_neox=False, **sizes, **cache
    )
    want = running.run_native(OP, operands, attributes)
    positions, qkv, table, *caches, slots, layer, k_scale, v_scale, _, _ = operands
    assert not np.array_equal(k_scale, v_scale)
    query, written = ij.rotary_embedding_and_cache(
        positions, qkv, table, tuple(caches), slots,
        layer=layer, k_scale=k_scale, v_scale=v_scale, **attributes,
    )  # fmt: skip
    assert isinstance(written, tuple)
    for got, expected in zip((query, *written), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_norms_reach_the_op() -> None:
    operands, attributes = MODULE.arguments(
        np.random.default_rng(0), np.float32, t=5, h=4, hk=2, d=32, page=4, norms="T"
    )
    want = running.run_native(OP, operands, attributes)
    positions, qkv, table, *caches, slots, _, _, _, q_weight, k_weight = operands
    query, written = ij.rotary_embedding_and_cache(
        positions, qkv, table, tuple(caches), slots,
        q_weight=q_weight, k_weight=k_weight, **attributes,
    )  # fmt: skip
    for got, expected in zip((query, *written), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 5}, "qkv has 8 heads, expected 9: num_heads=5 and the cache's hk=2 twice"),
        ({"num_heads": 0}, "num_heads is 0, expected at least 1"),
        ({"num_heads": None}, "num_heads is missing"),
        ({"rope_dim_offset": 2}, "rope_dim_offset=2 plus r=64 of cos_sin_cache exceeds the head's"),
        ({"kv_cache_dtype": "fp8"}, "key_cache has dtype f32, expected f8e4m3fn or u8"),
        ({"layout": "combined"}, "value_cache is given, but"),
        ({"slot_mapping": np.zeros(4, np.int32)}, "slot_mapping has 4 slots but qkv has t=3"),
        ({"k_scale": np.ones(1, np.float32)}, "k_scale is given, but key_cache has dtype f32"),
        ({"positions": np.zeros(2, np.int32)}, "has t=3 but positions has t=2"),
        ({"q_weight": np.ones(64, np.float32)}, "k_weight is missing beside q_weight"),
        ({"k_weight": np.ones(64, np.float32)}, "q_weight is missing beside k_weight"),
        (
            {"q_weight": np.ones(64, np.float32), "k_weight": np.ones(32, np.float32)},
            "k_weight has d=32",
        ),
        (
            {
                "q_weight": np.ones(64, np.float32),
                "k_weight": np.ones(64, np.float32),
                "cos_sin_cache": np.ones((16, 32), np.float32),
                "rope_dim_offset": 2,
            },
            "rope_dim_offset is 2, expected 0 with q_weight",
        ),
        ({"eps": -1.0}, "eps is -1"),
    ],
)
def test_wrong_calls(change: dict, message: str) -> None:
    operands, attributes = _example()
    names = [row["name"] for row in running.LIBRARY.find(OP).operands]
    for name, value in change.items():
        if name in names:
            operands[names.index(name)] = value
        else:
            attributes[name] = value
    with pytest.raises(ValueError, match=f"^{OP}: .*{message}"):
        running.run_native(OP, operands, attributes)
