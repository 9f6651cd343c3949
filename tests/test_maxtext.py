"""MaxText's own AttentionOp computes what it should with examples/maxtext_attention.py put into it."""

import os
import subprocess
import sys

import pytest
import support

PACKAGE = support.ROOT / ".venv" / "maxtext"
ABSENT = (
    *("aqt", "pathwaysutils", "pydantic", "qwix", "tokamax", "torch", "transformers", "vllm"),
    *(f"maxtext.kernels.attention.{name}" for name in ("jax_flash_attention", "ragged_attention")),
    *("maxtext.configs", "maxtext.layers.quantizations"),
)


def test_its_attention_runs_on_our_kernels() -> None:
    """In a process of its own, where stand-ins are there for libraries of weights and quantization, and what needs them.

    `AttentionOp` is called as MaxText's layers call it, on packed sequences with padding; none of what it calls needs one.
    """
    if not PACKAGE.exists():
        pytest.skip(f"no {PACKAGE.relative_to(support.ROOT)}: make setup-dev puts it there")
    pytest.importorskip("flax")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(support.ROOT / "tests"), *sys.path]),
    }
    code = "import sys, stand_ins, test_maxtext as t; stand_ins.put(sys.argv[1], t.ABSENT); import maxtext_calls as c; c.main()"
    command = [sys.executable, "-c", code, PACKAGE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
