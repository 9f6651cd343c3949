"""`register_<op>_lowering` for each op, as code for torch_xla calls them. See `intarsia.xla_ops`.

Each is the one function that registers all.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

__all__ = [
    "register_dynamic_per_token_scaled_fp8_quant_lowering",
    "register_dynamic_scaled_fp8_quant_lowering",
    "register_dynamic_scaled_int8_quant_lowering",
    "register_flash_attention_lowering",
    "register_flash_attn_varlen_backward_lowering",
    "register_fused_add_rms_norm_lowering",
    "register_fused_add_rms_norm_static_fp8_quant_lowering",
    "register_gelu_and_mul_lowering",
    "register_gelu_tanh_and_mul_lowering",
    "register_merge_attn_states_lowering",
    "register_paged_attention_lowering",
    "register_per_token_group_fp8_quant_lowering",
    "register_reshape_and_cache_flash_lowering",
    "register_rms_norm_dynamic_per_token_quant_lowering",
    "register_rms_norm_lowering",
    "register_rms_norm_static_fp8_quant_lowering",
    "register_rotary_embedding_and_cache_lowering",
    "register_rotary_embedding_lowering",
    "register_silu_and_mul_lowering",
    "register_silu_and_mul_quant_lowering",
    "register_simple_add_lowering",
    "register_static_scaled_fp8_quant_lowering",
    "register_static_scaled_int8_quant_lowering",
]


def register_all_lowerings() -> bool:
    """Registers every op, and all of vLLM's names: `intarsia.vllm.register_ops`. Returns True."""
    from intarsia.vllm import register_ops  # here, since it imports intarsia.xla_ops

    return register_ops()


register_dynamic_per_token_scaled_fp8_quant_lowering = register_all_lowerings
register_dynamic_scaled_fp8_quant_lowering = register_all_lowerings
register_dynamic_scaled_int8_quant_lowering = register_all_lowerings
register_flash_attention_lowering = register_all_lowerings
register_flash_attn_varlen_backward_lowering = register_all_lowerings
register_fused_add_rms_norm_lowering = register_all_lowerings
register_fused_add_rms_norm_static_fp8_quant_lowering = register_all_lowerings
register_gelu_and_mul_lowering = register_all_lowerings
register_gelu_tanh_and_mul_lowering = register_all_lowerings
register_merge_attn_states_lowering = register_all_lowerings
register_paged_attention_lowering = register_all_lowerings
register_per_token_group_fp8_quant_lowering = register_all_lowerings
register_reshape_and_cache_flash_lowering = register_all_lowerings
register_rms_norm_dynamic_per_token_quant_lowering = register_all_lowerings
register_rms_norm_lowering = register_all_lowerings
register_rms_norm_static_fp8_quant_lowering = register_all_lowerings
register_rotary_embedding_and_cache_lowering = register_all_lowerings
register_rotary_embedding_lowering = register_all_lowerings
register_silu_and_mul_lowering = register_all_lowerings
register_silu_and_mul_quant_lowering = register_all_lowerings
register_simple_add_lowering = register_all_lowerings
register_static_scaled_fp8_quant_lowering = register_all_lowerings
register_static_scaled_int8_quant_lowering = register_all_lowerings
