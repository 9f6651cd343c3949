"""vLLM's norms, activations and rotations by our ops, where they are part of an XLA program.

Norms are providers of vLLM's IR; the others are out-of-tree versions of its layers. Each falls back to vLLM's own native
form for tensors that are torch's, and for what the op has no form for.
"""

from collections.abc import Callable
from typing import Any

import jax
import torch
from vllm import _custom_ops, ir
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import activation
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

import intarsia.jax as ops
from intarsia.vllm.compat import is_traced
from intarsia.vllm.parallel import AXIS
from intarsia.vllm.products import mark_normed, mark_turned
from intarsia.vllm.replacing import replace

PROVIDER = "intarsia"
"""Our name among the providers of vLLM's IR."""

IR_OPS = ("rms_norm", "fused_add_rms_norm")
"""vLLM's IR ops that we provide."""


def call_jax(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of JAX arrays on torchax's tensors."""
    from torchax import interop

    return interop.call_jax(function, *args)


# ---------------------------------------------------------------------------- norms


def _has_form(
    x: torch.Tensor, weight: torch.Tensor | None, variance_size: int | None = None
) -> bool:
    dtypes = (x.dtype, torch.float32)
    return is_traced(x) and variance_size is None and (weight is None or weight.dtype in dtypes)


def _rounding(x: jax.Array, weight: jax.Array | None) -> str:
    """vLLM rounds to the weight's dtype before it multiplies by the weight."""
    return "before_weight" if weight is not None and weight.dtype == x.dtype else "once"


@ir.ops.rms_norm.register_impl(
    PROVIDER,
    supports_args=lambda x, weight, epsilon, variance_size=None: _has_form(
        x, weight, variance_size
    ),
)
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    return _normed(x, weight, epsilon)


def _normed(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    def run(x: jax.Array, weight: jax.Array | None) -> jax.Array:
        return ops.rms_norm(x, weight, eps=epsilon, rounding=_rounding(x, weight))

    normed = call_jax(run, x, weight)
    if weight is not None and is_traced(weight):
        mark_normed(x, normed, weight, epsilon)
    return normed


@ir.ops.fused_add_rms_norm.register_impl(
    PROVIDER,
    supports_args=lambda x, x_residual, weight, epsilon, variance_size=None: _has_form(
        x, weight, variance_size
    )
    and x_residual.dtype == x.dtype,
)
def fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    def run(x: jax.Array, residual: jax.Array, weight: jax.Array | None) -> tuple[jax.Array, ...]:
        return ops.fused_add_rms_norm(
            x, residual, weight, eps=epsilon, rounding=_rounding(x, weight)
        )

    return call_jax(run, x, x_residual, weight)


def _rms_norm_into(
    out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> None:
    """vLLM's compiled op by name, which some models call instead of a layer."""
    if is_traced(input):
        out.copy_(_normed(input, weight, epsilon))
    else:
        _by_vllm(out, input, weight, epsilon)


_by_vllm = replace(_custom_ops, "rms_norm", _rms_norm_into)


# ---------------------------------------------------------------------------- activations


def _in_place_of(theirs: type[CustomOp]) -> Callable[[type[CustomOp]], type[CustomOp]]:
    """Registers a layer for one of vLLM's, by whose name --compilation-config's `custom_ops` goes on to mean it."""

    def register(ours: type[CustomOp]) -> type[CustomOp]:
        theirs.register_oot(ours)
        ours.name = theirs.name  # which vLLM has just made the class's name
        return ours

    return register


@_in_place_of(activation.SiluAndMul)
class XlaSiluAndMul(activation.SiluAndMul):
    """silu(gate) * up."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        return call_jax(ops.silu_and_mul, x) if is_traced(x) else self.forward_native(x)


@_in_place_of(activation.MulAndSilu)
class XlaMulAndSilu(activation.MulAndSilu):
    """up * silu(gate), the halves the other way round."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        if not is_traced(x):
            return self.forward_native(x)
        half = x.shape[-1] // 2
        return call_jax(lambda x: ops.silu_and_mul(x[..., half:], x[..., :half]), x)


@_in_place_of(activation.GeluAndMul)
class XlaGeluAndMul(activation.GeluAndMul):
    """gelu(gate) * up, in either form of gelu."""

    def forward_oot(self, x: torch.Tensor) -> torch.Tensor:
        if not is_traced(x):
            return self.forward_native(x)
        return call_jax(
            ops.gelu_tanh_and_mul if self.approximate == "tanh" else ops.gelu_and_mul, x
        )


# ---------------------------------------------------------------------------- rotation


class _XlaRotary:
    """What a class of vLLM's that turns by a table of cosines and sines does in a program."""

    def forward_oot(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not is_traced(query):
            return self.forward_native(positions, query, key)

        def run(positions: jax.Array, query: jax.Array, table: jax.Array, key: jax.Array | None):
            turned = ops.rotary_embedding(
                positions.reshape(-1),
                _heads(query, self.head_size),
                table,
                None if key is None else _heads(key, self.head_size),
                head_size=self.head_size,
                is_neox=self.is_neox_style,
            )
            if key is None:
                return turned.reshape(query.shape), None
            return turned[0].reshape(query.shape), turned[1].reshape(key.shape)

        turned = call_jax(run, positions, query, self.cos_sin_cache, key)
        by = (self.cos_sin_cache, self.is_neox_style, self.head_size)
        mark_turned(positions, (query, key), turned, *by)
        return turned


def _heads(x: jax.Array, head_size: int) -> jax.Array:
    """Heads as an axis of their own, whichever way a model has them."""
    return x.reshape(x.shape[0], -1, head_size)


def _register_rotary(base: type[RotaryEmbedding]) -> None:
    """Replaces a class, and those below it, that turns as `RotaryEmbedding` does (other tables, the same turning)."""
    if base.forward_native is RotaryEmbedding.forward_native:
        ours = type(f"Xla{base.__name__}", (_XlaRotary, base), {"__module__": __name__})
        _in_place_of(base)(ours)
    for derived in base.__subclasses__():
        if derived.__module__ != __name__:
            _register_rotary(derived)


_register_rotary(RotaryEmbedding)


@_in_place_of(MRotaryEmbedding)
class XlaMRotaryEmbedding(_XlaRotary, MRotaryEmbedding):
    """Positions of several axes, which are one in text."""

    def forward_oot(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if positions.ndim > 1 or offsets is not None:
            return self.forward_native(positions, query, key, offsets)
        return super().forward_oot(positions, query, key)


# ---------------------------------------------------------------------------- tensor parallelism


@VocabParallelEmbedding.register_oot
class XlaVocabParallelEmbedding(VocabParallelEmbedding):
    """A share of the table on each device; which one comes from the mesh, so that all ranks compile one program."""

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        if self.tp_size == 1 or not is_traced(input_):
            return super().forward(input_)
        if self.num_added_embeddings or self.parallel_group is not None:
            raise NotImplementedError(
                f"VocabParallelEmbedding: {self.num_added_embeddings} added tokens, or a group of its own, "
                "expected none under tensor parallelism"
            )

        def look_up(tokens: jax.Array, table: jax.Array) -> jax.Array:
            row = tokens - jax.lax.axis_index(AXIS) * len(table)
            here = (row >= 0) & (row < len(table))
            found = jax.numpy.where(here[:, None], table[jax.numpy.where(here, row, 0)], 0)
            return jax.lax.psum(found, AXIS) if self.reduce_results else found

        return call_jax(look_up, input_, self.weight)


@RowParallelLinear.register_oot
class XlaRowParallelLinear(RowParallelLinear):
    """Adds its bias to the sum over ranks, not to rank 0's share, so that all ranks compile one program."""

    def forward(self, input_: torch.Tensor) -> Any:
        on_rank_0 = self.tp_size > 1 and self.bias is not None and not self.skip_bias_add
        if not (on_rank_0 and self.reduce_results and is_traced(input_)):
            return super().forward(input_)
        self.skip_bias_add = True
        try:
            output = super().forward(input_)
        finally:
            self.skip_bias_add = False
        return (output[0] + self.bias, None) if self.return_bias else output + self.bias
