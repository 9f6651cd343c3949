# %% [markdown]
# # A kernel under jit
# Each function of `intarsia.jax` is one custom call. XLA sees its shapes, fuses around it, and runs it where the program runs.

# %%
import intarsia.jax as ij
import jax
import jax.numpy as jnp
import numpy as np

x, residual = jax.random.normal(jax.random.key(0), (2, 128, 512))
weight = jnp.ones(512)


@jax.jit
def block(x, residual, weight):
    y, residual = ij.fused_add_rms_norm(x, residual, weight)
    return jax.nn.gelu(y), residual


y, summed = block(x, residual, weight)

# %% [markdown]
# The compiled program has one call of ours; the gelu is XLA's.

# %%
text = block.lower(x, residual, weight).compile().as_text()
print(text.count('custom_call_target="intarsia.fused_add_rms_norm"'), "call of fused_add_rms_norm")

# %% [markdown]
# It computes what plain `jnp` does.

# %%
plain = x + residual
plain = plain / jnp.sqrt(jnp.mean(plain**2, -1, keepdims=True) + 1e-6)
print("largest difference", float(np.abs(jax.nn.gelu(plain) - y).max()))
assert np.abs(jax.nn.gelu(plain) - y).max() < 1e-4

# %% [markdown]
# A wrong call raises when it is traced, and names the operand.

# %%
try:
    block(x, residual, jnp.ones(5))
except ValueError as error:
    print(error)

# %% [markdown]
# `vmap`, `grad` and sharding work as for `jnp`.

# %%
rows = jax.vmap(ij.rms_norm, in_axes=(0, None))(x.reshape(4, 32, 512), weight)
slope = jax.grad(lambda w: ij.rms_norm(x, w).sum())(weight)
print(rows.shape, slope.shape)
