"""Copies of pages and gathered sequences by the functions of intarsia.jax: the axes of pages, donation, errors."""

import collections

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import running
from sharded import mesh_of

Pair = collections.namedtuple("Pair", "key value")
MAPPING = np.array([[1, 4], [0, 2], [9, 3], [1, -1]], np.int32)  # the last two are skipped


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def copied(cache, source, axis):
    """By NumPy."""
    cache, source = np.moveaxis(cache.copy(), axis, 0), np.moveaxis(source, axis, 0)
    cache[4], cache[2] = source[1], source[0]
    return np.moveaxis(cache, 0, axis)


@running.on_each_platform
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 4, 2, 8), 0), ((2, 5, 4, 2, 8), 1), ((3, 2, 5, 7), 2), ((5, 9), 0)]
)
def test_pages_may_be_on_any_axis(platform, shape, axis):
    cache, source = normal(*shape), normal(*shape[:axis], 3, *shape[axis + 1 :])
    with jax.default_device(jax.devices(platform)[0]):
        got = ij.copy_blocks(cache, MAPPING, axis=axis)
        swapped = ij.swap_blocks(source, cache, MAPPING, axis=axis)
    assert np.array_equal(got, copied(cache, cache, axis))
    assert np.array_equal(swapped, copied(cache, source, axis))


def test_pairs_come_back_as_pairs() -> None:
    caches, sources = (normal(5, 4, 2, 8), normal(5, 4, 2, 8) + 1), (normal(3, 4, 2, 8),) * 2
    got = ij.copy_blocks(caches, MAPPING)
    swapped = ij.swap_blocks(sources, caches, MAPPING)
    for x, y, cache, source in zip(got, swapped, caches, sources, strict=True):
        assert np.array_equal(x, copied(cache, cache, 0))
        assert np.array_equal(y, copied(cache, source, 0))


@pytest.mark.parametrize("form", [list, tuple, lambda pair: Pair(*pair)])
def test_pairs_keep_their_form(form) -> None:
    """As a loop needs it, whose carry may not change."""
    caches, new, slots = form([normal(5, 4, 2, 8)] * 2), normal(1, 2, 8), jnp.array([0])
    mesh = mesh_of(jax.devices("cpu")[:1], model=1)
    write = ij.reshape_and_cache_flash
    for written in (
        ij.copy_blocks(caches, MAPPING),
        ij.swap_blocks(caches, caches, MAPPING),
        write(new, new, caches, slots),
        ij.shard(write, mesh, heads="model")(new, new, caches, slots),
    ):
        assert jax.tree.structure(written) == jax.tree.structure(caches)


def test_a_donated_cache_is_written_in_place() -> None:
    """Through the reshape, too: no copy of the cache is left in the program."""
    caches = (jnp.asarray(normal(2, 5, 4, 16)), jnp.asarray(normal(2, 5, 4, 16)))
    step = jax.jit(lambda caches, pairs: ij.copy_blocks(caches, pairs, axis=1), donate_argnums=0)
    compiled = step.lower(caches, MAPPING).compile()
    assert " copy(" not in compiled.as_text()
    got = compiled(caches, MAPPING)
    assert all(x.is_deleted() for x in caches)
    assert np.array_equal(got[0], copied(normal(2, 5, 4, 16), normal(2, 5, 4, 16), 1))


@running.on_each_platform
def test_gathered_sequences(platform):
    """Heads keep their axes; rows of no sequence and of no page are 0."""
    cache = normal(6, 4, 2, 8)
    table, starts = np.array([[5, 0], [2, 9]], np.int32), np.array([0, 3, 9])
    first = np.array([3, 2], np.int32)
    with jax.default_device(jax.devices(platform)[0]):
        got = ij.gather_cache(cache, table, starts, num_tokens=11, seq_starts=first)
        codes = jnp.asarray(cache, jnp.float8_e4m3fn)
        wide = ij.gather_cache(
            codes, table, starts, num_tokens=11, seq_starts=first, scale=0.5, dtype=jnp.bfloat16
        )
    slots = [23, 0, 1, 10, 11]  # page 9 is not there: the other four tokens are 0
    want = np.zeros((11, 2, 8), np.float32)
    want[:5] = cache.reshape(-1, 2, 8)[slots]
    assert np.array_equal(got, want)
    narrow = want.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * 0.5
    assert wide.dtype == jnp.bfloat16 and np.array_equal(np.float32(wide), narrow)


