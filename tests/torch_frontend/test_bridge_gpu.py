"""The bridge on a GPU: on XLA's stream, in CUDA graphs, with ops of torch, of vLLM, and written in Triton.

vLLM's libraries are given by --torch-ops: `_vllm_fa2_C.abi3.so`, `_vllm_fa3_C.abi3.so` and
`_C_stable_libtorch.abi3.so` of the release that is built for the torch at hand (0.26 for torch 2.11).
"""

import os
import subprocess
import sys

import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
import torch
from bridged import RNG, need_op, normal
from intarsia.torch import bridge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
BF16 = jnp.bfloat16
LENGTHS = np.array([37, 1, 130, 64], np.int32)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
LONGEST, TOKENS = int(LENGTHS.max()), int(STARTS[-1])
HEADS, KV_HEADS, HEAD_DIM, PAGE = 8, 2, 128, 16


def close(got: jax.Array, want: jax.Array, tolerance: float = 6e-3) -> None:
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    assert support.relative_error(got, want) < tolerance


def varlen() -> tuple[jax.Array, jax.Array, jax.Array]:
    shapes = [(TOKENS, h, HEAD_DIM) for h in (HEADS, KV_HEADS, KV_HEADS)]
    return tuple(normal(*shape, dtype=BF16) for shape in shapes)


@pytest.mark.parametrize("via", ["c", "python"])
@pytest.mark.parametrize("capturable", [False, True])
def test_torchs_flash_attention(via: str, capturable: bool) -> None:
    flash = bridge.op(
        "aten::_flash_attention_forward", via=via, capturable=capturable, outputs=[0, 1]
    )

    @jax.jit
    def both(q, k, v):
        theirs = flash(
            q, k, v, STARTS, STARTS, LONGEST, LONGEST, 0.0, True, False, scale=HEAD_DIM**-0.5
        )
        ours = ij.flash_attn_varlen(
            q, k, v, STARTS, cu_seqlens_k=STARTS, is_causal=True, return_lse=True
        )
        return theirs, ours

    for _ in range(3):  # each with its own numbers
        (out, lse), (our_out, our_lse) = both(*varlen())
        close(out, our_out)
        np.testing.assert_allclose(lse, our_lse, rtol=1e-3, atol=1e-3)


CAPTURED = """
import jax, jax.numpy as jnp, numpy as np, torch
import intarsia.jax as ij
import support
from intarsia.torch import _bridge_run, bridge
from test_bridge_gpu import STARTS, LONGEST, HEAD_DIM, BF16, close, varlen

calls_of_python = 0
run_in_python = _bridge_run._run


def counted(call):
    global calls_of_python
    calls_of_python += 1
    run_in_python(call)


_bridge_run._run = counted  # before the library is opened, which keeps it
flash = bridge.op("aten::_flash_attention_forward", capturable=True, outputs=[0, 1])
relu_ = bridge.op("aten::relu_", capturable=True)
add = bridge.op("aten::add.Tensor", via="python", capturable=True)


@jax.jit
def step(q, k, v):
    # Each call takes memory of torch; a later one must not find it where an earlier one's replay still needs it.
    for _ in range(4):
        out, _ = flash(q, k, v, STARTS, STARTS, LONGEST, LONGEST, 0.0, True, False)
        q = add(relu_(q), out, alpha=0.5)
    return q


@jax.jit
def ours(q, k, v):
    for _ in range(4):
        out = ij.flash_attn_varlen(q, k, v, STARTS, cu_seqlens_k=STARTS, is_causal=True)
        q = jnp.maximum(q, 0) + jnp.asarray(0.5, BF16) * out
    return q


for run in range(6):
    operands = varlen()
    close(step(*operands), ours(*operands), 2e-2)
    # What an application of torch does meanwhile: none of it may reach the graph's memory.
    waste = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    del waste
    torch.cuda.empty_cache()
print("six runs are right")

# At the same addresses a graph is replayed, which calls no Python. Without graphs each run would, for each `add`.
assert calls_of_python >= 4
operands, made = varlen(), []
want = ours(*operands)
for run in range(12):
    before = calls_of_python
    out = jax.block_until_ready(step(*operands))
    made.append(calls_of_python - before)
    close(out, want, 2e-2)
    del out
assert 0 in made, f"calls of Python by each run: {made}"
print("replays call no Python")
"""


def test_inside_a_captured_graph() -> None:
    tests = support.ROOT / "tests"
    path = os.pathsep.join(
        str(p) for p in (support.ROOT / "python", tests, tests / "torch_frontend")
    )
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_gpu_graph_min_graph_size=1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", CAPTURED], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "six runs are right" in done.stdout
    assert "replays call no Python" in done.stdout


def test_what_is_written_is_in_place() -> None:
    x = normal(256, 256)
    want, where = np.maximum(np.asarray(x), 0), x.unsafe_buffer_pointer()
    y = jax.jit(lambda x: bridge.call("aten::relu_", x), donate_argnums=0)(x)
    assert y.unsafe_buffer_pointer() == where
    np.testing.assert_array_equal(np.asarray(y), want)


def test_an_exception_inside() -> None:
    lie = bridge.op("aten::mm", results=[jax.ShapeDtypeStruct((3, 4), jnp.float32)])
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"aten::mm: .*shapes cannot be multiplied"
    ):
        jax.block_until_ready(jax.jit(lie)(normal(3, 4), normal(3, 4)))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("via", ["c", "python"])
