"""vLLM's model runner with our model in it: batches, block tables, sampling and grammars stay vLLM's."""

import dataclasses
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

import intarsia
import intarsia.jax
from intarsia.vllm.model import XlaModel
from intarsia.vllm.programs import use_compilation_cache


class XlaGpuModelRunner(GPUModelRunner):
    """Runs each step's forward pass as an XLA program of our custom calls."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device):
        intarsia.jax.register(intarsia.main_library())
        use_compilation_cache()
        super().__init__(vllm_config, device)

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        self.model = XlaModel(
            self.model.eval(), self.vllm_config, self.max_num_tokens, self.max_num_reqs
        )

    def get_model(self) -> torch.nn.Module:
        # vLLM asks while it loads the model, too.
        return self.model.inner if isinstance(self.model, XlaModel) else self.model

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        super().reload_weights(*args, **kwargs)
        self.model.take_weights()

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """vLLM's, with values as wide as keys: our kernels take no others, and the values are filled up with zeros."""
        specs = super().get_kv_cache_spec()
        return {
            name: dataclasses.replace(spec, head_size_v=spec.head_size)
            if getattr(spec, "head_size_v", 0) < getattr(spec, "head_size", 0)
            else spec
            for name, spec in specs.items()
        }

    def initialize_kv_cache_tensors(
        self,
        kv_cache_config: KVCacheConfig,
        kernel_block_sizes: list[int],
        kv_cache_allocation_context: Any = None,
    ) -> dict[str, torch.Tensor]:
        """Allocates the caches as JAX arrays. vLLM gets none to bind: only our programs touch them."""
        tables = self.input_batch.block_table.block_tables
        widths = [table.max_num_blocks_per_req for table in tables]
        # The last group may be one of layers without a cache (`encoder`), for which vLLM makes a table of one column.
        widths += [1] * (len(kv_cache_config.kv_cache_groups) - len(tables))
        self.model.make_caches(kv_cache_config, self.shared_kv_cache_layers, widths)
        self.kv_caches.clear()
        return {}

    def _init_kv_zero_meta(self) -> None:
        """vLLM's zeroing needs to know where its tensors are; ours does not."""

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        self.model.zero_blocks(block_ids)

    def _update_states(self, scheduler_output: Any) -> Any:
        # vLLM would copy blocks among its own tensors, of which there are none. Its scheduler asks for it where states have a
        # prefix cache, which is refused (docs/adr/0021).
        if scheduler_output.kv_cache_block_copies:
            raise NotImplementedError(
                f"intarsia-vllm: a step with kv_cache_block_copies {scheduler_output.kv_cache_block_copies}, expected none"
            )
        return super()._update_states(scheduler_output)

    def _get_prompt_logprobs_dict(
        self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]
    ) -> dict[str, Any]:
        """vLLM's, of as many tokens at a time as a step has requests: for their logits memory was kept (`XlaWorker`).

        vLLM takes a prompt's chunk at once, whose logits are 10 GB for 8192 tokens and a vocabulary of 128k. A part is to it what a
        chunk is.
        """
        found: dict[str, Any] = {}
        for request_id in list(self.num_prompt_logprobs):
            scheduled = num_scheduled_tokens.get(request_id, 0)
            request = self.requests[request_id]
            computed = request.num_computed_tokens
            for begin in range(0, scheduled, self.max_num_reqs):
                part = {request_id: min(self.max_num_reqs, scheduled - begin)}
                request.num_computed_tokens = computed + begin
                found |= super()._get_prompt_logprobs_dict(hidden_states[begin:], part)
            request.num_computed_tokens = computed
        return found


class XlaCpuModelRunner(XlaGpuModelRunner, CPUModelRunner):
    """The same on a CPU."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        # For a prompt's chunks but the last vLLM samples, discards, and sets the request's generator back; a CPU's cannot
        # be set back, so it is not used.
        generators = self.input_batch.generators
        discarded = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0]
        unused = {row: generators.pop(row) for row in map(int, discarded) if row in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(unused)
