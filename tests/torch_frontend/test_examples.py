"""The examples of torch's routes run and show what they promise."""

import importlib.util
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
# What each needs besides torch and JAX to show it.
NEEDS = {
    "torch_decode.py": ("torchax",),
    "torch_xla_decode.py": ("torch_xla", "torchax"),
    "torch_compile_llama.py": ("torchax", "transformers"),
    "torchax_llama.py": ("torchax", "transformers"),
    "torch_vllm_ops.py": ("torch_xla",),
    "torch_op_in_jax.py": (),
}
# Those that compile no whole model, by what an environment may lack.
SHORT = {
    "torchax": ("torch_decode.py", "torch_op_in_jax.py"),
    "torch_xla": ("torch_xla_decode.py", "torch_vllm_ops.py"),
}
# Runs the examples whose names it is given. torch, torch_xla and JAX are imported once: that is most of an example's time.
TOGETHER = """
import runpy, sys
folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
for name in names:
    runpy.run_path(f"{folder}/{name}", run_name="__main__")
"""


def skip_without(*packages: str) -> None:
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        pytest.skip(f"no {', '.join(missing)}")


@pytest.mark.parametrize("examples", SHORT.values(), ids=SHORT)
def test_short_examples(examples: tuple[str, ...]) -> None:
    skip_without(*{package for name in examples for package in NEEDS[name]})
    run = subprocess.run(
        [sys.executable, "-c", TOGETHER, support.ROOT / "examples", *examples],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    for name in examples:
        assert SHOWN[name] in run.stdout, name


@pytest.mark.full
@pytest.mark.parametrize("example", SHOWN)
def test_example(example):
    """In a process of its own, as a reader starts it."""
    skip_without(*NEEDS[example])
    run = subprocess.run(
        [sys.executable, support.ROOT / "examples" / example], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert SHOWN[example] in run.stdout


def test_every_example_of_torch_is_run():
    examples = {path.name for path in (support.ROOT / "examples").glob("torch*.py")}
    assert examples == set(SHOWN) == set(NEEDS)


@pytest.mark.full
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
