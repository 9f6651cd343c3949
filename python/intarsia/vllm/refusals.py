"""What the plugin does not do, refused when vLLM starts: nothing is to run wrongly in silence."""

from collections.abc import Iterable, Iterator
from typing import get_args

import torch
from vllm.config import VllmConfig
from vllm.config.cache import CacheDType
from vllm.platforms import current_platform

from intarsia.vllm.capabilities import (
    DTYPES,
    FP8_CACHES,
    LARGEST_HEADS,
    MODELOPT,
    QUANTIZATIONS,
    RECURRENT,
)
from intarsia.vllm.compat import dtype_name

_EXECUTORS = ("uni", "mp")
"""vLLM's names of those that are served, beside Ray's."""
_CACHES_OF_CHECKPOINTS = ("kv_cache_scheme", "kv_cache_quant_algo")
"""What a checkpoint's quantization_config calls the cache that it asks for."""


def refuse(config: VllmConfig) -> None:
    """Raises NotImplementedError, with all reasons, for what would fail or go wrong."""
    found = [*_of_the_engine(config)]
    if config.model_config is not None:
        found += _of_the_model(config)
    refuse_all(found)


def refuse_all(found: Iterable[str]) -> None:
    """Raises NotImplementedError, with all that was found, if anything was."""
    if reasons := [*found]:
        raise NotImplementedError("intarsia-vllm does not support " + "; ".join(reasons))


def _of_the_engine(config: VllmConfig) -> Iterator[str]:
    parallel, cache = config.parallel_config, config.cache_config
    if config.lora_config is not None:
        yield "LoRA (--enable-lora)"
    if getattr(config, "diffusion_config", None) is not None:  # new in 0.33
        yield "diffusion models"
    if getattr(config, "watermark_config", None) is not None:  # new in 0.33
        yield "watermarks (--watermark-config)"
    outputs = getattr(config, "aux_output_config", None)  # new in 0.33
    if outputs is not None and outputs.enabled:
        yield "experts of tokens as an output (--enable-return-routed-experts)"
    if config.speculative_config is not None:
        yield "speculative decoding (--speculative-config)"
    for size, option in (
        (parallel.pipeline_parallel_size, "pipeline parallelism (--pipeline-parallel-size)"),
        (parallel.prefill_context_parallel_size, "prefill context parallelism"),
        (parallel.decode_context_parallel_size, "decode context parallelism"),
    ):
        if size > 1:
            yield f"{option}: {size}, expected 1"
    if parallel.enable_expert_parallel and parallel.enable_eplb:
        yield "experts that move among ranks (--enable-eplb)"
    if parallel.enable_dbo or parallel.ubatch_size:
        yield "batches in parts (--enable-dbo, --ubatch-size)"
    if parallel.data_parallel_size > 1 and parallel.is_moe_model:
        yield (
            f"experts across engines (--data-parallel-size of a mixture): {parallel.data_parallel_size}, expected 1"
        )
    elif parallel.data_parallel_size > 1 and parallel.data_parallel_external_lb:
        # vLLM's own refusal comes before it makes this of hybrid balancing with one engine a host.
        yield (
            "external balancing of a dense model's replicas (--data-parallel-size-local 1), expected a server for each "
            "without --data-parallel-size"
        )
    executor = parallel.distributed_executor_backend
    if not parallel.use_ray and executor not in (None, *_EXECUTORS):
        yield f"--distributed-executor-backend {executor}, expected one of {', '.join((*_EXECUTORS, 'ray'))}"
    if parallel.data_parallel_size > 1 and parallel.use_ray:
        yield (
            "replicas of ranks in Ray (--data-parallel-size with --distributed-executor-backend ray): "
            f"{parallel.data_parallel_size}, expected 1"
        )
    if parallel.data_parallel_size > 1 and parallel.data_parallel_backend != "mp":
        yield f"engines that Ray starts (--data-parallel-backend {parallel.data_parallel_backend}), expected mp"
    if parallel.assigned_physical_gpu_ids:
        yield "a choice of GPUs by --device-ids, expected CUDA_VISIBLE_DEVICES"
    if config.kv_transfer_config is not None or config.ec_transfer_config is not None:
        yield "KV connectors (--kv-transfer-config)"
    if cache.kv_offloading_size:  # becomes a connector later, when nobody asks any more
        yield "KV caches on the host (--kv-offloading-size)"
    if config.weight_transfer_config is not None:
        yield "weight transfer (--weight-transfer-config)"
    if (
        config.offload_config.uva.cpu_offload_gb
        or config.offload_config.prefetch.offload_group_size
    ):
        yield "weights on the host (--cpu-offload-gb)"
    if cache.user_specified_block_size and cache.block_size % 8:
        yield f"--block-size {cache.block_size}, expected a multiple of 8"
    if cache.kv_sharing_fast_prefill:
        yield "fast prefill of shared caches (--kv-sharing-fast-prefill)"
    if cache.kv_cache_dtype_skip_layers:
        yield "caches of several dtypes (--kv-cache-dtype-skip-layers)"


