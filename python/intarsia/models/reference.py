"""The same model in plain jax.numpy with a dense cache: the best that needs no custom call.

It exists to be compared with: for the tokens, and for the speed at which they come. The cache is
[b, hk, max_len, d], since XLA on the CPU attends to that four times faster than to [b, max_len, hk,
d] at 16 sequences.
"""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from intarsia._steps import compile_step, warm_up_runs
from intarsia.models.config import Experts, ModelConfig
from intarsia.models.linear import product
from intarsia.models.sampling import argmax
from intarsia.models.transformer import KvCache, cache_dtype
from intarsia.models.weights import Params

_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


@dataclasses.dataclass
class ReferenceResult:
    """Greedy completions, and the time that they took without compilation."""

    tokens: list[list[int]]
    compile_seconds: float
    prefill_seconds: float
    decode_seconds: float
    decode_tokens: int


def generate(
    config: ModelConfig,
    params: Params,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    kv_cache_dtype: str = "auto",
) -> ReferenceResult:
    """Generates greedily for all prompts in one batch, padded to the longest."""
    b, longest = len(prompts), max(map(len, prompts))
    padded = -(-longest // 16) * 16
    max_len = padded + max_tokens
    shape = (b, config.kv_heads, max_len, config.head_dim)
    dtype = cache_dtype(kv_cache_dtype, params["embed"].dtype)
    caches = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in params["layers"]]
    rope_tables = tuple(map(jnp.asarray, config.rope_tables(max_len)))
    lengths = jnp.array([len(prompt) for prompt in prompts], jnp.int32)
    tokens = np.zeros((b, padded), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt

    begin = time.perf_counter()
    token = jnp.zeros(b, jnp.int32)
    held = config, params, caches, rope_tables
    prefill = _compile(_prefill, tokens.size, *held, jnp.asarray(tokens), lengths)
    decode = _compile(_decode, b, *held, token, lengths)
    # What the warm-up writes is overwritten below.
    for _ in range(warm_up_runs()):
        _, _, caches = prefill(params, caches, rope_tables, jnp.asarray(tokens), lengths)
        _, _, caches = jax.block_until_ready(decode(params, caches, rope_tables, token, lengths))
    compiled = time.perf_counter()

    token, lengths, caches = prefill(params, caches, rope_tables, jnp.asarray(tokens), lengths)
    steps: list[np.ndarray] = []
    stopped = np.zeros(b, np.bool_)
    decode_tokens = 0
    while True:
        # As in the engine, tokens are read one step behind, so the device never waits.
        more = len(steps) + 1 < max_tokens
        following = decode(params, caches, rope_tables, token, lengths) if more else None
        steps.append(np.asarray(token))
        if len(steps) == 1:
            first = time.perf_counter()
        else:
            decode_tokens += int((~stopped).sum())
        stopped |= np.isin(steps[-1], config.eos_ids)
        if following is None or stopped.all():
            break
        token, lengths, caches = following
    return ReferenceResult(
        tokens=[_until_eos(row, config.eos_ids) for row in np.stack(steps, axis=1).tolist()],
        compile_seconds=compiled - begin,
        prefill_seconds=first - compiled,
        decode_seconds=time.perf_counter() - first,
        decode_tokens=decode_tokens,
    )


def _compile(function: Any, tokens: int, config: ModelConfig, *operands: Any) -> Any:
    jitted = jax.jit(functools.partial(function, config), donate_argnums=1)
    return compile_step(jitted.lower(*operands), tokens)


def _prefill(
    config: ModelConfig,
    params: Params,
    caches: list[KvCache],
    rope_tables: Sequence[jax.Array],
    tokens: jax.Array,
    lengths: jax.Array,
) -> tuple[jax.Array, jax.Array, list[KvCache]]:
    """Fills the caches from right-padded prompts [b, t] and chooses every first token."""
    b, t = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(t), (b, t))
    mask = jnp.tril(jnp.ones((t, t), jnp.bool_))[None]
    hidden, caches = _forward(config, params, caches, rope_tables, tokens, positions, mask)
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return argmax(_logits(params, last)), lengths, caches


