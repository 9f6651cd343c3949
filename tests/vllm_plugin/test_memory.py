"""What a step has freed is there for the next one."""

import subprocess
import sys

import pytest

pytest.importorskip("vllm")

_FAULTS = """
import resource
import sys
import numpy as np

if sys.argv[1] == "kept":
    from intarsia.vllm.memory import keep_freed_memory
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    logits = np.ones((32, 49152), np.float32)
    return (logits * 2 + logits).sum()

for _ in range(3):
    step()
before = faults()
for _ in range(20):
    step()
print(faults() - before)
"""


def faults(how: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_the_system_clears_no_pages_of_a_step() -> None:
    assert faults("kept") < 100
    assert faults("given back") > 1000
