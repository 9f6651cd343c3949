"""Mamba 2's layers (Nemotron-H's) as part of an XLA program.

A head's state S [p, n] becomes exp(dt A) S + dt x B^T at each token, whose output is S C + D x. Everything is in f32.
"""

import jax
import jax.numpy as jnp
import torch
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from intarsia.vllm.chunks import decays
from intarsia.vllm.recurrence import Recurrence


@MambaMixer2.register_oot
class XlaMambaMixer2(MambaMixer2):
    """One layer. Its tensors are those of a program that is being traced."""

    def forward(
        self, hidden_states: torch.Tensor, mup_vector: torch.Tensor | None = None
    ) -> torch.Tensor:
        from torchax import interop

        projected, _ = self.in_proj(hidden_states)
        if mup_vector is not None:
            projected = projected * mup_vector
        sizes = [self.tped_intermediate_size, self.tped_conv_size, self.tped_dt_size]
        gate, mixed, dt = projected.split(sizes, dim=-1)
        out = interop.torch_view(self._core(interop.jax_view(mixed), interop.jax_view(dt)))
        rows, _ = self.out_proj(self.norm(out, gate))
        return rows

    def _core(self, mixed: jax.Array, dt: jax.Array) -> jax.Array:
        """Convolution and recurrence: mixed [t, n], dt [t, h], the result [t, h * p]."""
        from torchax import interop

        heads, groups = dt.shape[1], self.n_groups // self.tp_size
        layer = Recurrence(self, mixed, (heads, self.head_dim, self.ssm_state_size))
        of_heads, of_groups = heads * self.head_dim, groups * self.ssm_state_size
        x, b, c = jnp.split(layer.inner, [of_heads, of_heads + of_groups], axis=-1)
        x = x.reshape(len(x), heads, -1)
        b, c = (jnp.repeat(y.reshape(len(y), groups, -1), heads // groups, axis=1) for y in (b, c))
        decay, skip, dt_bias = (
            interop.jax_view(y).astype(jnp.float32) for y in (self.A, self.D, self.dt_bias)
        )
        dt = jax.nn.softplus(dt.astype(jnp.float32) + dt_bias)
        out = layer.run((dt[..., None] * x, b, c, dt * decay), one_token_each, chunk)
        return (out + skip[:, None] * x).reshape(len(out), -1).astype(mixed.dtype)


def one_token_each(
    x: jax.Array, b: jax.Array, c: jax.Array, g: jax.Array, states: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A token for each request: x [r, h, p], b, c [r, h, n], g [r, h], states [r, h, p, n] and the new ones."""
    new = states * jnp.exp(g)[..., None, None] + x[..., None] * b[..., None, :]
    return jnp.einsum("rhpn,rhn->rhp", new, c), new


def chunk(
    x: jax.Array, b: jax.Array, c: jax.Array, g: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """x [h, t, p], b, c [h, t, n], g [h, t], state [h, p, n]: outputs [h, t, p], and the state behind them."""
    decay, since, left = decays(g)
    scores = jnp.einsum("hin,hjn->hij", c, b) * decay
    out = jnp.einsum("hin,hpn->hip", c * since[..., None], state) + scores @ x
    state = state * since[:, -1, None, None]
    return out, state + jnp.einsum("hip,hin->hpn", x * left[..., None], b)
