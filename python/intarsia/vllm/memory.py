"""Memory of the engine's process: what there is, what steps on a CPU free, and when Python collects garbage."""

import ctypes
import functools
import gc
import multiprocessing
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST, _LARGEST_OF_SOME = 1 << 30, 32 << 20  # bytes; not every version takes the first
_NEVER = (1 << 31) - 1


def available_bytes(
    groups: pathlib.Path = pathlib.Path("/sys/fs/cgroup"),
    own: pathlib.Path = pathlib.Path("/proc/self/cgroup"),
) -> int:
    """Memory that this process may still take: of the machine's, and of its container's, which psutil does not know.

    Args:
      groups: where the system has its control groups, of version 2 (Linux, "Control Group v2", memory.max).
      own: the file that names the process's.
    """
    found = [psutil.virtual_memory().available]
    names = (
        [x[3:].strip("/") for x in own.read_text().splitlines() if x.startswith("0::")]
        if own.exists()
        else []
    )
    for group in {x for name in names for x in (groups / name, *(groups / name).parents)}:
        try:
            limit = int((group / "memory.max").read_text())
            taken = int((group / "memory.current").read_text())
            stat = dict(x.split() for x in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or "max", which is no limit
            continue
        files = int(stat["active_file"]) + int(stat["inactive_file"])  # that the system can drop
        found.append(limit - taken + files)
    return max(min(found), 0)


def check_fits(name: str, size: int, free: int) -> int:
    """The size of a rank's KV cache that was asked for by that name.

    Raises:
      ValueError: so many bytes are not free: the system would end the process as it writes to them.
    """
    if size > free:
        raise ValueError(
            f"intarsia-vllm: {name} asks for {size / (1 << 30):.2f} GiB for each rank, "
            f"expected at most the {free / (1 << 30):.2f} GiB that are free"
        )
    return size


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
