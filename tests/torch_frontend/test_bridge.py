"""The bridge from XLA to torch's dispatcher, on the CPU, by both of its ways."""

import doctest
import mmap
import pathlib
import threading
from typing import Any

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bridged import HAS_STRINGS_AND_LISTS, RNG, by_both_ways, normal
from intarsia.torch import bridge


def as_torch(x: Any) -> Any:
    return torch.from_numpy(np.array(x)) if hasattr(x, "shape") else x


def check(name: str, *args: Any, via: str = "c", **kwargs: Any) -> None:
    """Under jit the op gives what torch gives on the same numbers, to the bit."""
    op = bridge.op(name, via=via)
    arrays = [x for x in args if hasattr(x, "shape")]

    @jax.jit
    def run(*arrays: jax.Array) -> Any:
        left = iter(arrays)
        return op(*(next(left) if hasattr(x, "shape") else x for x in args), **kwargs)

    got = run(*arrays)
    want = op.overload(*map(as_torch, args), **kwargs)
    want = want if isinstance(want, tuple | list) else (want,)
    got = got if isinstance(got, tuple) else (got,)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == tuple(w.shape)
        np.testing.assert_array_equal(np.asarray(g), w.resolve_conj().numpy().astype(g.dtype))


@by_both_ways
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::relu", (normal(3, 5),)),
        ("aten::relu", (normal(0, 5),)),
        ("aten::relu", (jnp.float32(-2.5),)),
        ("aten::mm", (normal(4, 7), normal(7, 3))),
        ("aten::topk", (normal(4, 9), 3)),  # several results, one of them int64
        ("aten::transpose.int", (normal(2, 3, 4), 0, 2)),  # a view, strided
        ("aten::narrow", (normal(6, 4), 0, 2, 3)),  # a view, at an offset; SymInt
        ("aten::native_layer_norm", (normal(4, 8), [8], normal(8), None, 1e-5)),
        ("aten::softmax.int", (normal(4, 8), 1, None)),
        ("aten::bernoulli.p", (normal(5), 1.0)),  # Generator? absent
        ("aten::logical_not", (normal(5),)),  # bool result
    ],
)
def test_aten_ops(via: str, name: str, args: tuple[Any, ...]) -> None:
    if via == "c" and not HAS_STRINGS_AND_LISTS and any(isinstance(x, list) for x in args):
        pytest.skip("lists are Python's")
    check(name, *args, via=via)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool", "complex64"],
)
@by_both_ways
def test_dtypes(via: str, dtype: str) -> None:
    x = jnp.asarray(RNG.integers(0, 2, (4, 5)), dtype)
    y = bridge.op("aten::transpose.int", via=via)(x, 0, 1)
    assert y.dtype == x.dtype
    assert jnp.array_equal(y, x.T)


@by_both_ways
def test_fp8(via: str) -> None:
    x = normal(4, 8).astype(jnp.float8_e4m3fn)
    y = bridge.op("aten::view.dtype", via=via)(x, torch.uint8)
    assert y.dtype == jnp.uint8
    assert np.array_equal(np.asarray(y), np.asarray(x).view(np.uint8))


@by_both_ways
def test_optional_tensors(via: str) -> None:
    x, weight, bias = normal(2, 3, 6), normal(3), normal(3)
    mean, var = jnp.zeros(3), jnp.ones(3)
    op = bridge.op("aten::native_batch_norm", via=via, outputs=[0])
    for w, b in [(weight, bias), (weight, None), (None, bias), (None, None)]:
        got = op(x, w, b, mean, var, False, 0.1, 1e-5)
        want = torch.nn.functional.batch_norm(
            *map(as_torch, (x, mean, var)), *(None if t is None else as_torch(t) for t in (w, b))
        )
        np.testing.assert_array_equal(np.asarray(got), want.numpy())


@by_both_ways
def test_what_is_written_is_in_place(via: str) -> None:
    step = jax.jit(bridge.op("aten::relu_", via=via), donate_argnums=0)
    text = step.lower(normal(64, 64)).compile().as_text()
    assert "output_to_operand_aliasing" in text and " copy(" not in text
    x = normal(64, 64)
    want, where = np.maximum(np.asarray(x), 0), x.unsafe_buffer_pointer()
    y = step(x)
    assert y.unsafe_buffer_pointer() == where
    np.testing.assert_array_equal(np.asarray(y), want)


