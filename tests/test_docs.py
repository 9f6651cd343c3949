"""The programs in the documentation run."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
import support

PAGES = ["README.md", "docs/jax.md", "docs/torch.md", "docs/bridge.md", "docs/vllm_ops.md"]


@pytest.mark.parametrize("page", PAGES)
def test_its_python_runs(page: str) -> None:
    """All blocks of a page, one after the other, on eight virtual devices."""
    text = (support.ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert blocks
    if "\nimport torch\n" in text and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
