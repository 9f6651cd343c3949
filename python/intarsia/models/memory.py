"""Memory that loading a model and compiling its steps leave behind."""

import ctypes


def give_back_freed() -> None:
    """Has glibc give freed memory back to the system, as malloc_trim(3) tells; another C library is left as it is.

    By itself it keeps what lies between blocks that are in use.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