def _decode(
    config: ModelConfig,
    params: Params,
    caches: list[KvCache],
    rope_tables: Sequence[jax.Array],
    token: jax.Array,
    lengths: jax.Array,
) -> tuple[jax.Array, jax.Array, list[KvCache]]:
    """Feeds one token a sequence and chooses the next."""
    mask = (jnp.arange(caches[0][0].shape[2]) <= lengths[:, None])[:, None]
    hidden, caches = _forward(
        config, params, caches, rope_tables, token[:, None], lengths[:, None], mask
    )
    return argmax(_logits(params, hidden[:, 0])), lengths + 1, caches


def _forward(
    config: ModelConfig,
    params: Params,
    caches: list[KvCache],
    rope_tables: Sequence[jax.Array],
    tokens: jax.Array,
    positions: jax.Array,
    mask: jax.Array,
) -> tuple[jax.Array, list[KvCache]]:
    """Runs the layers over tokens [b, t]; `mask` [b or 1, t, keys] says which keys each sees."""
    b, t = tokens.shape
    h, hk, d = config.heads, config.kv_heads, config.head_dim
    keys = jnp.arange(mask.shape[-1])
    angles = {
        rope: jnp.split(table[positions][:, :, None], 2, axis=-1)
        for rope, table in zip(config.ropes, rope_tables, strict=True)
    }
    norm = functools.partial(_norm, config)
    rows = jnp.arange(b)[:, None]
    residual = params["embed"][tokens]
    if config.embed_scale != 1.0:
        residual = residual * config.embed_scale
    hidden = norm(residual, params["first_norm"])
    new_caches = []
    for i, (weights, (key_cache, value_cache)) in enumerate(
        zip(params["layers"], caches, strict=True)
    ):
        kind = config.kind(i)
        seen = mask
        if kind.sliding_window is not None:
            seen = mask & (keys > positions[:, :, None] - kind.sliding_window)
        qkv = _linear(hidden, weights["wqkv"])
        if config.qkv_bias:
            qkv = qkv + weights["bqkv"]
        query, key, value = jnp.split(qkv.reshape(b, t, h + 2 * hk, d), (h, h + hk), axis=2)
        if config.qk_norm:
            query, key = norm(query, weights["q_norm"]), norm(key, weights["k_norm"])
        query, key = _rotate(query, *angles[kind.rope]), _rotate(key, *angles[kind.rope])
        key, value = _rounded(key, key_cache.dtype), _rounded(value, value_cache.dtype)
        key_cache = key_cache.at[rows, :, positions].set(key)
        value_cache = value_cache.at[rows, :, positions].set(value)
        new_caches.append((key_cache, value_cache))
        cached = key_cache, value_cache
        if t > 1:  # A whole prompt sees only itself; the rest of the cache is empty.
            cached = key.swapaxes(1, 2), value.swapaxes(1, 2)
        attended = _attend(config, query, *cached, seen, weights.get("sinks"))
        hidden = _linear(attended.reshape(b, t, h * d), weights["wo"])
        if config.o_bias:
            hidden = hidden + weights["bo"]
        if config.post_norms:
            hidden = norm(hidden, weights["attention_post_norm"])
        residual = residual + hidden
        hidden = norm(residual, weights["mlp_norm"])
        hidden = (_experts if config.experts else _mlp)(config, weights, hidden)
        if config.post_norms:
            hidden = norm(hidden, weights["mlp_post_norm"])
        residual = residual + hidden
        hidden = norm(residual, weights["next_norm"])
    return hidden, new_caches


def _mlp(config: ModelConfig, weights: Params, x: jax.Array) -> jax.Array:
    gate, up = jnp.split(_linear(x, weights["w_gate_up"]), 2, axis=-1)
    return _linear(_ACTIVATIONS[config.activation](gate) * up, weights["w_down"])


