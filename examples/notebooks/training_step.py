# %% [markdown]
# # A training step on a ragged batch
# Sequences of 4, 9 and 3 tokens follow one another; nothing is padded. Attention and its gradient are our kernels, the rest is JAX.

# %%
import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, DIM, WORDS = 64, 4, 16, 50
starts = jnp.array([0, 4, 13, 16])
tokens = jax.random.randint(jax.random.key(0), (16,), 0, WORDS)

# %% [markdown]
# A model of one layer: it learns which token comes next.

# %%
shapes = {"embed": (WORDS, WIDTH), "qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
keys = jax.random.split(jax.random.key(1), len(shapes))
params = {
    name: 0.1 * jax.random.normal(key, shape)
    for key, (name, shape) in zip(keys, shapes.items(), strict=True)
}
params["norm"] = jnp.ones(WIDTH)


def loss(params):
    x = params["embed"][tokens]
    qkv = ij.linear(ij.rms_norm(x, params["norm"]), params["qkv"]).reshape(-1, 3, HEADS, DIM)
    y = ij.flash_attn_varlen(
        qkv[:, 0], qkv[:, 1], qkv[:, 2], starts, cu_seqlens_k=starts, is_causal=True
    )
    x = x + ij.linear(y.reshape(x.shape), params["out"])
    scores = jax.nn.log_softmax(x @ params["embed"].T)
    follows = jnp.roll(tokens, -1)
    has_next = jnp.ones(16).at[starts[1:] - 1].set(0)  # a sequence's last token has none
    return -(scores[jnp.arange(16), follows] * has_next).sum() / has_next.sum()


# %% [markdown]
# One program computes the loss, the gradients and the new weights.


# %%
@jax.jit
def step(params):
    value, slopes = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, slope: p - 0.5 * slope, params, slopes)


losses = []
for _ in range(40):
    value, params = step(params)
    losses.append(float(value))
print(f"loss {losses[0]:.2f}, after {len(losses)} steps {losses[-1]:.2f}")
assert losses[-1] < 0.5 * losses[0] and np.isfinite(losses).all()
