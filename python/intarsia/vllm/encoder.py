"""Attention in both directions, as encoders have it: over the prompts of a step, without a cache.

vLLM has such layers in a group of their own, behind those of the KV cache. A prompt has to come whole.
"""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImpl, AttentionType, CommonAttentionMetadata

import intarsia.jax as ops
from intarsia.vllm.attention import (
    TracedMetadata,
    XlaGpuMetadataBuilder,
    XlaGpuNativeAttentionBackend,
)
from intarsia.vllm.refusals import of_whole_prompts


class XlaEncoderBackend(XlaGpuNativeAttentionBackend):
    """The backend of layers that are `AttentionType.ENCODER_ONLY`."""

    forward_includes_kv_cache_update = True  # there is none

    @staticmethod
    def get_impl_cls() -> type["XlaEncoderAttention"]:
        return XlaEncoderAttention

    @staticmethod
    def get_builder_cls() -> type["XlaEncoderMetadataBuilder"]:
        return XlaEncoderMetadataBuilder


class XlaEncoderMetadataBuilder(XlaGpuMetadataBuilder):
    """Made at the start for the layers that there are, whatever vLLM's configuration takes the model for."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if found := [*of_whole_prompts(vllm_config)]:
            raise NotImplementedError("intarsia-vllm does not support " + "; ".join(found))

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CommonAttentionMetadata:
        return common_attn_metadata


class XlaEncoderAttention(AttentionImpl[TracedMetadata]):
    """One layer's attention. Its tensors are those of a program that is being traced."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.ENCODER_ONLY,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        refused = {
            "alibi_slopes": alibi_slopes,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            **others,
        }
        if wrong := [name for name, value in refused.items() if value is not None]:
            raise NotImplementedError(
                f"attention in both directions with {', '.join(wrong)}, expected none"
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        # vLLM's number counts a token itself, and is that of either side.
        side = -1 if sliding_window is None else sliding_window - 1
        self.window = (side, side)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TracedMetadata,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attends to each prompt's own tokens: query, key and value [t, h, d]."""
        from torchax import interop

        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attention: a quantized output, expected the model's dtype")
        starts = attn_metadata.group.cu_seqlens_q
        out = ops.flash_attn_varlen(
            *interop.jax_view((query, key, value)),
            starts,
            cu_seqlens_k=starts,
            scale=self.scale,
            window=self.window,
            softcap=self.logits_soft_cap,
        )
        output.copy_(interop.torch_view(out))
        return output
