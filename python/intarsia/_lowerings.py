"""`register_<op>_lowering` for each op, as code for torch_xla calls them. See `intarsia.xla_ops`.

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
    "register_rotary_embedding_lowering",
    "register_silu_and_mul_lowering",
    "register_silu_and_mul_quant_lowering",
    "register_simple_add_lowering",
    "register_static_scaled_fp8_quant_lowering",
    "register_static_scaled_int8_quant_lowering",
]


def _register() -> bool:
    """Registers every op, under vLLM's own names, too: `intarsia.vllm.register_ops`. Returns True."""
    import intarsia.vllm  # which imports intarsia.xla_ops

    return intarsia.vllm.register_ops()


register_dynamic_per_token_scaled_fp8_quant_lowering = _register
register_dynamic_scaled_fp8_quant_lowering = _register
register_dynamic_scaled_int8_quant_lowering = _register
register_flash_attention_lowering = _register
register_flash_attn_varlen_backward_lowering = _register
register_fused_add_rms_norm_lowering = _register
register_fused_add_rms_norm_static_fp8_quant_lowering = _register
register_gelu_and_mul_lowering = _register
register_gelu_tanh_and_mul_lowering = _register
register_merge_attn_states_lowering = _register
register_paged_attention_lowering = _register
register_per_token_group_fp8_quant_lowering = _register
register_reshape_and_cache_flash_lowering = _register
register_rms_norm_dynamic_per_token_quant_lowering = _register
register_rms_norm_lowering = _register
register_rms_norm_static_fp8_quant_lowering = _register
register_rotary_embedding_lowering = _register
register_silu_and_mul_lowering = _register
register_silu_and_mul_quant_lowering = _register
register_simple_add_lowering = _register
register_static_scaled_fp8_quant_lowering = _register
register_static_scaled_int8_quant_lowering = _register
