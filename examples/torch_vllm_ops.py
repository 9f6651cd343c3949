"""Layers that call vLLM's compiled ops, unchanged, on an XLA device, where vLLM has no kernels.

PJRT_DEVICE=INTARSIA python examples/torch_vllm_ops.py        # needs torch_xla 2.9: make setup-torch
"""

import os

os.environ.setdefault("PJRT_DEVICE", "INTARSIA")

import intarsia.vllm
import torch
import torch_xla

intarsia.vllm.register_ops()  # beside vLLM its own schemas are used; here there need not be one


def mlp(x, residual, weight, up, down):
    """A Llama's feed-forward block as vLLM's CUDA layers run it: results are written into given tensors."""
    torch.ops._C.fused_add_rms_norm(x, residual, weight, 1e-5)
    gate_and_up = x @ up
    activated = torch.empty_like(gate_and_up[:, : gate_and_up.shape[1] // 2])
    torch.ops._C.silu_and_mul(activated, gate_and_up)
    return activated @ down, residual


def main() -> None:
    torch.manual_seed(0)
    operands = [
        torch.randn(7, 64), torch.randn(7, 64), torch.randn(64), torch.randn(64, 256) / 8, torch.randn(128, 64) / 11
    ]  # fmt: skip
    device = torch_xla.device()
    on_device = [x.to(device) for x in operands]
    got = torch.compile(mlp, backend="openxla", fullgraph=True)(*on_device)
    for one, want in zip(got, mlp(*operands), strict=True):
        torch.testing.assert_close(one.cpu(), want, atol=1e-4, rtol=1e-4)
    print(f"vLLM's op names on {device}: as on the CPU")


if __name__ == "__main__":
    main()
