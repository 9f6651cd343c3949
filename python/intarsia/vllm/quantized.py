"""vLLM's quantized linear layers by `linear_quantized`.

Weights keep their codes; activations stay in the model's dtype, whatever a checkpoint says of them. Each class is a kernel of
vLLM's registry for platforms out of its tree.
"""

from typing import Any

import numpy as np
import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import MPLinearKernel, MxFp4LinearKernel
from vllm.model_executor.kernels.linear.scaled_mm import (
    Fp8BlockScaledMMLinearKernel,
    FP8ScaledMMLinearKernel,
    Int8ScaledMMLinearKernel,
)
from vllm.model_executor.layers.quantization import auto_awq, auto_gptq, fp8, modelopt
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    compressed_tensors_w8a8_fp8,
)
from vllm.platforms import PlatformEnum
from vllm.scalar_type import scalar_types

from intarsia import repack
from intarsia.vllm.capabilities import DTYPES
from intarsia.vllm.packed_layers import apply_packed, as_numpy, pack
from intarsia.vllm.replacing import replace


class Kernel:
    """What all of them say."""

    config: Any

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        return True, None

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return apply_packed(layer, x, bias)


class XlaFp8Kernel(Kernel, FP8ScaledMMLinearKernel):
    """Weights in fp8 with a scale of all, or of each row."""

    def __init__(self, config: Any, layer_param_names: list[str]) -> None:
        self.config, self.layer_param_names = config, layer_param_names

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight = as_numpy(layer.weight.t())  # vLLM has it transposed
        packed = repack.from_fp8(weight, as_numpy(layer.weight_scale))
        pack(layer, packed, self.layer_param_names)

    def apply_scaled_mm(self, **_: Any) -> torch.Tensor:
        raise NotImplementedError("fp8: activations are not quantized")


class XlaFp8WeightsKernel(XlaFp8Kernel):
    """The same where activations are not to be quantized, as on GPUs without fp8: scales may be of blocks, too."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if layer.weight_block_size is None:
            super().process_weights_after_loading(layer)
            return
        packed = repack.from_fp8(
            as_numpy(layer.weight),
            as_numpy(layer.weight_scale_inv).astype(np.float32),
            block=tuple(layer.weight_block_size),
        )
        pack(layer, packed, ["weight", "weight_scale_inv"])


class XlaFp8BlockKernel(Kernel, Fp8BlockScaledMMLinearKernel):
    """Weights in fp8 with a scale of each block of rows and columns."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.weight_group_shape = config.weight_quant_key.scale.group_shape

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        params = self._get_layer_params(layer)
        block = (self.weight_group_shape.row, self.weight_group_shape.col)
        packed = repack.from_fp8(
            as_numpy(params.weight), as_numpy(params.block_scale).astype(np.float32), block=block
        )
        pack(layer, packed, ["weight", params.block_scale_attr, "input_scale", "input_scale_ub"])

    def apply_block_scaled_mm(self, *_: Any, **__: Any) -> torch.Tensor:
        raise NotImplementedError("fp8: activations are not quantized")


