"""libintarsia_bridge.so, through ctypes: mirrors src/bridge/bridge.h."""

import ctypes
import pathlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

from intarsia._native import read_handlers
from intarsia.jax._call import register_handlers

# enum intarsia_bridge_kind
NONE, OPERAND, MUTATED, FRESH, BITS, DTYPE, STRING, PYTHON, LIST = range(9)
# enum intarsia_bridge_reason
DISPATCH, CAPTURE, EXPLAIN = range(3)
DROP = -1
_ERROR_BYTES = 4096


class Argument(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("optional", ctypes.c_int32),
        ("result", ctypes.c_int32),
        ("bits", ctypes.c_uint64),
        ("text", ctypes.c_char_p),
    ]


class Return(ctypes.Structure):
    _fields_ = [
        ("is_list", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("more", ctypes.c_int32),
    ]


class Plan(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_char_p),
        ("overload", ctypes.c_char_p),
        ("python", ctypes.c_int32),
        ("num_arguments", ctypes.c_int32),
        ("num_schema_returns", ctypes.c_int32),
        ("num_returns", ctypes.c_int32),
        ("num_results", ctypes.c_int32),
        ("arguments", ctypes.POINTER(Argument)),
        ("schema_returns", ctypes.POINTER(Return)),
        ("returns", ctypes.POINTER(ctypes.c_int32)),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("plan", ctypes.c_char_p),
        ("device", ctypes.c_int32),
        ("reason", ctypes.c_int32),
        ("num_tensors", ctypes.c_int32),
        ("num_returned", ctypes.c_int32),
        ("tensors", ctypes.POINTER(ctypes.c_void_p)),
        ("returned", ctypes.POINTER(ctypes.c_void_p)),
        ("error", ctypes.c_char * _ERROR_BYTES),
    ]


_Read = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32)
_Run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call))


def bits(value: bool | int | float) -> int:
    """A number as it lies in the 8 bytes of a slot of torch's stack."""
    if isinstance(value, bool):
        return int(value)
    return struct.unpack("<Q", struct.pack("<d" if isinstance(value, float) else "<q", value))[0]


class Library:
    """The library, opened with the functions that it calls back for plans and for calls."""

    def __init__(self, read: Callable[[str], None], run: Callable[[Call], None]):
        path = pathlib.Path(__file__).parents[1] / "lib" / "libintarsia_bridge.so"
        if not path.exists():
            raise ImportError(f"{path} does not exist: run `make build`, or install the wheel")
        self._lib = ctypes.CDLL(str(path))
        self._lib.intarsia_bridge_open.restype = ctypes.c_char_p
        self._lib.intarsia_bridge_add.restype = ctypes.c_char_p
        # The library keeps both for as long as it is loaded, which is until the process ends.
        self._callbacks = (_Read(_reporting_read(read)), _Run(_reporting_run(run)))
        if error := self._lib.intarsia_bridge_open(*self._callbacks):
            raise ImportError(error.decode())
        self.passes_strings = bool(self._lib.intarsia_bridge_passes_strings())
        self.passes_lists = bool(self._lib.intarsia_bridge_passes_lists())

    def has_dtype(self, name: str) -> bool:
        """Whether torch has tensors of a dtype, by its name in torch, NumPy and JAX: "bfloat16"."""
        return bool(self._lib.intarsia_bridge_has_dtype(name.encode()))

    def add(
        self,
        text: str,
        op: str,
        overload: str,
        python: bool,
        arguments: Sequence[Argument],
        schema_returns: Sequence[Return],
        returns: Sequence[int],
        num_results: int,
    ) -> None:
        """Files a plan under its text; ValueError if it cannot be run."""
        plan = Plan(
            op=op.encode(),
            overload=overload.encode(),
            python=python,
            num_arguments=len(arguments),
            num_schema_returns=len(schema_returns),
            num_returns=len(returns),
            num_results=num_results,
            arguments=(Argument * len(arguments))(*arguments),
            schema_returns=(Return * len(schema_returns))(*schema_returns),
            returns=(ctypes.c_int32 * len(returns))(*returns),
        )
        if error := self._lib.intarsia_bridge_add(text.encode(), ctypes.byref(plan)):
            raise ValueError(error.decode())

    def register(self) -> None:
        """Registers the custom calls with XLA, on every platform."""
        register_handlers(read_handlers(self._lib.intarsia_bridge_handlers))


def _text(error: BaseException) -> bytes:
    """An exception's name and text in whole characters, as many as fit. Raises nothing itself."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except BaseException:
        text = f"{name}, whose text cannot be had"
    encoded = text.encode(errors="backslashreplace")
    return encoded[: _ERROR_BYTES - 1].decode(errors="ignore").encode()


# Nothing may be raised through C++: whatever is, becomes a text. (What a ctypes callback raises is printed, and 0 returned.)
def _reporting_read(read: Callable[[str], None]) -> Callable[..., int]:
    def reporting(text: bytes, error: int, error_bytes: int) -> int:
        try:
            read(text.decode())
        except BaseException as e:
            message = ctypes.create_string_buffer(_text(e), _ERROR_BYTES)
            ctypes.memmove(error, message, min(error_bytes, _ERROR_BYTES))
            return 1
        return 0

    return reporting


def _reporting_run(run: Callable[[Call], None]) -> Callable[..., int]:
    def reporting(call: Any) -> int:
        try:
            run(call.contents)
        except BaseException as e:
            call.contents.error = _text(e)
            return 1
        return 0

    return reporting
