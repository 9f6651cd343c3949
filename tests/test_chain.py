"""`intarsia.jax.chain`: several calls as one custom call, which changes no result."""

import functools
from collections.abc import Callable
from typing import Any

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intarsia._steps import custom_calls

ROWS, N, PAGES, PAGE_SIZE, HEADS, D = 3, 16, 4, 2, 2, 8
WEIGHT = jnp.linspace(0.5, 1.5, N)


def calls_of(fun: Callable[..., Any], *args: Any) -> list[Any]:
    """The custom calls of a traced function, in order: single ones, and those within chains."""

    def found(jaxpr: Any) -> list[Any]:
        inner = [
            e.params["call"].jaxpr for e in jaxpr.eqns if e.primitive.name == "custom_vmap_call"
        ]
        own = [e for e in jaxpr.eqns if e.primitive.name == "ffi_call"]
        return own + [call for jaxpr in inner for call in found(jaxpr)]

    return found(jax.make_jaxpr(fun)(*args).jaxpr)


def targets_of(fun: Callable[..., Any], *args: Any) -> list[str]:
    return [call.params["target_name"].removeprefix("intarsia.") for call in calls_of(fun, *args)]


def check_buffers(fun: Callable[..., Any], *args: Any) -> None:
    """No call writes to what it reads, but those in place."""
    for call in calls_of(fun, *args):
        attributes = dict(call.params["attributes"])
        for text in attributes.get("program", "").split(";")[:-1]:
            i, *operands = text.split(">")[0].split()
            reads = {word.split(":")[0] for word in operands}
            writes = {word.split(":")[0] for word in text.split(">")[1].split()}
            in_place = attributes[f"op_{i}"] in ("reshape_and_cache_flash", "copy_blocks")
            assert in_place or reads.isdisjoint(writes), text


def block(x: jax.Array) -> jax.Array:
    """Two norms, of rows and of heads."""
    heads = ij.rms_norm(x, WEIGHT).reshape(ROWS, HEADS, D)
    return ij.rms_norm(ij.simple_add(heads, heads), WEIGHT[:D]).reshape(ROWS, N)


def test_a_run_is_one_call() -> None:
    x = jax.random.normal(jax.random.key(0), (ROWS, N))
    assert targets_of(ij.chain(block), x) == ["chain"]
    compiled = jax.jit(ij.chain(block)).lower(x).compile()
    assert custom_calls(compiled.as_text()) == {"rms_norm": 2, "simple_add": 1}
    np.testing.assert_array_equal(compiled(x), jax.jit(block)(x))


def test_pytrees_keywords_and_names() -> None:
    def fun(tree: dict[str, Any], *, scale: jax.Array) -> dict[str, Any]:
        x, y = tree["pair"]
        return {"sum": ij.simple_add(ij.simple_add(x, y), scale), "same": y, "one": 1.0}

    x = jnp.arange(4.0)
    got = ij.chain(fun)({"pair": (x, x + 1)}, scale=2 * x)
    assert ij.chain(fun).__name__ == "fun"
    np.testing.assert_array_equal(got["sum"], 4 * x + 1)
    np.testing.assert_array_equal(got["same"], x + 1)
    assert got["one"] == 1.0


def test_what_xla_computes_cuts_a_run_only_where_it_reads_it() -> None:
    def fun(x: jax.Array, y: jax.Array) -> jax.Array:
        a = ij.simple_add(x, x)
        b = ij.simple_add(a, jnp.sin(y))  # before the run
        c = ij.simple_add(jnp.cos(b), a)
        return ij.simple_add(c, c)

    x, y = jnp.arange(4.0), jnp.ones(4)
    assert targets_of(ij.chain(fun), x, y) == ["chain", "chain"]
    np.testing.assert_array_equal(jax.jit(ij.chain(fun))(x, y), jax.jit(fun)(x, y))


def test_one_call_alone_is_no_chain() -> None:
    assert targets_of(ij.chain(ij.simple_add), jnp.ones(4), jnp.ones(4)) == ["simple_add"]


def test_jit_within_is_inlined_and_loops_are_not() -> None:
    def fun(x: jax.Array) -> jax.Array:
        x = ij.simple_add(jax.jit(ij.simple_add)(x, x), x)
        return jax.lax.fori_loop(0, 3, lambda _, y: ij.simple_add(y, y), x)

    x = jnp.arange(4.0)
    assert targets_of(ij.chain(fun), x) == ["chain"]
    np.testing.assert_array_equal(jax.jit(ij.chain(fun))(x), 24 * x)


def test_places_are_used_again() -> None:
    def fun(x: jax.Array) -> jax.Array:
        for _ in range(40):
            x = block(x)
        return x

    x = jax.random.normal(jax.random.key(1), (ROWS, N))
    (call,) = calls_of(ij.chain(fun), x)
    assert len(call.outvars) <= 4
    check_buffers(ij.chain(fun), x)
    np.testing.assert_array_equal(jax.jit(ij.chain(fun))(x), jax.jit(fun)(x))


