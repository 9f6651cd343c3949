"""Memory of steps on a CPU, which are alike: what one frees, the next asks for again."""

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST, _LARGEST_OF_SOME = 1 << 30, 32 << 20  # bytes; not every version takes the first
_NEVER = (1 << 31) - 1


@functools.cache
def keep_freed_memory() -> None:
    """Has glibc keep large blocks that are freed, as mallopt(3) tells; another C library is left as it is.

    It gives them back otherwise, and the system clears each page anew: of logits [32, 49152] and what sampling makes of them 800
    pages a step. vLLM's own CPU backend asks for tcmalloc instead.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST) or mallopt(_MMAP_THRESHOLD, _LARGEST_OF_SOME)
        mallopt(_TRIM_THRESHOLD, _NEVER)
