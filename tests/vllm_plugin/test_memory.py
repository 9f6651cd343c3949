"""What a step has freed is there for the next one."""

import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import worker

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


def test_sampling_and_cublas_keep_their_room_on_a_gpu(monkeypatch):
    """XLA's allocator took all of a large GPU but some MB for a cache, and cuBLAS found none."""
    held, found = [], []
    empty = torch.empty

    def watched(*args, **given):
        result = empty(*args, **given)
        held.append(weakref.ref(result))
        return result

    def allocate(_, config):
        assert config == "caches"
        found.extend(x.nbytes for ref in held if (x := ref()) is not None)

    monkeypatch.setattr(torch, "empty", watched)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(worker.Worker, "initialize_from_config", allocate)
    one = object.__new__(worker.XlaGpuWorker)
    one.device = torch.device("cpu")
    one.model_runner = SimpleNamespace(max_num_reqs=2)
    one.model_config = SimpleNamespace(get_vocab_size=lambda: 1000)
    one.initialize_from_config("caches")
    assert found == [6 * 4 * 2 * 1000 + (1 << 29)]
    assert all(ref() is None for ref in held)
