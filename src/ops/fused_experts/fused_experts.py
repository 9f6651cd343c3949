"""fused_experts: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

import numpy as np

# Numbers that lie near a tie between two of T are rounded to the other one, here and there.
TOLERANCE = {"f32": 2e-6, "f16": 8e-4, "bf16": 6e-3}

# t tokens of n numbers, of which each has k of e experts with i columns. `routing`: balanced, zipf (some experts have
# many tokens), one (all have the same experts), or hostile (ids that are no experts, too). `g`: ids in all, of which a map
# finds e.
CASES = {
    "example": dict(tags="ci wire", t=3, n=16, i=24, e=4, k=2),
    "qwen3_like": dict(tags="ci", t=21, n=64, i=48, e=16, k=8, routing="zipf"),
    "gpt_oss_like": dict(
        tags="ci beyond_plain", t=9, n=40, i=33, e=6, k=4, activation="swigluoai", biases=True
    ),
    "gelu_of_one_token": dict(
        tags="ci", t=1, n=72, i=40, e=8, k=2, activation="gelu_tanh", weights="T"
    ),
    "one_token_of_gpt_oss": dict(
        tags="ci beyond_plain", t=1, n=40, i=24, e=6, k=4, activation="swigluoai", biases=True
    ),
    "two_tokens_of_many_experts": dict(
        tags="ci beyond_plain", t=2, n=64, i=48, e=128, k=8, routing="hostile", biases=True
    ),
    "some_experts": dict(tags="ci beyond_plain", t=14, n=32, i=24, e=3, k=2, g=8, biases=True),
    "ids_of_nobody": dict(tags="ci beyond_plain", t=12, n=24, i=16, e=5, k=3, routing="hostile"),
    "weights_on_input": dict(
        tags="ci beyond_plain",
        t=10,
        n=32,
        i=40,
        e=4,
        k=1,
        biases=True,
        apply_router_weight_on_input=True,
    ),
    "all_to_the_same": dict(tags="ci", t=70, n=48, i=32, e=5, k=2, routing="one"),
    "clamped_swiglu": dict(
        tags="ci beyond_plain",
        t=5,
        n=32,
        i=16,
        e=4,
        k=2,
        activation="swigluoai",
        limit=0.5,
        alpha=2.0,
    ),
    "smollm2_cut_32": dict(tags="bench_cpu", t=32, n=576, i=192, e=8, k=8),
    "qwen3_30b_a3b_1": dict(tags="bench", t=1, n=2048, i=768, e=128, k=8),
    "qwen3_30b_a3b_64": dict(tags="bench", t=64, n=2048, i=768, e=128, k=8),
    "qwen3_30b_a3b_512": dict(tags="bench", t=512, n=2048, i=768, e=128, k=8),
    "gpt_oss_20b_16": dict(
        tags="bench beyond_plain",
        t=16,
        n=2880,
        i=2880,
        e=32,
        k=4,
        activation="swigluoai",
        biases=True,
    ),
    "mixtral_64": dict(tags="bench", t=64, n=4096, i=14336, e=8, k=2),
}


def route(rng, t, e, k, routing):
    """Which experts each token has: [t, k], no expert twice but in hostile ones."""
    if routing == "one":
        return np.tile(rng.permutation(e)[:k], (t, 1))
    if routing == "hostile":
        return rng.choice([-(2**31), -1, *range(e), e, 2**31 - 1], (t, k))
    shares = np.ones(e) if routing == "balanced" else 1 / np.arange(1, e + 1)
    return np.argsort(-(np.log(shares) + rng.gumbel(size=(t, e))), axis=-1)[:, :k]


def arguments(
    rng,
    dtype,
    *,
    t,
    n,
    i,
    e,
    k,
    g=None,
    routing="balanced",
    biases=False,
    weights="f32",
    **attributes,
):
    """Random operands in spec order, and attributes."""

    def normal(*shape, size=1.0):
        return (size * rng.standard_normal(shape)).astype(dtype)

    ids = route(rng, t, g or e, k, routing).astype(np.int32)
    mapped = None
    if g:
        mapped = np.full(g, -1, np.int32)
        mapped[rng.permutation(g)[:e]] = np.arange(e)
    shares = rng.uniform(0.2, 1.0, (t, k)).astype(dtype if weights == "T" else np.float32)
    operands = [
        normal(t, n),
        normal(e, 2 * i, n, size=n**-0.5),
        normal(e, n, i, size=i**-0.5),
        shares,
        ids,
        normal(e, 2 * i) if biases else None,
        normal(e, n) if biases else None,
        mapped,
    ]
    return operands, attributes


def experts_of(ids, experts, expert_map=None):
    """The expert of each id, -1 where there is none."""
    ids = np.asarray(ids, np.int64)
    if expert_map is not None:
        known = (ids >= 0) & (ids < len(expert_map))
        found = np.append(np.asarray(expert_map, np.int64), -1)
        ids = found[np.where(known, ids, len(expert_map))]
    return np.where((ids >= 0) & (ids < experts), ids, -1)


def activate(hidden, activation, limit, alpha, to_t):
    """Gate and up to their product."""
    if activation == "swigluoai":
        gate, up = np.minimum(hidden[..., ::2], limit), np.clip(hidden[..., 1::2], -limit, limit)
        return to_t(gate * np.exp(-np.logaddexp(0, -alpha * gate)) * (up + 1))
    gate, up = np.split(hidden, 2, axis=-1)
    slope = 1.0 if activation == "silu" else 2 * np.sqrt(2 / np.pi) * (1 + 0.044715 * gate**2)
    return to_t(to_t(gate * np.exp(-np.logaddexp(0, -slope * gate))) * up)


def _same(x):
    return x


def reference(
    x,
    w1,
    w2,
    weights,
    ids,
    w1_bias=None,
    w2_bias=None,
    expert_map=None,
    activation="silu",
    limit=7.0,
    alpha=1.702,
    apply_router_weight_on_input=False,
    to_t=_same,
):
    """The results in spec order. Numbers are f64; `to_t` rounds to T."""
    k, n = ids.shape[-1], x.shape[-1]
    t = int(np.prod(x.shape[:-1]))
    experts = experts_of(ids, len(w1), expert_map).reshape(t, k)
    tokens, shares = x.reshape(t, n), weights.reshape(t, k)
    out = np.zeros(tokens.shape)
    for e in np.unique(experts[experts >= 0]):
        token, j = np.nonzero(experts == e)
        share = shares[token, j][:, None]
        hidden, first = tokens[token] @ w1[e].T, 0 if w1_bias is None else w1_bias[e]
        if apply_router_weight_on_input:
            hidden, share = share * to_t(hidden) + first, 1
        else:
            hidden = to_t(hidden + first)
        down = activate(hidden, activation, limit, alpha, to_t) @ w2[e].T
        np.add.at(out, token, share * to_t(down + (0 if w2_bias is None else w2_bias[e])))
    return [out.reshape(x.shape)]


def rounded(*operands, **attributes):
    """With the roundings between the steps: where terms cancel they are all that is left."""
    dtype = operands[0].dtype

    def to_t(x):
        return x.astype(np.float32).astype(dtype).astype(np.float64)

    is_float = [x is not None and not np.issubdtype(x.dtype, np.integer) for x in operands]
    wide = [x.astype(np.float64) if has else x for x, has in zip(operands, is_float, strict=True)]
    with np.errstate(over="ignore"):
        return reference(*wide, **attributes, to_t=to_t)


def floor(dtype_bytes, *, t, n, i, e, k, g=None, routing="balanced", **_):
    """The least a call must do: (bytes moved, flops)."""
    ids = route(np.random.default_rng(0), t, g or e, k, routing)
    here = ids[(ids >= 0) & (ids < e)]
    touched = len(np.unique(here)) * 3 * n * i
    return dtype_bytes * (touched + 2 * t * n), 6 * here.size * n * i


def plain_xla(
    x,
    w1,
    w2,
    weights,
    ids,
    w1_bias=None,
    w2_bias=None,
    expert_map=None,
    activation="silu",
    limit=7.0,
    alpha=1.702,
    apply_router_weight_on_input=False,
):
    """The same in jax.lax, as a user without this library would write it: no biases, each id an expert."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    del w1_bias, w2_bias, expert_map, limit, alpha, apply_router_weight_on_input
    k, e = ids.shape[-1], w1.shape[0]
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    order = jnp.argsort(ids.reshape(-1), stable=True)
    sizes = jnp.bincount(ids.reshape(-1), length=e).astype(jnp.int32)
    rows = x.reshape(-1, x.shape[-1])[order // k]
    hidden = lax.ragged_dot(rows, w1.swapaxes(1, 2), sizes, precision=precision)
    gate, up = jnp.split(hidden.astype(jnp.float32), 2, axis=-1)
    act = jax.nn.silu if activation == "silu" else jax.nn.gelu
    gated = (act(gate) * up).astype(x.dtype)
    down = lax.ragged_dot(gated, w2.swapaxes(1, 2), sizes, precision=precision)
    terms = jnp.zeros(down.shape, jnp.float32).at[order].set(down.astype(jnp.float32))
    weighted = terms.reshape(*ids.shape, -1) * weights.astype(jnp.float32)[..., None]
    return [weighted.sum(-2).astype(x.dtype)]
