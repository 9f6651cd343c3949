"""KV caches through the JAX functions: which layout an array has, fp8 elements, 64-bit offsets."""

import functools
from types import SimpleNamespace

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import native_calls
import numpy as np
import pytest
import running
import support
import test_jax
from intarsia import _native
from intarsia.jax import _cache
from intarsia_src.core import cache_layout

P, S, HK, D = 5, 8, 3, 40
E4M3, E5M2 = (cache_layout.FP8_CACHES[name] for name in ("fp8_e4m3", "fp8_e5m2"))


def cache_of(*shape: int) -> SimpleNamespace:
    """All that the inference of a layout looks at."""
    return SimpleNamespace(shape=shape)


# ---------------------------------------------------------------------------- which layout it is


@pytest.mark.parametrize("layout", [n for n in cache_layout.layout_names() if n != "HND"])
@pytest.mark.parametrize("layers", [None, 1, 2])
def test_the_form_says_the_layout(layout: str, layers: int | None) -> None:
    key, value = cache_layout.cache_shapes(layout, P, S, HK, D, layers)
    cache = cache_of(*key) if value is None else (cache_of(*key), cache_of(*value))
    layer = None if layers is None else jnp.int32(0)
    assert _cache.infer_layout("paged_attention", cache, D, None, layer) == layout
    assert _cache.infer_layout("paged_attention", cache, D, "p hk s d", layer) == "p hk s d"


@pytest.mark.parametrize(
    ("shape", "layer", "why"),
    [
        ((P, S, 2 * HK, 3 * D), None, "which no layout with heads of 40 has"),
        ((S, 2 * HK, D), None, "which no layout with heads of 40 has"),
        ((P, S, 2 * HK, D), 0, "with layer, which no layout with heads of 40 has"),
        ((4, P, S, 2 * HK, D), None, "where a stacked cache has 2 in axis 0"),
        ((P, 2, S, HK, D), None, "where a stacked cache has 2 in axis 0"),
        ((2, 2, S, HK, D), None, "whose axis 1 could tell K from V, too"),
        ((3, 2, 2, S, HK, D), 0, "with layer, whose axis 2 could tell K from V, too"),
        ((1, 3, 2, P, S, HK, D), 0, "with layer, which no layout with heads of 40 has"),
    ],
)
def test_a_form_that_no_layout_has_or_two_have(shape, layer, why) -> None:
    with pytest.raises(ValueError, match=why) as error:
        _cache.infer_layout("paged_attention", cache_of(*shape), D, None, layer)
    assert str(error.value).startswith("paged_attention: kv_cache has shape ")
    assert str(error.value).endswith("; pass layout=")


def test_a_key_cache_alone_is_refused_or_taken_for_both() -> None:
    """One array of even heads is "combined", which the promised call passes without a word."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, D)).astype(np.float32)
    cache = rng.standard_normal((P, S, 4, D)).astype(np.float32)
    rest = np.array([13, 4]), np.array([[4, 0], [2, 9]]), np.array([0, 1, 2])
    as_pair = cache[:, :, 0::2], cache[:, :, 1::2]
    want = ij.paged_attention(q, as_pair, *rest)
    np.testing.assert_array_equal(ij.paged_attention(q, cache, *rest), want)
    refused = r"paged_attention: kv_cache has shape .*whose 3 heads are not K and V .* are a pair"
    with pytest.raises(ValueError, match=refused):
        ij.paged_attention(q, cache[:, :, :3], *rest)
    with pytest.raises(ValueError, match=r"flash_attn_varlen: kv_cache has shape .*whose 3 heads"):
        ij.flash_attn_varlen(
            q, cache[:, :, :3], None, rest[2], seqused_k=rest[0], block_table=rest[1]
        )


def test_a_layout_without_a_name() -> None:
    """FlashInfer's HND, with the layers behind the pages."""
    rng = np.random.default_rng(0)
    layout = "p l 2 hk s d"
    shape, _ = cache_layout.cache_shapes(layout, P, S, HK, D, 2)
    assert shape == (P, 2, 2, HK, S, D)
    cache = rng.standard_normal(shape).astype(np.float32)
    key, value = rng.standard_normal((2, 3, HK, D)).astype(np.float32)
    slots, layer = np.array([0, 17, 39], np.int32), np.array(1, np.int32)
    got = ij.reshape_and_cache_flash(key, value, cache, slots, layout=layout, layer=layer)
    module = support.op_module("reshape_and_cache_flash")
    (want,) = module.exact(key, value, cache, None, slots, layer, layout=layout)
    np.testing.assert_array_equal(np.asarray(got), want)
    q = rng.standard_normal((2, 2 * HK, D)).astype(np.float32)
    lens, table, starts = np.array([13, 4]), np.array([[4, 0], [2, 9]]), np.array([0, 1, 2])
    out = ij.paged_attention(q, got, lens, table, starts, layout=layout, layer=layer)
    reference = support.op_module("paged_attention").reference
    (expected,) = reference(q, want, None, lens, table, starts, None, layer, layout=layout)
    running.check("paged_attention", np.asarray(out), expected)


