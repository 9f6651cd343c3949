"""Calls through torch's dispatcher: where results are written, what is refused and how, what need not be installed."""

import contextlib
import mmap
import pathlib
import subprocess
import sys
import textwrap

import intarsia.jax
import numpy as np
import pytest
import running
import support
import torch
import torch_running
from test_ops import make

op = torch.ops.xla_gpu


def test_strided_operands_that_are_only_read() -> None:
    """Transposed, stepped and expanded, where the op wants dense rows."""
    x = torch.randn(64, 6).T[::2]
    weight = torch.randn(1).expand(64)
    torch.testing.assert_close(op.rms_norm(x, weight), op.rms_norm(x.contiguous(), weight.clone()))
    q = torch.randn(3, 64, 4).transpose(1, 2)  # [t, h, d], its last axis strided
    starts = torch.tensor([0, 3], dtype=torch.int32)
    k = torch.randn(3, 2, 2, 64)[:, 0]
    out = op.flash_attn_varlen(q, k, k, starts, starts, return_lse=True)
    dense = op.flash_attn_varlen(
        q.contiguous(), k.contiguous(), k.contiguous(), starts, starts, return_lse=True
    )
    torch.testing.assert_close(out, dense, rtol=0, atol=0)


@pytest.mark.parametrize("op_name", ["reshape_and_cache_flash", "paged_attention"])
def test_strided_caches(op_name: str) -> None:
    """A cache that is a part of a larger array is written and read where it lies."""
    operands, attributes = make(op_name, "example", "f32")
    tensors = [torch_running.to_torch(x) for x in operands]
    names = [row["name"] for row in running.LIBRARY.find(op_name).operands]
    want = running.run_native(op_name, operands, attributes)
    around = {}
    for name in ("key_cache", "value_cache"):
        i = names.index(name)
        p, s, hk, d = tensors[i].shape
        around[name] = torch.full((2, p + 1, s, hk + 1, 2 * d), 7.0)
        view = around[name][1, 1:, :, :hk, d:]
        view.copy_(tensors[i])
        tensors[i] = view
    form = next(f for f in torch_running.FORMS if f.name == op_name)
    got = torch_running.results(form, torch_running.overload(form), tensors, attributes)
    for x, y in zip(want, got, strict=True):
        np.testing.assert_array_equal(x, y)
    for whole in around.values():
        whole[1, 1:, :, :-1, whole.shape[-1] // 2 :] = 7.0
        assert (whole == 7.0).all(), "memory around the cache was written"


@pytest.mark.parametrize("flat", [False, True])
def test_query_and_key_are_turned_within_a_product(flat: bool) -> None:
    """What a model has: Q, K and V side by side in each row."""
    positions, table = torch.arange(6).view(2, 3) % 5, torch.randn(5, 16)
    qkv = torch.randn(2, 3, (4 + 2 + 2) * 16)
    want = qkv.clone()
    parts = (64, 32, 32)
    whole = [x.contiguous() for x in want.split(parts, dim=-1)]
    op.rotary_embedding(positions, whole[0], table, whole[1], head_size=16)
    query, key, _ = qkv.split(parts, dim=-1)
    if not flat:
        query, key = query.unflatten(-1, (4, 16)), key.unflatten(-1, (2, 16))
    op.rotary_embedding(positions, query, table, key, head_size=16)
    torch.testing.assert_close(qkv, torch.cat(whole, dim=-1), rtol=0, atol=0)


def test_positions_of_several_axes_are_passed_transposed() -> None:
    """M-RoPE as docs/torch.md spells it; JAX's function takes [axes, t] and sections."""
    query, key, table = torch.randn(16, 4, 64), torch.randn(16, 2, 64), torch.randn(32, 64)
    positions, sections = torch.randint(32, (3, 16)), (16, 8, 8)
    arrays = [x.numpy().copy() for x in (positions.int(), query, table, key)]
    want = intarsia.jax.multimodal_rotary_embedding(*arrays, sections=sections)
    pair_axes = torch.arange(3).repeat_interleave(torch.tensor(sections))
    op.rotary_embedding(positions.T, query, table, key, pair_axes)
    for got, expected in zip((query, key), want, strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)


def test_what_is_written_shares_no_memory() -> None:
    x, cache, slots = torch.randn(5, 64), torch.zeros(2, 4, 2, 64), torch.tensor([1])
    kept, key = x.clone(), torch.ones(1, 2, 64)
    message = "residual shares memory with x and both are written"
    for first, second in ((x, x), (x[:4], x[1:])):
        with pytest.raises(ValueError, match=message):
            op.fused_add_rms_norm(first, second)
    with pytest.raises(ValueError, match="value_cache shares memory with key_cache"):
        op.reshape_and_cache_flash(key, key, cache, cache, slots)
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    assert not cache.any()
    # What is only read may not lie in what is written, either.
    for weight in (x[0], x[1:].flatten()[-64:]):
        with pytest.raises(
            ValueError, match="x is written and lies over a part of weight, expected"
        ):
            op.fused_add_rms_norm(x, torch.zeros(5, 64), weight)
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    # Of what lies apart in each row or page, parts that others have, too.
    rows, row = torch.randn(5, 96), torch.tensor([0])
    with pytest.raises(ValueError, match=message):
        op.fused_add_rms_norm(rows[:, :64], rows[:, 32:])
    with pytest.raises(ValueError, match="x is written and lies over a part of weight, expected"):
        op.fused_add_rms_norm(rows[:, :64], torch.zeros(5, 64), rows[2, 16:80])
    pages = torch.zeros(2, 8, 2, 64)
    with pytest.raises(ValueError, match="value_cache shares memory with key_cache"):
        op.reshape_and_cache_flash(key, key, pages[:, :4], pages[:, 2:6], slots)
    with pytest.raises(ValueError, match="blocks is written and lies over a part of source"):
        op.swap_blocks(pages, pages, row, row + 1)
    # One cache between the other's elements.
    op.reshape_and_cache_flash(key, key * 2, pages[:, :4], pages[:, 4:], slots)
    assert pages[0, 1].sum() == 2 * 64 and pages[0, 5].sum() == 2 * 64 * 2
    packed = torch.zeros(2, 4, 2, 128)
    op.reshape_and_cache_flash(key, key * 2, packed[..., :64], packed[..., 64:], slots)
    assert packed[0, 1].sum() == 2 * 64 * 3


def test_torch_compile_copies_no_operand_that_is_written_and_read() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def swap(blocks: torch.Tensor, row: torch.Tensor) -> None:
        op.swap_blocks(blocks, blocks, row, row + 1)

    with pytest.raises(RuntimeError, match="swap_blocks: blocks shares memory with source and is"):
        swap(torch.zeros(4, 8), torch.tensor([0]))


@pytest.mark.parametrize("flat", [False, True])
def test_tokens_at_uneven_distances(flat: bool) -> None:
    """They are read, and not written."""
    whole, table = torch.randn(2, 5, 4, 16), torch.randn(5, 16)
    query, key = whole[:, :3], whole[:, 1:4, :2]
    if flat:
        query, key = query.flatten(-2), key.flatten(-2)
    kept, positions, heads = whole.clone(), torch.arange(6).view(2, 3) % 5, {"head_size": 16}
    with pytest.raises(ValueError, match="query has 2 leading axes at uneven distances"):
        op.rotary_embedding(positions, query, table, **heads)
    got = op.rotary_embedding.functional(positions, query, table, key, **heads)
    dense = [x.contiguous() for x in (query, key)]
    want = op.rotary_embedding.functional(positions, dense[0], table, dense[1], **heads)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.testing.assert_close(whole, kept, rtol=0, atol=0)


def test_a_negative_view_is_read_and_not_written() -> None:
    x, residual, weight = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64)
    for at in (0, 1):
        operands = [torch._neg_view(y) if i == at else y for i, y in enumerate((x, residual))]
        with pytest.raises(ValueError, match=r"fused_add_rms_norm: \w+ is a negative view and is"):
            op.fused_add_rms_norm(*operands)
    want = op.fused_add_rms_norm.functional(x, residual, -weight)
    op.fused_add_rms_norm(x, residual, torch._neg_view(weight))
    torch.testing.assert_close((x, residual), want, rtol=0, atol=0)


