"""Gated delta nets (Qwen 3.5's and Qwen3-Next's linear attention) as part of an XLA program.

A head's state S [dk, dv] becomes exp(g) S + k (beta (v - (exp(g) S)^T k))^T at each token, whose output is S^T q. Keys and queries have
length 1, queries are divided by sqrt(dk). Everything is in f32.
"""

import jax
import jax.numpy as jnp
import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention

from intarsia.vllm.chunks import CHUNK, decays
from intarsia.vllm.recurrence import Recurrence

_EPSILON = 1e-6
"""Added to the square of a key's or query's length."""


@QwenGatedDeltaNetAttention.register_oot
class XlaGatedDeltaNet(QwenGatedDeltaNetAttention):
    """One layer. Its tensors are those of a program that is being traced."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        from torchax import interop

        mixed, _ = self.in_proj_qkvz(hidden_states)
        gates, _ = self.in_proj_ba(hidden_states)
        if self.gqa_interleaved_layout:
            q, k, v, z, b, a = self.fix_query_key_value_ordering(mixed, gates)
            qkv = torch.cat([x.flatten(1) for x in (q, k, v)], dim=-1)
        else:
            values = self.value_dim // self.tp_size
            qkv, z = mixed.split([mixed.shape[1] - values, values], dim=-1)
            z = z.reshape(len(z), -1, self.head_v_dim)
            b, a = self.split_ba(gates)
        out = self._core(*(interop.jax_view(x) for x in (qkv, b, a)))
        return self._output_projection(interop.torch_view(out), z)

    def _core(self, qkv: jax.Array, b: jax.Array, a: jax.Array) -> jax.Array:
        """Convolution and recurrence: qkv [t, n], b and a [t, h], the result [t, h, dv]."""
        from torchax import interop

        heads, key_heads = b.shape[1], self.num_k_heads // self.tp_size
        layer = Recurrence(self, qkv, (heads, self.head_k_dim, self.head_v_dim))
        of_keys = key_heads * self.head_k_dim
        q, k, v = jnp.split(layer.inner, [of_keys, 2 * of_keys], axis=-1)
        each = heads // key_heads
        q, k = (
            jnp.repeat(_of_length_1(x.reshape(len(x), key_heads, -1)), each, axis=1) for x in (q, k)
        )
        log_decay, dt_bias = (
            interop.jax_view(x).astype(jnp.float32) for x in (self.A_log, self.dt_bias)
        )
        g = -jnp.exp(log_decay) * jax.nn.softplus(a.astype(jnp.float32) + dt_bias)
        beta = jax.nn.sigmoid(b.astype(jnp.float32))
        operands = (q * self.head_k_dim**-0.5, k, v.reshape(len(v), heads, -1), g, beta)
        return layer.run(operands, one_token_each, chunk).astype(qkv.dtype)


def _of_length_1(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + _EPSILON)


def one_token_each(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    states: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """A token for each request: q, k [r, h, dk], v [r, h, dv], g, beta [r, h], states [r, h, dk, dv] and the new ones."""
    decayed = states * jnp.exp(g)[..., None, None]
    seen = jnp.einsum("rhkv,rhk->rhv", decayed, k)
    new = decayed + k[..., None] * (beta[..., None] * (v - seen))[..., None, :]
    return jnp.einsum("rhkv,rhk->rhv", new, q), new


def chunk(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """q, k [h, c, dk], v [h, c, dv], g, beta [h, c], state [h, dk, dv]: outputs [h, c, dv], and the state behind them.

    Within a chunk the recurrence is a triangular system (the WY form, https://arxiv.org/abs/2412.06464 section 3.3).
    """
    decay, since, left = decays(g)
    product = jnp.einsum("hik,hjk->hij", k * beta[..., None], k)
    lower = -product * decay * jnp.tril(jnp.ones((CHUNK, CHUNK)), -1)
    # (1 - lower)^-1, since a power of it as high as the chunk is long is 0.
    inverse, power = jnp.eye(CHUNK) + lower, lower
    for _ in range(CHUNK.bit_length() - 2):
        power = power @ power
        inverse = inverse + inverse @ power
    from_before = jnp.einsum("hik,hkv->hiv", k * since[..., None], state)
    new = inverse @ (beta[..., None] * (v - from_before))
    scores = jnp.einsum("hik,hjk->hij", q, k) * decay
    out = jnp.einsum("hik,hkv->hiv", q * since[..., None], state) + scores @ new
    state = state * since[:, -1, None, None]
    return out, state + jnp.einsum("hik,hiv->hkv", k * left[..., None], new)