# ---------------------------------------------------------------------------- wrong calls


def t(*shape: int, dtype: str = "f32") -> _native.Tensor:
    return _native.Tensor(shape, dtype)


KEY, PAIR, FP8 = t(3, HK, D), t(P, S, HK, D), t(P, S, HK, D, dtype="f8e4m3fn")
SLOTS, LAYER, SCALE = t(3, dtype="i32"), t(dtype="i32"), t(HK)


@pytest.mark.parametrize(
    ("operands", "attributes", "message"),
    [
        ([PAIR, PAIR, SLOTS], {"layout": "HDN"}, r'layout is "HDN", expected one of NHD\|HND\|'),
        ([PAIR, PAIR, SLOTS], {"layout": "p s d hk"}, "such as .* it must end in d or 2\\*d"),
        ([PAIR, PAIR, SLOTS], {"layout": "p s h d"}, '"h" is no axis'),
        ([PAIR, PAIR, SLOTS], {"layout": "p l s hk d"}, r"expected \[p l s hk d\]"),
        ([PAIR, PAIR, SLOTS, LAYER], {}, r"expected \[l p s hk d\]"),
        (
            [t(P, 2, S, HK, D), t(P, 2, S, HK, D), SLOTS],
            {"layout": "p l s hk d"},
            "layer is missing, layout p l s hk d has the axis l",
        ),
        ([PAIR, None, SLOTS], {"layout": "HND"}, "key_cache has hk=8 but key has hk=3"),
        ([PAIR, None, SLOTS], {}, "value_cache is missing, layout NHD keeps V in an array of its"),
        ([t(P, S, HK, 2 * D), PAIR, SLOTS], {"layout": "packed"}, "value_cache is given, but must"),
        ([t(3, P, S, HK, D), None, SLOTS], {"layout": "stacked"}, r"expected \[2 p s hk d\]"),
        ([PAIR, FP8, SLOTS], {}, "value_cache has dtype f8e4m3fn but key_cache has f32"),
        ([PAIR, PAIR, SLOTS, None, SCALE], {}, "k_scale is given, but key_cache has dtype f32, ex"),
        ([PAIR, PAIR, SLOTS, None, None, SCALE], {}, "v_scale is given, but key_cache has dtype"),
        ([FP8, FP8, SLOTS, None, t(2)], {}, "k_scale has hk=2 but key has hk=3"),
        ([FP8, FP8, SLOTS, None, t(2, HK)], {}, r"k_scale has shape \[2, 3\], expected \[1\] or"),
        ([FP8, FP8, SLOTS], {"kv_cache_dtype": "fp8_e5m2"}, "f8e4m3fn, expected f8e5m2 or u8 for"),
        ([PAIR, PAIR, SLOTS], {"kv_cache_dtype": "fp8"}, "has dtype f32, expected f8e4m3fn or u8"),
        ([t(P, S, HK, D, dtype="u8")] * 2 + [SLOTS], {}, "kv_cache_dtype is auto but key_cache"),
        ([t(P, S, HK, D, dtype="bf16")] * 2 + [SLOTS], {}, "key_cache has dtype bf16 but key has"),
    ],
)
def test_a_wrong_write_says_what_is_wrong(operands, attributes, message) -> None:
    with pytest.raises(ValueError, match=message) as error:
        running.LIBRARY.infer("reshape_and_cache_flash", [KEY, KEY, *operands], attributes)
    assert str(error.value).startswith("reshape_and_cache_flash: ")


