"""tpu-inference's own attention on our kernels, in the process that test_tpu_inference.py has prepared."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import running
from flax import nnx
from test_jax_rpa_v3 import expected
from tpu_inference.layers.common.attention_backend import RPAAttentionBackend
from tpu_inference.layers.common.attention_interface import attention
from tpu_inference.layers.common.attention_metadata import AttentionMetadata
from tpu_inference.layers.common.quantization import quantize_kv
from tpu_inference.layers.jax.attention.attention import Attention
from tpu_inference.models.jax.llama3 import LlamaAttention

TOKENS, PAGES, PAGE = 16, 20, 8
RNG = np.random.default_rng(0)
TABLE = RNG.permutation(PAGES)[: 4 * 4].astype(np.int32)
# Tokens of each sequence, and how many decode: prompts, a decode step, and decoding beside a chunk and a new prompt.
STEPS = [((9, 5), 0), ((1, 1), 2), ((1, 6, 4), 1)]


def mesh(shards: int = 1) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[:shards]).reshape(1, shards)
    return jax.sharding.Mesh(devices, ("data", "model"))


def batches(causal: bool = True):
    """What tpu-inference's runner hands to a model at each of the steps, padded to four sequences."""
    lens = np.zeros(4, np.int32)
    for counts, decoding in STEPS:
        new = np.array([*counts, *[0] * (4 - len(counts))])
        starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
        places = [lens[i] + np.arange(n) for i, n in enumerate(counts)]
        positions = np.zeros(TOKENS, np.int32)
        positions[: starts[-1]] = np.concatenate(places)
        lens[: len(counts)] += counts
        yield AttentionMetadata(
            input_positions=jnp.asarray(positions),
            block_tables=jnp.asarray(TABLE),
            seq_lens=jnp.array(np.where(new > 0, lens, 0)),
            query_start_loc=jnp.asarray(starts),
            request_distribution=jnp.array([decoding, decoding, len(counts)], jnp.int32),
            use_causal_mask=causal,
        )


def empty_cache(hk: int, d: int, dtype, shards: int = 1) -> jax.Array:
    shape = RPAAttentionBackend().get_kv_cache_shape(PAGES, PAGE, hk, d, dtype)
    sharding = jax.sharding.PartitionSpec("data", None, "model")
    return jax.device_put(
        jnp.zeros(shape, dtype), jax.sharding.NamedSharding(mesh(shards), sharding)
    )


def check_interface(dtype, hk, d, cache_dtype=None, shards=1, causal=True, **options) -> None:
    """attention_interface.attention, which all models call: its steps are those of the formula, in f64."""
    cache_dtype = cache_dtype or dtype
    scales = {"k_scale": 0.5, "v_scale": 0.25} if cache_dtype != dtype else {}
    on = mesh(shards)
    run = jax.jit(
        lambda cache, q, k, v, metadata: attention(
            cache, q, k, v, metadata, on, **scales, **options
        ),
        donate_argnums=0,
    )
    cache = empty_cache(hk, d, cache_dtype, shards)
    names = {"attention_chunk_size": "sliding_window", "attn_logits_soft_cap": "soft_cap"}
    meant = {names.get(name, name): x for name, x in options.items()}
    for metadata in batches(causal):
        q, k, v = (
            jnp.asarray(RNG.standard_normal((TOKENS, n, d)), dtype) for n in (2 * hk, hk, hk)
        )
        if scales:
            k, v = quantize_kv(cache_dtype, k, v, *scales.values())
        # NumPy reads copies: an array that it has read is not written in place. Heads of K and V lie in turn in a cache of
        # kernel_hd64, too.
        form = jnp.copy(cache).reshape(PAGES, PAGE, -1, 2, d)
        lens, table = metadata.seq_lens, metadata.block_tables
        starts, distribution = metadata.query_start_loc, metadata.request_distribution
        want, want_cache = expected(
            (q, k, v, form, lens, table, starts, distribution),
            sm_scale=d**-0.5,
            use_causal_mask=causal,
            **scales,
            **meant,
        )
        places = [x.data.unsafe_buffer_pointer() for x in cache.addressable_shards]
        cache, out = run(cache, q, k, v, metadata)
        assert [x.data.unsafe_buffer_pointer() for x in cache.addressable_shards] == places
        running.check("paged_attention", np.asarray(out), want)
        got = np.asarray(jnp.copy(cache), np.float32).reshape(want_cache.shape)
        np.testing.assert_array_equal(got, want_cache)


def rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotary embedding of [t, h, d] from position 0, halves of a head paired."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turn = np.cos(angle), np.sin(angle)
    return np.concatenate([a * turn[0] - b * turn[1], b * turn[0] + a * turn[1]], -1)


def check_layer(layer, weights, call, theta, d) -> None:
    """A model's layer, fed each sequence in steps through its cache: the layer of the whole sequence, in f64."""
    wq, wk, wv, wo = (np.asarray(w, np.float64) for w in weights)
    whole = [RNG.standard_normal((20, 64)) for _ in range(3)]
    wants = []
    for x in whole:
        q, k, v = (np.einsum("tn,nhd->thd", x, w) for w in (wq, wk, wv))
        q, k = rotated(q, theta), rotated(k, theta)
        k, v = (np.repeat(y, q.shape[1] // k.shape[1], axis=1) for y in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * d**-0.5
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        w = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", w / w.sum(-1, keepdims=True), v)
        wants.append(np.einsum("thd,hdn->tn", out, wo))
    cache = empty_cache(wk.shape[1], d, jnp.float32)
    run = nnx.jit(call)
    for metadata in batches():
        starts, lens = np.asarray(metadata.query_start_loc), np.asarray(metadata.seq_lens)
        x, want = np.zeros((TOKENS, 64), np.float32), np.zeros((TOKENS, 64))
        for i in range(3):
            rows = slice(starts[i], starts[i + 1])
            seen = slice(lens[i] - (starts[i + 1] - starts[i]), lens[i])
            x[rows], want[rows] = whole[i][seen], wants[i][seen]
        with jax.set_mesh(mesh()):
            cache, out = run(layer, cache, jnp.asarray(x), metadata)
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def check_llama(d: int) -> None:
    config = SimpleNamespace(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=d,
        rope_theta=1e4,
        rope_scaling=None,
    )
    with jax.set_mesh(mesh()):
        layer = LlamaAttention(config, jnp.float32, nnx.Rngs(0), mesh(), "auto")
    projections = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    weights = [np.asarray(p.kernel[...]) for p in projections]
    check_layer(layer, weights, lambda layer, cache, x, metadata: layer(cache, x, metadata), 1e4, d)


def check_attention_module() -> None:
    with jax.set_mesh(mesh()):
        layer = Attention(
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=128,
            rope_theta=1e4,
            rope_scaling=None,
            dtype=jnp.float32,
            mesh=mesh(),
            kv_cache_dtype="auto",
            rngs=nnx.Rngs(0),
            random_init=True,
        )
    names = ("kernel_q_proj_DNH", "kernel_k_proj_DKH", "kernel_v_proj_DKH", "kernel_o_proj_NHD")
    weights = [np.asarray(getattr(layer, name)[...]) for name in names]
    call = lambda layer, cache, x, metadata: layer(x, False, cache, metadata)  # noqa: E731
    check_layer(layer, weights, call, 1e4, 128)


def main() -> None:
    check_interface(jnp.float32, 2, 128, shards=2, attention_chunk_size=4)
    check_interface(jnp.bfloat16, 1, 128, attn_logits_soft_cap=5.0)
    check_interface(jnp.float32, 2, 128, causal=False)
    check_interface(jnp.bfloat16, 2, 128, cache_dtype=jnp.float8_e4m3fn)
    check_interface(jnp.bfloat16, 1, 64, cache_dtype=jnp.float8_e4m3fn, sinks=jnp.array([1.0, 2.0]))
    check_llama(64)
    check_attention_module()
    if os.environ.get("INTARSIA_TEST_FULL") == "1":
        check_interface(jnp.float32, 2, 128)
        check_interface(jnp.float32, 2, 64, sinks=jnp.array([1.0, -1.0, 0.5, 2.0]))
        check_interface(jnp.bfloat16, 1, 64, attention_chunk_size=4)
        check_llama(128)
