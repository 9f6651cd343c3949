"""A transformer block in Flax NNX on our ops, trained for a few steps on a ragged batch. Needs flax; runs on CPUs and GPUs.

python examples/flax_layer.py
"""

import intarsia.jax as ij
import jax
import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    """Norm, attention, norm, gated MLP: the sequences of a batch follow one another, without padding."""

    def __init__(self, width: int, heads: int, kv_heads: int, rngs: nnx.Rngs):
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        make = nnx.initializers.lecun_normal()
        self.norms = nnx.Param(jnp.ones((2, width)))
        self.qkv = nnx.Param(make(rngs.params(), ((heads + 2 * kv_heads) * self.dim, width)))
        self.out = nnx.Param(make(rngs.params(), (width, width)))
        self.gate_up = nnx.Param(make(rngs.params(), (4 * width, width)))
        self.down = nnx.Param(make(rngs.params(), (width, 2 * width)))

    def __call__(self, x: jax.Array, starts: jax.Array) -> jax.Array:
        qkv = ij.linear(ij.rms_norm(x, self.norms[0]), self.qkv[...])
        qkv = qkv.reshape(x.shape[0], -1, self.dim)
        q, k, v = jnp.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
        y = ij.flash_attn_varlen(q, k, v, starts, cu_seqlens_k=starts, is_causal=True)
        y = ij.linear(y.reshape(x.shape), self.out[...])
        y, x = ij.fused_add_rms_norm(y, x, self.norms[1])
        return x + ij.linear(ij.silu_and_mul(ij.linear(y, self.gate_up[...])), self.down[...])


@nnx.jit
def step(block: Block, x: jax.Array, target: jax.Array, starts: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(lambda b: jnp.mean((b(x, starts) - target) ** 2))(block)
    nnx.update(block, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(block), gradients))
    return loss


def main() -> list[float]:
    block = Block(64, heads=4, kv_heads=2, rngs=nnx.Rngs(0))
    x, target = jax.random.normal(jax.random.key(1), (2, 10, 64))
    losses = [float(step(block, x, target, jnp.array([0, 4, 10]))) for _ in range(20)]
    print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
