"""`scaled_dot_product_attention` against torch's own, on the CPU in f64."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from intarsia.torch import scaled_dot_product_attention
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as theirs
from torch_running import on_each_device

# torch warns that rows of a lower-right mask may see nothing, and that compiled frames are few.
pytestmark = pytest.mark.filterwarnings("ignore")


def tensors(*shapes, seed=0, device="cpu", **options):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, **options).to(device) for shape in shapes]


def masks(b, rows, keys):
    """Those that are built, and what torch is to be given in their place."""
    every = torch.ones(rows, keys, dtype=torch.bool)
    lower = every.tril(keys - rows)
    lengths = torch.arange(1, b + 1).clamp(max=keys)
    padding = (torch.arange(keys) < lengths[:, None])[:, None, None]
    return {
        "none": (None, None),
        "full": (every, None),
        "upper left": (every.tril(), every.tril()),
        "lower right": (lower, lower),
        "padding": (padding, padding),
        "upper left without values": (causal_upper_left(rows, keys), every.tril()),
        "lower right without values": (causal_lower_right(rows, keys), lower),
    }


@on_each_device
@settings(max_examples=40)
@given(
    form=st.sampled_from(sorted(masks(1, 1, 1))),
    b=st.integers(1, 3),
    rows=st.integers(1, 20),
    keys=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (2, 2), (6, 2)]),
    d=st.sampled_from([8, 20, 64]),
    scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 99),
)
def test_drawn_calls(device, form, b, rows, keys, heads, d, scale, seed):
    h, hk = heads
    shapes = ((b, h, rows, d), (b, hk, keys, d), (b, hk, keys, d))
    q, k, v, weight = tensors(*shapes, shapes[0], seed=seed)
    mask, their_mask = masks(b, rows, keys)[form]
    ours = [x.to(device).requires_grad_() for x in (q, k, v)]
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    options = {"scale": scale, "enable_gqa": h != hk}
    mask = mask if mask is None or "values" in form else mask.to(device)
    got = scaled_dot_product_attention(*ours, mask, **options)
    want = theirs(*wide, their_mask, **options)
    torch.testing.assert_close(got.double().cpu(), want, atol=3e-6, rtol=1e-5)
    gradients = torch.autograd.grad((got * weight.to(device)).sum(), ours)
    expected = torch.autograd.grad((want * weight).sum(), wide)
    for dx, dy in zip(gradients, expected, strict=True):
        # With one key, what scores get is a difference of equal sums of up to 64 products.
        torch.testing.assert_close(dx.double().cpu(), dy, atol=3e-5, rtol=1e-4)


@on_each_device
@pytest.mark.parametrize(("rows", "keys"), [(9, 14), (14, 9)])
def test_is_causal_is_aligned_at_the_top_left(device, rows, keys):
    q, k, v = tensors((2, 4, rows, 16), (2, 4, keys, 16), (2, 4, keys, 16), device=device)
    got = scaled_dot_product_attention(q, k, v, is_causal=True)
    want = theirs(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(got.double(), want, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
def test_leading_axes(lead):
    q, k, v = tensors((*lead, 5, 16), (*lead, 7, 16), (*lead, 7, 16))
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    got = scaled_dot_product_attention(q, k, v, mask)
    assert got.shape == q.shape
    torch.testing.assert_close(got, theirs(q, k, v, mask), atol=3e-6, rtol=1e-5)


def test_no_copy_of_transposed_views() -> None:
    q, k, v = (x.transpose(1, 2) for x in tensors(*[(2, 6, 3, 16)] * 3))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.stride() == q.stride()


def test_within_a_graph() -> None:
    (q,) = tensors((2, 3, 6, 16))

    def attend(q):
        return scaled_dot_product_attention(q, q, q, is_causal=True)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), attend(q))


def test_the_signature_is_that_of_torch() -> None:
    ours = inspect.signature(scaled_dot_product_attention).parameters
    stated = (theirs.__doc__ or "").split("\n")[0]
    assert stated.startswith("scaled_dot_product_attention(query, key, value,")
    described = "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False"
    names = [part.partition("=") for part in described.split(", ")]
    assert all(
        f"{name}={value}" in theirs.__doc__.replace("\n", " ") for name, _, value in names[3:]
    )
    assert [(p.name, "" if p.default is p.empty else str(p.default)) for p in ours.values()] == [
        (name, value) for name, _, value in names
    ]


BAND = torch.ones(4, 5, dtype=torch.bool).tril(1).triu(-1)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"dropout_p": 0.1}, NotImplementedError, "dropout_p=0.1 is not built"),
        ({"attn_mask": torch.zeros(4, 5)}, NotImplementedError, "attn_mask in torch.float32"),
        ({"attn_mask": BAND}, NotImplementedError, "attn_mask of another form"),
        ({"attn_mask": BAND[None, None, None]}, ValueError, r"attn_mask has shape \[1, 1, 1, 4, 5\]"),
        ({"attn_mask": BAND[:3]}, ValueError, r"attn_mask has shape \[3, 5\]"),
        ({"attn_mask": BAND, "is_causal": True}, ValueError, "attn_mask is given with is_causal"),
        ({"attn_mask": causal_upper_left(3, 5)}, ValueError, "attn_mask is of 3 queries and 5 keys"),
        ({"query": torch.zeros(2, 4, 4, 8)}, ValueError, "enable_gqa=True allows it"),
        ({"query": torch.zeros(2, 3, 4, 8), "enable_gqa": True}, ValueError, "a multiple of key's 2"),
        ({"key": torch.zeros(1, 2, 5, 8)}, ValueError, r"key has shape \[1, 2, 5, 8\], expected"),
        ({"key": torch.zeros(2, 2, 6, 8)}, ValueError, "do not go together"),
        ({"query": torch.zeros(2, 2, 4, 8).half()}, ValueError, "key has dtype torch.float32"),
        ({"query": torch.zeros(8)}, ValueError, r"query has shape \[8\], expected \[..., n, d\]"),
        ({"key": torch.zeros(8)}, ValueError, r"key has shape \[8\], expected \[2, h, n, d\]"),
        ({"value": torch.zeros(2, 2, 5, 32)}, NotImplementedError, "value has dv=32 where query has d=8"),
        (dict.fromkeys(("query", "key", "value"), torch.zeros(1, 2, 520)), NotImplementedError, "query has d=520"),
    ],
)  # fmt: skip
def test_what_is_refused(change, error, says):
    q, k, v = tensors((2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    with pytest.raises(error, match=f"^scaled_dot_product_attention: .*{says}"):
        scaled_dot_product_attention(**{"query": q, "key": k, "value": v} | change)
