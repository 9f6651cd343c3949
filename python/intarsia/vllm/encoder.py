"""Attention in both directions, as encoders have it: over the prompts of a step, without a cache.

vLLM has such layers in a group of their own, behind those of the KV cache. A prompt has to come whole.
"""

from typing import Any

import jax
import torch

import intarsia.jax as ops
from intarsia.vllm.attention import (
    TracedMetadata,
    XlaAttention,
    XlaGpuNativeAttentionBackend,
    XlaMetadataBuilder,
)
from intarsia.vllm.refusals import of_whole_prompts, refuse_all


class XlaEncoderBackend(XlaGpuNativeAttentionBackend):
    """The backend of layers that are `AttentionType.ENCODER_ONLY`."""

    forward_includes_kv_cache_update = True  # there is none

    @staticmethod
    def get_impl_cls() -> type["XlaEncoderAttention"]:
        return XlaEncoderAttention

    @staticmethod
    def get_builder_cls() -> type["XlaEncoderMetadataBuilder"]:
        return XlaEncoderMetadataBuilder


class XlaEncoderMetadataBuilder(XlaMetadataBuilder):
    """Made at the start for the layers that there are, whatever vLLM's configuration takes the model for."""

    causal_only = False

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        refuse_all(of_whole_prompts(vllm_config))


class XlaEncoderAttention(XlaAttention):
    """Attention of each prompt's tokens to all of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refused = {
            "alibi_slopes": self.alibi_slopes,
            "kv_sharing_target_layer_name": self.kv_sharing_target_layer_name,
            "sinks": self.sinks,
            **self._others,
        }
        if wrong := [name for name, value in refused.items() if value is not None]:
            raise NotImplementedError(
                f"attention in both directions with {', '.join(wrong)}, expected none"
            )
        # vLLM's number counts a token itself, and is that of either side.
        side = -1 if self.sliding_window is None else self.sliding_window - 1
        self.window = (side, side)

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        metadata: TracedMetadata,
    ) -> jax.Array:
        from torchax import interop

        starts = metadata.group.cu_seqlens_q
        return ops.flash_attn_varlen(
            *interop.jax_view((query, key, value)),
            starts,
            cu_seqlens_k=starts,
            scale=self.scale,
            window=self.window,
            softcap=self.logits_soft_cap,
        )