def test_an_operand_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="rms_norm: x is missing"):
        op.rms_norm(None, torch.ones(8))
    with pytest.raises(ValueError, match="fused_add_rms_norm: residual is missing"):
        op.fused_add_rms_norm(torch.ones(2, 8), None)


def test_refused_calls_keep_no_memory() -> None:
    """What is thrown is made in torch's runtime and destroyed there."""

    def refuse(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(ValueError):
                op.rms_norm(torch.empty(1, 8), torch.empty(7))

    def resident() -> int:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    refuse(1000)
    before = resident()
    refuse(10000)
    assert resident() - before < 1e6  # less than the message of each


@torch_running.on_each_device
@pytest.mark.parametrize("first", [32, 33])  # at 16 bytes, which a GPU loads at once, and elsewhere
def test_rows_of_a_norm_lie_at_one_distance(first: int, device: str) -> None:
    """A GPU adds up rows that lie otherwise in another order."""
    exact = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-5, "atol": 1e-5}
    product, stream = torch.randn(7, 97, device=device), torch.randn(7, 80, device=device)
    if first == 32:
        product = product[:, :96].contiguous()
    x, residual, weight = product[:, first:], stream[:, :64], torch.randn(64, device=device)
    kept, scale = (product.clone(), stream.clone()), torch.ones(1, device=device)
    dense = x.contiguous(), residual.contiguous()
    torch.testing.assert_close(op.rms_norm(x, weight), op.rms_norm(dense[0], weight), **exact)
    want, total = op.fused_add_rms_norm.functional(*dense, weight)
    codes = op.fused_add_rms_norm_static_fp8_quant.functional(*dense, weight, scale)[0].float()
    got = op.fused_add_rms_norm_static_fp8_quant(x, residual.clone(), weight, scale).float()
    # A neighboring code here and there.
    assert (got - codes).norm() <= (0 if device == "cpu" else 3e-2) * codes.norm()
    op.fused_add_rms_norm(x, residual, weight)
    torch.testing.assert_close((x, residual), (want, total), **exact)
    assert torch.equal(product[:, :first], kept[0][:, :first])
    assert torch.equal(stream[:, 64:], kept[1][:, 64:])


