"""The Llama architecture as one pure function over a ragged batch of tokens.

Every norm, rotation, activation, cache write and attention is an op of the namespace `ops`
(`intarsia.jax`, or anything with its functions); matrix products and the embedding are jax.numpy.
"""

from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from intarsia.models.config import ModelConfig
from intarsia.models.weights import Params

KvCache = tuple[jax.Array, jax.Array]


class Batch(NamedTuple):
    """The tokens of one step, sequence after sequence, and where their keys and values live.

    Attributes:
        tokens: Token ids, int32 [t]; rows from `cu_seqlens_q[b]` on are padding.
        positions: Place of each token in its sequence, int32 [t].
        slots: Cache slot that each token's key and value go to, int32 [t]; -1 writes nothing.
        cu_seqlens_q: Where each sequence's tokens begin, and their number, int32 [b + 1].
        seqused_k: Length of each sequence with this step's tokens, int32 [b].
        block_table: Pages of each sequence, int32 [b, m].
    """

    tokens: jax.Array
    positions: jax.Array
    slots: jax.Array
    cu_seqlens_q: jax.Array
    seqused_k: jax.Array
    block_table: jax.Array


class _Step(NamedTuple):
    """What every block of one step shares."""

    ops: ModuleType
    config: ModelConfig
    rope_table: jax.Array
    batch: Batch
    decode: bool


def make_caches(
    config: ModelConfig, num_pages: int, page_size: int, dtype: Any, *, stacked: bool = False
) -> list[KvCache] | KvCache:
    """Returns empty paged caches: a [p, s, hk, d] pair a layer, or one [l, p, s, hk, d] pair."""
    shape = (num_pages, page_size, config.kv_heads, config.head_dim)
    if stacked:
        return _zeros_pair((config.layers, *shape), dtype)
    return [_zeros_pair(shape, dtype) for _ in range(config.layers)]


def warm_up_runs() -> int:
    """How often a compiled step runs before it is timed or served.

    The first run prepares kernels and buffers. On a GPU, XLA launches that one call by call, records
    the next as a graph, and replays it from then on.
    """
    return 1 if jax.devices()[0].platform == "cpu" else 3


def stack_layers(params: Params) -> Params:
    """Returns `params` with one stacked array a role instead of a list of layers."""
    return params | {"layers": jax.tree.map(lambda *arrays: jnp.stack(arrays), *params["layers"])}


def linear(x: jax.Array, weight: jax.Array, **kwargs: Any) -> jax.Array:
    """Multiplies x [t, in] by weight [out, in], in full precision for f32 also on a GPU."""
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=precision, **kwargs)


def logits(params: Params, hidden: jax.Array) -> jax.Array:
    """Projects final hidden rows [b, n] to f32 logits [b, vocab]."""
    table = params.get("lm_head", params["embed"])
    return linear(hidden, table, preferred_element_type=jnp.float32)


def forward(
    ops: ModuleType,
    config: ModelConfig,
    params: Params,
    caches: list[KvCache] | KvCache,
    rope_table: jax.Array,
    batch: Batch,
    *,
    decode: bool,
) -> tuple[jax.Array, list[KvCache] | KvCache]:
    """Runs all layers over one step's tokens.

    Args:
        ops: Where the kernels come from.
        config: The model's hyperparameters.
        params: Its weights; stacked layers (`stack_layers`) run under `lax.scan`.
        caches: What `make_caches` gave, stacked if and only if the layers are.
        rope_table: `ModelConfig.rope_table`, f32 [max_len, d].
        batch: The tokens; with `decode` there is exactly one a sequence.
        decode: Chooses the attention that is made for one query a sequence.

    Returns:
        The final hidden rows [t, n], normed, and the updated caches.
    """
    residual = params["embed"][batch.tokens]
    hidden = ops.rms_norm(
        residual, params["first_norm"], eps=config.rms_eps, rounding="before_weight"
    )

    step = _Step(ops, config, rope_table, batch, decode)
    if isinstance(params["layers"], list):
        new_caches = []
        for weights, cache in zip(params["layers"], caches, strict=True):
            hidden, residual, cache = _block(step, weights, hidden, residual, cache)
            new_caches.append(cache)
        return hidden, new_caches

    def scanned(carry, xs):
        weights, layer = xs
        return _block(step, weights, *carry, layer), None

    layers = jnp.arange(config.layers, dtype=jnp.int32)
    carry, _ = lax.scan(scanned, (hidden, residual, caches), (params["layers"], layers))
    return carry[0], carry[2]


def _block(
    step: _Step,
    weights: Params,
    hidden: jax.Array,
    residual: jax.Array,
    cache: KvCache,
    layer: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, KvCache]:
    """One transformer block, from its normed input to the normed input of what follows.

    Ending with the next norm, not beginning with its own, makes all blocks alike: each adds to the
    residual and norms in one fused op, and the model's last norm is no special case.
    """
    ops, config, batch = step.ops, step.config, step.batch
    t, h, hk, d = hidden.shape[0], config.heads, config.kv_heads, config.head_dim
    norm = {"eps": config.rms_eps, "rounding": "before_weight"}

    qkv = linear(hidden, weights["wqkv"])
    if config.qkv_bias:
        qkv = qkv + weights["bqkv"]
    query, key, value = jnp.split(qkv.reshape(t, h + 2 * hk, d), (h, h + hk), axis=1)
    query, key = ops.rotary_embedding(batch.positions, query, step.rope_table, key)
    cache = ops.reshape_and_cache_flash(key, value, cache, batch.slots, layer=layer)
    attention = _attend(step, query, cache, layer)
    hidden = linear(attention.reshape(t, h * d), weights["wo"])
    hidden, residual = ops.fused_add_rms_norm(hidden, residual, weights["mlp_norm"], **norm)

    hidden = ops.silu_and_mul(linear(hidden, weights["w_gate_up"]))
    hidden = linear(hidden, weights["w_down"])
    hidden, residual = ops.fused_add_rms_norm(hidden, residual, weights["next_norm"], **norm)
    return hidden, residual, cache


def _attend(step: _Step, query: jax.Array, cache: KvCache, layer: jax.Array | None) -> jax.Array:
    ops, config, batch = step.ops, step.config, step.batch
    scale, window = config.head_dim**-0.5, config.sliding_window
    if step.decode:
        return ops.paged_attention(
            query,
            cache,
            batch.seqused_k,
            batch.block_table,
            batch.cu_seqlens_q,
            scale=scale,
            sliding_window=window,
            layer=layer,
        )
    return ops.flash_attn_varlen(
        query,
        *cache,
        batch.cu_seqlens_q,
        seqused_k=batch.seqused_k,
        block_table=batch.block_table,
        scale=scale,
        is_causal=True,
        window=(-1, -1) if window is None else (window - 1, 0),
        layer=layer,
    )


def _zeros_pair(shape: tuple[int, ...], dtype: Any) -> KvCache:
    # Two arrays, never one twice: both are donated.
    return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)
