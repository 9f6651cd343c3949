"""Intarsia's ops as plain functions for JAX: under jit they are custom calls inside the XLA program.

Shape letters in all docstrings: b sequences, t tokens, h query heads, hk KV heads, d head dim, n hidden
size, p pages, s page size, m pages per sequence, r rotary dim, l layers.

Where things are: `wire` has a function for each op, operand by operand. `_call` makes a custom call of it. `_vmap`, `_grad`, `_shard`
and `_export` define what JAX's transformations make of it. Functions with another form than the op have modules of their own, such as
`_attention`, `_cache` and `_linear`.
"""

from intarsia import _native
from intarsia._packages import needed_by

with needed_by("intarsia.jax"):
    # The rules declare themselves.
    from intarsia.jax import _experts_grad, _grad_rules, wire  # noqa: F401
from intarsia.jax._attention import flash_attn_varlen, paged_attention
from intarsia.jax._cache import reshape_and_cache_flash, rotary_embedding_and_cache
from intarsia.jax._cache_blocks import copy_blocks, gather_cache, swap_blocks
from intarsia.jax._call import call, register
from intarsia.jax._cascade import cascade_attention
from intarsia.jax._chain import chain
from intarsia.jax._coded_experts import fused_experts_quantized
from intarsia.jax._dot_product import dot_product_attention
from intarsia.jax._exchange import Exchange, all_reduce_fused_add_rms_norm, make_exchange
from intarsia.jax._export import export_exemptions
from intarsia.jax._flash_mha import flash_mha, flash_mha_varlen, flash_mha_with_kvcache
from intarsia.jax._grouped import grouped_matmul
from intarsia.jax._linear import linear
from intarsia.jax._quantized import linear_packed, linear_quantized, take_packed
from intarsia.jax._ragged import ragged_paged_attention
from intarsia.jax._rotary import multimodal_rotary_embedding
from intarsia.jax._shard import ShardedOps, kv_cache_sharding, kv_heads, shard
from intarsia.jax._w8a8 import linear_w8a8
from intarsia.jax.wire import (
    convert_fp8,
    dynamic_per_token_scaled_fp8_quant,
    dynamic_scaled_fp8_quant,
    dynamic_scaled_int8_azp_quant,
    dynamic_scaled_int8_quant,
    fatrelu_and_mul,
    flash_attn_varlen_backward,
    fused_add_rms_norm,
    fused_add_rms_norm_static_fp8_quant,
    fused_experts,
    fused_linear_quantized,
    fused_qk_norm_rope,
    gelu_and_mul,
    gelu_fast,
    gelu_new,
    gelu_quick,
    gelu_tanh_and_mul,
    grouped_matmul_quantized,
    grouped_matmul_weight_gradient,
    layer_norm,
    layer_norm_dynamic_per_token_quant,
    layer_norm_static_fp8_quant,
    linear_quantized_int8,
    merge_attn_states,
    mul_and_silu,
    per_token_group_fp8_quant,
    per_token_group_quant_int8,
    rms_norm,
    rms_norm_dynamic_per_token_quant,
    rms_norm_per_block_quant,
    rms_norm_static_fp8_quant,
    rotary_embedding,
    scaled_matmul,
    silu_and_mul,
    silu_and_mul_quant,
    silu_and_mul_with_clamp,
    simple_add,
    static_scaled_fp8_quant,
    static_scaled_int8_quant,
    swigluoai_and_mul,
    topk_router,
)

__all__ = [
    "Exchange",
    "ShardedOps",
    "all_reduce_fused_add_rms_norm",
    "call",
    "cascade_attention",
    "chain",
    "convert_fp8",
    "copy_blocks",
    "dot_product_attention",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_azp_quant",
    "dynamic_scaled_int8_quant",
    "export_exemptions",
    "fatrelu_and_mul",
    "flash_attn_varlen",
    "flash_attn_varlen_backward",
    "flash_mha",
    "flash_mha_varlen",
    "flash_mha_with_kvcache",
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
    "kv_cache_sharding",
    "kv_heads",
    "layer_norm",
    "layer_norm_dynamic_per_token_quant",
    "layer_norm_static_fp8_quant",
    "linear",
    "linear_packed",
    "linear_quantized",
    "linear_quantized_int8",
    "linear_w8a8",
    "make_exchange",
    "merge_attn_states",
    "mul_and_silu",
    "multimodal_rotary_embedding",
    "paged_attention",
    "per_token_group_fp8_quant",
    "per_token_group_quant_int8",
    "ragged_paged_attention",
    "register",
    "reshape_and_cache_flash",
    "rms_norm",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "rotary_embedding_and_cache",
    "scaled_matmul",
    "shard",
    "silu_and_mul",
    "silu_and_mul_quant",
    "silu_and_mul_with_clamp",
    "simple_add",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "swap_blocks",
    "swigluoai_and_mul",
    "take_packed",
    "topk_router",
    "wire",
]

# Now, and not at the first call: a program that was exported earlier finds its targets.
register(_native.main_library())
