"""The examples of torch's routes run and show what they promise, each in a process of its own."""

import os
import subprocess
import sys

import pytest
import support

SHOWN = {
    "torch_decode.py": "intarsia on cpu: the same rows as eager",
    "torch_xla_decode.py": "openxla on xla:0: as eager on the CPU",
    "torch_compile_llama.py": "the same tokens as eager torch: True",
    "torchax_llama.py": "the same tokens as the unmodified model: True",
    "torch_vllm_ops.py": "vLLM's op names on xla:0: as on the CPU",
    "torch_op_in_jax.py": "rows written: [5, 30]\nin place: True",
}


LONG = {"torch_compile_llama.py", "torchax_llama.py"}  # they compile a whole model


@pytest.mark.parametrize(
    "example",
    [pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in SHOWN],
)
def test_example(example):
    run = subprocess.run(
        [sys.executable, support.ROOT / "examples" / example], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert SHOWN[example] in run.stdout


def test_every_example_of_torch_is_run():
    examples = {path.name for path in (support.ROOT / "examples").glob("torch*.py")}
    assert examples == set(SHOWN)


def test_decoding_by_torch_alone_needs_no_jax(tmp_path):
    """As in an environment of `pip install 'intarsia[torch]'`."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "find_spec = importlib.util.find_spec\n"
        "gone = ('jax', 'torchax')\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in gone else find_spec(name, *rest)\n"
        "sys.modules.update(dict.fromkeys(gone))\n"
    )
    run = subprocess.run(
        [sys.executable, support.ROOT / "examples" / "torch_decode.py"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{support.ROOT / 'python'}"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "inductor on cpu: the same rows as eager" in run.stdout
    assert "intarsia: left out, it needs jax and torchax, not installed here" in run.stdout
