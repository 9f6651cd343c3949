"""vLLM with our kernels, in two ways.

- As vLLM's plugin: with `intarsia-vllm`, `vllm serve MODEL` runs every step as an XLA program (docs/vllm.md).
  `plugin` has the entry points. From there `platforms` (`cuda_platform`) checks what was asked for (`refusals`, `settings`)
  against `capabilities`. It names the worker (`worker`), one for each device (`parallel`, `communicator`). On several hosts,
  `hosts` says what ranks listen at, `ray_executor` starts them where Ray places them, and `replicas` watches engines and
  servers for each other. `ending` tells clients of a server's end. On CPUs `sampling` draws tokens. A worker's runner
  (`runner`) has vLLM's model (`model`) as XLA programs (`programs`). They take a step's numbers (`batch`) and the KV caches
  (`caches`). torchax (`compat`) traces them with our layers (`layers`) and attention (`attention`, `encoder`).
  Of layers: `products` joins norms, rotation and the cache's write; `experts` and, of those in codes, `quantized_experts`,
  `compressed_experts`, `word_experts`; `quantized` linear layers (`packed_layers`). `nvfp4` has both, and `online` what vLLM
  quantizes itself. Recurrent layers have `states` (`recurrence`, `chunks`, `gated_delta`, `mamba2`, `short_conv`).
  `replacing` puts a class in the place of vLLM's, `operands` finds a program's operand for a tensor, `scopes` names ops in
  profiles (`profiler`). `metrics` counts programs, `memory` keeps what is freed, `log_filters` leaves out lines of vLLM's that say nothing here.
- vLLM's own op names, on tensors that vLLM's kernels do not know: those of torch_xla (docs/vllm_ops.md).

import intarsia.vllm
intarsia.vllm.register_ops()
torch.ops._C.rms_norm(out, input, weight, 1e-6)  # on xla:0, a custom call
"""

from typing import TYPE_CHECKING, Any

from intarsia._packages import needed_by

if TYPE_CHECKING:
    from intarsia.vllm._register import register_ops

__all__ = ["register_ops"]


def __getattr__(name: str) -> Any:
    # Not imported for the plugin, which needs no ops of torch's.
    if name == "register_ops":
        with needed_by("intarsia.vllm.register_ops"):
            from intarsia.vllm import _register

        return _register.register_ops
    raise AttributeError(f"module {__name__} has no attribute {name}")