@by_both_ways
def test_what_is_not_donated_keeps_its_value(via: str) -> None:
    x = normal(8, 8)
    before = np.array(x)
    y = jax.jit(bridge.op("aten::relu_", via=via))(x)
    np.testing.assert_array_equal(np.asarray(x), before)
    np.testing.assert_array_equal(np.asarray(y), np.maximum(before, 0))


@by_both_ways
def test_a_result_of_its_own_is_written_without_a_copy(via: str) -> None:
    x, w = normal(4, 6), normal(6, 5)
    out = jax.ShapeDtypeStruct((4, 5), jnp.float32)
    y = jax.jit(lambda x, w: bridge.op("aten::mm.out", via=via)(x, w, out=out))(x, w)
    np.testing.assert_array_equal(np.asarray(y), (as_torch(x) @ as_torch(w)).numpy())


def test_lists_scalars_and_strings_by_python() -> None:
    x = normal(3, 4, 5)
    check("aten::add.Tensor", x, x, via="python", alpha=3)
    check("aten::sum.dim_IntList", x, [0, 2], True, via="python", dtype=torch.float64)
    check("aten::split_with_sizes", x, [1, 2, 1], 1, via="python")
    check("aten::gelu", x, via="python", approximate="tanh")
    y = bridge.op("aten::einsum", via="python")("ijk,ilk->ijl", [x, x])
    np.testing.assert_allclose(y, jnp.einsum("ijk,ilk->ijl", x, x), rtol=1e-5, atol=1e-5)
    cat = bridge.op("aten::cat", via="python")([x, x + 1], -1)
    assert jnp.array_equal(cat, jnp.concatenate([x, x + 1], -1))
    i = bridge.int64(jnp.array([2, 0]))
    y = bridge.op("aten::index.Tensor", via="python")(x, [None, i])
    assert jnp.array_equal(y, x[:, jnp.array([2, 0])])
    y = bridge.op("aten::_foreach_add_.Scalar", via="python")([x, x[0]], 1)
    assert jnp.array_equal(y[0], x + 1) and jnp.array_equal(y[1], x[0] + 1)


def test_strings_by_c_functions_where_torch_passes_them() -> None:
    x = normal(3, 4)
    gelu = bridge.op("aten::gelu")
    if HAS_STRINGS_AND_LISTS:
        np.testing.assert_allclose(gelu(x, approximate="tanh"), jax.nn.gelu(x), atol=1e-6)
        assert not np.array_equal(gelu(x, approximate="tanh"), gelu(x, approximate="none"))
    else:
        with pytest.raises(NotImplementedError, match=r'aten::gelu: .*is a str.*via="python"'):
            gelu(x, approximate="tanh")


def test_lists_by_c_functions_where_torch_passes_them() -> None:
    x = normal(3, 4, 5)
    if not HAS_STRINGS_AND_LISTS:
        with pytest.raises(NotImplementedError, match=r"argument dim is a List\[int\].*2\.9"):
            bridge.call("aten::sum.dim_IntList", x, [0, 2])
        with pytest.raises(NotImplementedError, match=r"result 0 is a List\[Tensor\]"):
            bridge.call("aten::unbind.int", x)
        return
    check("aten::sum.dim_IntList", x, [0, 2], True)
    check("aten::sum.dim_IntList", x, [], True, dtype=torch.float32)
    check("aten::split_with_sizes", x, [1, 2, 1], 1)
    check("aten::unbind.int", x)
    cat = bridge.op("aten::cat")([x, x + 1], -1)
    assert jnp.array_equal(cat, jnp.concatenate([x, x + 1], -1))
    i = bridge.int64(jnp.array([2, 0]))
    assert jnp.array_equal(bridge.call("aten::index.Tensor", x, [None, i]), x[:, i.array])


