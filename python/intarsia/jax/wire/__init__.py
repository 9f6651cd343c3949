"""The ops as plain functions, operand by operand as they go over the wire.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from intarsia.jax.wire._words import Activation as Activation
from intarsia.jax.wire._words import Axis as Axis
from intarsia.jax.wire._words import ConvertFp8OutDtype as ConvertFp8OutDtype
from intarsia.jax.wire._words import FlashAttnVarlenOutDtype as FlashAttnVarlenOutDtype
from intarsia.jax.wire._words import Format as Format
from intarsia.jax.wire._words import FusedLinearQuantizedOutDtype as FusedLinearQuantizedOutDtype
from intarsia.jax.wire._words import Gating as Gating
from intarsia.jax.wire._words import GroupedMatmulOutDtype as GroupedMatmulOutDtype
from intarsia.jax.wire._words import (
    GroupedMatmulQuantizedOutDtype as GroupedMatmulQuantizedOutDtype,
)
from intarsia.jax.wire._words import (
    GroupedMatmulWeightGradientOutDtype as GroupedMatmulWeightGradientOutDtype,
)
from intarsia.jax.wire._words import KvCacheDtype as KvCacheDtype
from intarsia.jax.wire._words import LinearOutDtype as LinearOutDtype
from intarsia.jax.wire._words import LinearQuantizedInt8OutDtype as LinearQuantizedInt8OutDtype
from intarsia.jax.wire._words import LinearQuantizedOutDtype as LinearQuantizedOutDtype
from intarsia.jax.wire._words import QuantDtype as QuantDtype
from intarsia.jax.wire._words import Rounding as Rounding
from intarsia.jax.wire._words import ScaledMatmulOutDtype as ScaledMatmulOutDtype
from intarsia.jax.wire._words import Scoring as Scoring
from intarsia.jax.wire._words import W2Format as W2Format
from intarsia.jax.wire._words import ZerosAre as ZerosAre
from intarsia.jax.wire.activation import (
    fatrelu_and_mul,
    gelu_and_mul,
    gelu_fast,
    gelu_new,
    gelu_quick,
    gelu_tanh_and_mul,
    mul_and_silu,
    silu_and_mul,
    silu_and_mul_quant,
    silu_and_mul_with_clamp,
    swigluoai_and_mul,
)
from intarsia.jax.wire.attention import (
    flash_attn_varlen,
    flash_attn_varlen_backward,
    paged_attention,
)
from intarsia.jax.wire.cache import (
    convert_fp8,
    copy_blocks,
    gather_cache,
    reshape_and_cache_flash,
    swap_blocks,
)
from intarsia.jax.wire.matmul import (
    fused_experts,
    fused_experts_quantized,
    fused_linear_quantized,
    grouped_matmul,
    grouped_matmul_quantized,
    grouped_matmul_weight_gradient,
    linear,
    linear_quantized,
    linear_quantized_int8,
    scaled_matmul,
)
from intarsia.jax.wire.norm import (
    all_reduce_fused_add_rms_norm,
    fused_add_rms_norm,
    fused_add_rms_norm_static_fp8_quant,
    layer_norm,
    layer_norm_dynamic_per_token_quant,
    layer_norm_static_fp8_quant,
    rms_norm,
    rms_norm_dynamic_per_token_quant,
    rms_norm_per_block_quant,
    rms_norm_static_fp8_quant,
)
from intarsia.jax.wire.others import (
    merge_attn_states,
    simple_add,
    topk_router,
)
from intarsia.jax.wire.quant import (
    dynamic_per_token_scaled_fp8_quant,
    dynamic_scaled_fp8_quant,
    dynamic_scaled_int8_azp_quant,
    dynamic_scaled_int8_quant,
    per_token_group_fp8_quant,
    per_token_group_quant_int8,
    static_scaled_fp8_quant,
    static_scaled_int8_quant,
)
from intarsia.jax.wire.rotary import (
    fused_qk_norm_rope,
    rotary_embedding,
    rotary_embedding_and_cache,
)

__all__ = [
    "all_reduce_fused_add_rms_norm",
    "convert_fp8",
    "copy_blocks",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_azp_quant",
    "dynamic_scaled_int8_quant",
    "fatrelu_and_mul",
    "flash_attn_varlen",
    "flash_attn_varlen_backward",
    "fused_add_rms_norm",
    "fused_add_rms_norm_static_fp8_quant",
    "fused_experts",
    "fused_experts_quantized",
    "fused_linear_quantized",
    "fused_qk_norm_rope",
    "gather_cache",
    "gelu_and_mul",
    "gelu_fast",
    "gelu_new",
    "gelu_quick",
    "gelu_tanh_and_mul",
    "grouped_matmul",
    "grouped_matmul_quantized",
    "grouped_matmul_weight_gradient",
    "layer_norm",
    "layer_norm_dynamic_per_token_quant",
    "layer_norm_static_fp8_quant",
    "linear",
    "linear_quantized",
    "linear_quantized_int8",
    "merge_attn_states",
    "mul_and_silu",
    "paged_attention",
    "per_token_group_fp8_quant",
    "per_token_group_quant_int8",
    "reshape_and_cache_flash",
    "rms_norm",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "rotary_embedding_and_cache",
    "scaled_matmul",
    "silu_and_mul",
    "silu_and_mul_quant",
    "silu_and_mul_with_clamp",
    "simple_add",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "swap_blocks",
    "swigluoai_and_mul",
    "topk_router",
]
