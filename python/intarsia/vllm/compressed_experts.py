"""Experts of compressed-tensors' checkpoints: in fp8, int8, nvfp4, mxfp4, and in packed integers by groups, as Kimi's are.

Read as those of `quantized_experts`: by our op, where it has a form for the layer.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compressed_tensors.quantization import QuantizationStrategy
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_mxfp4 as w4a4_mxfp4,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_nvfp4 as w4a4_nvfp4,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w8a8_fp8 as w8a8_fp8,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w8a8_int8 as w8a8_int8,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_wna16 as wna16,
)

from intarsia import repack
from intarsia._packing import PackedWeight
from intarsia.vllm.nvfp4 import ExpertsInNvFp4
from intarsia.vllm.quantized_experts import (
    ExpertsInCodes,
    ExpertsInFp8,
    ExpertsInMxfp4,
    halves,
    rename,
    scaled,
)
from intarsia.vllm.replacing import replace


def _decoded_nibbles(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from pairs of codes u8 [e, n, k / 2], the lower half first, less 8, and scales [e, n, groups]."""
    return scaled(halves(codes).astype(jnp.int8) - 8, scales, dtype)


def _decoded_bytes(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from codes u8 [e, n, k], less 128, and scales [e, n, groups]."""
    return scaled(codes.astype(jnp.int16) - 128, scales, dtype)


_DECODED = {4: _decoded_nibbles, 8: _decoded_bytes}
"""By bits of a code."""


class _PackedExperts(ExpertsInCodes):
    """Whose codes have a name of their own."""

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13", "w2"):
            rename(layer, f"{name}_weight_packed", f"{name}_weight")
        super().process_weights_after_loading(layer)


class XlaCompressedIntegerMoEMethod(_PackedExperts, wna16.CompressedTensorsWNA16MoEMethod):
    """In 4 or 8 bits with a scale of each row or group, and no zero points."""

    _parts = ("weight", "weight_scale")

    def __init__(
        self, weight_quant: Any, input_quant: Any, moe: Any, layer_name: str | None = None
    ) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        if weight_quant.num_bits not in _DECODED or not weight_quant.symmetric:
            raise NotImplementedError(
                f"experts: compressed-tensors' integers in {weight_quant.num_bits} bits, "
                f"symmetric: {weight_quant.symmetric}, expected 4 or 8 bits without zero points"
            )
        # What vLLM's own asks its list of kernels for, none of which is meant for this platform.
        self.weight_quant, self.input_quant = weight_quant, input_quant
        self.symmetric, self.num_bits = True, weight_quant.num_bits
        self.packed_factor = wna16.Fraction(32, self.num_bits)
        self.strategy, self.group_size = weight_quant.strategy, weight_quant.group_size or -1

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13", "w2"):
            delattr(layer, f"{name}_weight_shape")
        super().process_weights_after_loading(layer)

    def _repack(self, codes: np.ndarray, scales: np.ndarray) -> PackedWeight:
        return repack.from_compressed_tensors(codes, scales, bits=self.num_bits)

    def _decode(self, codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
        return _DECODED[self.num_bits](codes, scales, dtype)


class XlaCompressedFp8MoEMethod(ExpertsInFp8, w8a8_fp8.CompressedTensorsW8A8Fp8MoEMethod):
    """With a scale of each matrix, row or block."""

    _parts = ("weight", "weight_scale")

    def __init__(
        self, weight_quant: Any, input_quant: Any, moe: Any, layer_name: str | None = None
    ) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        # None of vLLM's kernels is asked for, nor are the rules of what they take together checked.
        self.weight_quant, self.input_quant = weight_quant, input_quant
        self.weight_block_size = weight_quant.block_structure
        self.block_quant = self.weight_block_size is not None
        self.static_input_scales = not input_quant.dynamic

    def _block(self) -> tuple[int, int] | None:
        return tuple(self.weight_block_size) if self.block_quant else None


class XlaCompressedInt8MoEMethod(ExpertsInCodes, w8a8_int8.CompressedTensorsW8A8Int8MoEMethod):
    """With a scale of each row."""

    _parts = ("weight", "weight_scale")
    _repack = staticmethod(repack.from_int8)

    def __init__(
        self, weight_quant: Any, input_quant: Any, moe: Any, layer_name: str | None = None
    ) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        if weight_quant.strategy != QuantizationStrategy.CHANNEL:
            raise NotImplementedError(
                f"experts: compressed-tensors' int8 with scales by {weight_quant.strategy}, expected channel"
            )
        self.weight_quant, self.input_quant = weight_quant, input_quant
        self.static_input_scales = not input_quant.dynamic

    @staticmethod
    def _decode(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
        return scaled(jax.lax.bitcast_convert_type(codes, jnp.int8), scales, dtype)


class XlaCompressedNvFp4MoEMethod(
    _PackedExperts, ExpertsInNvFp4, w4a4_nvfp4.CompressedTensorsW4A4Nvfp4MoEMethod
):
    """With scales of matrices that others are divided by."""

    def __init__(self, moe: Any, layer_name: str | None = None, use_a16: bool = False) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        self.group_size = 16

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13", "w2"):
            rename(layer, f"{name}_weight_global_scale", f"{name}_weight_scale_2")
            getattr(layer, f"{name}_weight_scale_2").data.reciprocal_()
        super().process_weights_after_loading(layer)


class XlaCompressedMxfp4MoEMethod(
    _PackedExperts, ExpertsInMxfp4, w4a4_mxfp4.CompressedTensorsW4A4Mxfp4MoEMethod
):
    """With powers of two."""

    def __init__(self, moe: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        self.group_size = 32


replace(w4a4_nvfp4, "CompressedTensorsW4A4Nvfp4MoEMethod", XlaCompressedNvFp4MoEMethod)
replace(w4a4_mxfp4, "CompressedTensorsW4A4Mxfp4MoEMethod", XlaCompressedMxfp4MoEMethod)
replace(w8a8_fp8, "CompressedTensorsW8A8Fp8MoEMethod", XlaCompressedFp8MoEMethod)
replace(w8a8_int8, "CompressedTensorsW8A8Int8MoEMethod", XlaCompressedInt8MoEMethod)
replace(wna16, "CompressedTensorsWNA16MoEMethod", XlaCompressedIntegerMoEMethod)
