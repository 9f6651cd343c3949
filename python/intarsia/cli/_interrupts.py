"""What Ctrl-C does to a command."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

STATUS = 130
"""Of a command that was interrupted, as shells have it."""


class Interrupted(threading.Event):
    """Set by Ctrl-C.

    Attributes:
      seconds: How long the command may take then to end by itself.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


@contextlib.contextmanager
def ending(seconds: float) -> Iterator[Interrupted]:
    """Within it Ctrl-C raises KeyboardInterrupt, and after some seconds ends the process.

    KeyboardInterrupt gets lost in callbacks of JAX, and waits while XLA compiles. Where an extension is being initialized the process ends
    at once: some extensions print a trace, raise an ImportError in its place, or crash.

    Args:
      seconds: How long the command may take to end by itself, at first.
    """
    interrupted, over = Interrupted(seconds), threading.Event()
    report_unraisable = sys.unraisablehook

    def end() -> None:
        if not over.wait(interrupted.seconds):
            os._exit(STATUS)

    def interrupt(_: int, frame: FrameType | None) -> NoReturn:
        if not interrupted.is_set():
            interrupted.set()
            with contextlib.suppress(OSError):
                os.write(2, b"\n")  # the shell's prompt is to begin a line
            if _initializes_extension(frame):
                os._exit(STATUS)
            threading.Thread(target=end, daemon=True).start()
        raise KeyboardInterrupt

    def report(lost: Any) -> None:
        if not (interrupted.is_set() and isinstance(lost.exc_value, KeyboardInterrupt)):
            report_unraisable(lost)

    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # no other thread may have a handler
        return
    before = signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = report
    try:
        yield interrupted
    finally:
        over.set()
        sys.unraisablehook = report_unraisable
        signal.signal(signal.SIGINT, before)


def _initializes_extension(frame: FrameType | None) -> bool:
    """Whether Python is at a frame because an extension is being initialized."""
    while frame and not frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
        frame = frame.f_back
    return frame is not None
