"""Opening GGUF files."""

import functools
from pathlib import Path

from gguf import GGUFReader


@functools.lru_cache(maxsize=1)
def open_gguf(path: Path) -> GGUFReader:
    """Opens a GGUF file; the last one stays open.

    Walking through a vocabulary takes a second or two, and the weights and the tokenizer both
    start with that.

    Raises:
        ValueError: The file is not GGUF.
    """
    with path.open("rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise ValueError(f"model file {path.name} begins with {magic!r}, expected b'GGUF'")
    return GGUFReader(path)
