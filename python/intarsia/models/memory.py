"""Memory that is not there, and what loading a model and compiling its steps leave behind."""

import contextlib
import ctypes
from collections.abc import Iterator

JAX_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED: "
"""What its `JaxRuntimeError` then begins with."""


def give_back_freed() -> None:
    """Has glibc give freed memory back to the system, as malloc_trim(3) tells; another C library is left as it is.

    By itself it keeps what lies between blocks that are in use.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def allocating(what: str) -> Iterator[None]:
    """Names what of an engine there is no memory for, and what to do about it.

    Raises:
        MemoryError: In place of what NumPy or JAX raise then.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and JAX_OUT_OF_MEMORY not in str(error):
            raise
        raise MemoryError(
            f"out of memory for {what}; lower max_model_len (--max-model-len) or max_num_seqs (prompts at once)"
        ) from error
