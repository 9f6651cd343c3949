"""Model files are read by other people's readers; whatever these raise becomes one line that names the file."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class FileError(ValueError):
    """A file cannot be used as it is; the text names the file and what is wrong with it."""


@contextlib.contextmanager
def reading(file: Path | str, what: str = "") -> Iterator[None]:
    """Turns an exception of a reader into a `FileError`.

    Args:
        file: The file that is read.
        what: The part of it.

    Raises:
        FileError: In place of any exception that says nothing about the file.
        OSError, NotImplementedError, MemoryError: As they were raised, with the name of the file.
    """
    place = f"{file}: {what}: " if what else f"{file}: "
    try:
        yield
    except (FileError, FileNotFoundError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except (MemoryError, NotImplementedError, OSError) as error:
        # A reader of a part of it, or of a file in it, has said so.
        if str(error).startswith((f"{file}: ", f"{file}{os.sep}")):
            raise
        raise _named(place, error) from error
    except BaseException as error:  # those of readers in Rust are no `Exception`, where they panic
        raise FileError(f"{place}{_said(error)}") from error


def _named(place: str, error: MemoryError | NotImplementedError | OSError) -> Exception:
    if isinstance(error, MemoryError):
        return MemoryError(f"{place}it takes more memory than there is")
    text = error.strerror if isinstance(error, OSError) else None
    return type(error)(f"{place}{text or _said(error)}")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is no such file."""
    with reading(file):
        if not file.exists():
            return {}
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, expected an object")
        return content


def _said(error: BaseException) -> str:
    """An exception in one line; with its type, where the text alone would say too little."""
    text = " ".join(str(error).split())
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, ValueError | ImportError | OSError | NotImplementedError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
