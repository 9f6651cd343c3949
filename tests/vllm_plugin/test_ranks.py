"""What a rank does before and within a program: its device, the ranks' meeting place, layers that have shares."""

import contextlib
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from intarsia.vllm import communicator, layers, parallel, worker
from intarsia.vllm.compat import import_torchax
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.v1.worker.gpu_worker import Worker

_, ENVIRONMENT = import_torchax()


@pytest.mark.parametrize(("device", "seen"), [("cuda:0", [0]), ("cuda:3", [3]), ("cpu", None)])
def test_jax_sees_the_workers_own_gpu(monkeypatch, device, seen):
    """When the runner is made, which is what touches JAX's devices first. What becomes of it is XLA's."""
    from jax._src import xla_bridge

    found = []
    monkeypatch.setattr(
        Worker,
        "_init_workspace_and_model_runner",
        lambda self: found.append(xla_bridge._options_from_jax_configs("cuda")),
    )
    one = object.__new__(worker.XlaWorker)
    one.device = torch.device(device)
    one.parallel_config = SimpleNamespace(tensor_parallel_size=1)
    before = xla_bridge.CUDA_VISIBLE_DEVICES.value
    try:
        one._init_workspace_and_model_runner()
    finally:
        jax.config.update("jax_cuda_visible_devices", before)
    [options] = found
    assert options.get("visible_devices") == seen


MEETING = """
import json, os, socket, threading, time
import jax
from jaxlib import _jax
from intarsia.processes import Limits, endings
from intarsia.vllm import parallel

jax.config.update("jax_platforms", "cpu")
told = {}

# A thread that watches, and is slow to see that all is over.
endings._POLL_SECONDS = 3
endings.Progress.stalls = lambda self, limit: time.sleep(1)

def in_the_meantime(own):
    "Between rank 0's choice of a port and its use others look for one, too."
    address, port = own
    told["port"] = port
    with socket.socket() as other:
        try:
            other.bind((address, port))
            told["free"] = True
        except OSError:
            told["free"] = False
    return [own]

make_gloo = _jax.make_gloo_tcp_collectives

def make(**given):
    told["gloo"] = given.get("hostname")
    return make_gloo(**given)

def listening():
    "The addresses that this process listens on, of both versions of IP."
    inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}
    rows = [row.split() for name in ("tcp", "tcp6") for row in open(f"/proc/self/net/{name}").readlines()[1:]]
    return sorted({row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes})

_jax.make_gloo_tcp_collectives = make
parallel.initialize(0, in_the_meantime, ADDRESS, Limits(), print)
told["processes"] = jax.process_count()
told["listening"] = listening()
socket.create_connection((ADDRESS, told["port"])).close()
parallel.leave()
told["threads"] = [thread.name for thread in threading.enumerate()]
print(json.dumps(told))
"""


