"""Experts of AWQ's and GPTQ's checkpoints: codes in words of 32 bits, each matrix the other way round.

Read as those of `quantized_experts`: by our op, where it has a form for the layer. vLLM's own methods make the
parameters that checkpoints are loaded into.
"""

from typing import Any

import jax
import jax.numpy as jnp
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization import auto_awq, auto_gptq
from vllm.scalar_type import scalar_types

from intarsia import repack
from intarsia._words import AWQ_PLACES, fields
from intarsia.vllm.quantized_experts import ExpertsInCodes
from intarsia.vllm.replacing import replace


def _codes(words: jax.Array, bits: int, axis: int, places: Any = None) -> jax.Array:
    """The numbers of `bits` bits in words along an axis, f32."""
    codes = fields(jnp.moveaxis(words, axis, -1), bits, places)
    return jnp.moveaxis(codes, -1, axis).astype(jnp.float32)


def _matrices(codes: jax.Array, scales: jax.Array, zeros: Any, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from codes [e, k, n], scales [e, groups, n], and zero points like them or of all."""
    experts, columns, rows = codes.shape
    groups = codes.reshape(experts, scales.shape[1], -1, rows)
    zeros = zeros[:, :, None] if isinstance(zeros, jax.Array) else zeros
    numbers = (groups - zeros) * scales[:, :, None].astype(jnp.float32)
    return numbers.reshape(experts, columns, rows).swapaxes(1, 2).astype(dtype)


class _ExpertsInWords(ExpertsInCodes):
    """What both have in common. Names of parameters are the checkpoint's."""

    def __init__(self, quant_config: Any, moe: Any) -> None:
        # Not vLLM's own, which asks its list of kernels: none of them is meant for this platform.
        FusedMoEMethodBase.__init__(self, moe)
        self.quant_config, self.input_dtype = quant_config, None

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: Any,
        **options: Any,
    ) -> None:
        group, columns = self.quant_config.group_size, intermediate_size_per_partition
        if group > 0 and (hidden_size % group or columns % group):
            raise NotImplementedError(
                f"experts: groups of {group} columns in matrices of {hidden_size} and {columns} on a rank, "
                "expected whole groups"
            )
        super().create_weights(layer, num_experts, hidden_size, columns, params_dtype, **options)

    def _rows(self, layer: Any, name: str) -> int:
        return getattr(layer, f"{name}_scales").shape[2]

    def _hand_over(self, layer: Any) -> None:
        """Words are numbers that torch and JAX both have."""


class XlaAwqMoEMethod(_ExpertsInWords, auto_awq.AutoAWQMoEMethod):
    """AWQ's 4 bits with zero points."""

    _parts = ("qweight", "qzeros", "scales")
    _repack = staticmethod(repack.from_awq)

    def __init__(self, quant_config: Any, moe: Any) -> None:
        super().__init__(quant_config, moe)
        if not quant_config.zero_point:
            raise NotImplementedError("experts: AWQ without zero points, expected zero_point: true")
        self.quant_type = scalar_types.uint4

    @staticmethod
    def _decode(words: jax.Array, zeros: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
        codes, points = (_codes(x, 4, 2, AWQ_PLACES) for x in (words, zeros))
        return _matrices(codes, scales, points, dtype)


class XlaGptqMoEMethod(_ExpertsInWords, auto_gptq.AutoGPTQMoEMethod):
    """GPTQ's 4 or 8 bits, symmetric: zero points are there and say nothing."""

    _parts = ("qweight", "scales")

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13", "w2"):
            delattr(layer, f"{name}_qzeros")
            if f"{name}_bias" not in layer._loaded_expert_biases:
                layer.register_parameter(f"{name}_bias", None)
        super().process_weights_after_loading(layer)

    def _repack(self, words: Any, scales: Any) -> repack.PackedWeight:
        return repack.from_gptq(words, None, scales, bits=self.quant_config.weight_bits)

    def _decode(self, words: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
        bits = self.quant_config.weight_bits
        return _matrices(_codes(words, bits, 1), scales, float(1 << bits - 1), dtype)


replace(auto_awq, "AutoAWQMoEMethod", XlaAwqMoEMethod)
replace(auto_gptq, "AutoGPTQMoEMethod", XlaGptqMoEMethod)
# Of what Marlin, one of vLLM's kernels, takes: else vLLM would choose another of its own.
for _module in (auto_awq, auto_gptq):
    replace(_module, "check_moe_marlin_supports_layer", lambda *_, **__: True)
