"""What is compiled is counted, and what is compiled while serving is told of."""

import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("vllm")

import intarsia
import intarsia.jax as ops
from intarsia.vllm import metrics, parallel, programs, worker
from intarsia.vllm.parallel import Ranks
from prometheus_client import CollectorRegistry, multiprocess
from vllm import distributed


def test_what_is_compiled_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter that the tests of engines find at 0, and the list that they find empty."""
    warnings = []
    monkeypatch.setattr(
        programs.logger, "warning", lambda text, *args: warnings.append(text % args)
    )
    intarsia.jax.register(intarsia.main_library())
    x, weight = jnp.ones((2, 64)), jnp.ones(64)
    scale = np.float32(np.random.default_rng().uniform())  # no program of another run's

    def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
        return ops.rms_norm(x, weight) * scale

    told = programs.Programs(Ranks(1))
    early = told.get("early", norm, x, weight)
    assert told.custom_calls == {"early": {"rms_norm": 1}}
    assert told.compiled_since_seal == 0 and told.late == []
    told.seal()
    assert told.get("early", norm, x, weight) is early
    early(x, weight)
    assert told.compiled_since_seal == 0 and told.late == [] and warnings == []

    told.get("late", norm, x[:1], weight)
    assert told.late == ["late"]
    assert warnings == ["XLA program: late was compiled while serving"]
    counted = told.compiled_since_seal
    assert counted >= 1

    jax.jit(lambda x: x * scale + 5)(x)  # none of ours
    assert told.compiled_since_seal > counted
    assert told.late == ["late"]


def test_the_thread_that_compiles_has_the_makers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever that is: replicas beside each other have different ones."""
    chosen = []
    monkeypatch.setattr(programs.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(programs.torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        programs.torch.cuda,
        "set_device",
        lambda device: chosen.append((device, threading.current_thread().name)),
    )
    programs.Programs(Ranks(1)).get("it", lambda x: x, jnp.ones(2))
    assert chosen == [(3, "compile_0")]


def test_programs_of_all_processes_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """As /metrics tells them: those of a process that has ended, too."""
    monkeypatch.setenv("INTARSIA_METRICS_FOLDER", str(tmp_path))
    (tmp_path / "1.counts").write_text("3 1")
    before = [metrics._count(counter) for counter in metrics._COUNTERS]
    told = programs.Programs(Ranks(1))
    told.get("early", jnp.sin, jnp.ones(2))
    told.seal()
    told.get("late", jnp.cos, jnp.ones(2))
    counts = metrics.Counts(SimpleNamespace(name=str(tmp_path)))
    assert [(x.name, x.samples[0].value) for x in counts.collect()] == [
        ("intarsia_xla_programs", 3 + before[0] + 2),
        ("intarsia_xla_programs_late", 1 + before[1] + 1),
    ]


_COMPILED = """
import sys
from intarsia.vllm import metrics
for late in map(int, sys.argv[1:]):
    metrics.tell(bool(late))
"""


def test_servers_beside_each_other_count_programs(tmp_path: pathlib.Path) -> None:
    """Replicas have as many servers by default. These answer by what Prometheus's library finds of all processes."""
    for lates in ("001", "0"):
        subprocess.run(
            [sys.executable, "-c", _COMPILED, *lates],
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            check=True,
        )
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(tmp_path))
    assert registry.get_sample_value("intarsia_xla_programs_total") == 4
    assert registry.get_sample_value("intarsia_xla_programs_late_total") == 1


