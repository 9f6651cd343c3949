"""Attention of vLLM's layers over our paged caches, as custom calls of the step's program.

vLLM calls `do_kv_cache_update` (`reshape_and_cache_flash`), then `forward`: `paged_attention` in a step in which every request
has one token, `flash_attn_varlen` in any other.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import chunked_local_attention
from vllm.model_executor.models import config as models
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

import intarsia.jax as ops
from intarsia.vllm.batch import Group
from intarsia.vllm.caches import KvCache, TracedCaches
from intarsia.vllm.capabilities import DTYPES, FP8_CACHES
from intarsia.vllm.operands import operand_of
from intarsia.vllm.products import Turned
from intarsia.vllm.replacing import replace


@dataclass
class TracedMetadata:
    """What a layer finds in vLLM's forward context while a step is traced."""

    group: Group
    caches: TracedCaches
    decode: bool


class XlaGpuNativeAttentionBackend(AttentionBackend):
    """Attention by Intarsia's kernels, on an NVIDIA GPU or a CPU."""

    supported_dtypes = DTYPES
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16", *FP8_CACHES]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM looks names up in an enum; this is its member for others' backends

    @staticmethod
    def get_impl_cls() -> type["XlaGpuPagedAttention"]:
        return XlaGpuPagedAttention

    @staticmethod
    def get_builder_cls() -> type["XlaMetadataBuilder"]:
        return XlaMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(8)]

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


class XlaNarrowValuesBackend(XlaGpuNativeAttentionBackend):
    """The same for layers that choose a backend by themselves, since their values are narrower than their keys."""

    @staticmethod
    def get_name() -> str:
        return "TRITON_ATTN_DIFFKV"  # the one that such layers take of vLLM's where FlashAttention's is not

    @classmethod
    def is_supported_on_current_device(cls, **_: Any) -> bool:
        """What is asked of FlashAttention's."""
        return False

    @classmethod
    def set_head_size_v(cls, size: int) -> None:
        """Layers say themselves how wide their values are."""


class XlaMetadataBuilder(AttentionMetadataBuilder[CommonAttentionMetadata]):
    """Hands on what all backends are given: it has all that our kernels need."""

    causal_only = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CommonAttentionMetadata:
        if self.causal_only and common_attn_metadata.causal is not True:
            raise NotImplementedError(
                f"attention: got a batch with causal={common_attn_metadata.causal}, expected True"
            )
        return common_attn_metadata


