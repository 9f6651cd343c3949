"""Attention in Keras 3 on our ops, by its JAX backend, trained by `fit`. Needs keras.

KERAS_BACKEND=jax python examples/keras_layer.py
"""

import intarsia.jax as ij
import keras
import numpy as np


class Attention(keras.layers.Layer):
    """Norm, then grouped-query causal attention of [batch, tokens, width]."""

    def __init__(self, heads: int, kv_heads: int, **more):
        super().__init__(**more)
        self.heads, self.kv_heads = heads, kv_heads

    def build(self, shape: tuple[int, ...]) -> None:
        width = shape[-1]
        rows = (self.heads + 2 * self.kv_heads) * width // self.heads
        self.norm = self.add_weight(shape=(width,), initializer="ones")
        self.qkv = self.add_weight(shape=(rows, width), initializer="glorot_uniform")
        self.out = self.add_weight(shape=(width, width), initializer="glorot_uniform")

    def call(self, x):
        b, t, width = x.shape
        rows = ij.linear(ij.rms_norm(x, self.norm.value), self.qkv.value)
        rows = rows.reshape(b, t, -1, width // self.heads)
        q, k, v = np.array([0, self.heads, self.heads + self.kv_heads])
        y = ij.dot_product_attention(
            rows[:, :, q:k], rows[:, :, k:v], rows[:, :, v:], is_causal=True
        )
        return x + ij.linear(y.reshape(x.shape), self.out.value)


def main() -> list[float]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((10, 64), batch_size=4), Attention(4, 2)])
    model.compile(keras.optimizers.SGD(5.0), loss="mse")
    x, target = np.random.default_rng(0).standard_normal((2, 8, 10, 64), np.float32)
    losses = model.fit(x, target, batch_size=4, epochs=10, verbose=0).history["loss"]
    print(f"loss {losses[0]:.3f}, after {len(losses)} epochs {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
