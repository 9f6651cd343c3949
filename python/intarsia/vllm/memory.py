"""Memory of the engine's process: what steps on a CPU free, and when Python collects garbage."""

import ctypes
import functools
import gc
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST, _LARGEST_OF_SOME = 1 << 30, 32 << 20  # bytes; not every version takes the first
_NEVER = (1 << 31) - 1


@functools.cache
def keep_freed_memory() -> None:
    """Has glibc keep large blocks that are freed, since the next step asks for the same, as mallopt(3) tells; another C library is left as it is.

    It gives them back otherwise, and the system clears each page anew: of logits [32, 49152] and what sampling makes of them 800
    pages a step. vLLM's own CPU backend asks for tcmalloc instead.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST) or mallopt(_MMAP_THRESHOLD, _LARGEST_OF_SOME)
        mallopt(_TRIM_THRESHOLD, _NEVER)


def keep_imports() -> None:
    """Has Python's collector pass over what there is by now, a million objects of imports, as often as vLLM calls it (docs/notebook/vllm.md).

    vLLM does so itself once the engine is ready, after four walks over them. In a process of the user's own, what is garbage by
    now may be an engine of before, so nothing changes there.
    """
    if multiprocessing.parent_process() is not None:
        gc.freeze()


@contextmanager
def collect_garbage_later() -> Iterator[None]:
    """Keeps Python from walking over a million living objects again and again while programs are traced (docs/notebook/vllm.md)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