@pytest.mark.parametrize("via", ["c", "python"] if HAS_STRINGS_AND_LISTS else ["python"])
def test_the_first_tensors_of_a_list(via: str) -> None:
    x = normal(4, 6)
    rows = jax.ShapeDtypeStruct((1, 6), jnp.float32)
    split = bridge.op("aten::split.Tensor", via=via, results=[rows, rows])
    first, second = jax.jit(lambda x: split(x, 1))(x)
    assert jnp.array_equal(first, x[:1]) and jnp.array_equal(second, x[1:2])
    with pytest.raises(jax.errors.JaxRuntimeError, match="returned 2 tensors, expected 5"):
        jax.jit(lambda x: bridge.op("aten::split.Tensor", via=via, results=[rows] * 5)(x, 2))(x)


@by_both_ways
def test_int64_without_x64(via: str) -> None:
    high = bridge.op("aten::floor_divide", via=via)
    y = jax.jit(lambda d: high(bridge.int64(np.array([2**40, -(2**35)])), bridge.int64(d)))(
        jnp.array([2**30, 2**30])
    )
    assert y.dtype == jnp.int32 and y.tolist() == [2**10, -(2**5)]


@by_both_ways
def test_dtypes_as_arguments(via: str) -> None:
    x = normal(3, 4)
    op = bridge.op("aten::softmax.int", via=via)
    for dtype in (torch.bfloat16, jnp.bfloat16, np.dtype(jnp.bfloat16), "bfloat16"):
        assert op(x, 1, dtype).dtype == jnp.bfloat16
    assert op(x, 1, torch.float64).dtype == jnp.float32  # as JAX has it without x64
    with jax.enable_x64(True):
        assert op(x, 1, torch.float64).dtype == jnp.float64


@by_both_ways
def test_attributes_tell_two_calls_apart(via: str) -> None:
    x = normal(4, 8)
    op = bridge.op("aten::softmax.int", via=via)
    rows, columns = jax.jit(lambda x: (op(x, 1), op(x, 0)))(x)
    np.testing.assert_allclose(rows, jax.nn.softmax(x, 1), rtol=1e-6)
    np.testing.assert_allclose(columns, jax.nn.softmax(x, 0), rtol=1e-6)


@by_both_ways
def test_in_a_scan(via: str) -> None:
    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = bridge.op("aten::relu_", via=via)(x @ w)
        return x, bridge.op("aten::sum", via=via)(x)

    x, ws = normal(4, 4), normal(5, 4, 4)
    got, sums = jax.jit(lambda x, ws: jax.lax.scan(step, x, ws))(x, ws)
    want = x
    for i, w in enumerate(ws):
        want = jnp.maximum(want @ w, 0)
        np.testing.assert_allclose(sums[i], want.sum(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@by_both_ways
def test_ops_written_in_python(via: str) -> None:
    x = normal(3, 4)
    y = jax.jit(lambda x: bridge.op("intarsia_tests::scaled", via=via)(x, 2.5))(x)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x) * np.float32(2.5))
    count_up = jax.jit(bridge.op("intarsia_tests::count_up", via=via), donate_argnums=0)
    where, want = x.unsafe_buffer_pointer(), np.asarray(x) + 1
    y = count_up(x)
    assert y.unsafe_buffer_pointer() == where
    np.testing.assert_array_equal(np.asarray(y), want)


@by_both_ways
def test_python_ops_from_several_threads(via: str) -> None:
    """Programs that wait for the GIL, run and waited for by threads that take it: nothing may lock up."""
    step = jax.jit(
        lambda x: bridge.op("intarsia_tests::scaled", via=via)(x @ x, 0.5).sum(), inline=True
    )
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = jnp.full((32, 32), seed, jnp.float32)
            results = [step(x) for _ in range(20)]  # queued
            _ = sum(range(10_000))
            for result in results:
                assert float(result) == 32 * 32 * 32 * seed * seed * 0.5
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not failures, failures


def test_vmap_where_asked_for() -> None:
    op = bridge.op("aten::mm", vmap_method="sequential")
    x, w = normal(5, 3, 4), normal(4, 2)
    got = jax.jit(jax.vmap(op, in_axes=(0, None)))(x, w)
    np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-6)


