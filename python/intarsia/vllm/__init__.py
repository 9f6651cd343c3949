"""vLLM's own op names, on tensors that vLLM's kernels do not know: XLA's. docs/vllm_ops.md tells how.

import intarsia.vllm
intarsia.vllm.register_ops()
torch.ops._C.rms_norm(out, input, weight, 1e-6)  # on xla:0, a custom call
"""

from intarsia.vllm._register import register_ops

__all__ = ["register_ops"]
