"""vLLM's fp8 of plain checkpoints (`--quantization fp8`): quantized by torch as they are loaded, then as checkpoints in fp8 are.

vLLM does it by its compiled ops, which a platform out of its tree may lack.
"""

from typing import Any

import torch
from vllm.model_executor.layers.quantization.online import base, fp8
from vllm.model_executor.layers.quantization.online.moe_base import OnlineMoEMethodBase
from vllm.model_executor.layers.quantization.utils import quant_utils as keys
from vllm.model_executor.utils import replace_parameter

from intarsia.vllm.capabilities import DTYPES
from intarsia.vllm.quantized_experts import ExpertsInCodes, ExpertsInFp8
from intarsia.vllm.replacing import replace

_E4M3 = torch.finfo(torch.float8_e4m3fn)
_SMALLEST_SCALE = 1 / (512 * _E4M3.max)
"""Of rows; vLLM's."""
_TINY = torch.finfo(torch.float32).tiny
_ROWS_AT_ONCE = 1024
"""Those that are quantized together: between them and codes are numbers in f32."""


class _Ops:
    """What vLLM's module asks its compiled ops for."""

    @staticmethod
    def scaled_fp8_quant(
        weight: torch.Tensor,
        scale: torch.Tensor | None = None,
        use_per_token_if_dynamic: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """e4m3 codes of a matrix [n, k], and their scale: the one that is given, or those of rows [n, 1]."""
        if scale is None:
            if not use_per_token_if_dynamic:
                raise NotImplementedError(
                    "fp8: no scale was given, expected one, or scales of rows"
                )
            lowest, highest = weight.aminmax(dim=-1, keepdim=True)
            largest = torch.maximum(-lowest, highest).float()
            scale = (largest / _E4M3.max).clamp_min(_SMALLEST_SCALE)
        codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        divisors = scale.clamp_min(_TINY).expand(
            len(weight), 1
        )  # of a matrix of zeros the scale is 0
        for part, numbers, by in zip(
            *(x.split(_ROWS_AT_ONCE) for x in (codes, weight, divisors)), strict=True
        ):
            part.copy_((numbers / by).clamp_(_E4M3.min, _E4M3.max))
        return codes, scale


class _OnlineExperts(ExpertsInFp8):
    """With vLLM's own way to the codes and scales (`process_weights_after_loading`)."""

    weight_block_size: list[int] | None = None
    weight_scale_name = "weight_scale"

    def __init__(self, *, moe: Any) -> None:
        OnlineMoEMethodBase.__init__(self, moe)

    @property
    def _parts(self) -> tuple[str, ...]:
        return "weight", self.weight_scale_name

    def _block(self) -> tuple[int, int] | None:
        return tuple(self.weight_block_size) if self.weight_block_size else None

    def _setup_kernel(
        self,
        layer: Any,
        w13: torch.Tensor,
        w2: torch.Tensor,
        w13_scale: torch.Tensor,
        w2_scale: torch.Tensor,
        *of_activations: Any,
        **named: Any,
    ) -> None:
        """In the place of vLLM's choice of a kernel."""
        for name, codes, scale in (("w13", w13, w13_scale), ("w2", w2, w2_scale)):
            replace_parameter(layer, f"{name}_weight", codes)
            replace_parameter(layer, f"{name}_{self.weight_scale_name}", scale)
        ExpertsInCodes.process_weights_after_loading(self, layer)


class XlaTensorOnlineMoEMethod(_OnlineExperts, fp8.Fp8PerTensorOnlineMoEMethod):
    """A scale of each matrix."""

    process_weights_after_loading = fp8.Fp8PerTensorOnlineMoEMethod.process_weights_after_loading


class XlaRowOnlineMoEMethod(_OnlineExperts, fp8.Fp8PtpcOnlineMoEMethod):
    """A scale of each row."""

    process_weights_after_loading = fp8.Fp8PtpcOnlineMoEMethod.process_weights_after_loading


class XlaBlockOnlineMoEMethod(_OnlineExperts, fp8.Fp8PerBlockOnlineMoEMethod):
    """A scale of each block of 128 by 128."""

    process_weights_after_loading = fp8.Fp8PerBlockOnlineMoEMethod.process_weights_after_loading
    weight_block_size, weight_scale_name = [128, 128], "weight_scale_inv"


replace(fp8, "ops", _Ops)
base._ONLINE_MOE_METHODS |= {
    keys.kFp8StaticTensorSym: XlaTensorOnlineMoEMethod,
    keys.kFp8StaticChannelSym: XlaRowOnlineMoEMethod,
    keys.kFp8Static128BlockSym: XlaBlockOnlineMoEMethod,
}
replace(base.OnlineQuantizationConfig, "get_supported_act_dtypes", classmethod(lambda _: DTYPES))
