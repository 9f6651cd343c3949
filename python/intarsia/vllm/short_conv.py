"""Causal convolutions of a few taps, and LFM2's gated short ones, as part of an XLA program.

A layer's output is C * conv(B * x); its state are the last inputs of the convolution.
"""

import jax
import jax.numpy as jnp
import torch
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.short_conv import ShortConv

from intarsia.vllm.attention import TracedMetadata
from intarsia.vllm.chunks import request_of_token
from intarsia.vllm.states import Form, read_states, write_states


@ShortConv.register_oot
class XlaShortConv(ShortConv):
    """One layer. Its tensors are those of a program that is being traced."""

    def forward(self, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        from torchax import interop

        metadata: TracedMetadata = get_forward_context().attn_metadata[self.prefix]
        gates, _ = self.in_proj(hidden_states)
        before, behind, x = jnp.split(interop.jax_view(gates), 3, axis=-1)
        weight = interop.jax_view(self.conv.weight)[:, 0]
        bias = None if self.conv.bias is None else interop.jax_view(self.conv.bias)
        caches, group = metadata.caches, metadata.group
        pages = caches.read(self.prefix)
        form = Form((weight.shape[1] - 1, weight.shape[0]), x.dtype)
        [states] = read_states(pages, group, [form])
        mixed, states = convolve(before * x, weight, bias, states, group.cu_seqlens_q)
        caches.write(self.prefix, write_states(pages, group, [states]))
        rows, _ = self.out_proj(interop.torch_view(behind * mixed))
        output.copy_(rows)


def convolve(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """y[i] = bias + sum over j of weight[:, j] * x[i - (taps - 1) + j], where x goes on to the left with a request's state.

    Args:
      x: [t, n], tokens of one request after those of another.
      weight: [n, taps].
      bias: [n], or None.
      states: [requests, taps - 1, n], each request's last inputs before these, the newest last.
      starts: [requests + 1] i32, where each request's tokens begin.

    Returns:
      y [t, n] of x's dtype, summed in f32, and the states behind these tokens.
    """
    taps = weight.shape[1]
    request, place = request_of_token(starts, len(x))
    y = jnp.zeros(x.shape, jnp.float32) if bias is None else bias.astype(jnp.float32)[None]
    for back in range(taps):
        here = x
        if back:
            from_state = states[request, (taps - 1 - back + place).clip(0, taps - 2)]
            here = jnp.where((place >= back)[:, None], jnp.roll(x, back, axis=0), from_state)
        y = y + here.astype(jnp.float32) * weight[:, taps - 1 - back].astype(jnp.float32)
    # Of what is in the state and then in x, the last taps - 1.
    lengths = (starts[1:] - starts[:-1])[:, None]
    source = lengths - (taps - 1) + jnp.arange(taps - 1, dtype=jnp.int32)
    new = x[(starts[:-1, None] + source).clip(0, len(x) - 1)]
    old = jnp.take_along_axis(states, (taps - 1 + source).clip(0, taps - 2)[..., None], axis=1)
    return y.astype(x.dtype), jnp.where((source >= 0)[..., None], new, old)
