"""Attention in Equinox on our ops: sequences of different lengths follow one another, without padding. Needs equinox.

python examples/equinox_layer.py
"""

import equinox as eqx
import intarsia.jax as ij
import jax
import jax.numpy as jnp


class Attention(eqx.Module):
    """Norm, then grouped-query attention, causal within each sequence."""

    norm: jax.Array
    qkv: jax.Array
    out: jax.Array
    heads: int = eqx.field(static=True)
    kv_heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, kv_heads: int, *, key: jax.Array):
        first, second = jax.random.split(key)
        rows = (heads + 2 * kv_heads) * width // heads
        self.norm = jnp.ones(width)
        self.qkv = jax.random.normal(first, (rows, width)) * width**-0.5
        self.out = jax.random.normal(second, (width, width)) * width**-0.5
        self.heads, self.kv_heads = heads, kv_heads

    def __call__(self, x: jax.Array, starts: jax.Array) -> jax.Array:
        qkv = ij.linear(ij.rms_norm(x, self.norm), self.qkv)
        qkv = qkv.reshape(len(x), -1, x.shape[1] // self.heads)
        q, k, v = jnp.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
        y = ij.flash_attn_varlen(q, k, v, starts, cu_seqlens_k=starts, is_causal=True)
        return x + ij.linear(y.reshape(x.shape), self.out)


@eqx.filter_jit
def step(layer: Attention, x: jax.Array, target: jax.Array, starts: jax.Array):
    loss, slopes = eqx.filter_value_and_grad(lambda a: jnp.mean((a(x, starts) - target) ** 2))(
        layer
    )
    return loss, eqx.apply_updates(layer, jax.tree.map(lambda slope: -0.1 * slope, slopes))


def main() -> list[float]:
    layer = Attention(64, heads=4, kv_heads=2, key=jax.random.key(0))
    x, target = jax.random.normal(jax.random.key(1), (2, 10, 64))
    losses = []
    for _ in range(20):
        loss, layer = step(layer, x, target, jnp.array([0, 4, 10]))
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