# ---------------------------------------------------------------------------- fp8


@running.on_each_platform
@pytest.mark.parametrize("layout", ["NHD", "packed"])
@pytest.mark.parametrize(
    ("stored", "kv_cache_dtype"),
    [(E4M3, "auto"), (E5M2, "auto"), (np.uint8, "fp8_e4m3"), (np.uint8, "fp8_e5m2")],
)
def test_an_fp8_cache_is_written_in_place(layout, stored, kv_cache_dtype, platform) -> None:
    rng = np.random.default_rng(0)
    shapes = cache_layout.cache_shapes(layout, P, S, HK, D)
    caches = [None if s is None else rng.integers(0, 99, s, np.uint8).view(stored) for s in shapes]
    key, value = (9 * rng.standard_normal((2, 3, HK, D))).astype(np.float16)
    slots = np.array([3, -1, 17], np.int32)
    v_scale = rng.uniform(0.5, 2, HK).astype(np.float32)

    def step(key, value, cache, slots):
        return ij.reshape_and_cache_flash(
            key, value, cache, slots, k_scale=0.3, v_scale=v_scale, kv_cache_dtype=kv_cache_dtype
        )

    cache = tuple(caches) if caches[1] is not None else caches[0]
    arrays = test_jax.put((key, value, cache, slots), platform)
    compiled = jax.jit(step, donate_argnums=2).lower(*arrays).compile()
    name = {E4M3: "f8e4m3fn", E5M2: "f8e5m2", np.uint8: "u8"}[stored]
    opcodes = test_jax.opcodes_of_shape(compiled.as_text(), shapes[0], name)
    assert {"custom-call", "parameter"} <= opcodes <= test_jax.IN_PLACE
    pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(arrays[2])]
    got = jax.tree.leaves(compiled(*arrays))
    assert [x.unsafe_buffer_pointer() for x in got] == pointers
    module = support.op_module("reshape_and_cache_flash")
    want = module.exact(
        key, value, *caches, slots, None, np.array([0.3], np.float32), v_scale,
        layout=layout, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    for x, y in zip(got, want, strict=True):
        assert x.dtype == stored
        assert np.asarray(x).tobytes() == y.tobytes()


def check_stored(key, value, stored, k_scale, v_scale, platform) -> None:
    """Writes tokens into slots of their own and compares the cache with NumPy's, to the bit."""
    t, hk, d = key.shape
    cache = np.zeros((t, 1, hk, d), stored)
    slots = np.arange(t, dtype=np.int32)
    operands = [key, value, cache, cache, slots, None, k_scale, v_scale]
    got = running.run_any("reshape_and_cache_flash", operands, {}, platform)
    want = support.op_module("reshape_and_cache_flash").exact(*operands)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


SCALES = [None, 1.0, 0.7, -3.0, 2.0**-9, 1e-24, 1e-42, 1e25, 3e38, 0.0, np.inf, np.nan]


@running.on_each_platform
@pytest.mark.parametrize("stored", [E4M3, E5M2])
@pytest.mark.parametrize("scale", SCALES)
def test_every_16_bit_number_is_stored_rightly(stored, scale, platform) -> None:
    """All of f16 and bf16, NaN and infinities among them: ties, denormals, the largest, beyond it."""
    scale = None if scale is None else np.array([scale], np.float32)
    for dtype in (np.float16, support.DTYPES["bf16"]):
        key = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(32, 2, 1024)
        check_stored(key, key[::-1].copy(), stored, scale, scale, platform)


@running.on_each_platform
@pytest.mark.parametrize("stored", [E4M3, E5M2])
def test_quotients_next_to_a_tie_are_rounded_as_a_division_rounds(stored, platform) -> None:
    """By a product with the reciprocal, many of these would come out on the other side."""
    rng = np.random.default_rng(0)
    codes = np.arange(0x7F if stored is E4M3 else 0x7C, dtype=np.uint8).view(stored)
    numbers = codes.astype(np.float64)
    ties = (numbers[1:] + numbers[:-1]) / 2
    scales = (rng.uniform(1, 2, (2, 200)) * 2.0 ** rng.integers(-70, 70, (2, 200))).astype(
        np.float32
    )
    near = (scales[:, :, None] * ties).astype(np.float32)
    steps = [near]
    for towards in (-np.inf, np.inf):
        steps.append(np.nextafter(near, np.float32(towards)))
        steps.append(np.nextafter(steps[-1], np.float32(towards)))
    key, value = np.concatenate(steps, axis=-1)[:, None]
    check_stored(key, -value, stored, *scales, platform)
    product = (key * (1 / scales[0])[:, None]).astype(np.float32)
    quotient = key / scales[0][:, None]
    assert np.any(product.astype(stored) != quotient.astype(stored))


# ---------------------------------------------------------------------------- 64-bit offsets


def run_far(op, operands, attributes, platform) -> list:
    """Results of an op on arrays too large to copy; on a CPU, only what is touched of them exists."""
    if platform == "cpu":
        return native_calls.run_where_they_lie(op, operands, attributes)
    step = jax.jit(lambda *xs: ij.call(op, xs, **attributes), donate_argnums=running.donated(op))
    return list(step(*operands))


@running.on_each_platform
@pytest.mark.parametrize("layout", ["NHD", "HND", "packed", "stacked"])
@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "elements"),
    [(np.uint8, "fp8_e4m3", 2**32), (np.float16, "auto", 2**31)],
)
def test_a_cache_beyond_32_bit_offsets(layout, dtype, kv_cache_dtype, elements, platform) -> None:
    size = dict(page_size=16, hk=2, d=128)
    arrays = 1 if cache_layout.has_value_cache(layout) else 2
    pages = elements // (16 * 2 * 128 * arrays) + 3
    zeros = np.zeros
    if platform == "gpu":
        zeros = functools.partial(jnp.zeros, device=jax.devices("gpu")[0])
    shapes = cache_layout.cache_shapes(layout, pages, **size)
    try:
        caches = [None if s is None else zeros(s, dtype) for s in shapes]
    except MemoryError:
        pytest.skip("no address space for such a cache")
    small = [
        None if s is None else np.zeros(s, dtype)
        for s in cache_layout.cache_shapes(layout, 3, **size)
    ]

    # The last pages and the first; the others are where narrower offsets would end up.
    written = np.array([pages - 1, pages - 2, 0])
    spared = (written[:2, None] - np.array([pages // 2, pages - 3])).ravel()
    page, offset = np.array([0, 0, 1, 2]), np.array([5, 0, 9, 7])
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 4, 2, 128)).astype(np.float16)
    attributes = {"layout": layout, "kv_cache_dtype": kv_cache_dtype}
    slots = (written[page] * 16 + offset).astype(np.int32)
    operands = [key, value, *caches, slots, None, None, None]
    caches = [*run_far("reshape_and_cache_flash", operands, attributes, platform), None][:2]
    write = support.op_module("reshape_and_cache_flash").exact
    want = [*write(key, value, *small, page * 16 + offset, **attributes), None][:2]
    pairs = zip(*(cache_layout.cache_pages(*x, layout) for x in (caches, want)), strict=True)
    for view, expected in pairs:
        np.testing.assert_array_equal(np.asarray(view[written]), expected)
        assert not np.asarray(view[spared]).any()

    if kv_cache_dtype == "auto":
        q = rng.standard_normal((2, 4, 128)).astype(np.float16)
        lens, starts = np.array([6, 12], np.int32), np.array([0, 1, 2], np.int32)
        far, near = (
            [q, *pair, lens, pages_of_both[:, None].astype(np.int32), starts, *[None] * 5]
            for pair, pages_of_both in ((caches, written[:2]), (want, np.arange(2)))
        )
        (out,) = run_far("paged_attention", far, {"layout": layout}, platform)
        reference = support.op_module("paged_attention").reference
        (expected,) = reference(*map(running.as_f64, near), layout=layout)
        running.check("paged_attention", np.asarray(out), expected)