def _of_the_model(config: VllmConfig) -> Iterator[str]:
    model, cache = config.model_config, config.cache_config
    if model.runner_type not in ("generate", "pooling"):
        yield f"models that neither generate nor pool (--runner {model.runner_type})"
    if model.is_encoder_decoder:
        yield "encoder-decoder models"
    if model.is_multimodal_model and model.supports_multimodal_inputs:
        yield f"multimodal inputs ({_name(config)}; its text half: --language-model-only)"
    recurrent = model.is_hybrid or model.is_attention_free or model.has_inner_state
    if recurrent and not set(model.architectures) <= set(RECURRENT):
        yield f"models with recurrent layers ({_name(config)})"
    elif recurrent:
        yield from _of_states(config)
    if model.attn_type == "encoder_only":
        yield from of_whole_prompts(config)
    ranks = config.parallel_config.tensor_parallel_size
    if ranks > 1 and any("ModernBert" in name for name in model.architectures):
        # vLLM's layer splits a rank's product as if all heads were in it.
        yield f"ModernBERT on several ranks (--tensor-parallel-size): {ranks}, expected 1"
    if model.use_mla:
        yield f"caches of latents ({_name(config)}, VLLM_MLA_DISABLE=0), expected VLLM_MLA_DISABLE=1"
    if getattr(model.hf_text_config, "index_topk", None) is not None:
        yield f"sparse attention ({_name(config)})"
    if model.quantization not in (None, *QUANTIZATIONS):
        expected = ", ".join(QUANTIZATIONS)
        yield f"quantized weights ({model.quantization}), expected one of {expected}"
    layers = getattr(config.quant_config, "quantized_layers", {})  # of ModelOpt's mixed checkpoints
    if others := {x["quant_algo"].upper() for x in layers.values()} - {*MODELOPT}:
        yield f"quantized weights ({', '.join(sorted(others))}), expected one of {', '.join(MODELOPT)}"
    if model.enable_prompt_embeds:
        yield "embeddings as prompts (--enable-prompt-embeds)"
    if model.enable_sleep_mode:
        yield "sleep mode (--enable-sleep-mode)"
    if model.dtype not in DTYPES:
        yield f"activations in {model.dtype}"
    # Gemma 4's layers without a window have heads of their own.
    of_some_layers = getattr(model.hf_text_config, "global_head_dim", None) or 0
    head, device = max(model.get_head_size(), of_some_layers), current_platform.device_type
    if head % 8 or head > LARGEST_HEADS[device]:
        yield f"heads of {head} on {device}, expected a multiple of 8 up to {LARGEST_HEADS[device]}"
    served = (*_caches_as_the_model(config), *FP8_CACHES)
    if cache.cache_dtype not in served:
        expected = ", ".join(served)
        yield f"--kv-cache-dtype {cache.cache_dtype} for {model.dtype}, expected one of {expected}"


def of_whole_prompts(config: VllmConfig) -> Iterator[str]:
    """What would take prompts apart whose tokens attend to later ones, too."""
    scheduler, cache = config.scheduler_config, config.cache_config
    given = [
        (
            "chunks of prompts (--enable-chunked-prefill)",
            scheduler.enable_chunked_prefill,
            "--no-enable-chunked-prefill",
        ),
        (
            f"parts of prompts (--long-prefill-token-threshold {scheduler.long_prefill_token_threshold})",
            scheduler.long_prefill_token_threshold,
            "0",
        ),
        (
            "prefixes of prompts (--enable-prefix-caching)",
            cache.enable_prefix_caching,
            "--no-enable-prefix-caching",
        ),
    ]
    for what, value, expected in given:
        if value:
            yield f"{what} with attention in both directions, expected {expected}"
    if cache.cache_dtype not in _caches_as_the_model(config):
        yield (
            f"--kv-cache-dtype {cache.cache_dtype} with attention in both directions, which has no cache, "
            f"expected {_expected_caches(config)}"
        )


def _of_states(config: VllmConfig) -> Iterator[str]:
    """What recurrent layers lack: their states lie in pages of the KV cache."""
    cache = config.cache_config
    if cache.cache_dtype in FP8_CACHES:
        yield (
            f"--kv-cache-dtype {cache.cache_dtype} beside recurrent layers, whose states share its pages, "
            f"expected {_expected_caches(config)}"
        )
    if cache.enable_prefix_caching:
        yield "prefixes of recurrent layers (--enable-prefix-caching), expected --no-enable-prefix-caching"
    own = _dtype(config)
    if cache.mamba_cache_dtype not in ("auto", own):
        yield f"--mamba-cache-dtype {cache.mamba_cache_dtype}, expected auto or {own}"
    of_states = getattr(torch, cache.mamba_ssm_cache_dtype, config.model_config.dtype)
    if of_states.itemsize < config.model_config.dtype.itemsize:
        yield f"--mamba-ssm-cache-dtype {cache.mamba_ssm_cache_dtype}, expected at least as many bits as {own}"


def _caches_as_the_model(config: VllmConfig) -> tuple[str, ...]:
    """What --kv-cache-dtype is for a cache in the model's own dtype: vLLM has no name of one in f32."""
    return ("auto", *({_dtype(config)} & {*get_args(CacheDType)}))


def _expected_caches(config: VllmConfig) -> str:
    """These names, but for `auto` where a checkpoint asks for a cache in fp8: then that is what vLLM makes of it."""
    served = _caches_as_the_model(config)
    quantization = getattr(config.model_config.hf_config, "quantization_config", None) or {}
    inner = quantization.get("quantization", quantization)
    if not any(x.get(y) for x in (quantization, inner) for y in _CACHES_OF_CHECKPOINTS):
        return " or ".join(served)
    _, *own = served
    given = own[0] if own else "bfloat16 and --dtype bfloat16"
    return f"{given}, since the checkpoint makes fp8 of auto"


def _dtype(config: VllmConfig) -> str:
    return dtype_name(config.model_config.dtype)


def _name(config: VllmConfig) -> str:
    return ", ".join(config.model_config.architectures)
