"""Ranks as actors on a Ray cluster of two nodes, which are processes of this machine."""

import json
import re
import subprocess
import sys
import time

import psutil
import pytest
import vllm_models
from vllm_running import FEW_PROGRAMS, SIZES, Server, begun, family, recorded

pytest.importorskip("ray")
pytestmark = pytest.mark.full

MODEL = "llama"
# Whichever comes first: vLLM asks Ray for its actors, and rank 0 loses its connection to rank 1.
LOST = r"RayWorkerProc rank=\[1\] died unexpectedly|Gloo all-reduce failed"
DRIVER = """
import json, os, sys
import ray
from ray.cluster_utils import Cluster

model, ranks, prompts, options = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:])
node = {"num_cpus": ranks // 2, "object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
cluster.add_node(**node)
ray.init(address=cluster.address)
cluster.wait_for_nodes()
from vllm import LLM, SamplingParams

llm = LLM(model, distributed_executor_backend="ray", tensor_parallel_size=ranks, **options)
sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
answers = llm.generate(prompts, sampling, use_tqdm=False)
executor = llm.llm_engine.engine_core.engine_core.model_executor
print("told", json.dumps([
    [list(answer.outputs[0].token_ids) for answer in answers],
    len({handle.node_id for handle in executor.ray_worker_handles}),
    type(executor).__name__,
]))
llm.llm_engine.engine_core.shutdown()
ray.shutdown()
cluster.shutdown()
"""


@pytest.fixture(autouse=True)
def _of_ray(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's 15 lets ranks wait for all else


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_on_two_nodes_give_the_tokens_of_one(model, ranks, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    options = SIZES | {"dtype": "float32", "additional_config": FEW_PROGRAMS}
    arguments = [str(model(MODEL)), str(ranks), *map(json.dumps, (vllm_models.PROMPTS, options))]
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments], capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stderr[-4000:]
    [told] = [line for line in run.stdout.splitlines() if line.startswith("told ")]
    tokens, nodes, executor = json.loads(told.removeprefix("told "))
    assert tokens == [sequence["tokens"] for sequence in recorded(MODEL)]
    assert (nodes, executor) == (2, "XlaCpuRayExecutor")


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes of a CPU each, which `vllm serve` finds."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(**node)
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    made.shutdown()


def ranks_on(node):
    """Their processes, which Ray calls after the actors."""
    [raylet] = node.all_processes["raylet"]
    return [p for p in family(raylet.process.pid) if "RayWorkerProc" in "".join(p.cmdline())]


@pytest.mark.parametrize("how", ["alone", "with its node"])
def test_a_server_serves_and_ends_when_a_rank_dies(cluster, model, tmp_path, how):
    """Rank 1, since rank 0 is on the first node, beside the server."""
    server = Server(
        model(MODEL),
        tmp_path / "log",
        distributed_executor_backend="ray",
        tensor_parallel_size=2,
        additional_config=FEW_PROGRAMS,
    )
    try:
        server.wait_until_ready()
        assert server.tokens() == [sequence["tokens"] for sequence in recorded(MODEL)]
        [other] = cluster.worker_nodes
        [first], [second] = ranks_on(cluster.head_node), ranks_on(other)
        with server.client() as client:
            stream = begun(client)
            start = time.monotonic()
            if how == "alone":
                second.kill()
            else:
                cluster.remove_node(other, allow_graceful=False)
            server.wait_for_the_end(stream, since=start)
        _, left = psutil.wait_procs([first, second], timeout=60)
        assert left == []
        assert re.search(LOST, server.log()), server.log()[-4000:]
    finally:
        server.stop()