def scales_of_rows(
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    logical_widths: list[int],
    input_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """In the place of vLLM's `process_fp8_weight_tensor_strategy`, which rounds layers in one to a common scale.

    Their scales, of each row, change no number.

    Returns:
      The weight [k, n], its scales [n, 1], and the activations' scale.
    """
    rows = _of_rows(weight_scale, logical_widths)
    return weight.t(), rows, None if input_scale is None else input_scale.max()


def _kept(
    weight: torch.Tensor, weight_scale: torch.Tensor, logical_widths: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of vLLM's `requantize_with_max_scale`, which does the same for ModelOpt's: the scales and the weight."""
    return _of_rows(weight_scale, logical_widths), weight


def _of_rows(scales: torch.Tensor, widths: list[int]) -> torch.Tensor:
    """Scales of layers in one, or one of all, as those of their rows [n, 1]."""
    scales = scales.reshape(-1)
    if scales.numel() == 1:
        scales = scales.expand(len(widths))
    return scales.repeat_interleave(torch.tensor(widths, device=scales.device))[:, None]


_INTEGERS = (
    scalar_types.uint4b8,
    scalar_types.uint4,
    scalar_types.uint8b128,
    scalar_types.uint8,
)


class XlaIntegerKernel(Kernel, MPLinearKernel):
    """Weights in 4 or 8 bits by groups, packed as compressed-tensors or GPTQ pack them."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        if config.weight_type not in _INTEGERS:
            expected = ", ".join(map(str, _INTEGERS))
            return False, f"weights are {config.weight_type}, expected one of {expected}"
        columns, group = config.partition_weight_shape[0], config.group_size
        if group > 0 and columns % group:
            # vLLM gives each rank its share of the scales, rounded down.
            return False, f"a rank has {columns} columns, expected whole groups of {group}"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        names = [self.w_q_name, self.w_s_name, self.w_zp_name]
        words, scales, zeros = self._get_weight_params(layer)
        bits = self.config.weight_type.size_bits
        points = as_numpy(zeros) if self.config.zero_points else None
        if words.packed_dim == words.input_dim == 0:
            packed = repack.from_gptq(as_numpy(words), points, as_numpy(scales), bits=bits)
        else:
            columns = self.config.partition_weight_shape[0]
            packed = repack.from_compressed_tensors(
                as_numpy(words), as_numpy(scales), points, bits=bits, columns=columns
            )
        pack(layer, packed, [name for name in names if name])


class XlaMxFp4Kernel(Kernel, MxFp4LinearKernel):
    """Weights in e2m1 with a power of two for each 32 columns."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        packed = repack.from_mxfp4(as_numpy(layer.weight), as_numpy(layer.weight_scale))
        pack(layer, packed, ["weight", "weight_scale"])


class XlaInt8Kernel(Kernel, Int8ScaledMMLinearKernel):
    """Weights in int8 with a scale of all, or of each row."""

    def __init__(self, config: Any, layer_param_names: list[str]) -> None:
        self.config, self.layer_param_names = config, layer_param_names

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight, scales, *_ = self._get_layer_params(layer)
        if scales.numel() not in (1, len(weight)):  # of layers in one
            scales = _of_rows(scales, layer.logical_widths)
        packed = repack.from_int8(as_numpy(weight), as_numpy(scales))
        pack(layer, packed, self.layer_param_names)


class XlaAwqLinearMethod(auto_awq.AutoAWQLinearMethod):
    """AWQ's 4 bits with zero points."""

    def __init__(self, quant_config: Any) -> None:
        super().__init__(quant_config)
        if not quant_config.zero_point:
            raise NotImplementedError("AWQ without zero points, expected zero_point: true")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        names = ["qweight", "qzeros", "scales"]
        pack(layer, repack.from_awq(*(as_numpy(getattr(layer, x)) for x in names)), names)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return apply_packed(layer, x, bias)


for _kind, _kernel in (
    ("fp8", XlaFp8Kernel),
    ("int8", XlaInt8Kernel),
    ("mp", XlaIntegerKernel),
    ("mxfp4", XlaMxFp4Kernel),
):
    kernels.register_linear_kernel(_kernel, PlatformEnum.OOT, _kind)
# A kind of its own in 0.33, which 0.32 does not know by name.
kernels._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.OOT] = [XlaFp8BlockKernel]
# A kind that cannot be registered by name.
kernels._POSSIBLE_WFP8A16_KERNELS[PlatformEnum.OOT] = [XlaFp8WeightsKernel]
for _module in (fp8, compressed_tensors_w8a8_fp8):
    replace(_module, "process_fp8_weight_tensor_strategy", scales_of_rows)
replace(modelopt, "requantize_with_max_scale", _kept)
replace(auto_awq, "AutoAWQLinearMethod", XlaAwqLinearMethod)
# Of what Marlin, one of vLLM's kernels, takes.
replace(auto_gptq, "verify_marlin_supported", lambda **_: None)
for _config in (
    fp8.Fp8Config,
    auto_awq.AutoAWQConfig,
    auto_gptq.AutoGPTQConfig,
    modelopt.ModelOptFp8Config,
    modelopt.ModelOptNvFp4Config,
    modelopt.ModelOptMixedPrecisionConfig,
):
    replace(_config, "get_supported_act_dtypes", classmethod(lambda cls: DTYPES))
