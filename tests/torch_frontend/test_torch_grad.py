"""The ops' gradients under torch's autograd, against those under JAX's, which tests/test_jax_grad.py proves."""

import itertools

import intarsia.jax
import jax
import numpy as np
import pytest
import test_jax_grad
import test_ops
import torch
import torch_running
from intarsia.torch import _grad
from intarsia.torch._form import Form

op = torch.ops.xla_gpu
FORMS = [form for form in torch_running.FORMS if form.op.name in test_jax_grad.OPS]
CASES = [
    (form, case)
    for form in FORMS
    for op_name, case in test_jax_grad.CASES
    if op_name == form.op.name and (case == "example" or not form.written)
]


def test_the_same_ops_have_one() -> None:
    from intarsia.jax import _grad as jax_grad

    of_calls = {target.removeprefix("intarsia.") for target in jax_grad._gradients}
    assert set(_grad._gradients) == of_calls | jax_grad.functions_with_gradient


@pytest.mark.parametrize(
    ("form", "case", "device"),
    [
        pytest.param(
            *(form, case, platform),
            id=f"{form.name}-{case}-{platform}",
            marks=[pytest.mark.gpu] if platform == "cuda" else [],
        )
        for form, case in CASES
        for platform in form.op.platforms
    ],
)
def test_as_in_jax(form: Form, case: str, device: str) -> None:
    """In place as well: the operand is then no leaf, but made of one."""
    operands, attributes, cotangents = test_jax_grad.make(form.op.name, case, "f32")
    want = test_jax_grad.ours(form.op.name, "cpu")[case, "f32"]
    leaves, cotangents = (
        [None if x is None else torch_running.to_torch(x).to(device) for x in xs]
        for xs in (operands, cotangents)
    )
    floats = [x for x in leaves if x is not None and x.is_floating_point()]
    for x in floats:
        x.requires_grad_()
    tensors = [x * 1 if any(x is f for f in floats) else x for x in leaves]
    results = torch_running.raw_results(form, torch_running.overload(form), tensors, attributes)
    results = [y for y in results if y.is_floating_point()]
    got = iter(torch.autograd.grad(results, floats, cotangents, materialize_grads=True))
    for x, wanted in zip(leaves, want, strict=True):
        if x is not None and x.requires_grad:
            size = np.linalg.norm(wanted)
            error = np.linalg.norm(next(got).detach().cpu().numpy() - wanted)
            # Terms of a row of one column cancel, whose roundings stay: some 1e-7 each.
            assert error <= 1e-5 * size + 5e-7 * wanted.size**0.5


def test_linear_quantized() -> None:
    """As in JAX in x and bias; the weights' factors have none."""
    operands, attributes = test_ops.make("linear_quantized", "q4_1_bias", "f32")
    cotangent = np.random.default_rng(0).standard_normal(
        (*operands[0].shape[:-1], operands[-1].size), np.float32
    )
    _, backward = jax.vjp(
        lambda x, bias: intarsia.jax.linear_quantized(x, *operands[1:-1], bias, **attributes),
        operands[0], operands[-1],
    )  # fmt: skip
    tensors = [None if x is None else torch_running.to_torch(x) for x in operands]
    tensors[0].requires_grad_(), tensors[-1].requires_grad_()
    out = op.linear_quantized(*tensors, **attributes)
    got = torch.autograd.grad(out, (tensors[0], tensors[-1]), torch.from_numpy(cotangent))
    for x, wanted in zip(got, backward(cotangent), strict=True):
        np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-5, atol=1e-5)

    tensors[2].requires_grad_()
    with pytest.raises(NotImplementedError, match="scales and zeros have no gradient"):
        op.linear_quantized(*tensors, **attributes).sum().backward()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("offset", [None, 1])