def test_what_is_written_is_refused_rather_than_copied() -> None:
    x = torch.randn(3, 128)
    with pytest.raises(ValueError, match="x has last stride 2, expected 1"):
        op.fused_add_rms_norm(x[:, ::2], torch.randn(3, 64))
    with pytest.raises(ValueError, match="x has rows at uneven distances, expected even ones"):
        op.fused_add_rms_norm(torch.randn(2, 5, 64)[:, :3], torch.randn(2, 3, 64))
    cache = torch.zeros(1, 4, 2, 64).expand(5, 4, 2, 64)
    key = torch.ones(1, 2, 64)
    slots = torch.tensor([1])
    with pytest.raises(ValueError, match="key_cache has stride 0 in axis 0 and is written"):
        op.reshape_and_cache_flash(key, key, cache, cache, slots)
    assert not cache.any()
    memory = torch.zeros(4096)
    for strides, wrong in {
        (500, 128, 64, 1): "500 in axis 0",  # a page reaches to 511
        (512, 100, 64, 1): "100 in axis 1",
        (128, 128, 64, 1): "128 in axis 1",  # which axis 0 has taken
    }.items():
        cache = memory.as_strided((5, 4, 2, 64), strides)
        with pytest.raises(ValueError, match=f"key_cache has stride {wrong} and is written"):
            op.reshape_and_cache_flash(key, key, cache, cache, slots)
    assert not memory.any()


@pytest.mark.parametrize("layers", [slice(None, None, 2), 1])
def test_any_slice_of_a_cache_is_written(layers: slice | int) -> None:
    """Axes in another order in memory, and steps: each element still has memory of its own."""
    memory = torch.zeros(2, 6, 3, 4, 64)  # [hk, s, ., p, d]
    cache = memory.permute(3, 1, 0, 2, 4)[::2, 1:5, :, layers]  # [p, s, hk, d]
    cache = cache[..., 1, :] if cache.ndim == 5 else cache
    key = torch.randn(1, 2, 64)
    op.reshape_and_cache_flash(key, -key, cache, cache.clone(), torch.tensor([5]))
    assert torch.equal(cache[1, 1], key[0])
    assert memory.count_nonzero() == key.count_nonzero()


def wrong_calls() -> dict:
    """Operands of a wrong call of an op, and attributes."""
    f32, starts = np.float32, np.array([0, 3], np.int32)
    q = np.zeros((3, 4, 64), f32)
    cache = np.zeros((2, 4, 2, 64), f32)
    return {
        "shape": ("rms_norm", [np.zeros((2, 64), f32), np.zeros(5, f32)], {}),
        "dtype": ("rms_norm", [np.zeros((2, 64), np.int32), np.zeros(64, f32)], {}),
        "unknown dtype": ("rms_norm", [np.zeros((2, 64), np.int16), np.zeros(64, f32)], {}),
        "two dtypes": ("simple_add", [np.zeros(4, f32), np.zeros(4, np.float16)], {}),
        "rank": ("simple_add", [np.zeros((1,) * 9, f32)] * 2, {}),
        "text": ("rms_norm", [np.zeros((2, 64), f32)], {"rounding": "twice"}),
        "heads": ("flash_attn_varlen", [q, q[:, :3], q[:, :3], starts, starts], {}),
        "layout": (
            "paged_attention",
            [q, cache, cache, starts[1:], np.zeros((1, 2), np.int32), starts],
            {"layout": "p s x d"},
        ),
    }


