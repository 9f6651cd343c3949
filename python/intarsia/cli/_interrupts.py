"""What Ctrl-C does to a command."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

STATUS = 130
"""Of a command that was interrupted, as shells have it."""


@contextlib.contextmanager
def ending(seconds: float) -> Iterator[threading.Event]:
    """Within it Ctrl-C raises KeyboardInterrupt, and after some seconds ends the process.

    KeyboardInterrupt gets lost in callbacks of JAX, becomes an ImportError where an extension is being initialized, and waits while XLA
    compiles.

    Args:
      seconds: How long the command may take to end by itself.

    Yields:
      An event that Ctrl-C sets.
    """
    interrupted, over = threading.Event(), threading.Event()

    def end() -> None:
        if not over.wait(seconds):
            os._exit(STATUS)

    def interrupt(*_: Any) -> NoReturn:
        if not interrupted.is_set():
            interrupted.set()
            with contextlib.suppress(OSError):
                os.write(2, b"\n")  # the shell's prompt is to begin a line
            threading.Thread(target=end, daemon=True).start()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # no other thread may have a handler
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)