@pytest.mark.parametrize("donates", [False, True])
def test_old_values_of_what_is_written_in_place(donates) -> None:
    pages = [jnp.array([[i, i + 1]]) for i in range(3)]

    def fun(cache: jax.Array) -> list[jax.Array]:
        first = ij.copy_blocks([cache], pages[0])[0]
        second = ij.copy_blocks([first], pages[1])[0]
        third = ij.copy_blocks([second], pages[2])[0]
        return [first, ij.simple_add(second, third), ij.simple_add(third, third)]

    shape = (PAGES, PAGE_SIZE, HEADS, D)
    cache = jax.random.normal(jax.random.key(0), shape)
    want = jax.jit(fun)(cache + 0)
    got = jax.jit(ij.chain(fun), donate_argnums=(0,) if donates else ())(cache + 0)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_effects_stay_in_order() -> None:
    seen: list[float] = []

    def fun(x: jax.Array) -> jax.Array:
        y = ij.simple_add(x, x)
        jax.debug.callback(lambda v: seen.append(float(v)), y[0], ordered=True)
        z = ij.simple_add(y, y)
        jax.debug.callback(lambda v: seen.append(float(v)), z[0], ordered=True)
        return z

    jax.jit(ij.chain(fun))(jnp.ones(2)).block_until_ready()
    jax.effects_barrier()
    assert seen == [2.0, 4.0]


def test_derivatives_and_vmap_are_refused() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return ij.simple_add(ij.simple_add(x, x), x)

    with pytest.raises(ValueError, match=r"intarsia\.chain.* cannot be differentiated"):
        jax.grad(lambda x: ij.chain(fun)(x).sum())(jnp.ones(4))
    with pytest.raises(NotImplementedError, match=r"chain: got jax\.vmap, expected none"):
        jax.vmap(ij.chain(fun))(jnp.ones((2, 4)))
    np.testing.assert_array_equal(ij.chain(jax.vmap(fun))(jnp.ones((2, 4))), np.full((2, 4), 3.0))


def test_dead_calls_are_left_out() -> None:
    def fun(x: jax.Array, cache: Any) -> jax.Array:
        heads = ij.simple_add(x, x).reshape(ROWS, HEADS, D)
        ij.reshape_and_cache_flash(heads, heads, cache, jnp.arange(ROWS))
        return ij.simple_add(heads, heads)

    cache = (jnp.zeros((PAGES, PAGE_SIZE, HEADS, D)),) * 2
    (call,) = calls_of(ij.chain(fun), jnp.ones((ROWS, N)), cache)
    assert "reshape_and_cache_flash" not in str(call.params["attributes"])


def test_axes_of_one_element_are_views() -> None:
    def fun(x: jax.Array) -> jax.Array:
        y = ij.simple_add(x, x)[None]
        z = jnp.squeeze(ij.simple_add(y, y), 0)
        return ij.simple_add(jnp.expand_dims(z, 1), z[:, None])

    x = jnp.arange(6.0).reshape(3, 2)
    assert targets_of(ij.chain(fun), x) == ["chain"]
    np.testing.assert_array_equal(jax.jit(ij.chain(fun))(x), jax.jit(fun)(x))


def test_what_is_no_array_reaches_the_function() -> None:
    def fun(x: jax.Array, times: int, *, name: str, doubles: bool) -> jax.Array:
        for _ in range(times):
            x = getattr(ij, name)(x, x)
        return ij.simple_add(x, x) if doubles else x

    run = jax.jit(ij.chain(fun), static_argnames=("times", "name", "doubles"))
    got = run(jnp.ones(4), 2, name="simple_add", doubles=True)
    np.testing.assert_array_equal(got, np.full(4, 8.0))


def test_wide_indices_that_a_function_closes_over() -> None:
    cache = (jnp.zeros((PAGES, PAGE_SIZE, HEADS, D)),) * 2
    heads, slots = jnp.ones((ROWS, HEADS, D)), np.arange(ROWS, dtype=np.int64)
    got = jax.jit(lambda c: ij.reshape_and_cache_flash(heads, heads, c, slots))(cache)
    np.testing.assert_array_equal(got[0].sum(), ROWS * HEADS * D)


def test_errors_are_those_of_the_function() -> None:
    with pytest.raises(ValueError, match="rms_norm: weight has n=8 but x has n=16"):
        ij.chain(lambda x: ij.rms_norm(x, WEIGHT[:8]))(jnp.ones((ROWS, N)))


