"""The bridge at run time: what libintarsia_bridge.so asks of Python, on the thread on which XLA runs the call.

Both functions are called with the GIL, which ctypes takes: JAX holds none while it runs or waits for a program.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Sequence

import torch

from intarsia.torch import _bridge_native as native
from intarsia.torch import _bridge_plan, _bridge_read

_python = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose functions' types others set as well
_capsule = _python.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

_plans: dict[bytes, _bridge_plan.Plan] = {}
_filing = threading.Lock()

_lock = threading.Lock()
_libraries: list[native.Library] = []  # one, made by the first who asks


def library() -> native.Library:
    """The library, opened, with its handlers registered with XLA."""
    with _lock:
        if not _libraries:
            if torch.cuda.is_available():
                torch.cuda.init()  # torch does so at its first use of a GPU, its C functions do not
            opened = native.Library(_read, _run)
            opened.register()
            _libraries.append(opened)
        return _libraries[0]


def file(text: str, plan: _bridge_plan.Plan) -> None:
    """Makes a plan known, here and to the library: to both, when it returns in any thread."""
    opened, schema = library(), plan.op._schema
    with _filing:
        if text.encode() in _plans:
            return
        _plans[text.encode()] = (
            plan  # first: once the library knows the plan, another thread may run it
        )
        try:
            opened.add(
                text,
                schema.name,
                schema.overload_name,
                plan.python,
                _bridge_plan.native_arguments(plan),
                _bridge_plan.native_returns(plan),
                plan.flat_returns(),
                plan.num_results,
            )
        except BaseException:
            del _plans[text.encode()]
            raise


def why_not_c(op: torch._ops.OpOverload, arguments: Sequence[_bridge_plan.Entry]) -> str | None:
    """Why this torch's C functions cannot make a call; None if they can."""
    opened = library()
    reason = _bridge_plan.why_not_c(op, arguments, opened.passes_strings, opened.passes_lists)
    return reason and f"{reason}, which the C functions of torch {torch.__version__} do not pass"


def _read(text: str) -> None:
    plan = _bridge_read.from_text(text)
    # It may come from a process with another torch.
    if not plan.python and (reason := why_not_c(plan.op, plan.arguments)):
        raise NotImplementedError(reason)
    file(text, plan)


def _run(call: native.Call) -> None:
    plan = _plans[call.plan]
    tensors = _tensors(call.tensors[: call.num_tensors])
    call.num_tensors = 0  # they are no longer the caller's
    if call.reason == native.EXPLAIN:
        tensors = [tensor.clone() for tensor in tensors]
    args, kwargs = plan.fill(iter(tensors))
    with _memory(call):
        returned = plan.flatten(plan.op(*args, **kwargs))
    if call.reason == native.EXPLAIN:
        return
    for i, tensor in enumerate(returned):
        call.returned[i] = None if tensor is None else _handle(tensor)


def _tensors(handles: Sequence[int]) -> list[torch.Tensor]:
    # Not `alloc_tensor_by_stealing_from_void_ptr`: it leaks the handle (torch 2.9 to 2.11).
    capsules = [_capsule(handle, None, None) for handle in handles]
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)


def _handle(tensor: torch.Tensor) -> int:
    return _pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None)


def _memory(call: native.Call) -> contextlib.AbstractContextManager:
    """Where an op finds memory for what it returns and for its scratch.

    A captured graph goes on using the addresses of its capture, so they must never serve anybody else: they come from a
    pool of the device's graphs, which is never given back. XLA runs a device's graphs one after the other.
    """
    if call.reason != native.CAPTURE:
        return contextlib.nullcontext()
    return torch.cuda.use_mem_pool(_graphs_pool(call.device), torch.device("cuda", call.device))


@functools.cache
def _graphs_pool(device: int) -> "torch.cuda.MemPool":
    del device  # one for each
    return torch.cuda.MemPool()
