"""How a server ends when its terminal says so.

Ctrl-C reaches every process of the terminal's group at once. The server ends its engines, and an engine its ranks, each by SIGTERM.
An engine that heeds the first signal, too, is gone before its server expects it, which then tells of a dead engine.
"""

import functools
import importlib
import multiprocessing
import signal
import threading
from typing import Any

from intarsia.vllm.replacing import replace

_STARTED = {
    "EngineCore": ("vllm.v1.engine.core", "EngineCoreProc"),
    "VllmWorker": ("vllm.v1.executor.multiproc_executor", "WorkerProc"),
}
"""vLLM's processes by the beginning of their names, and what each makes when it has set its handlers of signals."""


@functools.cache
def leave_interrupts_to_the_server() -> None:
    """In a process that vLLM has started for an engine or a rank, ignores SIGINT; in others does nothing."""
    name = multiprocessing.current_process().name
    for begin, (module, made) in _STARTED.items():
        if name.startswith(begin):
            _ignore()  # where the handlers are set already
            _ignore_when_made(getattr(importlib.import_module(module), made))


def _ignore() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ignore_when_made(process: type) -> None:
    @functools.wraps(process.__init__)
    def begin(self: Any, *args: Any, **given: Any) -> None:
        _ignore()
        theirs(self, *args, **given)

    theirs = replace(process, "__init__", begin)
