"""What a step has freed is there for the next one, and what Python's collector walks over."""

import pathlib
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import memory, worker

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


GIB = 1 << 30
NOWHERE = pathlib.Path("/nowhere")


def worker_on_a_gpu(monkeypatch, free: int) -> worker.XlaWorker:
    """Of 20 GiB that were free at first it may use 10; XLA's programs want 1.25, and 256 requests' logits are 0.125."""

    def temporary_bytes(specs, shared_layers):
        assert (specs, shared_layers) == ("specs", "shared layers")
        return 5 * GIB // 4

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    one = object.__new__(worker.XlaWorker)
    one.device, one.requested_memory = torch.device("cuda:0"), 10 * GIB
    one.init_snapshot = SimpleNamespace(free_memory=20 * GIB)
    one.cache_config = SimpleNamespace(kv_cache_memory_bytes=None)
    one.model_config = SimpleNamespace(get_vocab_size=lambda: 1 << 17)
    one.model_runner = SimpleNamespace(
        max_num_reqs=256,
        get_kv_cache_spec=lambda: "specs",
        shared_kv_cache_layers="shared layers",
        model=SimpleNamespace(temporary_bytes=temporary_bytes),
    )
    return one


@pytest.mark.parametrize(
    ("free", "left"),
    [
        # 3 GiB of weights, 1.25 of programs, 6 times 0.125 of sampling, 0.5 of margin
        (17 * GIB, 10 - 3 - 1.25 - 0.75 - 0.5),
        (18 * GIB, 10 - 2 - 1.25 - 0.75 - 0.5),
        # whole eighths, downwards
        (17 * GIB - 1, 4.375),
        (17 * GIB + GIB // 8 - 1, 4.5),
        (17 * GIB + GIB // 8, 4.625),
    ],
)
def test_a_gpus_cache_is_what_all_else_leaves(monkeypatch, free, left):
    assert worker_on_a_gpu(monkeypatch, free).determine_available_memory() == left * GIB


def test_a_size_that_is_given_is_the_caches(monkeypatch):
    one = worker_on_a_gpu(monkeypatch, 17 * GIB)
    one.cache_config.kv_cache_memory_bytes = 12345
    assert one.determine_available_memory() == 12345


@pytest.mark.parametrize(
    ("given", "space", "free", "ranks", "size"),
    [
        (12345, 3, 64 * GIB, 1, 12345),
        (None, 3, 64 * GIB, 1, 3 * GIB),
        (None, None, 64 * GIB, 1, 4 * GIB),
        (None, None, 8 * GIB, 1, 2 * GIB),
        (None, None, 24 * GIB, 2, 3 * GIB),
    ],
)
def test_a_cpus_cache_is_what_is_asked_for_or_a_quarter(
    monkeypatch, given, space, free, ranks, size
):
    """Of what is free, divided among the ranks of the host."""
    monkeypatch.setattr(worker.envs, "VLLM_CPU_KVCACHE_SPACE", space, raising=False)
    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=99 * free)
    )
    monkeypatch.setattr(worker, "available_bytes", lambda: memory.available_bytes(own=NOWHERE))
    one = object.__new__(worker.XlaCpuWorker)
    one.cache_config = SimpleNamespace(kv_cache_memory_bytes=given)
    one.parallel_config = SimpleNamespace(local_world_size=ranks)
    assert one.determine_available_memory() == size


@pytest.mark.parametrize(
    ("given", "space", "said"),
    [
        (5 * GIB, None, "--kv-cache-memory-bytes asks for 5.00 GiB"),
        (None, 9, "VLLM_CPU_KVCACHE_SPACE asks for 9.00 GiB"),
    ],
)
def test_a_cpus_cache_that_does_not_fit_is_refused(monkeypatch, given, space, said):
    """Two ranks share what is free; the system would end them while they serve."""
    monkeypatch.setattr(worker.envs, "VLLM_CPU_KVCACHE_SPACE", space, raising=False)
    monkeypatch.setattr(worker, "available_bytes", lambda: 9 * GIB)
    one = object.__new__(worker.XlaCpuWorker)
    one.cache_config = SimpleNamespace(kv_cache_memory_bytes=given)
    one.parallel_config = SimpleNamespace(local_world_size=2)
    with pytest.raises(ValueError) as error:
        one.determine_available_memory()
    expected = "for each rank, expected at most the 4.50 GiB that are free"
    assert str(error.value) == f"intarsia-vllm: {said} {expected}"


@pytest.mark.parametrize(
    ("limit", "available"), [("max", 64 * GIB), (f"{8 * GIB}", 4 * GIB), (f"{2 * GIB}", 0)]
)
def test_a_containers_memory_is_less_than_the_machines(monkeypatch, tmp_path, limit, available):
    """Of 5 GiB that are taken the system can drop 1, of files."""
    monkeypatch.setattr(
        memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB)
    )
    group = tmp_path / "pods" / "one"
    group.mkdir(parents=True)
    for place, most in ((group, "max"), (group.parent, limit)):
        (place / "memory.max").write_text(f"{most}\n")
        (place / "memory.current").write_text(f"{5 * GIB}\n")
        files = f"active_file {GIB // 4}\ninactive_file {3 * GIB // 4}\n"
        (place / "memory.stat").write_text(f"anon {4 * GIB}\n{files}")
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/elsewhere\n0::/pods/one\n")
    assert memory.available_bytes(tmp_path, own) == available


def test_sampling_and_cublas_keep_their_room_on_a_gpu(monkeypatch):
    """XLA's allocator took all of a large GPU but some MB for a cache, and cuBLAS found none."""
    held, found, released = [], [], []
    empty = torch.empty

    def watched(*args, **given):
        result = empty(*args, **given)
        held.append(weakref.ref(result))
        return result

    def allocate(_, config):
        assert config == "caches"
        with one.model_runner.model.while_allocating():
            found.extend(ref().nbytes for ref in held if ref() is not None)

    monkeypatch.setattr(torch, "empty", watched)
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: released.extend(ref() is None for ref in held)
    )
    monkeypatch.setattr(worker.Worker, "initialize_from_config", allocate)
    one = object.__new__(worker.XlaWorker)
    one.device = torch.device("cpu")
    one.model_runner = SimpleNamespace(max_num_reqs=2, model=SimpleNamespace())
    one.model_config = SimpleNamespace(get_vocab_size=lambda: 1000)
    one.initialize_from_config("caches")
    assert found == [6 * 4 * 2 * 1000 + (1 << 29)]
    assert released == [True]


_KEPT = """
import gc
import multiprocessing
from intarsia.vllm.memory import keep_imports

def show():
    before = gc.get_freeze_count()
    keep_imports()
    print(gc.get_freeze_count() - before > 1000, flush=True)

show()
engine = multiprocessing.get_context("fork").Process(target=show)
engine.start()
engine.join()
"""


def test_imports_are_kept_in_an_engine_s_own_process() -> None:
    """A user's process may have an engine of before as garbage, which is to be collected."""
    done = subprocess.run(
        [sys.executable, "-c", _KEPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]
