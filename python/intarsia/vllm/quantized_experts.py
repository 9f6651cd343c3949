"""vLLM's quantised experts: their codes are kept, and decoded within a step's program for the layer that needs them.

Activations stay in the model's dtype, whatever a checkpoint says of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend
from vllm.model_executor.layers.quantization import fp8, mxfp4

from intarsia.jax._quantized import numbers
from intarsia.vllm.capabilities import DTYPES
from intarsia.vllm.experts import run_experts
from intarsia.vllm.layers import call_jax
from intarsia.vllm.replacing import replace


def _spread(scales: jax.Array, axis: int, size: int) -> jax.Array:
    """Scales of blocks along an axis as those of its single rows; the last block may be shorter."""
    block = -(-size // scales.shape[axis])
    return jax.lax.slice_in_dim(jnp.repeat(scales, block, axis), 0, size, axis=axis)


def _decoded_fp8(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from e4m3 codes, u8, and scales [e], [e, rows of blocks], or [e, rows, columns of blocks]."""
    scales = scales.reshape(*scales.shape, *[1] * (3 - scales.ndim)).astype(jnp.float32)
    rows = _spread(scales, 1, codes.shape[1])
    return (numbers(codes, "e4m3") * _spread(rows, 2, codes.shape[2])).astype(dtype)


def _decoded_mxfp4(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from pairs of e2m1 codes [e, n, k / 2], the lower half first, and e8m0 scales [e, n, k / 32], u8."""
    pairs = jnp.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    powers = jax.lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu).astype(jnp.float32)
    return (numbers(pairs, "e2m1") * jnp.repeat(powers, 32, axis=-1)).astype(dtype)


class _Decoded(FusedMoEMethodBase):
    """Experts whose matrices are decoded where they are used."""

    _scale: str
    """What the names of scales end with."""
    _decode: Any

    @property
    def is_monolithic(self) -> bool:
        return False

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        """None of vLLM's kernels is configured."""

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        def decoded(name: str) -> torch.Tensor:
            codes = getattr(layer, f"{name}_weight")
            scales = getattr(layer, f"{name}_{self._scale}")
            dtype = jnp.dtype(str(x.dtype).removeprefix("torch."))
            return call_jax(lambda c, s: type(self)._decode(c, s, dtype), codes, scales)

        biases = [getattr(layer, f"{name}_bias", None) for name in ("w13", "w2")]
        biases = [bias if bias is None else bias.to(x.dtype) for bias in biases]
        matrices = decoded("w13"), decoded("w2")
        return run_experts(layer, x, topk_weights, topk_ids, *matrices, *biases)


class XlaFp8MoEMethod(_Decoded, fp8.Fp8MoEMethod):
    """In fp8, with a scale of each expert's matrices or of blocks."""

    _decode = staticmethod(_decoded_fp8)

    @property
    def _scale(self) -> str:
        return self.weight_scale_name

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13_weight", "w2_weight"):
            codes = getattr(layer, name).data.view(torch.uint8)
            delattr(layer, name)
            layer.register_parameter(name, torch.nn.Parameter(codes, requires_grad=False))


class XlaGptOssMxfp4MoEMethod(_Decoded, mxfp4.GptOssMxfp4MoEMethod):
    """In mxfp4, as gpt-oss has them."""

    _decode, _scale = staticmethod(_decoded_mxfp4), "weight_scale"

    def __init__(self, moe: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        # What vLLM's own asks its list of kernels for, none of which is meant for this platform.
        self.weight_dtype, self.mxfp4_backend = "gpt_oss_mxfp4", Mxfp4MoeBackend.NONE


replace(fp8, "Fp8MoEMethod", XlaFp8MoEMethod)
replace(mxfp4, "GptOssMxfp4MoEMethod", XlaGptOssMxfp4MoEMethod)
replace(mxfp4.Mxfp4Config, "get_supported_act_dtypes", classmethod(lambda cls: DTYPES))
