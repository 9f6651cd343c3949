"""vLLM's weights in nvfp4, ModelOpt's and compressed-tensors': e2m1 with a scale of each 16 columns, and one of each matrix.

Activations stay in the model's dtype, also where a checkpoint asks for others. Layers in one keep their own scales, where vLLM's
kernels take the largest for all.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from vllm.model_executor.kernels.linear import NvFp4LinearKernel, NvFp4LinearLayerConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization import modelopt
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    compressed_tensors_w4a4_nvfp4 as compressed_tensors,
)

from intarsia import repack
from intarsia._packing import PackedWeight
from intarsia.jax._quantized import numbers
from intarsia.vllm.packed_layers import as_numpy, pack
from intarsia.vllm.quantized import Kernel
from intarsia.vllm.quantized_experts import ExpertsInCodes, halves, scaled
from intarsia.vllm.replacing import replace

# ---------------------------------------------------------------------------- linear layers


class XlaNvFp4Kernel(Kernel, NvFp4LinearKernel):
    """What `linear_quantized` has of them."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if torch.isnan(layer.weight_scale.float()).any():
            raise ValueError(
                "nvfp4: weight_scale has a NaN, as where a checkpoint has no codes for the layer"
            )
        of_all = as_numpy(layer.weight_global_scale)
        if (of_all == of_all[0]).all():
            of_all = of_all[:1]
        else:
            of_all = np.repeat(of_all, layer.logical_widths)
        packed = repack.from_nvfp4(as_numpy(layer.weight), as_numpy(layer.weight_scale), of_all)
        scales = ["weight_scale", "weight_global_scale", "input_scale", "input_global_scale"]
        pack(layer, packed, ["weight", *scales])


def _kernel(use_a16: bool = False) -> XlaNvFp4Kernel:
    """In the place of a choice that forces a kernel of vLLM's where activations are not quantized."""
    return XlaNvFp4Kernel(NvFp4LinearLayerConfig())


def _process_modelopts(self: modelopt.KNvfp4Static, layer: torch.nn.Module, role: Any) -> None:
    layer.weight_global_scale = layer.weight_scale_2
    del layer.weight_scale_2


def _process_compressed_tensors(
    self: compressed_tensors.CompressedTensorsW4A4Fp4, layer: torch.nn.Module
) -> None:
    """Whose scales of matrices are what others are divided by."""
    layer.weight = layer.weight_packed
    del layer.weight_packed
    of_all = layer.weight_global_scale.data.reciprocal()
    layer.weight_global_scale = torch.nn.Parameter(of_all, requires_grad=False)
    self.kernel.process_weights_after_loading(layer)


def _no_activations(*_: Any) -> None:
    """Scales of activations are loaded, and left alone."""


for _module in (modelopt, compressed_tensors):
    replace(_module, "init_nvfp4_linear_kernel", _kernel)
replace(modelopt.KNvfp4Static, "process", _process_modelopts)
replace(modelopt.KNvfp4Dynamic, "process", _no_activations)
replace(modelopt, "maybe_fuse_global_scales", _no_activations)
replace(
    compressed_tensors.CompressedTensorsW4A4Fp4,
    "process_weights_after_loading",
    _process_compressed_tensors,
)


# ---------------------------------------------------------------------------- experts


class ExpertsInNvFp4(ExpertsInCodes):
    """With a scale of each expert's matrices, or of equal parts of their rows."""

    _parts = ("weight", "weight_scale", "weight_scale_2")
    _bytes = ("weight", "weight_scale")

    @staticmethod
    def _decode(codes: jax.Array, scales: jax.Array, of_all: jax.Array, dtype: Any) -> jax.Array:
        """From pairs u8 [e, n, k / 2], e4m3 scales u8 [e, n, k / 16] and f32 ones [e] or [e, parts]: of equal parts of the rows."""
        experts, rows, _ = scales.shape
        of_parts = of_all.reshape(experts, -1, 1)
        of_rows = jnp.repeat(of_parts, rows // of_parts.shape[1], axis=1)
        factors = numbers(scales, "e4m3") * of_rows
        return scaled(numbers(halves(codes), "e2m1"), factors, dtype)

    def _repack(self, codes: np.ndarray, scales: np.ndarray, of_all: np.ndarray) -> PackedWeight:
        of_rows = np.repeat(of_all.reshape(-1), len(codes) // of_all.size)
        return repack.from_nvfp4(codes, scales, of_rows)


class XlaModelOptNvFp4MoEMethod(ExpertsInNvFp4, modelopt.ModelOptNvFp4FusedMoE):
    """ModelOpt's. vLLM's loader goes by the class's name."""

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe_config)
        # What vLLM's own asks its list of kernels for, none of which is meant for this platform.
        self.quant_config, self.use_global_sf = quant_config, False


replace(modelopt, "ModelOptNvFp4FusedMoE", XlaModelOptNvFp4MoEMethod)
# The configuration has it as a class, too.
replace(modelopt.ModelOptNvFp4Config, "FusedMoEMethodCls", XlaModelOptNvFp4MoEMethod)