def test_grouped_matmul(transposed: bool, gathers: bool, offset: int | None) -> None:
    """Against one-hot products of torch, with rows of no group and of no row of x."""
    sizes = torch.tensor([4, 0, 5, 2], dtype=torch.int32)
    groups = 4 if offset is None else 2
    x = torch.randn(7 if gathers else 13, 6, requires_grad=True)
    shape = (groups, 8, 6) if transposed else (groups, 6, 8)
    w, bias = torch.randn(shape, requires_grad=True), torch.randn(groups, 8, requires_grad=True)
    rows = torch.tensor([0, 6, -1, 7, 3, 3, 1, 2, 5, 4, 0, 1, 2]) if gathers else None
    first = None if offset is None else torch.tensor([offset])
    out = op.grouped_matmul(x, w, sizes, first, rows, bias, transposed=transposed)
    d_out = torch.randn(13, 8)
    got = torch.autograd.grad((out * d_out).sum(), (x, w, bias))

    group = torch.repeat_interleave(torch.arange(4), sizes) - (offset or 0)
    weights = torch.zeros(13, groups)
    for row, index in enumerate(group.tolist()):
        taken = rows is None or 0 <= rows[row] < len(x)
        if 0 <= index < groups and taken:
            weights[row, index] = 1
    taken = x if rows is None else x[rows.clamp(0, len(x) - 1)]
    matrices = w.transpose(1, 2) if transposed else w
    want_out = torch.einsum("mk,gkn,mg->mn", taken, matrices, weights) + weights @ bias
    torch.testing.assert_close(out, want_out, rtol=1e-4, atol=1e-5)
    want = torch.autograd.grad((want_out * d_out).sum(), (x, w, bias))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_grouped_matmul_of_no_rows() -> None:
    """Rows that take of an x without any give 0, and no gradient."""
    x, w, bias = torch.randn(0, 6), torch.randn(2, 6, 8), torch.randn(2, 8)
    tensors = [a.requires_grad_() for a in (x, w, bias)]
    out = op.grouped_matmul(x, w, torch.tensor([1, 2]), None, torch.tensor([0, -1, 3]), bias)
    assert out.shape == (3, 8) and not out.any()
    got = torch.autograd.grad(out.sum(), tensors)
    assert all(torch.equal(g, torch.zeros_like(a)) for g, a in zip(got, tensors, strict=True))


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(return_lse: bool, causal: bool) -> None:
    """Against torch's own attention, sequence by sequence; lse takes part where it is returned."""
    starts, h, hk, d = [0, 5, 5, 12], 4, 2, 16
    q, k, v = (torch.randn(12, n, d, requires_grad=True) for n in (h, hk, hk))
    cu = torch.tensor(starts, dtype=torch.int32)
    dout, dlse = torch.randn(12, h, d), torch.randn(h, 12)
    out, lse = op.flash_attn_varlen(q, k, v, cu, cu, is_causal=causal, return_lse=return_lse)
    loss = (out * dout).sum() + ((lse * dlse).sum() if return_lse else 0)
    got = torch.autograd.grad(loss, (q, k, v))
    loss = 0.0
    for a, b in itertools.pairwise(starts):
        keys, values = (x[a:b].repeat_interleave(h // hk, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q[a:b], keys) * d**-0.5
        if causal:
            scores = scores.masked_fill(torch.ones(b - a, b - a).triu(1).bool(), -torch.inf)
        loss = loss + (torch.einsum("hij,jhd->ihd", scores.softmax(-1), values) * dout[a:b]).sum()
        loss = loss + ((scores.logsumexp(-1) * dlse[:, a:b]).sum() if return_lse else 0)
    want = torch.autograd.grad(loss, (q, k, v))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_attention_with_sinks() -> None:
    """The denominator's logit of each head: its gradient is that of an operand."""
    q, k, v = torch.randn(3, 7, 2, 16)
    cu, sinks = torch.tensor([0, 7]), torch.tensor([0.5, -1.0], requires_grad=True)
    out, _ = op.flash_attn_varlen(q, k, v, cu, cu, sinks=sinks)
    (got,) = torch.autograd.grad(out.square().sum(), sinks)
    scores = torch.einsum("ihd,jhd->hij", q, k) / 4
    logits = torch.cat([scores, sinks[:, None, None].expand(2, 7, 1)], -1)
    out = torch.einsum("hij,jhd->ihd", logits.softmax(-1)[..., :-1], v)
    (want,) = torch.autograd.grad(out.square().sum(), sinks)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_rotary_embedding_before_a_transpose() -> None:
    """As models have it: the cotangents' tokens [b, s] lie at uneven distances then."""
    positions, table = torch.arange(5).expand(2, 5), torch.randn(8, 16)
    heads = [torch.randn(2, 5, 4, 16, requires_grad=True) for _ in range(2)]

    turned = op.rotary_embedding.functional(positions, heads[0], table, heads[1])
    q, k = (x.transpose(1, 2) for x in turned)
    loss = (q @ k.mT).softmax(-1).pow(2).sum()
    cotangents = torch.autograd.grad(loss, turned, retain_graph=True)
    assert not any(g.is_contiguous() for g in cotangents)
    got = torch.autograd.grad(turned, heads, cotangents, retain_graph=True)
    want = torch.autograd.grad(turned, heads, [g.contiguous() for g in cotangents])
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["silu_and_mul", "mul_and_silu"])
def test_gradients_of_gradients(name: str) -> None:
    x = torch.randn(3, 8, requires_grad=True)

    def plain(x: torch.Tensor) -> torch.Tensor:
        gate, other = x.chunk(2, -1) if name == "silu_and_mul" else reversed(x.chunk(2, -1))
        return torch.nn.functional.silu(gate) * other

    def twice(function) -> torch.Tensor:
        (once,) = torch.autograd.grad(function(x).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(once.pow(2).sum(), x)[0]

    torch.testing.assert_close(twice(getattr(op, name)), twice(plain))


def test_what_has_no_gradient_says_so() -> None:
    x = torch.randn(2, 64, requires_grad=True)
    q, _ = op.dynamic_per_token_scaled_fp8_quant(x)
    with pytest.raises(
        NotImplementedError, match="dynamic_per_token_scaled_fp8_quant: has no gradient"
    ):
        q.float().sum().backward()
    starts = torch.tensor([0, 2])
    cache = torch.randn(1, 4, 1, 64)
    paged = op.flash_attn_varlen(
        x[:, None], cache, cache, starts, seqused_k=starts[1:], block_table=starts[None, :1]
    )
    slopes = torch.ones(1, requires_grad=True)
    biased = op.flash_attn_varlen(*[x[:, None]] * 3, starts, starts, alibi_slopes=slopes)
    chunked = op.flash_attn_varlen(*[x[:, None]] * 3, starts, starts, attention_chunk=4)
    codes = x[:, None].to(torch.float8_e4m3fn)
    narrow = op.flash_attn_varlen(codes, codes, codes, starts, starts)
    wide = torch.randn(2, 1, 192, requires_grad=True)
    shorter = op.flash_attn_varlen(wide, wide, wide[..., :128], starts, starts)
    says = {
        "the gradient with block_table is not built": paged,
        "the gradient with attention_chunk=4 is not built": chunked,
        r"pass alibi_slopes.detach\(\)": biased,
        "for q in torch.float8_e4m3fn and v in torch.float8_e4m3fn is not built": narrow,
        "for dv=128 where q has d=192 is not built": shorter,
    }
    for text, (out, _) in says.items():
        assert out.requires_grad and out.isfinite().all()
        with pytest.raises(NotImplementedError, match=text):
            out.float().sum().backward()
    # Nobody asks for it: the forward pass alone, beside something that is differentiated.
    (x.sum() + 0 * paged[0].detach().sum()).backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_writing_a_leaf_is_refused_as_by_torch() -> None:
    leaf = torch.randn(2, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        op.fused_add_rms_norm(leaf, torch.randn(2, 64))
    with torch.no_grad():
        op.fused_add_rms_norm(leaf, torch.randn(2, 64))


def test_what_was_kept_and_then_written_is_noticed() -> None:
    """As by torch's own ops in place: a gradient from changed numbers would be wrong."""
    x = torch.randn(2, 64)
    scale = torch.randn(2, 64, requires_grad=True)
    kept = (scale * x).sum()
    op.fused_add_rms_norm(x, torch.randn(2, 64))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    cache, key = torch.randn(1, 4, 2, 64), torch.randn(1, 2, 64)
    kept = (torch.ones(1, 4, 2, 64, requires_grad=True) * cache).sum()
    op.reshape_and_cache_flash(key, key, cache, cache.clone(), torch.tensor([1]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_a_refused_call_invalidates_no_graph() -> None:
    x, w = torch.randn(2, 64), torch.randn(2, 64, requires_grad=True)
    loss = (w * x).sum()
    with pytest.raises(ValueError, match="fused_add_rms_norm: residual has n=32"):
        op.fused_add_rms_norm(x, torch.randn(2, 32))
    assert x._version == 0
    loss.backward()
    torch.testing.assert_close(w.grad, x)


def test_writes_are_counted_in_inference_mode() -> None:
    x = torch.randn(2, 64)
    with torch.inference_mode():
        op.fused_add_rms_norm(x, torch.randn(2, 64))
        op.fused_add_rms_norm(torch.randn(2, 64), torch.randn(2, 64))  # inference tensors: no count
    assert x._version == 1


def test_what_is_written_without_a_gradient_says_so() -> None:
    """In the backward pass, not in the call."""
    x, scale = torch.randn(2, 64, requires_grad=True), torch.ones(1)
    residual = x * 2
    codes = op.fused_add_rms_norm_static_fp8_quant(x, residual, torch.ones(64), scale)
    for result in (residual, codes.float()):
        with pytest.raises(
            NotImplementedError, match="fused_add_rms_norm_static_fp8_quant: has no gradient"
        ):
            result.sum().backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        op.fused_add_rms_norm_static_fp8_quant(residual.detach(), x, torch.ones(64), scale)


@pytest.mark.parametrize("views", ["none", "slices", "unbind"])
def test_a_training_step_writes_a_cache(views: str) -> None:
    """Attention over the dense keys is differentiated; what was written is not, and keeps no graph alive."""
    both = torch.zeros(2, 1, 4, 2, 64)
    caches = {
        "none": [both[0].clone(), both[1].clone()],
        "slices": [both[0], both[1]],
        "unbind": both.unbind(0),  # torch gives such views no new history: they stay constants
    }[views]
    x = torch.randn(2, 2, 64, requires_grad=True)
    depths = []
    for _ in range(3):
        key = x * 2
        op.reshape_and_cache_flash(key, key, *caches, torch.tensor([1, 3]))
        key.sum().backward()
        assert torch.equal(caches[0][0, 3], key[1])
        depth, node = 0, caches[0].grad_fn
        while node is not None and node.next_functions:
            depth, node = depth + 1, node.next_functions[0][0]
        depths.append(depth)
    assert depths[0] == depths[2]
    if views == "unbind":
        assert not caches[0].requires_grad
    else:
        for cache in caches:
            with pytest.raises(
                NotImplementedError, match="reshape_and_cache_flash: has no gradient"
            ):
                cache.sum().backward()


def test_default_dtype_does_not_matter() -> None:
    table = torch.randn(8, 64, requires_grad=True)
    query = torch.randn(2, 1, 64, requires_grad=True)
    positions = torch.tensor([1, 3])

    def gradients():
        (out,) = [op.rotary_embedding.functional(positions, query, table, head_size=64)[0]]
        return torch.autograd.grad(out.square().sum(), (query, table))

    want = gradients()
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = gradients()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["rms_norm", "silu_and_mul"])
def test_compiled_training_step(name: str) -> None:
    torch.compiler.reset()
    x = torch.randn(3, 64, requires_grad=True)

    def loss(x):
        return getattr(op, name)(x).square().sum()

    (want,) = torch.autograd.grad(loss(x), x)
    (got,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x), x)
    torch.testing.assert_close(got, want)


def _loss(x: torch.Tensor) -> torch.Tensor:
    return op.rms_norm(x).sum()


def _loss_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    op.fused_add_rms_norm(y, x * 3)
    return y.sum()


def _loss_of_codes(x: torch.Tensor) -> torch.Tensor:
    return op.dynamic_scaled_fp8_quant(x)[1].sum()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (_loss, "rms_norm"),
        (_loss_in_place, "fused_add_rms_norm"),
        (_loss_of_codes, "dynamic_scaled_fp8_quant"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated"
)  # torch 2.14's own, of itself
def test_torch_func_is_refused_by_name(loss, name: str) -> None:
    x = torch.randn(3, 64)
    message = f"^{name}: torch.func's transformations are not built"
    for transformed in (torch.func.grad(loss), torch.func.jacrev(loss)):
        with pytest.raises(NotImplementedError, match=message):
            transformed(x)
    forward = f"^{name}: forward-mode differentiation .* is not built"
    with pytest.raises(NotImplementedError, match=forward):
        torch.func.jvp(loss, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match=forward):
            loss(torch.autograd.forward_ad.make_dual(x, x))
        loss(x)  # nothing to lose


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # Python's from torch 2.15 on
def test_vmap_is_a_loop() -> None:
    x = torch.randn(2, 3, 64)
    got = torch.func.vmap(op.rms_norm)(x)
    torch.testing.assert_close(got, torch.stack([op.rms_norm(y) for y in x]))
