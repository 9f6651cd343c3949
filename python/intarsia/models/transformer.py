"""A decoder-only transformer as one pure function over a ragged batch of tokens.

Every norm, rotation, activation, cache write and attention is an op of the namespace `ops`, which is
`intarsia.jax` or anything with its functions; but what `linear.py` makes part of a linear layer. The embedding is
jax.numpy. `ModelConfig` says what Llama, Qwen2, Gemma 3 and mixtures of experts have different.
"""

import functools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

import intarsia.jax as ij
from intarsia._steps import on_gpu
from intarsia.models import vocabulary
from intarsia.models.choices import KV_CACHE_DTYPES
from intarsia.models.config import LayerKind, ModelConfig, Rope
from intarsia.models.experts import experts
from intarsia.models.linear import (
    Branch,
    Rows,
    RowsToNorm,
    Shares,
    Weight,
    can_fuse,
    fused,
    linear,
    norm_for,
)
from intarsia.models.memory import allocating
from intarsia.models.parallel import EXCHANGE, ModelParallel
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
    rope_tables: dict[Rope, jax.Array]
    batch: Batch
    decode: bool
    exchange: ij.Exchange | None

    def norm(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """Norms rows."""
        return cast(jax.Array, self.add_and_norm(x, None, weight, None)[0])

    def can_fuse(self, weight: Weight | None) -> bool:
        """Whether a linear layer is one op with what is around it."""
        tokens = len(self.batch.tokens)
        return self.config.mesh_axis is None and can_fuse(self.ops, weight, tokens)

    def gains_by_chain(self) -> bool:
        """Whether kernels are so short that it counts how soon the next one begins (docs/adr/0029-chains.md)."""
        return self.decode and self.ops is ij and on_gpu() and self.config.mesh_axis is None

    def add_and_norm(
        self,
        x: jax.Array,
        residual: jax.Array | None,
        weight: jax.Array,
        feeds: Weight | None,
        *,
        is_share: bool = False,
    ) -> tuple[Rows, jax.Array]:
        """Adds x, or all devices' shares of it, to the residual stream, and norms that for the layer whose weight is `feeds`."""
        config = self.config
        if residual is None and self.can_fuse(feeds):
            return RowsToNorm(x, weight, config.rms_eps), x
        settings = {"eps": config.rms_eps, "rounding": config.norm_rounding}
        shares = Shares(config.mesh_axis, self.exchange) if is_share and config.mesh_axis else None
        return norm_for(self.ops, feeds, x, residual, weight, shares, **settings)

    def linear(self, x: Rows, weight: Weight) -> jax.Array:
        """A linear layer."""
        return linear(self.ops, x, weight)

    def branch(self, x: jax.Array, weight: Weight) -> jax.Array | Branch:
        """The linear layer that ends a branch of the network."""
        return Branch(x, weight) if self.can_fuse(weight) else self.linear(x, weight)

    def end_branch(
        self,
        share: jax.Array | Branch,
        post_norm: jax.Array | None,
        residual: jax.Array,
        weight: jax.Array,
        feeds: Weight | None,
        *,
        is_share: bool = True,
    ) -> tuple[Rows, jax.Array]:
        """`add_and_norm` of a branch summed over the devices, and normed first in a model with post norms."""
        if isinstance(share, Branch):
            if post_norm is None:
                return self.add_and_norm(fused(*share, residual), None, weight, feeds)
            share = self.linear(*share)
        if post_norm is None:
            return self.add_and_norm(share, residual, weight, feeds, is_share=is_share)
        axis = self.config.mesh_axis if is_share else None
        branch = share if axis is None else lax.psum(share, axis)
        return self.add_and_norm(self.norm(branch, post_norm), residual, weight, feeds)


def cache_dtype(kv_cache_dtype: str, dtype: Any) -> Any:
    """The dtype of caches of a model whose activations have `dtype`.

    Raises:
        ValueError: There is no such `kv_cache_dtype`.
    """
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        expected = ", ".join(KV_CACHE_DTYPES)
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}, expected one of {expected}")
    return jnp.dtype(KV_CACHE_DTYPES[kv_cache_dtype] or dtype)