@pytest.mark.parametrize("what", wrong_calls())
def test_messages_are_those_of_jax(what: str) -> None:
    name, operands, attributes = wrong_calls()[what]
    with pytest.raises(ValueError) as in_jax:
        intarsia.jax.call(name, operands, **attributes)
    tensors = [torch.from_numpy(np.array(x)) for x in operands]
    with pytest.raises(ValueError) as in_torch:
        getattr(op, name)(*tensors, **attributes)
    assert str(in_torch.value) == str(in_jax.value)
    fakes = [x.to("meta") for x in tensors]
    with pytest.raises(ValueError) as in_fake:
        getattr(op, name)(*fakes, **attributes)
    assert str(in_fake.value) == str(in_jax.value)


def test_what_is_not_built_is_no_value_error() -> None:
    """NotImplementedError in JAX is a RuntimeError; torch's C functions can raise no more than that."""
    q, starts = torch.zeros(2, 1, 12), torch.tensor([0, 2])
    with pytest.raises(RuntimeError, match="flash_attn_varlen: q has d=12") as error:
        op.flash_attn_varlen(q, q, q, starts, starts)
    assert not isinstance(error.value, ValueError)


def test_nothing_is_written_by_a_wrong_call() -> None:
    x, residual = torch.randn(2, 64), torch.randn(2, 64)
    before = x.clone(), residual.clone()
    with pytest.raises(ValueError, match="weight has n=5"):
        op.fused_add_rms_norm(x, residual, torch.ones(5))
    torch.testing.assert_close((x, residual), before, rtol=0, atol=0)


def test_tensors_of_two_devices() -> None:
    with pytest.raises(ValueError, match="rms_norm: weight is on meta but x is on cpu"):
        op.rms_norm(torch.zeros(2, 8), torch.zeros(8, device="meta"))


def test_a_result_that_does_not_exist_is_empty() -> None:
    operands, attributes = make("paged_attention", "example", "f32")
    tensors = [torch_running.to_torch(x) for x in operands]
    out, lse = op.paged_attention(*tensors, **attributes)
    assert out.shape == tensors[0].shape and lse.shape == (0,)


def python(program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": str(support.ROOT / "python")},
        capture_output=True,
        text=True,
    )


def test_neither_jax_nor_torch_xla_is_needed() -> None:
    done = python("""
        import sys
        for name in ("jax", "jaxlib", "torch_xla", "torchax", "ml_dtypes"):
            sys.modules[name] = None  # importing it raises ImportError
        import intarsia.torch, torch
        x = torch.randn(3, 64)
        torch.testing.assert_close(
            torch.ops.xla_gpu.rms_norm(x), torch.nn.functional.rms_norm(x, (64,), eps=1e-6))
        assert torch.compile(torch.ops.xla_gpu.rms_norm, backend="aot_eager")(x).shape == x.shape
        """)
    assert done.returncode == 0, done.stderr


def test_two_definitions_of_an_op() -> None:
    done = python("""
        import torch
        other = torch.library.Library("xla_gpu", "DEF")
        other.define("paged_attention(Tensor query) -> Tensor")
        try:
            import intarsia.torch
        except RuntimeError as error:
            print(error)
        assert not hasattr(torch.ops.xla_gpu, "rms_norm"), "nothing may be registered then"
        """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "torch.ops.xla_gpu.paged_attention is defined already, by another module"
    )
    assert "import either that module or intarsia.torch" in done.stdout


def test_another_module_may_use_the_namespace() -> None:
    with torch.library._scoped_library("xla_gpu", "DEF") as other:
        other.define("another(Tensor x) -> Tensor")
        other.impl("another", lambda x: op.simple_add(x, x), "CPU")
        assert op.another(torch.ones(2)).tolist() == [2, 2]


def test_what_does_not_exist_is_of_one_dtype_everywhere() -> None:
    """The companion of an op that writes (_xla.py) is what torch.compile runs on the CPU."""
    table, query = torch.randn(5, 16), torch.randn(3, 4, 16)
    positions = torch.arange(3)
    for device in ("cpu", "meta"):
        inputs = [x.to(device) for x in (positions, query, table)]
        torch.set_default_dtype(torch.float64)
        try:
            _, no_key = op._returning_rotary_embedding(*inputs)
            _, no_lse = op.flash_attn_varlen(inputs[1], inputs[1], inputs[1], *2 * [inputs[0][:2]])
        finally:
            torch.set_default_dtype(torch.float32)
        assert no_key.dtype == no_lse.dtype == torch.float32
        assert no_key.shape == no_lse.shape == (0,)
