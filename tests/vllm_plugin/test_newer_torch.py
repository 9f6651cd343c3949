"""The ops' torchax and torch.compile routes beside the torch that vLLM pins, which torchax was not written for."""

import subprocess
import sys

import pytest

COMPILED = """
import torch, intarsia.torch
f = torch.compile(lambda x, w: torch.ops.xla_gpu.rms_norm(x * 2, w) + 1, backend="intarsia", fullgraph=True)
x, w = torch.randn(3, 64), torch.ones(64)
torch.testing.assert_close(f(x, w), torch.ops.xla_gpu.rms_norm(x * 2, w) + 1)
"""
ON_TORCHAX = """
import torch, intarsia.torchax, torchax
x = torch.randn(3, 64)
with torchax.default_env():
    y = torch.ops.xla_gpu.rms_norm(x.to("jax")).cpu()
torch.testing.assert_close(y, torch.ops.xla_gpu.rms_norm(x))
"""


@pytest.mark.parametrize("program", [COMPILED, ON_TORCHAX], ids=["compiled", "torchax"])
def test_a_norm(program: str) -> None:
    """In a process of its own: torchax is imported otherwise for the plugin."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