def test_an_op_written_in_triton(via: str, capturable: bool) -> None:
    scaled_add = pytest.importorskip("triton_op", reason="triton is not installed").scaled_add
    op = bridge.op(scaled_add, via=via, capturable=capturable)
    step = jax.jit(lambda x, y: op(op(x, y, 2.0), y, -0.5))
    for _ in range(3):
        x, y = normal(1000), normal(1000)
        np.testing.assert_allclose(step(x, y), x + 1.5 * y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("capturable", [False, True])
def test_vllms_rms_norm(capturable: bool, pytestconfig: pytest.Config) -> None:
    need_op("_C::rms_norm", pytestconfig)
    x, weight = normal(77, 4096, dtype=BF16), normal(4096, dtype=BF16)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    op = bridge.op("_C::rms_norm", capturable=capturable)
    close(jax.jit(lambda x, w: op(out, x, w, 1e-5))(x, weight), ij.rms_norm(x, weight, eps=1e-5))


# A paged cache [p, s, hk, d] that holds each sequence, its last token still to be written.
PAGES_PER_SEQUENCE = -(-LONGEST // PAGE)
PAGES = len(LENGTHS) * PAGES_PER_SEQUENCE
TABLE = RNG.permutation(PAGES).astype(np.int32).reshape(len(LENGTHS), PAGES_PER_SEQUENCE)
LAST = LENGTHS - 1
SLOTS = (TABLE[np.arange(len(LENGTHS)), LAST // PAGE] * PAGE + LAST % PAGE).astype(np.int32)


@pytest.mark.parametrize("capturable", [False, True])
def test_vllms_cache_write_and_flash_attention_3(
    capturable: bool, pytestconfig: pytest.Config
) -> None:
    """A decode step as vLLM makes it, by its own compiled ops, then by ours."""
    need_op("_C_cache_ops::reshape_and_cache_flash", pytestconfig)
    need_op("_vllm_fa3_C::fwd", pytestconfig)
    b = len(LENGTHS)
    one = jnp.ones(1)
    starts = np.arange(b + 1, dtype=np.int32)
    write = bridge.op("_C_cache_ops::reshape_and_cache_flash", capturable=capturable)
    out = jax.ShapeDtypeStruct((b, HEADS, HEAD_DIM), BF16)
    attend = bridge.op("_vllm_fa3_C::fwd", via="python", capturable=capturable, results=[out])

    def theirs(q, k, v, key_cache, value_cache):
        caches = write(
            k, v, key_cache, value_cache, bridge.int64(SLOTS), "auto", k_scale=one, v_scale=one
        )
        optional = {a.name: None for a in attend.overload._schema.arguments[3:23]}
        optional |= {
            "cu_seqlens_q": starts,
            "seqused_k": LENGTHS,
            "max_seqlen_q": 1,
            "max_seqlen_k": LONGEST,
            "page_table": TABLE,
            "softmax_scale": HEAD_DIM**-0.5,
            "is_causal": True,
            "window_size_left": -1,
            "window_size_right": -1,
            "softcap": 0.0,
            "is_rotary_interleaved": True,
            "scheduler_metadata": None,
            "num_splits": 0,
            "pack_gqa": None,
            "sm_margin": 0,
            "s_aux": None,
            "cp_world_size": 1,
            "cp_rank": 0,
            "cp_tot_seqused_k": None,
        }
        result, _ = attend(q, *caches, **optional)  # its schema says that it writes q as well
        return result, caches

    def ours(q, k, v, key_cache, value_cache):
        caches = ij.reshape_and_cache_flash(k, v, (key_cache, value_cache), SLOTS, layout="NHD")
        result = ij.paged_attention(q, caches, LENGTHS, TABLE, starts, layout="NHD")
        return result, caches

    q = normal(b, HEADS, HEAD_DIM, dtype=BF16)
    k, v = (normal(b, KV_HEADS, HEAD_DIM, dtype=BF16) for _ in range(2))
    caches = [normal(PAGES, PAGE, KV_HEADS, HEAD_DIM, dtype=BF16) for _ in range(2)]
    want, want_caches = jax.jit(ours)(q, k, v, *caches)
    want_caches = [np.asarray(x) for x in want_caches]
    addresses = [x.unsafe_buffer_pointer() for x in caches]
    got, got_caches = jax.jit(theirs, donate_argnums=(3, 4))(q, k, v, *caches)
    assert [x.unsafe_buffer_pointer() for x in got_caches] == addresses
    close(got, want)
    for mine, expected in zip(got_caches, want_caches, strict=True):
        assert np.array_equal(np.asarray(mine), expected)


@pytest.mark.parametrize("capturable", [False, True])
def test_vllms_flash_attention_2(capturable: bool, pytestconfig: pytest.Config) -> None:
    """A prefill over a paged cache that holds the keys already."""
    need_op("_vllm_fa2_C::varlen_fwd", pytestconfig)
    q = normal(TOKENS, HEADS, HEAD_DIM, dtype=BF16)
    caches = [normal(PAGES, PAGE, KV_HEADS, HEAD_DIM, dtype=BF16) for _ in range(2)]
    out = jax.ShapeDtypeStruct(q.shape, q.dtype)
    op = bridge.op("_vllm_fa2_C::varlen_fwd", via="python", capturable=capturable, results=[out])

    def theirs(q, key_cache, value_cache):
        result, _ = op(
            q, key_cache, value_cache, None, STARTS, STARTS, LENGTHS, None, TABLE, None, LONGEST,
            LONGEST, 0.0, HEAD_DIM**-0.5, False, True, -1, -1, 0.0, False, 0, None,
        )  # fmt: skip
        return result

    ours = ij.flash_attn_varlen(
        q, *caches, STARTS, seqused_k=LENGTHS, block_table=TABLE, is_causal=True, layout="NHD"
    )
    close(jax.jit(theirs)(q, *caches), ours)