def test_a_count_that_cannot_be_written_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """A full disk ended a server whose program had been compiled. Here a folder has the file's name."""
    warnings = []
    monkeypatch.setattr(
        metrics.logger, "warning_once", lambda text, *args: warnings.append(text % args)
    )
    monkeypatch.setenv("INTARSIA_METRICS_FOLDER", str(tmp_path))
    (tmp_path / f"{os.getpid()}.counts" / "in the way").mkdir(parents=True)
    program = programs.Programs(Ranks(1)).get("it", jnp.sin, jnp.ones(2))
    np.testing.assert_allclose(program(jnp.ones(2)), np.sin(np.ones(2)), rtol=1e-6)
    [warning] = warnings
    assert str(tmp_path) in warning and "irectory" in warning


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_rank_serves_before_all_have_compiled(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """A rank with a warm cache waited in a step's collective, which has a timeout, for one that still compiled."""
    told = programs.Programs(Ranks(1))
    told._ranks.size = ranks  # after the mesh of one, which is all that there is here
    met: list[bool] = []
    compiled = Future()
    told._programs["it"] = compiled
    barrier = SimpleNamespace(barrier=lambda: met.append(compiled.done()))
    monkeypatch.setattr(distributed, "get_tp_group", lambda: barrier)
    threading.Timer(0.2, compiled.set_result, [None]).start()
    told.await_all()
    assert met == [True] * (ranks > 1)


def _failing(first: threading.Event, tried: list[int]) -> Callable[..., Any]:
    """Of XLA: the first program is compiled once the event is set, the second not at all, and others are."""

    def compile_step(lowered: Any, tokens: int) -> Any:
        tried.append(tokens)
        assert first.wait(60)
        if tokens == 2:
            raise MemoryError("no room for 2")
        return lowered.compile()

    return compile_step


@pytest.mark.parametrize("waiting", [True, False])
def test_a_program_that_fails_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    """With others queued behind it, or while the next is traced: none of them is compiled before the process can end."""
    first, tried = threading.Event(), []
    monkeypatch.setattr(programs._steps, "compile_step", _failing(first, tried))
    told = programs.Programs(Ranks(1))
    for n in range(1, 4 + waiting):
        told.begin(n, jnp.sin, jnp.ones(n), tokens=n)
    if not waiting:

        def traced(x: jax.Array) -> jax.Array:
            first.set()
            told._thread.submit(int).result(60)  # all before it is done
            return x

        with pytest.raises(MemoryError, match="no room for 2"):
            told.begin("last", traced, jnp.ones(9), tokens=9)
    first.set()
    with pytest.raises(MemoryError, match="no room for 2"):
        told.await_all()
    told._thread.shutdown()  # as a process does at its end
    assert tried == [1, 2]


def test_who_waits_for_a_later_program_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one is cancelled, which says nothing of why."""
    first = threading.Event()
    monkeypatch.setattr(programs._steps, "compile_step", _failing(first, []))
    told = programs.Programs(Ranks(1))
    for n in (1, 2, 3):
        told.begin(n, jnp.sin, jnp.ones(n), tokens=n)
    threading.Timer(0.2, first.set).start()
    with pytest.raises(MemoryError, match="no room for 2"):
        told.get(3, jnp.sin, jnp.ones(3))


def test_a_program_that_cannot_be_traced_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, tried = threading.Event(), []
    monkeypatch.setattr(programs._steps, "compile_step", _failing(first, tried))
    told = programs.Programs(Ranks(1))
    for n in (1, 3, 4):
        told.begin(n, jnp.sin, jnp.ones(n), tokens=n)
    while not tried:  # the first is taken up
        time.sleep(0.01)

    def refuse(x: jax.Array) -> jax.Array:
        raise NotImplementedError("heads of 7")

    with pytest.raises(NotImplementedError, match="heads of 7"):
        told.begin("last", refuse, jnp.ones(9))
    first.set()
    told._thread.shutdown()
    assert tried == [1]


def test_preparation_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that find no room: the error is theirs, not that of a program that would be run with them."""
    first, tried = threading.Event(), []
    first.set()
    monkeypatch.setattr(programs._steps, "compile_step", _failing(first, tried))
    told = programs.Programs(Ranks(1))
    done: list[int] = []
    traced = threading.Event()
    told.prepare(lambda: traced.wait(60) and done.append(len(tried)))
    told.begin(1, jnp.sin, jnp.ones(1))
    traced.set()
    told.await_all()
    assert done == [0] and tried == [1]

    def refuse() -> None:
        assert traced.wait(60)
        raise MemoryError("no room for caches")

    traced.clear()
    told.prepare(refuse)
    told.begin(3, jnp.sin, jnp.ones(3), tokens=3)
    traced.set()
    with pytest.raises(MemoryError, match="no room for caches"):
        told.await_all()
    with pytest.raises(MemoryError, match="no room for caches"):
        told.begin(4, jnp.sin, jnp.ones(4), tokens=4)
    told._thread.shutdown()
    assert tried == [1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ranks have said of their work; while the last word is "rest", nobody ends them for being slow."""
    said: list[str] = []
    rank = SimpleNamespace(mark=said.append, rest=lambda: said.append("rest"))
    monkeypatch.setattr(parallel, "_processes", rank)
    return said


def test_compiling_may_take_long(clock: list[str]) -> None:
    """Longer than a step: ranks that compile after their first run ended themselves."""
    parallel.mark("in the step's program")

    def function(x: jax.Array) -> jax.Array:
        clock.append("traced")
        return x

    programs.Programs(Ranks(1)).get("it", function, jnp.ones(2))
    assert clock == ["in the step's program", "rest", "traced"]


def test_the_first_request_may_be_long_in_coming(clock: list[str]) -> None:
    """Ranks that had warmed up counted as stalled until then, and ended a server that nobody asked for 270 s."""
    one = object.__new__(worker.XlaWorker)
    warm_up = SimpleNamespace(compile_ahead=lambda device: parallel.mark("in the step's program"))
    one.model_config = SimpleNamespace(enforce_eager=False, seed=0)
    one.model_runner, one.device = SimpleNamespace(model=warm_up), None
    one.compile_or_warm_up_model()
    assert clock == ["in the step's program", "rest"]