# Functions that draw on what there is so far: [ROWS, N] arrays, and caches, which are written in place.
STEPS = (
    "norm",
    "add",
    "gate",
    "xla",
    "heads",
    "turn",
    "write",
    "copy",
    "split",
    "own",
    "read",
    "none",
)


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, list[int]]]:
    kinds = draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=14))
    return [(kind, [draw(st.integers(0, 1 << 16)) for _ in range(3)]) for kind in kinds]


def run_program(
    program: list[tuple[str, list[int]]], outputs: list[int], x: jax.Array, cache: Any
) -> Any:
    rows, caches = [x, x + 1], [cache]
    for kind, picks in program:
        a, b = (rows[i % len(rows)] for i in picks[:2])
        c = caches[picks[2] % len(caches)]
        slots = jnp.array([picks[0] % (PAGES * PAGE_SIZE), -1, picks[1] % (PAGES * PAGE_SIZE)])
        if kind == "norm":
            rows += ij.fused_add_rms_norm(a, b, WEIGHT)
        elif kind == "add":
            rows.append(ij.simple_add(a, b))
        elif kind == "gate":
            half = ij.silu_and_mul(a.reshape(ROWS * 2, N // 2))
            rows.append(ij.simple_add(half, half).reshape(ROWS, N // 2).repeat(2, axis=1))
        elif kind == "xla":
            rows.append(jnp.tanh(a) - b)
        elif kind == "heads":
            rows.append(ij.rms_norm(a.reshape(ROWS, HEADS, D), WEIGHT[:D]).reshape(ROWS, N))
        elif kind == "turn":
            rows.append(
                ij.simple_add(jnp.reshape(a, (N, ROWS), order="F"), b.reshape(N, ROWS)).reshape(
                    ROWS, N
                )
            )
        elif kind == "split":
            pages = tuple(x.reshape(2 * PAGES, PAGE_SIZE // 2, HEADS, D) for x in c)
            heads = [y.reshape(ROWS, HEADS, D) for y in (a, b)]
            pages = ij.reshape_and_cache_flash(*heads, pages, slots)
            caches.append(tuple(x.reshape(PAGES, PAGE_SIZE, HEADS, D) for x in pages))
        elif kind == "own":
            heads = c[0].reshape(-1, HEADS, D)
            caches.append(ij.reshape_and_cache_flash(heads, heads, c, jnp.arange(len(heads))[::-1]))
        elif kind == "none":
            empty = ij.simple_add(a[:0], b[:0]).reshape(0, HEADS, D)
            rows.append(ij.simple_add(a, b + empty.sum()))
        elif kind == "write":
            heads = [y.reshape(ROWS, HEADS, D) for y in (a, b)]
            caches.append(ij.reshape_and_cache_flash(*heads, c, slots))
        elif kind == "copy":
            pairs = jnp.array([[picks[0] % PAGES, picks[1] % PAGES]])
            caches.append(tuple(ij.copy_blocks(list(c), pairs)))
        else:
            rows.append(c[picks[0] % 2].reshape(-1, N)[:ROWS])
    everything = [*rows, *jax.tree.leaves(caches)]
    return [everything[i % len(everything)] for i in outputs]


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@settings(max_examples=20, deadline=None)
@given(programs(), st.lists(st.integers(0, 1 << 16), min_size=1, max_size=4), st.booleans())
def test_any_program_gives_the_same(program, outputs, donates) -> None:
    rng = np.random.default_rng(len(program))

    def arguments() -> tuple[jax.Array, Any]:
        x = jnp.asarray(rng.standard_normal((ROWS, N)), jnp.float32)
        shape = (PAGES, PAGE_SIZE, HEADS, D)
        return x, tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(2))

    x, cache = arguments()
    fun = functools.partial(run_program, program, outputs)
    want = jax.tree.map(np.asarray, jax.jit(fun)(x, cache))
    check_buffers(ij.chain(fun), x, cache)
    donated = (1,) if donates else ()
    got = jax.jit(ij.chain(fun), donate_argnums=donated)(x, cache)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_values_that_vary_over_other_axes_are_apart() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def fun(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        for _ in range(2):
            x, y = ij.simple_add(x, x), ij.simple_add(y, y)
        return x, y

    specs = (jax.P("i"), jax.P())
    for order in (1, -1):
        spread = jax.shard_map(
            ij.chain(fun), mesh=mesh, in_specs=specs[::order], out_specs=specs[::order]
        )
        x, y = jax.jit(spread)(jnp.arange(4.0), jnp.ones(4))
        np.testing.assert_array_equal(x, 4 * np.arange(4))
        np.testing.assert_array_equal(y, np.full(4, 4.0))


def test_what_is_not_the_librarys_own_call_stays() -> None:
    def fun(x: jax.Array) -> jax.Array:
        turned = jax.ffi.ffi_call(
            "intarsia.simple_add",
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            input_layouts=[(0, 1), (0, 1)],
            output_layouts=(1, 0),
        )
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        placed = jax.jit(ij.simple_add, out_shardings=sharding)
        return ij.simple_add(placed(ij.simple_add(x, turned(x, x)), x), x)

    x = jnp.arange(6.0).reshape(2, 3)
    assert targets_of(ij.chain(fun), x) == ["simple_add"] * 3
    np.testing.assert_array_equal(jax.jit(ij.chain(fun))(x), jax.jit(fun)(x))


def call_chain(program: str | int, **attributes: Any) -> jax.Array:
    """A custom call as a program from elsewhere could have it: operands 0 and 1, results 2 and 3, of 4 numbers each."""
    types = [jax.ShapeDtypeStruct((4,), jnp.float32)] * 2
    attributes = {"op_0": "simple_add", "attributes_0": {}} | attributes
    call = jax.ffi.ffi_call("intarsia.chain", types)
    return call(jnp.arange(4.0), jnp.ones(4), program=program, **attributes)


def test_a_program_by_hand() -> None:
    _, out = call_chain("0 0 1 > 2; 0 2:2,2 2:2,2 > 3:2,2; ")
    np.testing.assert_array_equal(out, 2 * np.arange(4) + 2)


@pytest.mark.parametrize(
    ("program", "attributes", "message"),
    [
        (7, {}, "attribute program must be a string"),
        ("0 0 1 > 2", {}, 'program has "", expected a buffer below 4'),
        ("0 0 1 > 4;", {}, 'program has "4;", expected a buffer below 4'),
        ("0 0 1 > -1;", {}, 'program has "-1;", expected a buffer below 4'),
        ("0 0 1 > 1;", {}, "program has operand 1 for a result"),
        ("9 0 1 > 2;", {}, 'program has "9 0 1 > 2;", expected the number of an op below 1'),
        ("0 0 1 > 2;", {"op_0": 3}, "attribute op_0 must be a string"),
        ("0 0 1 > 2;", {"later": 3}, "unknown attribute later; exported by a newer intarsia"),
        ("0 0 1 > 2;", {"op_1": "x", "op_9": "x"}, "unknown attribute op_9"),
        ("0 0 1 > 2;", {"op_0": "nothing"}, "no op nothing; exported by a newer intarsia"),
        ("0 0 1 > 2;", {"attributes_0": 3}, "attribute attributes_0 must be a dictionary"),
        ("0 0:2,3 1 > 2;", {}, r"program takes \[4\] for \[2, 3\]"),
        ("0 0:x 1 > 2;", {}, 'program has "x 1 > 2;", expected a size'),
        (
            "0 0:4294967296,4294967296 1 > 2;",
            {},
            r"program takes \[4\] for \[4294967296, 4294967296\]",
        ),
        ("0 0:4,1,1,1,1,1,1,1,1 1 > 2;", {}, "program has more than 8 sizes"),
        ("0 0:2,2 1 > 2;", {}, "simple_add: b has 1 leading axes but a has 2"),
        ("0 0 > 2;", {}, "simple_add: b is missing"),
        ("0 0 1 >;", {}, "simple_add: result out is missing"),
        ("0 0 1 > 2;", {"attributes_0": {"eps": 1.0}}, "simple_add: unknown attribute eps"),
    ],
)
def test_wrong_programs_are_refused(program, attributes, message) -> None:
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(call_chain(program, **attributes))


def test_a_program_that_is_exported() -> None:
    exported = jax.export.export(
        jax.jit(ij.chain(block)), disabled_checks=ij.export_exemptions(), platforms=("cpu", "cuda")
    )(jnp.ones((ROWS, N)))
    x = jax.random.normal(jax.random.key(2), (ROWS, N))
    got = jax.export.deserialize(exported.serialize()).call(x)
    np.testing.assert_array_equal(got, jax.jit(block)(x))


@pytest.mark.gpu
def test_kernels_that_overlap_give_the_same() -> None:
    def fun(x: jax.Array, cache: Any) -> Any:
        for i in range(30):
            a, x = ij.fused_add_rms_norm(block(x), x, WEIGHT)
            heads = a.reshape(ROWS, HEADS, D)
            cache = ij.reshape_and_cache_flash(heads, heads, cache, jnp.arange(ROWS) + i % 5)
        return x, cache

    x = jax.random.normal(jax.random.key(0), (ROWS, N))
    cache = (jnp.zeros((PAGES, PAGE_SIZE, HEADS, D)),) * 2
    want = jax.tree.map(np.asarray, jax.jit(fun)(x, cache))
    compiled = jax.jit(ij.chain(fun)).lower(x, cache).compile()
    assert custom_calls(compiled.as_text())["reshape_and_cache_flash"] == 30
    for _ in range(20):
        jax.tree.map(np.testing.assert_array_equal, compiled(x, cache), want)
