"""On a GPU, XLA captures our calls in CUDA graphs: a replay must see the data of its own run."""

import os
import subprocess
import sys

import pytest
import support

CHAIN = """
import re
import jax, jax.numpy as jnp, numpy as np
import running, support
import intarsia.jax as ij
import test_jax as t

batch = t.make_batch("NHD", None)
weight = np.linspace(0.5, 1.5, t.D, dtype=np.float32)


def step(q, k, v, caches, slots, lens, table, starts):
    q = ij.rms_norm(q, weight)
    k, q = ij.simple_add(k, k), ij.simple_add(q, q)
    out, caches = t.decode(q, k, v, caches, slots, lens, table, starts)
    return ij.simple_add(out, out), caches


def step_in_numpy(q, k, v, *rest):
    (q,) = support.op_module("rms_norm").reference(q.astype(np.float64), weight)
    out, caches = t.decode_in_numpy(2 * q, 2 * k, v, *rest)
    return 2 * out, caches


q, k, v, caches, slots, lens, table, starts = batch
compiled = t.compile_step(step, t.put(batch, "gpu"), donate=True)
device_caches = t.put(caches, "gpu")
pointers = {cache.unsafe_buffer_pointer() for cache in device_caches}
rng = np.random.default_rng(1)
for run in range(6):
    q, k, v = (rng.standard_normal(x.shape).astype(np.float32) for x in (q, k, v))
    lens = np.maximum(1, lens - run % 2).astype(np.int32)
    slots = np.array([run, run + 8, run + 16], np.int32)
    rows = (slots, lens, table, starts)
    want, caches = step_in_numpy(q, k, v, caches, *rows)
    got, device_caches = compiled(*t.put((q, k, v), "gpu"), device_caches, *t.put(rows, "gpu"))
    running.check("paged_attention", np.asarray(got), want, f"run {run}")
    for cache, expected in zip(device_caches, caches, strict=True):
        np.testing.assert_array_equal(np.asarray(cache), expected)
    assert {cache.unsafe_buffer_pointer() for cache in device_caches} == pointers
print("six runs are right")
"""


@pytest.mark.gpu
def test_replays_see_changed_data() -> None:
    path = os.pathsep.join(str(support.ROOT / folder) for folder in ("python", "tests"))
    env = os.environ | {
        "PYTHONPATH": path,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_gpu_graph_min_graph_size=1",
        # XLA then says on stderr which thunks became a graph.
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "command_buffer_conversion_pass=2,command_buffer_thunk=5",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHAIN], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "six runs are right" in done.stdout
    # That a graph was captured at all: without one this test would prove nothing.
    assert "command_buffer" in done.stderr.lower(), done.stderr[-3000:]
