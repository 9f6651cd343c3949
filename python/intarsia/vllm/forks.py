"""When to fork vLLM's processes rather than spawn them: a spawned one imports everything again, which takes 16 to 26 s (docs/notebook/vllm.md).

Nothing may be forked once JAX has threads or there is a CUDA context.
"""

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

import torch
from vllm.config import ParallelConfig
from vllm.logger import init_logger
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils import system_utils

from intarsia import _environment
from intarsia.vllm.replacing import replace

logger = init_logger("vllm.intarsia.forks")

_PATIENCE = 120
"""Seconds that a fork has to import a model's module."""


def replace_start_of_processes(parallel: ParallelConfig) -> None:
    """Has vLLM spawn its processes, unless the engine is the only one, and JAX has not begun in this one.

    `vllm serve` has asked for spawn by then.
    """
    alone = parallel.world_size == parallel.data_parallel_size == 1 and not parallel.use_ray
    if alone and not _jax_has_begun() and _may_fork_engine():
        return
    asked = _environment.spawn_workers()
    if asked is not None:
        logger.warning_once(
            "intarsia-vllm: %s=%s has no effect, spawn is used", _environment.WORKER_START, asked
        )


def _jax_has_begun() -> bool:
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def _may_fork_engine() -> bool:
    """Whether a fork is safe from threads of torch's, or is vLLM's own risk.

    A forked engine hangs in its first parallel loop if torch has run one on this process's CPU. vLLM 0.33 ends such threads first. 0.32
    does not: it spawns on CPUs, and forks beside a GPU all the same.
    """
    return current_platform.device_type != "cpu" or hasattr(
        system_utils, "_release_libgomp_threads"
    )


# ---------------------------------------------------------------------------- what a model's class can do


def inspect_models() -> None:
    """Has vLLM ask a fork what a model's class can do.

    It asks another process, lest importing the class begins CUDA in this one, when its cache of answers has none.
    """
    if registry._run_in_subprocess is not _in_a_fork:
        global _spawned
        _spawned = replace(registry, "_run_in_subprocess", _in_a_fork)


_spawned: Callable[[Callable[[], Any]], Any]
"""What vLLM has for it."""


def _in_a_fork(function: Callable[[], Any]) -> Any:
    """What `function` returns in another process.

    Raises:
      RuntimeError: with what it raised there.
    """
    # A daemon may have no children of multiprocessing's.
    if _jax_has_begun() or torch.cuda.is_initialized() or multiprocessing.current_process().daemon:
        return _spawned(function)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    # vLLM shows what such a process says only where it fails.
    with tempfile.TemporaryFile() as said:
        child = context.Process(target=_tell, args=(there, said, function), name="ModelInspection")
        child.start()
        there.close()
        if not here.poll(_PATIENCE):
            child.kill()  # a lock that another thread held at the fork, for one
            child.join()
            logger.warning(
                "intarsia-vllm: a fork was silent for %d s, a spawned process is asked", _PATIENCE
            )
            return _spawned(function)
        try:
            answer, failure = here.recv()
        except EOFError:
            answer, failure = None, "it ended without an answer\n"
        child.join(_PATIENCE)
        if child.is_alive():  # the answer is here; how it ends is of no interest
            child.kill()
            child.join()
        if failure:
            said.seek(0)
            text = said.read().decode(errors="replace")
            raise RuntimeError(
                f"Error raised in subprocess (exit status {child.exitcode}):\n{text}{failure}"
            )
    return answer


def _tell(there: Connection, said: BinaryIO, function: Callable[[], Any]) -> None:
    torch.set_num_threads(1)  # a parallel loop would wait for the parent's threads
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(said.fileno(), descriptor)
    try:
        there.send((function(), ""))
    except Exception:
        there.send((None, traceback.format_exc()))
