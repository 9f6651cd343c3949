"""Opening safetensors files, and reading tensors from them without keeping the file in memory."""

import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open

from intarsia._packing import empty
from intarsia.models.files import FileError, reading
from intarsia.models.lazy import Index, LazyArray

_DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
_NUMBERS = ("F16", "BF16", "F32", "F64")


class SafetensorsFile:
    """An open file, checked by the safetensors package.

    Tensors are read by plain reads: what that package maps stays in the process's memory beside its copy, and
    NumPy has no names for its 8-bit floats.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            self._opened = safe_open(path, "numpy")
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        self._tensors: dict[str, dict[str, Any]] = header
        self._begin = 8 + size

    @property
    def names(self) -> list[str]:
        """Of its tensors."""
        return list(self._tensors)

    def check_numbers(self, name: str, said_of_codes: str) -> None:
        """Refuses a tensor that holds no numbers as they are; it might be codes."""
        dtype = self._tensors[name]["dtype"]
        if dtype not in _NUMBERS:
            expected = f"{', '.join(_NUMBERS[:-1])} or {_NUMBERS[-1]}"
            raise FileError(
                f"{self.path}: tensor {name}: its dtype is {dtype}, expected {expected}; {said_of_codes}"
            )

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, which a CPU device of JAX takes as it is."""
        said = self._tensors[name]
        with reading(self.path, f"tensor {name}"):
            if said["dtype"] not in _DTYPES:
                raise ValueError(f"its dtype is {said['dtype']}, which is not supported")
            dtype, shape = np.dtype(_DTYPES[said["dtype"]]), said["shape"]
            array = empty(shape, dtype)
            with self.path.open("rb", buffering=0) as file:
                file.seek(self._begin + said["data_offsets"][0])
                _fill(array.reshape(-1).view(np.uint8).data, file)
            return array

    def lazy(self, name: str) -> LazyArray:
        """A tensor of which parts are read later."""
        with reading(self.path, f"tensor {name}"):
            view = self._opened.get_slice(name)

        def cut(index: Index) -> np.ndarray:
            with reading(self.path, f"tensor {name}"):
                return view[index]

        return LazyArray(view.get_shape(), cut)


def _fill(memory: memoryview, file: io.FileIO) -> None:
    """Reads until some memory is full: the system gives at most 2 GiB at once."""
    while len(memory):
        count = file.readinto(memory)
        if not count:
            raise ValueError(f"the file ends {len(memory)} bytes early")
        memory = memory[count:]