def make_caches(
    config: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: Any,
    *,
    stacked: bool = False,
    parallel: ModelParallel | None = None,
) -> list[KvCache] | KvCache:
    """Returns empty paged caches: a [p, s, hk, d] pair a layer, or one [l, p, s, hk, d] pair.

    Raises:
        MemoryError: There is no memory for them.
    """
    shares, sharding = (parallel.heads, parallel.cache_sharding(stacked)) if parallel else (1, None)
    shape = (num_pages, page_size, shares * config.kv_heads, config.head_dim)

    def zeros_pair(shape: tuple[int, ...]) -> KvCache:
        # Two arrays, never one twice: both are donated.
        return tuple(jnp.zeros(shape, dtype, device=sharding) for _ in range(2))

    size = 2 * config.layers * math.prod(shape) * jnp.dtype(dtype).itemsize / 1e6
    with allocating(f"a KV cache of {size:.1f} MB, {num_pages} pages of {page_size} slots"):
        if stacked:
            return zeros_pair((config.layers, *shape))
        return [zeros_pair(shape) for _ in range(config.layers)]


def stack_layers(params: Params) -> Params:
    """Returns `params` with one stacked array a role instead of a list of layers.

    Raises:
        ValueError: Layers have weights in different formats.
    """

    def form(layer: Params) -> Any:
        leaves, structure = jax.tree.flatten(layer)
        return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)

    if len(set(map(form, params["layers"]))) > 1:
        raise ValueError(
            "scan_layers: the file's layers have weights in different formats, expected one for all: "
            "load the model with quantize=None (--quantize none)"
        )
    return params | {"layers": jax.tree.map(lambda *arrays: jnp.stack(arrays), *params["layers"])}