def test_outputs_wanted() -> None:
    x = normal(4, 9)
    indices = jax.jit(bridge.op("aten::topk", outputs=[1]), static_argnums=1)(x, 3)
    assert jnp.array_equal(indices, jax.lax.top_k(x, 3)[1])


def test_a_gradient_by_custom_vjp() -> None:
    @jax.custom_vjp
    def silu(x: jax.Array) -> jax.Array:
        return bridge.call("aten::silu", x)

    silu.defvjp(lambda x: (silu(x), x), lambda x, g: (bridge.call("aten::silu_backward", g, x),))
    x = normal(4, 8)
    got = jax.jit(jax.grad(lambda x: (silu(x) ** 2).sum()))(x)
    want = jax.grad(lambda x: (jax.nn.silu(x) ** 2).sum())(x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_within_shard_map() -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = normal(8, 6)
    mapped = jax.shard_map(
        lambda x: bridge.call("aten::silu", x), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")
    )
    np.testing.assert_allclose(jax.jit(mapped)(x), jax.nn.silu(x), rtol=1e-5, atol=1e-6)


@by_both_ways
def test_flash_attention_is_that_of_intarsia(via: str) -> None:
    b, h, s, d = 2, 4, 19, 32
    q, k, v = (normal(b, h, s, d) for _ in range(3))
    op = bridge.op("aten::_scaled_dot_product_flash_attention_for_cpu", via=via)
    out, lse = jax.jit(lambda q, k, v: op(q, k, v, is_causal=True, scale=0.2))(q, k, v)
    tokens = (x.transpose(0, 2, 1, 3).reshape(b * s, h, d) for x in (q, k, v))
    starts = jnp.arange(b + 1, dtype=jnp.int32) * s
    ours, our_lse = intarsia.jax.flash_attn_varlen(
        *tokens, starts, cu_seqlens_k=starts, scale=0.2, is_causal=True, return_lse=True
    )
    theirs = out.transpose(0, 2, 1, 3).reshape(b * s, h, d)
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse.transpose(1, 0, 2).reshape(h, -1), our_lse, rtol=1e-5, atol=1e-5)


@by_both_ways
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ops_of_intarsia_in_torch(via: str, dtype: str) -> None:
    """There and back: our op as torch has it, called from JAX, is our op as JAX has it."""
    x, weight = normal(5, 7, 64, dtype=dtype), normal(64, dtype=dtype)
    gelu = jax.jit(bridge.op("xla_gpu::gelu_and_mul", via=via))(x)
    assert jnp.array_equal(gelu, intarsia.jax.gelu_and_mul(x))
    rms_norm = bridge.op("xla_gpu::rms_norm", via="python")  # an argument is a str
    theirs = jax.jit(lambda x, w: rms_norm(x, w, eps=1e-5))(x, weight)
    assert jnp.array_equal(theirs, intarsia.jax.rms_norm(x, weight, eps=1e-5))


@by_both_ways
def test_no_memory_is_kept(via: str) -> None:
    def resident() -> int:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    op = bridge.op("aten::native_batch_norm", via=via)
    x, ones = normal(64, 64, 64), jnp.ones(64)  # 1 MB, and so is what torch returns
    step = jax.jit(lambda x, w: op(x, w, None, w, w, False, 0.1, 1e-5)[0])
    step(x, ones).block_until_ready()
    before = resident()
    for _ in range(300):
        step(x, ones).block_until_ready()
    assert resident() - before < 100e6


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(bridge, extraglobs={"bridge": bridge}) == (0, 5)


def test_a_sharding_in_the_type_is_refused() -> None:
    devices, axes = jax.devices("cpu")[:2], (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=axes, devices=devices)
    with jax.set_mesh(mesh):
        x = jax.device_put(normal(4, 3), jax.NamedSharding(mesh, jax.P("rows")))
        with pytest.raises(ValueError, match=r"aten::relu: operand 0 is sharded as .*shard_map"):
            jax.jit(lambda x: bridge.call("aten::relu", x))(x)
        relu = jax.shard_map(lambda x: bridge.call("aten::relu", x), out_specs=jax.P("rows"))
        np.testing.assert_array_equal(jax.jit(relu)(x), np.maximum(x, 0))
