"""vLLM's platform: the CPU by XLA. `cuda_platform` is the one for NVIDIA GPUs."""

import multiprocessing
import sys
import types
from typing import Any

import psutil
import torch
from vllm.platforms.interface import Platform, PlatformEnum

from intarsia import _environment
from intarsia.vllm.capabilities import DTYPES
from intarsia.vllm.compat import check_vllm_version
from intarsia.vllm.replacing import replace

check_vllm_version()

# vLLM's second runner needs Triton, and is not the one that ours derives from. Asked for before any configuration is made.
_environment.default_to_first_runner()
# Latents are taken apart into every head's keys and values, which the cache holds: right, and larger (docs/vllm.md).
_environment.default_to_plain_heads()
_environment.leave_humming_unbuilt()
_environment.let_engines_end()

# Fields of vLLM's AttentionSelectorConfig (versions have more or fewer of them) that our kernels have no form for.
_REFUSED = (
    "use_mla",
    "use_sparse",
    "use_mm_prefix",
    "use_per_head_quant_scales",
    "use_non_causal",
    "use_batch_invariant",
    "use_adaptive_verification",
    "use_rswa",
)


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slot_mapping: torch.Tensor,
    kv_cache_block_size: int,
    *_: Any,
) -> None:
    """vLLM's one Triton kernel that a step cannot do without (v1/worker/block_table.py), by torch, for one rank's cache.

    Takes the kernel's arguments in its order; writes slot_mapping[:max_num_tokens], -1 beyond num_tokens.
    """
    tokens = torch.arange(num_tokens, device=positions.device)
    request = torch.searchsorted(query_start_loc[1:].to(torch.int64), tokens, right=True)
    page, offset = (
        positions[:num_tokens] // kv_cache_block_size,
        positions[:num_tokens] % kv_cache_block_size,
    )
    pages = block_table[request, page].to(torch.int64)
    slot_mapping[:num_tokens] = pages * kv_cache_block_size + offset
    slot_mapping[num_tokens:max_num_tokens].fill_(-1)


class XlaPlatform(Platform):
    """What both platforms say. `_enum` makes vLLM's layers take their `forward_oot`, and never its compiled ops."""

    _enum = PlatformEnum.OOT
    simple_compile_backend = "eager"
    supported_dtypes = DTYPES
    worker: str
    ray_executor = "XlaRayExecutor"

    @classmethod
    def import_kernels(cls) -> None:
        """None of vLLM's compiled ops are called."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        super().import_ir_kernels()
        from vllm.v1.attention.backends.registry import (
            AttentionBackendEnum,
            MambaAttentionBackendEnum,
            register_backend,
        )

        # Other recurrences are imported by workers: importing vLLM's asks Triton for a device, which begins CUDA, and then
        # nothing can be forked.
        import intarsia.vllm.compressed_experts
        import intarsia.vllm.nvfp4
        import intarsia.vllm.online
        import intarsia.vllm.quantized
        import intarsia.vllm.quantized_experts  # and with it the experts and the layers
        import intarsia.vllm.short_conv  # and with it attention and states
        import intarsia.vllm.word_experts  # noqa: F401

        path = "intarsia.vllm.attention.XlaNarrowValuesBackend"
        for name in ("FLASH_ATTN_DIFFKV", "TRITON_ATTN_DIFFKV"):
            register_backend(AttentionBackendEnum[name], path)
        path = "intarsia.vllm.states.XlaStatesBackend"
        for name in ("SHORT_CONV", "GDN_ATTN", "MAMBA2"):
            register_backend(MambaAttentionBackendEnum[name], path, is_mamba=True)

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: Any) -> Any:
        from vllm.config.kernel import IrOpPriorityConfig

        from intarsia.vllm.layers import IR_OPS, PROVIDER

        ours = {op: [PROVIDER, "native"] for op in IR_OPS}
        return IrOpPriorityConfig.with_default(["native"], **ours)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        if selected_backend not in (None, AttentionBackendEnum.CUSTOM):
            raise NotImplementedError(
                f"intarsia-vllm: --attention-backend {selected_backend.name}, expected none"
            )
        refused = [name for name in _REFUSED if getattr(attn_selector_config, name, False)]
        if refused:
            raise NotImplementedError(
                f"intarsia-vllm: attention with {', '.join(refused)}, expected none of these"
            )
        if attn_selector_config.attn_type == "encoder_only":
            return "intarsia.vllm.encoder.XlaEncoderBackend"
        path = "intarsia.vllm.attention.XlaGpuNativeAttentionBackend"
        register_backend(AttentionBackendEnum.CUSTOM, path)
        return AttentionBackendEnum.CUSTOM.get_path()

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "intarsia.vllm.communicator.XlaCommunicator"

    @classmethod
    def use_all_gather(cls) -> bool:
        return True

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        return False

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        return False

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return False

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    def is_sleep_mode_available(self) -> bool:
        return False

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        from intarsia.vllm.settings import replace_compilation

        replace_compilation(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        from intarsia.vllm import ending, forks, hosts, replicas, settings
        from intarsia.vllm.refusals import refuse

        parallel = vllm_config.parallel_config
        # Of a process that vLLM started for an engine: the user's own are refused in the one that started it.
        of_replica = parallel.data_parallel_size > 1 or multiprocessing.parent_process() is not None
        if parallel.data_parallel_rank_local is not None and of_replica and not parallel.use_ray:
            # vLLM numbers a replica's GPUs for platforms whose workers see no others; ours count from the host's first.
            parallel.assigned_physical_gpu_ids = None
        refuse(vllm_config)
        settings.check_additional(vllm_config)
        settings.check_environment()
        settings.say_what_is_unused(vllm_config)
        if vllm_config.use_v2_model_runner:
            raise NotImplementedError("intarsia-vllm: VLLM_USE_V2_MODEL_RUNNER=1, expected 0")
        if parallel.worker_cls == "auto":
            parallel.worker_cls = cls.worker
        parallel.disable_custom_all_reduce = True
        # Nothing waits on the host for a step on a GPU; a CPU runs the step itself.
        if cls.device_type == "cpu":
            settings.schedule_synchronously(vllm_config)
            settings.say_what_sizes_a_cache(vllm_config)
        forks.replace_start_of_processes(parallel)
        ending.tell_clients()
        ending.say_interrupts()
        limits = hosts.limits(vllm_config)
        hosts.choose(parallel)
        if parallel.data_parallel_size > 1:
            replicas.watch_engines(limits)
        if parallel.distributed_executor_backend == "ray":
            from intarsia.vllm import ray_executor

            parallel.distributed_executor_backend = getattr(ray_executor, cls.ray_executor)
        if not vllm_config.cache_config.user_specified_block_size:
            vllm_config.cache_config.block_size = 16

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        import vllm.v1.worker.block_table  # noqa: F401  the kernel's own module, before it is looked for
        from vllm.triton_utils import dispatcher

        # vLLM looks for holders of the kernel in every module. Not all things in them bear to be looked at: llvmlite's
        # library has an attribute of any name.
        own = {name: x for name, x in sys.modules.items() if name.startswith("vllm.")}
        everywhere = replace(dispatcher, "sys", types.SimpleNamespace(modules=own))
        try:
            dispatcher.register_kernels(
                {"vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": compute_slot_mapping}
            )
        finally:
            dispatcher.sys = everywhere


class XlaCpuPlatform(XlaPlatform):
    """Steps run by XLA on the CPU."""

    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    ray_device_key = "CPU"
    device_control_env_var = "INTARSIA_VISIBLE_CPUS"  # vLLM wants one; nothing reads it
    worker = "intarsia.vllm.worker.XlaCpuWorker"
    ray_executor = "XlaCpuRayExecutor"
    ranks_here = 1
    """Those of this process's model on this host."""

    @classmethod
    def device_count(cls) -> int:
        """By which vLLM's queues tell what ranks share a host's memory."""
        return cls.ranks_here

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "cpu"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return psutil.virtual_memory().total

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return 0.0

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is one."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """torch's own seed is the CPU's."""

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Every dtype of `supported_dtypes`; the others are refused with the configuration."""

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 1
