"""Inside jit: caches are written in place when donated, intact when not; wrong calls fail early."""

import functools
import re

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
import support
from intarsia_src.attention import operands as attention
from intarsia_src.core import cache_layout
from jax import lax

B, H, HK, D, PAGE, LAYERS = 3, 6, 3, 40, 8, 4
LENS = (5, 17, 1)
LAYOUTS = cache_layout.layout_names()


def make_batch(layout: str, layers: int | None):
    """One decode step's operands as NumPy arrays: (q, k, v, cache, slots, lens, table, starts)."""
    rng = np.random.default_rng(0)
    cache = attention.paged_cache(
        rng, np.float32, LENS, hk=HK, d=D, page=PAGE, layout=layout, layers=layers, poison=False
    )
    q = rng.standard_normal((B, H, D)).astype(np.float32)
    k, v = rng.standard_normal((2, B, HK, D)).astype(np.float32)
    last = cache.seqused_k - 1  # the step's own tokens
    slots = cache.block_table[np.arange(B), last // PAGE] * PAGE + last % PAGE
    caches = tuple(x for x in (cache.key_cache, cache.value_cache) if x is not None)
    return q, k, v, caches, slots, cache.seqused_k, cache.block_table, attention.starts([1] * B)


def as_kv(caches: tuple):
    return caches if len(caches) == 2 else caches[0]


def decode(q, k, v, caches, slots, lens, table, starts, *, layer=None, layout=None):
    """Writes the new keys, then attends to all of them."""
    how = dict(layer=layer, layout=layout)
    kv = ij.reshape_and_cache_flash(k, v, as_kv(caches), slots, **how)
    out = ij.paged_attention(q, kv, lens, table, starts, **how)
    return out, kv if isinstance(kv, tuple) else (kv,)


def decode_layers(q, k, v, caches, *rest, layout=None):
    """The same for each layer of a stacked cache, in a loop over one donated array."""

    def one(carry, layer):
        x, caches = carry
        out, caches = decode(x, k * (layer + 1), v, caches, *rest, layer=layer, layout=layout)
        return (out, caches), out

    (_, caches), outs = lax.scan(one, (q, caches), jnp.arange(LAYERS, dtype=jnp.int32))
    return outs, caches


def decode_in_numpy(q, k, v, caches, slots, lens, table, starts, *, layer=None, layout="NHD"):
    write = support.op_module("reshape_and_cache_flash").exact
    attend = support.op_module("paged_attention").reference
    caches = tuple(write(k, v, *(*caches, None)[:2], slots, layer, layout=layout))
    pair = (*caches, None)[:2]
    (out,) = attend(q, *pair, lens, table, starts, None, layer, layout=layout)
    return out, caches


def passed(layout: str) -> str | None:
    """How a caller says which layout it is: not at all where its form does."""
    return layout if layout == "HND" else None


def opcodes_of_shape(text: str, shape: tuple[int, ...], dtype: str = "f32") -> set[str]:
    """The opcodes of an HLO module's instructions with a result, or part of one, of this shape."""
    array = f"{dtype}[{','.join(map(str, shape))}]"
    instructions = re.findall(r"= (\(.*?\)|\S+) ([a-z][\w-]*)\(", text)
    return {opcode for result, opcode in instructions if array in result}


# What passes a buffer on. Copies, fusions and updates of slices are all that must not be there.
IN_PLACE = {
    "bitcast", "call", "custom-call", "get-tuple-element", "parameter", "tuple", "while"
}  # fmt: skip


def compile_step(step, batch, donate: bool):
    jitted = jax.jit(step, donate_argnums=(3,) if donate else ())
    return jitted.lower(*batch).compile()


@running.on_each_platform
def test_results_lie_where_there_was_garbage(platform: str) -> None:
    """What `running.run` relies on: donated arrays that nothing reads become the results' memory."""
    operands = [np.ones((5, 8), np.float32), np.ones((5, 8), np.float32), None]
    with jax.default_device(jax.devices(platform)[0]):
        garbage = running.garbage([("fused_add_rms_norm", operands, {})], fill=0xFF)
        assert np.isnan(np.asarray(garbage[0])).all()
        pointers = {x.unsafe_buffer_pointer() for x in garbage}
        step = jax.jit(
            lambda garbage, *xs: ij.fused_add_rms_norm(*xs), donate_argnums=0, keep_unused=True
        )
        compiled = step.lower(garbage, *operands[:2]).compile()
        assert " copy(" not in compiled.as_text()
        results = compiled(garbage, *operands[:2])
    assert len(pointers) == 2 and {x.unsafe_buffer_pointer() for x in results} == pointers


def put(batch, platform: str):
    """On the device, in memory of XLA's own: what is lent from NumPy cannot be donated in place."""
    with jax.default_device(jax.devices(platform)[0]):
        return jax.tree.map(lambda x: jnp.copy(jnp.asarray(x)), batch)


def check_step(step, batch, want_out, want_caches, platform: str) -> None:
    arrays = put(batch, platform)
    shape = batch[3][0].shape
    compiled = compile_step(step, arrays, donate=True)
    opcodes = opcodes_of_shape(compiled.as_text(), shape)
    assert {"custom-call", "parameter"} <= opcodes
    assert opcodes <= IN_PLACE
    pointers = [cache.unsafe_buffer_pointer() for cache in arrays[3]]
    out, caches = compiled(*arrays)
    assert [cache.unsafe_buffer_pointer() for cache in caches] == pointers
    for cache, want in zip(caches, want_caches, strict=True):
        np.testing.assert_array_equal(np.asarray(cache), want)
    running.check("paged_attention", np.asarray(out), want_out)


@running.on_each_platform
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_donated_cache_is_written_in_place(layout: str, platform: str) -> None:
    batch = make_batch(layout, None)
    step = functools.partial(decode, layout=passed(layout))
    check_step(step, batch, *decode_in_numpy(*batch, layout=layout), platform)


@running.on_each_platform
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stacked_cache_is_written_in_place_in_a_scan(layout: str, platform: str) -> None:
    batch = make_batch(layout, LAYERS)
    x, k, v, caches, *rest = batch
    outs = []
    for layer in range(LAYERS):
        x, caches = decode_in_numpy(
            x.astype(np.float32), k * np.float32(layer + 1), v, caches, *rest,
            layer=np.int32(layer), layout=layout,
        )  # fmt: skip
        outs.append(x)
    step = functools.partial(decode_layers, layout=passed(layout))
    check_step(step, batch, np.stack(outs), caches, platform)


def test_the_search_for_copies_finds_them() -> None:
    """Without donation XLA must copy the cache: then the test above has to see it."""
    batch = make_batch("NHD", None)
    text = compile_step(decode, batch, donate=False).as_text()
    assert not opcodes_of_shape(text, batch[3][0].shape) <= IN_PLACE


@running.on_each_platform
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_undonated_cache_stays_as_it_was(layout: str, platform: str) -> None:
    batch = make_batch(layout, None)
    arrays = put(batch, platform)
    step = functools.partial(decode, layout=passed(layout))
    out, caches = compile_step(step, arrays, donate=False)(*arrays)
    want_out, want_caches = decode_in_numpy(*batch, layout=layout)
    for before, after, old, new in zip(batch[3], want_caches, arrays[3], caches, strict=True):
        np.testing.assert_array_equal(np.asarray(old), before)
        np.testing.assert_array_equal(np.asarray(new), after)
        assert not np.array_equal(before, after)
    running.check("paged_attention", np.asarray(out), want_out)


@running.on_each_platform
def test_growing_lengths_compile_once(platform: str) -> None:
    q, _, _, caches, _, lens, table, starts = put(make_batch("NHD", None), platform)
    step = jax.jit(
        lambda lens, num_seqs: ij.paged_attention(q, caches, lens, table, starts, num_seqs)
    )
    for grown in range(20):
        num_seqs = jnp.array([grown % (B + 1)], jnp.int32)
        jax.block_until_ready(step(lens - 1 + grown % 3, num_seqs))
    assert step._cache_size() == 1


def test_hints_do_not_change_the_program() -> None:
    q, k, v, *_, starts = make_batch("NHD", None)

    def text(hint):
        def attend(q, k, v, starts):
            return ij.flash_attn_varlen(
                q, k, v, starts, cu_seqlens_k=starts, max_seqlen_q=hint, max_seqlen_k=hint
            )

        return jax.jit(attend).lower(q, k, v, starts).as_text()

    assert text(1) == text(100) == text(None)


@running.on_each_platform
def test_a_hundred_growing_steps_compile_once(platform: str, caplog) -> None:
    """Lengths and the longest of them, which is a Python number, grow with every step."""
    rng = np.random.default_rng(0)
    cache = attention.paged_cache(
        rng, np.float32, (120, 101), hk=HK, d=D, page=PAGE, layout="NHD", layers=None, poison=False
    )
    q, k, v, table, starts = put(
        (
            rng.standard_normal((2, H, D)).astype(np.float32),
            cache.key_cache,
            cache.value_cache,
            cache.block_table,
            attention.starts([1, 1]),
        ),
        platform,
    )

    def step(grown: int) -> None:
        lens = np.array([20 + grown, 1 + grown], np.int32)
        out = ij.flash_attn_varlen(
            q,
            k,
            v,
            starts,
            seqused_k=lens,
            block_table=table,
            max_seqlen_q=1,
            max_seqlen_k=20 + grown,
            is_causal=True,
        )
        jax.block_until_ready(out)

    with jax.log_compiles():
        step(0)
        assert "Finished XLA compilation" in caplog.text
        caplog.clear()
        for grown in range(1, 101):
            step(grown)
    assert "XLA compilation" not in caplog.text


def test_the_cache_comes_back_in_its_form() -> None:
    _, k, v, caches, slots, *_ = make_batch("NHD", None)
    assert isinstance(ij.reshape_and_cache_flash(k, v, caches, slots), tuple)
    assert isinstance(ij.reshape_and_cache_flash(k, v, list(caches), slots), list)
    combined = make_batch("combined", None)[3][0]
    assert ij.reshape_and_cache_flash(k, v, combined, slots).shape == combined.shape


def test_num_seqs_may_be_a_number() -> None:
    q, _, _, caches, _, lens, table, starts = make_batch("NHD", None)
    two = ij.paged_attention(q, caches, lens, table, starts, 2)
    array = ij.paged_attention(q, caches, lens, table, starts, jnp.array([2]))
    np.testing.assert_array_equal(np.asarray(two), np.asarray(array))
    assert not np.asarray(two)[2].any() and np.asarray(two)[:2].any()


def test_a_wrong_call_fails_while_tracing() -> None:
    x, weight = jax.ShapeDtypeStruct((3, 64), "float32"), jax.ShapeDtypeStruct((5,), "float32")
    with pytest.raises(ValueError, match="rms_norm: weight has n=5 but x has n=64"):
        jax.jit(ij.rms_norm).trace(x, weight)
    _, k, v, caches, slots, *_ = make_batch("NHD", None)
    with pytest.raises(
        ValueError, match=r'layout is "HDN", expected one of NHD\|HND\|.* or an order'
    ):
        ij.reshape_and_cache_flash(k, v, caches, slots, layout="HDN")
    with pytest.raises(
        ValueError,
        match=r"key_cache has 2\*hk=3 but key has hk=3, expected 6 where layout=combined",
    ):
        ij.reshape_and_cache_flash(k, v, caches, slots, layout="combined")
    with pytest.raises(TypeError, match="rms_norm: unknown attribute epsilon"):
        ij.call("rms_norm", [jnp.ones((2, 8)), None], epsilon=1.0)
    with (
        pytest.raises(ValueError, match="rms_norm: x has dtype float64, expected "),
        jax.enable_x64(True),
    ):
        ij.rms_norm(jnp.ones((2, 8), jnp.float64))


def test_what_is_no_array_is_named() -> None:
    one = np.ones((1, 8, 8), np.float32)
    with pytest.raises(TypeError, match=r"grouped_matmul: x is None, expected an array"):
        ij.grouped_matmul(None, one, np.array([1]))
    with pytest.raises(TypeError, match=r"rms_norm: x is a str, expected an array"):
        ij.rms_norm("x", one[0, 0])


def test_a_layer_may_be_any_integer_in_x64_mode() -> None:
    """There 0 and jnp.arange(3) are int64; a number beyond int32 stays beyond the layers."""
    q, k, v, caches, slots, *rest = make_batch("NHD", LAYERS)
    for layer in (1, LAYERS + 2**32):
        with jax.enable_x64(True):
            got = ij.reshape_and_cache_flash(k, v, caches, slots, layer=jnp.asarray(layer))
            out = ij.paged_attention(q, got, *rest, layer=layer)
        assert out.shape == q.shape
        wrote = not np.array_equal(np.asarray(got[0]), caches[0])
        assert wrote == (layer < LAYERS)


def test_programs_and_profiles_name_the_op() -> None:
    x = np.ones((2, 8), np.float32)
    text = jax.jit(lambda x: ij.rms_norm(x) + 1).lower(x).compile().as_text()
    assert re.search(r'custom-call.*op_name="[^"]*/rms_norm/', text)
    assert "name=rms_norm" in str(jax.make_jaxpr(ij.rms_norm)(x))


def test_an_unknown_op_lists_those_there_are() -> None:
    with pytest.raises(LookupError, match=r"no op rms_nrom; .*paged_attention.*rms_norm"):
        ij.call("rms_nrom", [jnp.ones((2, 8)), None])


@pytest.mark.parametrize(
    ("target", "op"), [("XlaGpuSimpleAdd", "simple_add"), ("vllm_rms_norm_cuda", "rms_norm")]
)
@running.on_each_platform
def test_the_promised_targets_are_aliases(target: str, op: str, platform: str) -> None:
    x, y = (np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8) + i for i in range(2))
    operands, attributes = ([x, y], {}) if op == "simple_add" else ([x], {"present": np.int64(0)})
    with jax.default_device(jax.devices(platform)[0]):
        run = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))
        got = jax.jit(lambda *xs: run(*xs, **attributes))(*operands)
    want = support.op_module(op).reference(*map(running.as_f64, operands))[0]
    running.check(op, np.asarray(got), want)
