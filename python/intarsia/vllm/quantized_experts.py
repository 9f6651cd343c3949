"""vLLM's quantized experts: our op reads codes; where it has no form for a layer, they are decoded within a step's program.

Activations stay in the model's dtype, whatever a checkpoint says of them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend
from vllm.model_executor.layers.quantization import fp8, modelopt, mxfp4

import intarsia.jax as ops
from intarsia import repack
from intarsia._packing import TILE_ROWS, PackedWeight
from intarsia.jax._coded_experts import arguments_of_experts
from intarsia.jax._quantized import numbers
from intarsia.vllm.capabilities import DTYPES
from intarsia.vllm.compat import dtype_name
from intarsia.vllm.experts import BY_OP, has_form, run_experts
from intarsia.vllm.layers import call_jax
from intarsia.vllm.packed_layers import as_numpy, pack, packed_parts
from intarsia.vllm.replacing import replace


def _spread(scales: jax.Array, axis: int, block: int, size: int) -> jax.Array:
    """Scales of blocks along an axis as those of its single rows; the last block may be shorter."""
    return jax.lax.slice_in_dim(jnp.repeat(scales, block, axis), 0, size, axis=axis)


def _decoded_fp8(
    codes: jax.Array, scales: jax.Array, dtype: Any, block: tuple[int, int] | None = None
) -> jax.Array:
    """Matrices [e, n, k] from e4m3 codes, u8, and scales [e, rows, columns of blocks], or [e] or [e, parts]: of equal parts of the rows."""
    _, n, k = codes.shape
    scales = scales.reshape(*scales.shape, *[1] * (3 - scales.ndim)).astype(jnp.float32)
    rows, columns = block or (n // scales.shape[1], k)
    spread = _spread(_spread(scales, 1, rows, n), 2, columns, k)
    return (numbers(codes, "e4m3") * spread).astype(dtype)


def halves(pairs: jax.Array) -> jax.Array:
    """Codes of 4 bits [..., k] of pairs u8 [..., k / 2], the lower half first."""
    return jnp.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1)


def scaled(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from numbers [e, n, k] and the scales of their groups of columns [e, n, groups]."""
    each = jnp.repeat(scales.astype(jnp.float32), codes.shape[-1] // scales.shape[-1], axis=-1)
    return (codes.astype(jnp.float32) * each).astype(dtype)


def rename(layer: Any, old: str, new: str, dtype: torch.dtype | None = None) -> None:
    """Gives a parameter another name, or its bytes another dtype."""
    tensor = getattr(layer, old).data
    tensor = tensor if dtype is None else tensor.view(dtype)
    delattr(layer, old)
    layer.register_parameter(new, torch.nn.Parameter(tensor, requires_grad=False))


def _decoded_mxfp4(codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
    """Matrices [e, n, k] from pairs of e2m1 codes [e, n, k / 2], the lower half first, and e8m0 scales [e, n, k / 32], u8."""
    powers = jax.lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu)
    return scaled(numbers(halves(codes), "e2m1"), powers, dtype)


class ExpertsInCodes(FusedMoEMethodBase):
    """Experts whose matrices stay codes.

    `fused_experts_quantized` reads them where it has the layer's activation and rows fill tiles. Else a step decodes them.
    """

    _parts: tuple[str, ...]
    """What the names of a matrix's parameters end with, the codes' first."""
    _bytes: tuple[str, ...] = ("weight",)
    """Those of them that become bytes."""
    _decode: Any
    """These parameters as matrices of a dtype, within a program."""

    @property
    def is_monolithic(self) -> bool:
        return False

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        """None of vLLM's kernels is configured."""

    def _repack(self, *parts: np.ndarray) -> PackedWeight:
        """The matrix of one expert."""
        raise NotImplementedError

    def _rows(self, layer: Any, name: str) -> int:
        """Of each expert's matrix."""
        return getattr(layer, f"{name}_weight").shape[1]

    def _hand_over(self, layer: Any) -> None:
        """Lets codes be bytes: DLPack does not know them by their dtype."""
        for name in (f"{x}_{part}" for x in ("w13", "w2") for part in self._bytes):
            rename(layer, name, name, torch.uint8)

    def process_weights_after_loading(self, layer: Any) -> None:
        tiled = not any(self._rows(layer, name) % TILE_ROWS for name in ("w13", "w2"))
        if not (tiled and has_form(layer)):
            self._hand_over(layer)
            return
        for name in ("w13", "w2"):
            old = [f"{name}_{part}" for part in self._parts]
            parts = (as_numpy(getattr(layer, x)) for x in old)
            each = [self._repack(*expert) for expert in zip(*parts, strict=True)]
            pack(layer, repack.stacked(each), old, name)

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        biases = [getattr(layer, f"{name}_bias", None) for name in ("w13", "w2")]
        biases = [bias if bias is None else bias.to(x.dtype) for bias in biases]
        if hasattr(layer, f"w13_{self._parts[0]}"):
            matrices = [self._decoded(layer, name, x.dtype) for name in ("w13", "w2")]
            return run_experts(layer, x, topk_weights, topk_ids, *matrices, *biases)
        return _run_packed(layer, x, topk_weights, topk_ids, biases)

    def _decoded(self, layer: Any, name: str, dtype: torch.dtype) -> torch.Tensor:
        parts = [getattr(layer, f"{name}_{part}") for part in self._parts]
        wanted = jnp.dtype(dtype_name(dtype))
        return call_jax(lambda *parts: self._decode(*parts, wanted), *parts)


def _run_packed(
    layer: Any,
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    biases: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """What a layer of vLLM's `RoutedExperts` does, with weights in codes."""
    first, first_bits = packed_parts(layer, "w13")
    second, second_bits = packed_parts(layer, "w2")

    def run(
        x: jax.Array, weights: jax.Array, ids: jax.Array, *others: jax.Array | None
    ) -> jax.Array:
        w1_bias, w2_bias, expert_map, *bits = others
        w1, w2 = first.weight(bits[: len(first_bits)]), second.weight(bits[len(first_bits) :])
        return ops.fused_experts_quantized(
            x,
            weights=weights,
            ids=ids,
            w1_bias=w1_bias,
            w2_bias=w2_bias,
            expert_map=expert_map,
            **arguments_of_experts(w1, w2),
            activation=BY_OP[layer.activation],
            apply_router_weight_on_input=layer.apply_router_weight_on_input,
        )

    bits = *first_bits, *second_bits
    return call_jax(run, x, weights, ids, *biases, layer.expert_map, *bits)


class ExpertsInFp8(ExpertsInCodes):
    """With scales of each expert's matrices, of their rows, or of blocks."""

    def _block(self) -> tuple[int, int] | None:
        """Rows and columns of a block, where scales are of blocks."""
        raise NotImplementedError

    def _decode(self, codes: jax.Array, scales: jax.Array, dtype: Any) -> jax.Array:
        return _decoded_fp8(codes, scales, dtype, self._block())

    def _repack(self, codes: np.ndarray, scales: np.ndarray) -> PackedWeight:
        if (block := self._block()) is not None:
            return repack.from_fp8(codes, scales, block=block)
        of_rows = np.repeat(scales.reshape(-1), len(codes) // scales.size)
        return repack.from_fp8(codes, of_rows)


class XlaFp8MoEMethod(ExpertsInFp8, fp8.Fp8MoEMethod):
    """As checkpoints of the `fp8` format have them."""

    @property
    def _parts(self) -> tuple[str, ...]:
        return "weight", self.weight_scale_name

    def _block(self) -> tuple[int, int] | None:
        return tuple(self.moe_block_shape) if self.block_quant else None


class XlaModelOptFp8MoEMethod(ExpertsInFp8, modelopt.ModelOptFp8MoEMethod):
    """As ModelOpt has them, with a scale of each matrix. vLLM's loader goes by the class's name."""

    _parts = ("weight", "weight_scale")

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        if quant_config.quant_method != "FP8":  # vLLM gives it those, too
            raise NotImplementedError(
                f"experts: ModelOpt's {quant_config.quant_method}, expected FP8, with a scale of each matrix"
            )
        FusedMoEMethodBase.__init__(self, moe_config)
        self.quant_config = quant_config

    def _block(self) -> None:
        return None


class ExpertsInMxfp4(ExpertsInCodes):
    """e2m1 with a power of two for each 32 columns."""

    _decode, _parts = staticmethod(_decoded_mxfp4), ("weight", "weight_scale")
    _repack = staticmethod(repack.from_mxfp4)


class XlaGptOssMxfp4MoEMethod(ExpertsInMxfp4, mxfp4.GptOssMxfp4MoEMethod):
    """As gpt-oss has them."""

    def __init__(self, moe: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        # What vLLM's own asks its list of kernels for, none of which is meant for this platform.
        self.weight_dtype, self.mxfp4_backend = "gpt_oss_mxfp4", Mxfp4MoeBackend.NONE


for _module in (fp8, modelopt):
    replace(_module, "Fp8MoEMethod", XlaFp8MoEMethod)
replace(modelopt, "ModelOptFp8MoEMethod", XlaModelOptFp8MoEMethod)
# The configuration has it as a class, too.
replace(modelopt.ModelOptFp8Config, "FusedMoEMethodCls", XlaModelOptFp8MoEMethod)
replace(mxfp4, "GptOssMxfp4MoEMethod", XlaGptOssMxfp4MoEMethod)
replace(mxfp4.Mxfp4Config, "get_supported_act_dtypes", classmethod(lambda cls: DTYPES))
