"""Layers that convolve and then recur, as part of an XLA program: a request's last inputs and a state for each head are in its page."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from vllm.forward_context import get_forward_context

from intarsia.vllm.attention import TracedMetadata
from intarsia.vllm.chunks import over_chunks
from intarsia.vllm.compat import dtype_name
from intarsia.vllm.short_conv import convolve
from intarsia.vllm.states import Form, read_states, write_states


class Recurrence:
    """One layer in one step. `inner` is its convolution behind SiLU, [t, n] in f32."""

    def __init__(self, layer: Any, mixed: jax.Array, heads: tuple[int, ...]) -> None:
        """Reads the states and convolves.

        Args:
          layer: vLLM's, with `conv1d`, `get_state_dtype` and `prefix`.
          mixed: [t, n], tokens of one request after those of another.
          heads: the shape of a request's state, [h, ...].
        """
        from torchax import interop

        self._prefix = layer.prefix
        self._metadata: TracedMetadata = get_forward_context().attn_metadata[layer.prefix]
        group = self._metadata.group
        weight = interop.jax_view(layer.conv1d.weight)[:, 0]
        bias = None if layer.conv1d.bias is None else interop.jax_view(layer.conv1d.bias)
        dtypes = [jnp.dtype(dtype_name(x)) for x in layer.get_state_dtype()]
        self._forms = [
            Form((weight.shape[1] - 1, weight.shape[0]), dtypes[0]),
            Form(heads, dtypes[1]),
        ]
        self._pages = self._metadata.caches.read(layer.prefix)
        inputs, self._states = read_states(self._pages, group, self._forms)
        inner, self._inputs = convolve(
            mixed, weight, bias, inputs.astype(mixed.dtype), group.cu_seqlens_q
        )
        self.inner = jax.nn.silu(inner.astype(jnp.float32))

    def run(
        self,
        operands: Sequence[jax.Array],
        one_token_each: Callable[..., tuple[jax.Array, jax.Array]],
        chunk: Callable[..., tuple[jax.Array, jax.Array]],
    ) -> jax.Array:
        """The outputs [t, h, ...] in f32; the new states go to the page.

        Args:
          operands: [t, h, ...] each, in f32.
          one_token_each: takes the operands of a token for each request and all states, returns outputs and new states.
          chunk: what `over_chunks` calls.
        """
        group = self._metadata.group
        states = self._states.astype(jnp.float32)
        with jax.default_matmul_precision("highest"):
            if self._metadata.decode:
                out, states = one_token_each(*operands, states)
            else:
                out, states = over_chunks(chunk, operands, states, group.cu_seqlens_q)
        pair = zip((self._inputs, states), self._forms, strict=True)
        new = [x.astype(form.dtype) for x, form in pair]
        self._metadata.caches.write(self._prefix, write_states(self._pages, group, new))
        return out