@pytest.mark.parametrize(("address", "last"), [("127.0.0.1", "01"), ("127.0.0.2", "02")])
def test_ranks_meet_at_a_port_that_is_kept_for_them(address, last):
    """In a process of its own: JAX's is initialized once."""
    run = subprocess.run(
        [sys.executable, "-c", f"ADDRESS = {address!r}\n{MEETING}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["free"] is False
    assert told["processes"] == 1
    # None that Python's end would abort the process for.
    assert told["threads"] == ["MainThread"]
    # Of gloo as of the coordinator: nobody else on the network is to reach them.
    assert told["gloo"] == address
    # As /proc/net/tcp has it, and as gRPC has it in tcp6.
    expected = {f"{last}00007F", f"0000000000000000FFFF0000{last}00007F"}
    assert told["listening"] and set(told["listening"]) <= expected


RESTING = """
import json, sys, threading
import jax
from intarsia.processes import Limits
from intarsia.vllm import parallel

jax.config.update("jax_platforms", "cpu")
rank, met, heartbeat = int(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])

def gather(own):
    met.insert(rank, own)
    print(json.dumps(own), flush=True)
    return [tuple(address) for address in met]

say = lambda line: print(line, flush=True)
parallel.initialize(rank, gather, f"127.0.0.{rank + 1}", Limits(heartbeat=heartbeat), say)
print(jax.process_count(), flush=True)
threading.Event().wait()
"""


def test_a_rank_that_dies_while_nothing_runs_is_missed():
    heartbeat = 4

    def start(rank, other):
        arguments = [str(rank), json.dumps([other]), str(heartbeat)]
        command = [sys.executable, "-c", RESTING, *arguments]
        return stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    with contextlib.ExitStack() as stack:
        ranks = [start(0, ["127.0.0.2", 0])]
        stack.callback(lambda: [rank.kill() for rank in ranks])
        ranks.append(start(1, json.loads(ranks[0].stdout.readline())))
        ranks[1].stdout.readline()
        assert [rank.stdout.readline() for rank in ranks] == ["2\n"] * 2
        ranks[1].kill()
        begin = time.monotonic()
        said, _ = ranks[0].communicate(timeout=120)
        seconds = time.monotonic() - begin
        print(f"\nrank that rests: known after {seconds:.1f} s")
        assert said == (
            "rank 0 at 127.0.0.1 of 2: ended, since rank 1 at 127.0.0.2 sent no heartbeat for 4 s\n"
        )
        assert ranks[0].returncode == 1


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (
            "Gloo AllReduce failed: Connection closed by peer [10.0.0.2]:4177",
            "rank 2 at 10.0.0.2 or rank 3 at 10.0.0.2",
        ),
        ("Gloo AllReduce failed: Connection closed by peer [10.0.0.1]:4177", "rank 0 at 10.0.0.1"),
        ("out of memory", ""),
    ],
)
def test_an_error_of_a_collective_names_the_ranks_that_were_lost(monkeypatch, error, blamed):
    monkeypatch.setattr(parallel, "_processes", SimpleNamespace(index=1))
    monkeypatch.setattr(parallel, "_addresses", ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"])
    assert parallel.blame(RuntimeError(error)) == blamed


@pytest.fixture
def two_ranks(monkeypatch):
    """Lets vLLM's layers be made as a rank of two makes them, without another process."""
    group = SimpleNamespace(
        world_size=2,
        rank_in_group=0,
        all_reduce=lambda x: communicator.XlaCommunicator.all_reduce(None, x),
    )
    monkeypatch.setattr(parallel_state, "_TP", group)
    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("bias", ["added", "handed back", "none"])
@pytest.mark.parametrize("return_bias", [True, False])
def test_a_bias_is_added_to_the_sum_over_ranks(two_ranks, bias, return_bias):
    """Once, as where there is one rank. `vmap` over the axis of ranks is what `shard_map` is, on one device."""
    from torchax import interop

    layer = RowParallelLinear(
        12,
        5,
        bias=bias != "none",
        skip_bias_add=bias == "handed back",
        return_bias=return_bias,
        params_dtype=torch.float32,
    )
    assert isinstance(layer, layers.XlaRowParallelLinear) and layer.tp_size == 2
    draw = np.random.default_rng(0)
    x, weight, offset = (draw.normal(size=n).astype(np.float32) for n in ((3, 12), (5, 12), 5))

    def run(state, x):
        with ENVIRONMENT, torch.no_grad():
            return interop.jax_view(
                torch.func.functional_call(layer, interop.torch_view(state), interop.torch_view(x))
            )

    state = {"weight": jnp.asarray(weight.reshape(5, 2, 6).swapaxes(0, 1))}
    if bias != "none":
        state["bias"] = jnp.asarray(np.stack([offset, offset]))
    shares = jnp.asarray(x.reshape(3, 2, 6).swapaxes(0, 1))
    out = jax.jit(jax.vmap(run, axis_name=parallel.AXIS))(state, shares)
    if return_bias:
        out, handed_back = out
        assert (handed_back is not None) == (bias == "handed back")
    expected = x.astype(np.float64) @ weight.T + (offset if bias == "added" else 0)
    np.testing.assert_allclose(out, np.stack([expected, expected]), atol=1e-5)
