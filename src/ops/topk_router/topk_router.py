"""topk_router: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np

# t tokens of e experts, of which each has top_k.
CASES = {
    "example": dict(tags="ci wire", t=3, e=8, top_k=2, renormalize=True),
    "qwen3_30b_a3b": dict(tags="ci", t=9, e=128, top_k=8, renormalize=True),
    "sigmoid_with_bias": dict(tags="ci", t=5, e=40, top_k=3, scoring="sigmoid", bias=True, scale=2.5),
    "deepseek_v3": dict(
        tags="ci",
        t=6,
        e=256,
        top_k=8,
        scoring="sigmoid",
        bias=True,
        renormalize=True,
        num_groups=8,
        topk_groups=4,
        scale=2.5,
    ),
    "deepseek_v2": dict(tags="ci", t=6, e=160, top_k=6, num_groups=8, topk_groups=3, scale=16.0),
    "softplus_sqrt": dict(tags="ci", t=4, e=33, top_k=33, scoring="softplus_sqrt", bias=True),
    "qwen3_30b_a3b_64": dict(tags="bench_cpu bench", t=64, e=128, top_k=8, renormalize=True),
    "qwen3_30b_a3b_4096": dict(tags="bench", t=4096, e=128, top_k=8, renormalize=True),
}  # fmt: skip


def arguments(rng, dtype, *, t, e, bias=False, **attributes):
    """Random operands in spec order, and attributes. Biases keep sums a good deal apart."""
    logits = rng.standard_normal((t, e)).astype(dtype)
    return [logits, rng.permutation(e).astype(np.float32) / 8 if bias else None], attributes


def scores_of(logits, scoring):
    """The score of each logit, in f64."""
    if scoring == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    if scoring == "softplus_sqrt":
        return np.sqrt(np.logaddexp(0, logits))
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def reference(
    logits,
    bias=None,
    top_k=1,
    scoring="softmax",
    renormalize=False,
    num_groups=1,
    topk_groups=1,
    scale=1.0,
):
    """The results in spec order. Numbers are f64."""
    scores = scores_of(logits, scoring)
    keys = logits if bias is None else scores + bias
    groups = keys.reshape(*keys.shape[:-1], num_groups, keys.shape[-1] // num_groups)
    best = -np.sort(-groups, axis=-1)
    of_groups = best[..., 0] if bias is None else best[..., :2].sum(-1)
    kept = np.argsort(-of_groups, axis=-1, kind="stable")[..., :topk_groups]
    is_kept = (np.arange(num_groups) == kept[..., None]).any(-2)
    keys = np.where(is_kept[..., None], groups, -np.inf).reshape(keys.shape)
    ids = np.argsort(-keys, axis=-1, kind="stable")[..., :top_k]
    weights = np.take_along_axis(scores, ids, -1)
    if renormalize:
        total = weights.sum(-1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return [scale * weights, ids]


def exact(*operands, **attributes):
    """The ids, which no rounding may change."""
    as_f64 = [None if x is None else x.astype(np.float64) for x in operands]
    return [None, reference(*as_f64, **attributes)[1].astype(np.int32)]


def floor(dtype_bytes, *, t, e, top_k, **_):
    """The least a call must do: (bytes moved, flops)."""
    return t * (dtype_bytes * e + 8 * top_k), 0  # weights are f32, ids i32


def plain_xla(
    logits,
    bias=None,
    top_k=1,
    scoring="softmax",
    renormalize=False,
    num_groups=1,
    topk_groups=1,
    scale=1.0,
):
    """The same in jax.numpy, as a user without this library would write it."""
    import jax
    import jax.numpy as jnp

    logits = logits.astype(jnp.float32)
    scores = {
        "softmax": jax.nn.softmax,
        "sigmoid": jax.nn.sigmoid,
        "softplus_sqrt": lambda x: jnp.sqrt(jax.nn.softplus(x)),
    }[scoring](logits)
    keys = scores if bias is None else scores + bias
    if topk_groups < num_groups:
        groups = keys.reshape(*keys.shape[:-1], num_groups, -1)
        of_groups = jax.lax.top_k(groups, 1 if bias is None else 2)[0].sum(-1)
        kept = jax.lax.top_k(of_groups, topk_groups)[1]
        is_kept = (jnp.arange(num_groups) == kept[..., None]).any(-2)
        keys = jnp.where(is_kept[..., None], groups, -jnp.inf).reshape(keys.shape)
    ids = jax.lax.top_k(keys, top_k)[1]
    weights = jnp.take_along_axis(scores, ids, -1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdims=True)
    return [scale * weights, ids]
