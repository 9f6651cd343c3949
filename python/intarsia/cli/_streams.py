"""stdin, stdout and stderr that a shell has closed, or that nobody reads any more."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Stderr:
    """A stream that drops what is written to a pipe whose reader is gone: what is said there is no result."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            drop(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def usable() -> Iterator[None]:
    """Within it libraries read and write the streams without a question, as they do.

    Those that are closed, as a shell's `>&-` leaves them, are /dev/null from then on.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, it stays open
    with contextlib.redirect_stderr(cast(TextIO, _Stderr(sys.stderr))):
        yield


def drop(stream: TextIO) -> None:
    """Lets Python flush what is left at its end without meeting the closed pipe again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