def _experts(config: ModelConfig, weights: Params, x: jax.Array) -> jax.Array:
    """Each token's experts, by `lax.ragged_dot` over rows sorted by expert."""
    mixture, rows = config.experts, x.reshape(-1, x.shape[-1])
    assert mixture is not None
    k, biases = mixture.per_token, mixture.biases
    scores = product(rows, weights["router"], jnp.float32)
    if biases:
        scores = scores + weights["router_bias"]
    shares, ids = jax.lax.top_k(jax.nn.softmax(scores), k)
    if mixture.renormalize:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    order = jnp.argsort(ids.reshape(-1), stable=True)
    expert = ids.reshape(-1)[order]
    sizes = jnp.bincount(expert, length=mixture.count).astype(jnp.int32)

    def multiply(x: jax.Array, role: str) -> jax.Array:
        precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
        out = jax.lax.ragged_dot(x, weights[role].swapaxes(1, 2), sizes, precision=precision)
        return out + weights[f"{role}_bias"][expert] if biases else out

    gate_up = multiply(rows[order // k], "experts_gate_up")
    activated = _gated(config, mixture, gate_up)
    out = multiply(activated, "experts_down")[jnp.argsort(order)].reshape(*ids.shape, -1)
    summed = jnp.einsum("tkn,tk->tn", out, shares, precision="highest")
    return summed.astype(x.dtype).reshape(x.shape)


def _gated(config: ModelConfig, mixture: Experts, gate_up: jax.Array) -> jax.Array:
    if config.activation != "swigluoai":
        gate, up = jnp.split(gate_up, 2, axis=-1)
        return _ACTIVATIONS[config.activation](gate) * up
    gate, up = gate_up[:, ::2], gate_up[:, 1::2]
    gate = jnp.minimum(gate, mixture.limit)
    up = jnp.clip(up, -mixture.limit, mixture.limit)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)


def _attend(
    config: ModelConfig,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    sinks: jax.Array | None,
) -> jax.Array:
    """Grouped-query attention over query [b, t, h, d] and key, value [b, hk, keys, d]."""
    b, t, h, d = query.shape
    hk = key.shape[1]
    key, value = key.astype(query.dtype), value.astype(query.dtype)
    # Queries of one key head are its rows: XLA's batched products are faster that way.
    grouped = query.reshape(b, t, hk, h // hk, d).swapaxes(1, 2).reshape(b, hk, -1, d)
    mask = jnp.repeat(mask, h // hk, axis=1)[:, None]  # rows are token by token, then by head
    scores = jnp.einsum("bkqd,bksd->bkqs", grouped, key, preferred_element_type=jnp.float32)
    scores = scores * (d**-0.5 if config.attention_scale is None else config.attention_scale)
    scores = jnp.where(mask, scores, -jnp.inf)
    if sinks is not None:  # a key of each head without a value
        sink = jnp.tile(sinks.reshape(hk, -1), (1, t)).astype(jnp.float32)
        sink = jnp.broadcast_to(sink[None, :, :, None], (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : key.shape[2]]
    attended = jnp.einsum("bkqs,bksd->bkqd", weights.astype(value.dtype), value)
    return attended.reshape(b, hk, t, h // hk, d).swapaxes(1, 2).reshape(b, t, h, d)


def _rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """What a cache of that dtype holds: 8-bit floats saturate."""
    if x.dtype == dtype:
        return x
    largest = jnp.finfo(dtype).max.astype(x.dtype)
    return jnp.clip(x, -largest, largest).astype(dtype)


def _logits(params: Params, hidden: jax.Array) -> jax.Array:
    table = params.get("lm_head", params["embed"])
    return product(hidden, table, jnp.float32)


def _linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    return product(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], weight.shape[0])


def _norm(config: ModelConfig, x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + config.rms_eps)
    if config.norm_in_f32:
        return (normed * weight).astype(x.dtype)
    return normed.astype(x.dtype) * weight


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def _until_eos(tokens: list[int], eos_ids: Sequence[int]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens
