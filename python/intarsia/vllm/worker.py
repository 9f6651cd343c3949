"""vLLM's worker: one process for each device, which owns a runner."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from vllm import envs
from vllm.config.profiler import validate_profile_prefix
from vllm.distributed import get_tp_group
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

# Both are imported only where there is a model (`XlaPlatform.import_ir_kernels`).
import intarsia.vllm.gated_delta
import intarsia.vllm.mamba2  # noqa: F401
from intarsia.vllm import hosts, parallel
from intarsia.vllm.memory import available_bytes, check_fits, keep_freed_memory, keep_imports
from intarsia.vllm.platforms import XlaCpuPlatform
from intarsia.vllm.profiler import JaxProfiler
from intarsia.vllm.replacing import replace
from intarsia.vllm.sampling import use_draw

logger = init_logger("vllm.intarsia.worker")

_GIB = 1 << 30
_MARGIN = _GIB // 2
"""Of a GPU's memory: for cuBLAS, recorded graphs and gaps."""
_STEP = _GIB // 8
"""Of a GPU's memory: what caches have is a multiple of it."""
_LOGITS_OF_SAMPLING = 6
"""How many arrays of a step's logits in f32 vLLM's sampler has at a time, with top-p and logprobs."""
_CPU_CACHE_BYTES = 4 * _GIB
"""As vLLM's own CPU backend takes where nothing is said."""


@contextmanager
def _at_work(text: str) -> Iterator[None]:
    """What a rank does, while it has something to do."""
    parallel.mark(text)
    try:
        yield
    except Exception as error:
        if blamed := parallel.blame(error):
            logger.error("intarsia-vllm: this rank lost %s: %s", blamed, error)
        raise
    finally:
        parallel.rest()


class XlaWorker(Worker):
    """A worker on an NVIDIA GPU, and what it shares with one on a CPU."""

    def init_device(self) -> None:
        keep_imports()
        with self._meeting():
            super().init_device()

    def _meeting(self) -> AbstractContextManager:
        limit, run = hosts.limits(self.vllm_config).start, hosts.run_of(self.vllm_config)
        return hosts.meeting(self.parallel_config, self.rank, limit, run)

    def _init_workspace_and_model_runner(self) -> None:
        # Nothing may have touched a JAX device before.
        parallel.see_only(self.device)
        self._join_ranks()
        super()._init_workspace_and_model_runner()

    def _join_ranks(self) -> None:
        """Makes the workers' JAX processes one."""
        if self.parallel_config.tensor_parallel_size > 1:
            group = get_tp_group()

            def gather(own: Any) -> list[Any]:
                met = [None] * group.world_size
                torch.distributed.all_gather_object(met, own, group=group.cpu_group)
                return met

            parallel.initialize(
                self.rank,
                gather,
                hosts.own_address(self.parallel_config),
                hosts.limits(self.vllm_config),
                lambda line: logger.error("intarsia-vllm: %s", line),
            )

    def execute_model(self, scheduler_output: Any) -> Any:
        with _at_work("before the step's program"):
            return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        with _at_work("sampling"):
            return super().sample_tokens(grammar_output)

    def execute_dummy_batch(self) -> None:
        with _at_work("before the step's program"):
            super().execute_dummy_batch()

    def apply_model(self, fn: Callable[[torch.nn.Module], Any]) -> Any:
        # What it has given other storage, or changed where XLA has a copy, would be as before to the programs.
        try:
            return super().apply_model(fn)
        finally:
            self.model_runner.model.take_weights()

    def sleep(self, level: int = 1) -> None:
        # By then vLLM has paused its scheduler, until `wake_up`: an error would leave nobody who knows that.
        logger.warning(
            "intarsia-vllm: sleep of level %d frees no memory; requests wait until wake_up", level
        )

    def wake_up(self, tags: list[str] | None = None) -> None:
        """All that `sleep` and `discard` leave is there."""

    def discard(self, tags: tuple[str, ...]) -> None:
        logger.warning(
            "intarsia-vllm: discarding %s frees no memory; requests wait until wake_up",
            ", ".join(tags),
        )

    def profile(
        self,
        is_start: bool = True,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Of /start_profile and /stop_profile: JAX's trace.

        vLLM itself refuses `profiler_kwargs`, which are torch's, because they are no parameter here. A worker that raised it
        would leave other ranks' answers unread.
        """
        config = self.profiler_config
        steps = {"delay_iterations": delay_iterations, "max_iterations": max_iterations}
        if config is None or config.profiler != "torch" or not is_start:
            super().profile(is_start, profile_prefix, **steps)
            return
        prefix = validate_profile_prefix(profile_prefix)
        replica, rank = f"replica{self.parallel_config.data_parallel_index}", f"rank{self.rank}"
        self.profiler = self.profiler or JaxProfiler(config)
        self.profiler.set_output_name("_".join(filter(None, (prefix, replica, rank))))
        self.profiler.start(**steps)

    def shutdown(self) -> None:
        super().shutdown()
        parallel.leave()

    def _make_model_runner(self) -> Any:
        # Now, and not above: it imports torchax, which makes an array.
        from intarsia.vllm.runner import XlaGpuModelRunner

        return XlaGpuModelRunner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager:
        return nullcontext()  # XLA's allocator and torch's own, none of vLLM's

    @torch.inference_mode()
    def determine_available_memory(self) -> int:
        """What is left of vLLM's share of the GPU beside weights, what XLA's largest programs use, and sampling."""
        if given := self.cache_config.kv_cache_memory_bytes:
            return given
        runner = self.model_runner
        programs = runner.model.temporary_bytes(
            runner.get_kv_cache_spec(), runner.shared_kv_cache_layers
        )
        free, _ = torch.cuda.mem_get_info(self.device)
        taken = self.init_snapshot.free_memory - free  # weights, and what XLA has asked for so far
        sampling = self._bytes_of_sampling()
        # Another start, with a few pages more or less, is to find its programs in the cache of programs: caches' shapes are in them.
        available = self.requested_memory - taken - programs - sampling - _MARGIN
        available = available // _STEP * _STEP
        logger.info(
            "KV cache memory: %.2f GiB of %.2f; taken %.2f, XLA's programs %.2f, sampling %.2f",
            *(
                x / _GIB
                for x in (
                    available,
                    self.requested_memory,
                    taken,
                    programs,
                    sampling,
                )
            ),
        )
        return available

    def _bytes_of_sampling(self) -> int:
        logits = self.model_runner.max_num_reqs * self.model_config.get_vocab_size()
        return _LOGITS_OF_SAMPLING * 4 * logits

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        self.model_runner.model.while_allocating = self._kept_from_xla
        super().initialize_from_config(kv_cache_config)

    @contextmanager
    def _kept_from_xla(self) -> Iterator[None]:
        """Leaves room for sampling and cuBLAS. Each time XLA's allocator grows it wants twice as much as it has, and takes what there is."""
        size = self._bytes_of_sampling() + _MARGIN
        held = torch.empty(size, dtype=torch.uint8, device=self.device)
        yield
        del held
        torch.cuda.empty_cache()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        start = time.perf_counter()
        if not self.model_config.enforce_eager:  # else what is needed is compiled while serving
            self.model_runner.model.compile_ahead(self.device)
            parallel.rest()  # the first request may be long in coming
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=time.perf_counter() - start, encoder=0.0)

    def xla_programs(self) -> dict[str, Any]:
        """What was compiled: for `LLM.collective_rpc("xla_programs")`, and the curious.

        Returns:
          custom_calls: by program, a count of each of our ops.
          late: programs compiled after those of the start; empty with --enforce-eager, which compiles none then.
          compilations: how often XLA has compiled anything since; 0 with --enforce-eager.
        """
        programs = self.model_runner.model.programs
        return {
            "custom_calls": programs.custom_calls,
            "late": programs.late,
            "compilations": programs.compiled_since_seal,
        }


class XlaCpuWorker(XlaWorker):
    """A worker on a CPU."""

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        XlaCpuPlatform.ranks_here = self.parallel_config.local_world_size
        # Where there is Triton (beside a GPU that is not used, say), vLLM's sampler takes it for tensors of any device.
        replace(topk_topp_sampler, "HAS_TRITON", False)
        use_draw()
        keep_freed_memory()
        keep_imports()
        with self._meeting():
            init_worker_distributed_environment(
                self.vllm_config,
                self.rank,
                self.distributed_init_method,
                self.local_rank,
                current_platform.dist_backend,
            )
        set_random_seed(self.model_config.seed)
        self._init_workspace_and_model_runner()

    def _make_model_runner(self) -> Any:
        from intarsia.vllm.runner import XlaCpuModelRunner

        return XlaCpuModelRunner(self.vllm_config, self.device)

    def determine_available_memory(self) -> int:
        free = available_bytes() // self.parallel_config.local_world_size
        if given := self.cache_config.kv_cache_memory_bytes:
            return check_fits("--kv-cache-memory-bytes", given, free)
        if given := envs.VLLM_CPU_KVCACHE_SPACE:
            return check_fits("VLLM_CPU_KVCACHE_SPACE", int(given * _GIB), free)
        return min(_CPU_CACHE_BYTES, free // 4)

    def _kept_from_xla(self) -> AbstractContextManager:
        return nullcontext()
