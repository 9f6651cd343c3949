"""The names that other projects call (intarsia.xla_ops) and gradients, on torch_xla's tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
from intarsia import xla_ops

OPS = torch.ops.xla_gpu
H, HK, D, PAGE, PAGES = 4, 2, 32, 8, 16


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """On the CPU and on the device, eager and compiled: the same results."""
    want = function(*(x.clone() for x in tensors))  # which it may write
    torch.compiler.reset()
    for call in (function, torch.compile(function, backend="openxla", fullgraph=True)):
        got = call(*(x.to("xla") for x in tensors))
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for ours, theirs in pairs:
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


def test_rms_norm_xla() -> None:
    both(lambda x, w: xla_ops.rms_norm_xla(x, w, epsilon=1e-5), randn(3, 64), randn(64, seed=1))


def test_reshape_and_cache_flash() -> None:
    def write(key: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> Any:
        values = cache + 0
        xla_ops.reshape_and_cache_flash(key, key * 2, cache, values, slots, "auto", None, None)
        return cache + 0, values

    both(write, randn(4, HK, D), torch.zeros(PAGES, PAGE, HK, D), torch.tensor([0, 9, 70, -1]))


@pytest.mark.parametrize("as_tensor", [False, True], ids=["int", "tensor"])
def test_paged_attention(as_tensor: bool) -> None:
    cache = randn(PAGES, PAGE, 2 * HK, D, seed=1)
    lens, table = torch.tensor([20, 7]), torch.randperm(PAGES).view(2, 8)

    def attend(query: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        num_seqs = torch.tensor([2], device=query.device) if as_tensor else 2
        return xla_ops.xla_gpu_paged_attention(*(query, *rest), num_seqs, D**-0.5, None, None)

    both(attend, randn(2, H, D), cache, lens, table, torch.tensor([0, 1, 2]))


def test_dense_attention_as_its_readme_calls_it() -> None:
    """The requirements' snippet, compiled, with its names and dtype."""
    device = torch_xla.device()
    total, seqlen, num_heads, num_heads_k, head_size = 12, 6, H, HK, D
    q, k, v = (
        randn(total, n, head_size, seed=s).half()
        for s, n in enumerate((num_heads, num_heads_k, num_heads_k))
    )
    cu_seqlens_q = cu_seqlens_k = torch.tensor([0, seqlen, 2 * seqlen], dtype=torch.int32)

    def flash_attention_forward(q, k, v, cu_seqlens_q, cu_seqlens_k):
        softmax_scale = 1.0 / (q.shape[-1] ** 0.5)
        return torch.ops.xla.flash_attn_varlen_op(
            q, k, v,
            cu_seqlens_q, cu_seqlens_k,
            seqlen, seqlen,
            softmax_scale,
            is_causal=True,
            window_left=-1, window_right=-1,
            softcap=0.0,
            seqused_k=None,
            block_table=None
        )  # fmt: skip

    inputs = q, k, v, cu_seqlens_q, cu_seqlens_k
    torch.compiler.reset()
    compiled = torch.compile(flash_attention_forward, backend="openxla", fullgraph=True)
    out, lse = compiled(*(x.to(device) for x in inputs))
    assert (out.dtype, lse.dtype, out.device.type) == (torch.float16, torch.float32, "xla")
    for start in (0, seqlen):
        part = [x[start : start + seqlen].double() for x in (q, k, v)]
        keys, values = (x.repeat_interleave(num_heads // num_heads_k, 1) for x in part[1:])
        scores = torch.einsum("ihd,jhd->hij", part[0], keys) * head_size**-0.5
        scores = scores.masked_fill(torch.ones(seqlen, seqlen).triu(1).bool(), -torch.inf)
        want = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values)
        rows = slice(start, start + seqlen)
        torch.testing.assert_close(out.cpu()[rows].double(), want, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(
            lse.cpu()[:, rows].double(), scores.logsumexp(-1), rtol=1e-4, atol=1e-4
        )


def test_a_growing_max_seqlen_compiles_once() -> None:
    """The requirements' decode loop: max_seqlen_k is a Python integer that grows by one at each step."""
    key_cache, value_cache = (randn(PAGES, PAGE, HK, D, seed=s).to("xla") for s in (1, 2))
    table = torch.arange(PAGES, dtype=torch.int32).view(1, -1).to("xla")
    query, starts = randn(1, H, D).to("xla"), torch.tensor([0, 1], dtype=torch.int32).to("xla")
    counts = []
    for i in range(100):
        used = torch.tensor([i + 1], dtype=torch.int32).to("xla")
        out, lse = torch.ops.xla.flash_attn_varlen_op(
            query, key_cache, value_cache, starts, starts, 1, i + 1, D**-0.5,
            is_causal=True, window_left=-1, window_right=-1, softcap=0.0, seqused_k=used, block_table=table,
        )  # fmt: skip
        torch_xla.sync(wait=True)
        counts.append((metrics.metric_data("CompileTime") or [0])[0])
    assert counts[-1] == counts[0], counts
    keys, values = (
        c.cpu().flatten(0, 1)[:100].repeat_interleave(H // HK, 1) for c in (key_cache, value_cache)
    )
    scores = torch.einsum("qhd,khd->hqk", query.cpu(), keys) * D**-0.5
    torch.testing.assert_close(out.cpu(), torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    torch.testing.assert_close(lse.cpu(), scores.logsumexp(-1))


def test_a_growing_max_seqlen_compiles_once_with_torch_compile() -> None:
    cache = randn(PAGES, PAGE, HK, D, seed=1).to("xla")
    table = torch.arange(PAGES, dtype=torch.int32).view(1, -1).to("xla")
    query, starts = randn(1, H, D).to("xla"), torch.tensor([0, 1], dtype=torch.int32).to("xla")
    torch.compiler.reset()

    @torch.compile(backend="openxla", fullgraph=True)
    def attend(query: torch.Tensor, used: torch.Tensor, max_seqlen_k: int) -> torch.Tensor:
        return torch.ops.xla.flash_attn_varlen_op(
            query, cache, cache, starts, starts, 1, max_seqlen_k, D**-0.5, is_causal=True,
            seqused_k=used, block_table=table,
        )[0]  # fmt: skip

    counts = []
    # torch_xla turns automatic_dynamic_shapes off. With fullgraph, more graphs than the limit are an error.
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=True):
        for i in range(1, 21):
            attend(query, torch.tensor([i], dtype=torch.int32).to("xla"), i).cpu()
            counts.append((metrics.metric_data("CompileTime") or [0])[0])
    assert counts[-1] == counts[1], counts


GRADIENTS = {
    "rms_norm": (lambda x, w: OPS.rms_norm(x, w), [(5, 64), (64,)]),
    "silu_and_mul": (OPS.silu_and_mul, [(5, 64)]),
    "fused_add_rms_norm": (
        lambda *xs: OPS.fused_add_rms_norm.functional(*xs),
        [(5, 64), (5, 64), (64,)],
    ),
    "flash_attn_varlen": (
        lambda q, k, v: OPS.flash_attn_varlen(
            q,
            k,
            v,
            torch.tensor([0, 3, 8], device=q.device),
            torch.tensor([0, 3, 8], device=q.device),
            is_causal=True,
            return_lse=True,
        )[0],
        [(8, H, D), (8, HK, D), (8, HK, D)],
    ),
    "grouped_matmul": (
        lambda x, w, bias: OPS.grouped_matmul(
            x,
            w,
            torch.tensor([2, 3], device=x.device),
            None,
            torch.tensor([4, 1, 0, 4, 9, 2], device=x.device),
            bias,
        ),
        [(5, 16), (2, 16, 24), (2, 24)],
    ),
    "fused_experts": (
        lambda x, w1, w2, weights, *biases: OPS.fused_experts(
            x, w1, w2, weights, torch.tensor([[1, 0], [2, 1], [-1, 2]], device=x.device), *biases
        ),
        [(3, 16), (3, 24, 16), (3, 16, 12), (3, 2), (3, 24), (3, 16)],
    ),
    "topk_router": (lambda logits: OPS.topk_router(logits, None, top_k=3)[0], [(5, 12)]),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "openxla"])
def test_gradients_are_the_cpus(name: str, compiled: bool) -> None:
    function, shapes = GRADIENTS[name]

    def loss(*operands: torch.Tensor) -> torch.Tensor:
        results = function(*operands)
        results = results if isinstance(results, tuple) else (results,)
        return sum((x * torch.arange(x.shape[-1], device=x.device)).sum() for x in results)

    operands = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    # First: torch counts devices at a process's first gradient, and knows none that come later.
    on_xla = [x.to("xla").requires_grad_() for x in operands]
    want = torch.autograd.grad(loss(*(x.requires_grad_() for x in operands)), operands)
    torch.compiler.reset()
    on_device = torch.compile(loss, backend="openxla", fullgraph=True) if compiled else loss
    got = torch.autograd.grad(on_device(*on_xla), on_xla)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def test_tensors_of_the_cpu_are_compiled_as_ever() -> None:
    """The ops that write have a kernel in this process that they lack in others (_xla.serve_device)."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor, residual: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor):
        OPS.fused_add_rms_norm(x, residual)
        new = x.view(3, HK, D)
        OPS.reshape_and_cache_flash(new, new, cache, cache.clone(), slots)
        return x * 2

    x, residual, slots = randn(3, HK * D), randn(3, HK * D, seed=1), torch.tensor([1, -1, 9])
    plain = [x.clone(), residual.clone(), torch.zeros(PAGES, PAGE, HK, D)]
    mine = [p.clone() for p in plain]
    OPS.fused_add_rms_norm(*plain[:2])
    new = plain[0].view(3, HK, D)
    OPS.reshape_and_cache_flash(new, new, plain[2], plain[2].clone(), slots)
    assert torch.equal(step(*mine, slots), plain[0] * 2)
    for ours, theirs in zip(mine, plain, strict=True):
        assert torch.equal(ours, theirs)