class XlaAttention(AttentionImpl[TracedMetadata]):
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
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> None:
        self._attn_type, self._others = attn_type, others
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.alibi_slopes = alibi_slopes
        self.sinks = sinks
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: TracedMetadata,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes what `attend` gives to `output`."""
        from torchax import interop

        _refuse(output_scale=(output_scale, None), output_block_scale=(output_block_scale, None))
        out = self.attend(layer, query, key, value, attn_metadata)
        values = output.numel() // (out.shape[0] * out.shape[1])  # numbers of a head's value
        output.copy_(interop.torch_view(out[..., :values].reshape(output.shape)))
        return output

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        metadata: TracedMetadata,
    ) -> jax.Array:
        """The results [t, h, d] of query, key and value [t, h, d]."""
        raise NotImplementedError


class XlaGpuPagedAttention(XlaAttention):
    """Causal attention to a paged KV cache."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _refuse(
            attn_type=(self._attn_type, AttentionType.DECODER),
            **{k: (v, None) for k, v in self._others.items()},
        )
        if self.alibi_slopes is not None and get_tensor_model_parallel_world_size() > 1:
            raise NotImplementedError(
                "attention: ALiBi under tensor parallelism: each rank's program would have its own slopes"
            )
        self.turned: Turned | None = None  # while a layer is called whose rotation is left to us
        self._query: jax.Array | None = None

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes this step's keys and values into their slots."""
        from torchax import interop

        metadata: TracedMetadata = get_forward_context().attn_metadata[layer.layer_name]
        if self.turned is not None:
            self._turn_and_write(layer, self.turned, metadata)
            return
        keys, values = interop.jax_view((key, value))
        # A head's value may have fewer numbers than its key; the cache has as many of both (`runner`).
        if narrower := keys.shape[-1] - values.shape[-1]:
            values = jnp.pad(values, ((0, 0), (0, 0), (0, narrower)))
        cache = ops.reshape_and_cache_flash(
            keys,
            values,
            metadata.caches.read(layer.layer_name),
            metadata.group.slot_mapping,
            **self._fp8(layer),
        )
        metadata.caches.write(layer.layer_name, cache)

    def _turn_and_write(self, layer: Any, turned: Turned, metadata: TracedMetadata) -> None:
        """Norms and turns queries and keys as well: those that vLLM hands over are then nobody's, and not computed."""
        whole = turned.product.whole
        positions = turned.positions.reshape(-1)
        heads = whole.reshape(len(whole), -1, self.head_size)
        normed: dict[str, Any] = {}
        if turned.norms is not None:
            of_query, of_key = turned.norms
            normed = dict(q_weight=of_query.weight, k_weight=of_key.weight, eps=of_query.eps)
        self._query, cache = ops.rotary_embedding_and_cache(
            positions,
            heads,
            turned.table,
            metadata.caches.read(layer.layer_name),
            metadata.group.slot_mapping,
            num_heads=self.num_heads,
            is_neox=turned.is_neox,
            **normed,
            **self._fp8(layer),
        )
        metadata.caches.write(layer.layer_name, cache)

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        metadata: TracedMetadata,
    ) -> jax.Array:
        """Attends to the cache, which has this step's keys and values."""
        from torchax import interop

        cache = metadata.caches.read(layer.layer_name)
        attend = self.forward_decode if metadata.decode else self.forward_prefill
        options = self._fp8(layer) | self._sinks()
        if self.alibi_slopes is not None:
            options["alibi_slopes"] = jnp.asarray(self.alibi_slopes, jnp.float32)
        if chunk := getattr(layer, "attention_chunk_size", 0):
            options["attention_chunk"] = chunk
        queries = interop.jax_view(query) if self.turned is None else self._query
        return attend(queries, cache, metadata.group, options)

    def forward_prefill(
        self, query: jax.Array, cache: KvCache, group: Group, options: dict[str, Any]
    ) -> jax.Array:
        """Any number of tokens a request: query [t, h, d], out the same."""
        window = (-1, -1) if self.sliding_window is None else (self.sliding_window - 1, 0)
        return ops.flash_attn_varlen(
            query,
            *cache,
            group.cu_seqlens_q,
            seqused_k=group.seqused_k,
            block_table=group.block_table,
            scale=self.scale,
            is_causal=True,
            window=window,
            softcap=self.logits_soft_cap,
            **options,
        )

    def forward_decode(
        self, query: jax.Array, cache: KvCache, group: Group, options: dict[str, Any]
    ) -> jax.Array:
        """One token a request: query [t, h, d], out the same."""
        return ops.paged_attention(
            query,
            cache,
            group.seqused_k,
            group.block_table,
            group.cu_seqlens_q,
            scale=self.scale,
            sliding_window=self.sliding_window,
            softcap=self.logits_soft_cap,
            **options,
        )

    def _sinks(self) -> dict[str, Any]:
        """What the ops need to know of an attention's sinks."""
        if self.sinks is None:
            return {}
        from torchax import interop

        return {"sinks": interop.jax_view(operand_of(self.sinks, "attention: sinks"))}

    def _fp8(self, layer: Any) -> dict[str, Any]:
        """What the ops need to know of a cache in fp8; nothing of another."""
        if self.kv_cache_dtype not in FP8_CACHES:
            return {}
        from torchax import interop

        return {
            "kv_cache_dtype": FP8_CACHES[self.kv_cache_dtype],
            "k_scale": interop.jax_view(layer._k_scale),
            "v_scale": interop.jax_view(layer._v_scale),
        }


def unread_suffixes(cache_dtype: str) -> tuple[str, ...]:
    """How the names of an attention's buffers end that no op of ours reads: left in, each would be an operand of every step."""
    unread = ("._q_scale", "._prob_scale")
    return unread if cache_dtype in FP8_CACHES else (*unread, "._k_scale", "._v_scale")


def _refuse(**given: tuple[Any, Any]) -> None:
    """Raises if an argument (its value, the only one supported) is another."""
    for name, (value, expected) in given.items():
        if value != expected:
            raise NotImplementedError(f"attention: {name} is {value!r}, expected {expected!r}")


# vLLM would choose among its own kernels by the sizes of heads, as if --attention-backend had been given.
replace(models.Gemma4Config, "verify_and_update_config", staticmethod(lambda vllm_config: None))
# vLLM would have each chunk be a request of its own, with a block table of its own; our kernels know of chunks.
replace(
    chunked_local_attention,
    "create_chunked_local_attention_backend",
    lambda underlying_attn_backend, attention_chunk_size: underlying_attn_backend,
)