def test_a_round_trip_through_fp8() -> None:
    x = normal(4, 3, 8)
    codes = ij.convert_fp8(x, scale=0.25, out_dtype="u8", kv_cache_dtype="fp8_e5m2")
    back = ij.convert_fp8(codes, scale=0.25, out_dtype="f32", kv_cache_dtype="fp8_e5m2")
    want = (x / 0.25).astype(ml_dtypes.float8_e5m2)
    assert np.array_equal(codes, want.view(np.uint8))
    assert np.array_equal(back, want.astype(np.float32) * 0.25)


def test_what_is_refused() -> None:
    x, pairs = jnp.zeros((5, 4, 8)), jnp.zeros((2, 2), jnp.int32)
    table, starts = jnp.zeros((1, 2), jnp.int32), jnp.array([0, 3])
    gather = {"block_table": table, "cu_seqlens": starts, "num_tokens": 3}
    calls = {
        "copy_blocks: block_mapping has shape .2., expected .pairs 2": lambda: ij.copy_blocks(x, pairs[0]),
        "copy_blocks: axis is 3, expected 0, 1 or 2": lambda: ij.copy_blocks(x, pairs, axis=3),
        "swap_blocks: block_mapping has shape .2., expected .pairs, 2.": (
            lambda: ij.swap_blocks(x, x, pairs[0])
        ),
        "swap_blocks: kv_cache is a pair": lambda: ij.swap_blocks(x, (x, x), pairs),
        "swap_blocks: source is a pair": lambda: ij.swap_blocks((x, x), x, pairs),
        r"swap_blocks: source is float32 .5, 4, 8. and kv_cache is float32 .5, 4, 9., expected": (
            lambda: ij.swap_blocks(x, jnp.zeros((5, 4, 9)), pairs)
        ),
        "swap_blocks: source is bfloat16 .5, 4, 8. and": (
            lambda: ij.swap_blocks(x.astype(jnp.bfloat16), x, pairs)
        ),
        "copy_blocks: axis is 1.0, expected": lambda: ij.copy_blocks(x, pairs, axis=1.0),
        "gather_cache: num_tokens is -1, exp": lambda: ij.gather_cache(x, **gather | {"num_tokens": -1}),
        "gather_cache: num_tokens is 8.0, ex": lambda: ij.gather_cache(x, **gather | {"num_tokens": 8.0}),
        "gather_cache: cache has shape .5, 4., expected .p, s": lambda: ij.gather_cache(x[..., 0], **gather),
        "gather_cache: scale is given": lambda: ij.gather_cache(x, scale=2.0, **gather),
        "gather_cache: dst has dtype bf16 but cache has f32": (
            lambda: ij.gather_cache(x, dtype=jnp.bfloat16, **gather)
        ),
        "gather_cache: kv_cache_dtype is auto, but cache has dtype u8": (
            lambda: ij.gather_cache(x.astype(jnp.uint8), dtype=jnp.bfloat16, **gather)
        ),
        "convert_fp8: kv_cache_dtype is auto, but out_dtype is u8": (
            lambda: ij.convert_fp8(x, out_dtype="u8")
        ),
        "convert_fp8: x has dtype f32 and out_dtype is bf16": (
            lambda: ij.convert_fp8(x, out_dtype="bf16")
        ),
    }  # fmt: skip
    for says, call in calls.items():
        with pytest.raises(ValueError, match=f"^{says}"):
            call()