def forward(
    ops: ModuleType,
    config: ModelConfig,
    params: Params,
    caches: list[KvCache] | KvCache,
    rope_tables: Sequence[jax.Array],
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
        rope_tables: `ModelConfig.rope_tables`, f32 [max_len, d] each.
        batch: The tokens; with `decode` there is exactly one a sequence.
        decode: Chooses the attention that is made for one query a sequence.

    Returns:
        The final hidden rows [t, n], normed, and the updated caches.
    """
    tables = dict(zip(config.ropes, rope_tables, strict=True))
    step = _Step(ops, config, tables, batch, decode, params.get(EXCHANGE))
    residual = vocabulary.embed(config, params, batch.tokens)
    if config.embed_scale != 1.0:
        residual = residual * config.embed_scale  # in the activations' dtype, as Gemma was trained
    layers = params["layers"]
    if not isinstance(layers, list):
        return _scan_layers(step, params["first_norm"], layers, residual, caches)
    run = functools.partial(_run_layers, step, params["first_norm"], layers)
    return (ij.chain(run) if step.gains_by_chain() else run)(residual, caches)


def _run_layers(
    step: _Step,
    first_norm: jax.Array,
    layers: list[Params],
    residual: jax.Array,
    caches: list[KvCache],
) -> tuple[jax.Array, list[KvCache]]:
    """Runs layers one after the other: the final hidden rows, normed, and the updated caches."""
    feeds = [weights["wqkv"] for weights in layers]
    hidden, residual = step.add_and_norm(residual, None, first_norm, feeds[0])
    new_caches = []
    for i, (weights, cache) in enumerate(zip(layers, caches, strict=True)):
        following = feeds[i + 1] if i + 1 < len(layers) else None
        hidden, residual, cache = _block(
            step, step.config.kind(i), weights, following, hidden, residual, cache
        )
        new_caches.append(cache)
    assert isinstance(hidden, jax.Array)
    return hidden, new_caches


def _scan_layers(
    step: _Step, first_norm: jax.Array, layers: Params, residual: jax.Array, caches: KvCache
) -> tuple[jax.Array, KvCache]:
    """Runs stacked layers in a loop whose body is one period of `config.layer_kinds`.

    So each layer's window and rope are known when it is compiled. The layers that are left over
    when the pattern does not fit a whole number of times follow the loop. (MaxText scans over
    Gemma 3's layers in the same way.)
    """
    config = step.config
    period = len(config.layer_kinds)
    looped = config.layers // period * period

    def run(carry: Any, kind: LayerKind, layer: jax.Array) -> Any:
        weights = jax.tree.map(
            lambda stack: lax.dynamic_index_in_dim(stack, layer, keepdims=False), layers
        )
        return _block(step, kind, weights, weights["wqkv"], *carry, layer)

    def run_period(carry: Any, first: jax.Array) -> Any:
        for i, kind in enumerate(config.layer_kinds):
            carry = run(carry, kind, first + i)
        return carry, None

    carry = (*step.add_and_norm(residual, None, first_norm, layers["wqkv"]), caches)
    carry, _ = lax.scan(run_period, carry, jnp.arange(0, looped, period, dtype=jnp.int32))
    for i in range(looped, config.layers):
        carry = run(carry, config.kind(i), jnp.int32(i))
    hidden, residual, caches = carry
    if not isinstance(hidden, jax.Array):
        # The loop's body is one for all layers, the last included, whose norm feeds no linear layer.
        hidden = step.norm(residual, layers["next_norm"][-1])
    return hidden, caches


def _block(
    step: _Step,
    kind: LayerKind,
    weights: Params,
    following: Weight | None,
    hidden: Rows,
    residual: jax.Array,
    cache: KvCache,
    layer: jax.Array | None = None,
) -> tuple[Rows, jax.Array, KvCache]:
    """One transformer block, from its normed input to the normed input of what follows.

    Ending with the next norm, not beginning with its own, makes all blocks alike: each adds to the
    residual and norms in one fused op, and the model's last norm is no special case. `following` is
    the weight that reads the result, None after the last block.
    """
    share, cache = _attention(step, kind, weights, hidden, cache, layer)
    post_norm, norm = weights.get("attention_post_norm"), weights["mlp_norm"]
    feeds, spread = weights.get("w_gate_up"), step.config.heads_spread
    hidden, residual = step.end_branch(share, post_norm, residual, norm, feeds, is_share=spread)
    share = _mlp(step, weights, hidden)
    post_norm, norm = weights.get("mlp_post_norm"), weights["next_norm"]
    hidden, residual = step.end_branch(share, post_norm, residual, norm, following)
    return hidden, residual, cache


def _attention(
    step: _Step,
    kind: LayerKind,
    weights: Params,
    hidden: Rows,
    cache: KvCache,
    layer: jax.Array | None,
) -> tuple[jax.Array | Branch, KvCache]:
    """Projects to heads, writes the new keys and values, attends, and projects back: this device's share of that."""
    ops, config, batch = step.ops, step.config, step.batch
    h, hk, d = config.heads, config.kv_heads, config.head_dim
    qkv = step.linear(hidden, weights["wqkv"])
    t = qkv.shape[0]
    if config.qkv_bias:
        qkv = qkv + weights["bqkv"]
    qkv, table = qkv.reshape(t, h + 2 * hk, d), step.rope_tables[kind.rope]
    norms: dict[str, Any] = {}
    if config.qk_norm:
        norms = dict(q_weight=weights["q_norm"], k_weight=weights["k_norm"], eps=config.rms_eps)
    query, cache = ops.rotary_embedding_and_cache(
        batch.positions, qkv, table, cache, batch.slots, num_heads=h, layer=layer, **norms
    )
    attended = _attend(step, kind, query, cache, layer, weights.get("sinks"))
    rows = attended.reshape(t, h * d)
    if config.o_bias:
        return step.linear(rows, weights["wo"]) + weights["bo"], cache
    return step.branch(rows, weights["wo"]), cache


def _attend(
    step: _Step,
    kind: LayerKind,
    query: jax.Array,
    cache: KvCache,
    layer: jax.Array | None,
    sinks: jax.Array | None,
) -> jax.Array:
    ops, batch = step.ops, step.batch
    scale, window = step.config.attention_scale, kind.sliding_window
    if step.decode:
        return ops.paged_attention(
            query,
            cache,
            batch.seqused_k,
            batch.block_table,
            batch.cu_seqlens_q,
            scale=scale,
            sliding_window=window,
            sinks=sinks,
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
        sinks=sinks,
        layer=layer,
    )


def _mlp(step: _Step, weights: Params, hidden: Rows) -> jax.Array | Branch:
    """The gated feed-forward layer, or this device's share of it."""
    if step.config.experts:
        assert isinstance(hidden, jax.Array)
        return experts(step.ops, step.config, weights, hidden, step.batch.slots >= 0)
    gate_up, activation = weights["w_gate_up"], step.config.activation
    if step.can_fuse(gate_up):
        activated = fused(hidden, gate_up, gating=activation)
    else:
        activated = getattr(step.ops, f"{activation}_and_mul")(step.linear(hidden, gate_up))
    return step.branch(activated, weights["w_down"])
