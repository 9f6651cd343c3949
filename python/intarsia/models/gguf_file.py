"""Opening GGUF files."""

import functools
import mmap
import os
import stat
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    ReaderField,
    dequantize,
)

from intarsia._packing import empty
from intarsia.models.files import reading

_ALL = slice(None)
# The largest vocabularies have half a million merges.
_MOST_ELEMENTS = 1 << 23
_MOST_ROWS = 1 << 20  # of keys, and of tensors
_MOST_AXES = 4  # of ggml's tensors
_PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_VALUE_TYPES = frozenset(map(int, GGUFValueType))


class _Strings(ReaderField):
    """An array of strings, whose last parts are its bytes and where each string ends."""

    def contents(self, index_or_slice: int | slice = _ALL) -> Any:
        *_, part, ends = self.parts
        data, texts, begin = part.tobytes(), [], 0
        for end in ends.tolist():
            texts.append(str(data[begin + 8 : end], "utf-8"))
            begin = end
        return texts[index_or_slice]


class Reader(GGUFReader):
    """Keeps arrays as the file has them, and cuts it into plain views, not np.memmap's.

    The package's reader makes objects of each element: for Gemma 3's 262144 pieces they took 170 MB and 3 s.

    It reads nothing past the end: where a length promised more, the reader went on with empty
    views until the memory was full.
    """

    _elements = 0  # of the arrays read so far

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._mapped: mmap.mmap = mapped._mmap  # type: ignore[attr-defined]
        self._data = mapped.view(np.ndarray)

    def release(self) -> None:
        """Gives back the memory of the pages read so far; the file is read again where they are needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        self._check_end(int(offset), end)
        array = self.data[int(offset) : end].view(dtype)
        order = override_order or self.byte_order
        return array if order == "I" else array.view(array.dtype.newbyteorder(order))

    def _check_end(self, begin: int, end: int) -> None:
        if not 0 <= begin <= end <= len(self._data):
            raise ValueError(f"the file ends at byte {len(self._data)}, expected {end} or more")

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if int(raw_type) not in _VALUE_TYPES:
            raise ValueError(f"a value is of type {int(raw_type)}, which the gguf package lacks")
        if raw_type == GGUFValueType.ARRAY:
            begin = int(orig_offs) + 12  # behind the type of the elements and their number
            count = int(self._get(begin - 8, np.uint64)[0])
            self._get(begin, np.uint8, count)  # each takes a byte at least
            self._elements += count
            if self._elements > _MOST_ELEMENTS:
                raise ValueError(f"its arrays have more than {_MOST_ELEMENTS} elements")
            kind = int(self._get(begin - 12, np.uint32)[0])
            if kind == GGUFValueType.STRING:
                ends = self._ends_of_strings(begin, count)
                size = int(ends[-1]) if count else 0
                parts = [self._get(begin, np.uint8, size), ends]
                return 12 + size, parts, [0], [GGUFValueType.ARRAY, GGUFValueType.STRING]
            if dtype := self.gguf_scalar_to_np.get(kind):
                values = self._get(begin, dtype, count)
                types = [GGUFValueType.ARRAY, GGUFValueType(kind)]
                return 12 + values.nbytes, [values], [0], types
        return super()._get_field_parts(orig_offs, raw_type)

    def _ends_of_strings(self, begin: int, count: int) -> np.ndarray:
        """Where each string of an array ends, from its first byte on; 8 bytes before each say how long it is."""
        native = self.byte_order == "I"
        length = struct.Struct("<Q" if native == (sys.byteorder == "little") else ">Q")
        ends, at = np.empty(count, np.int64), begin
        for i in range(count):
            self._check_end(at, at + 8)
            at += 8 + length.unpack_from(self._mapped, at)[0]
            self._check_end(begin, at)
            ends[i] = at - begin
        return ends

    def _push_field(self, field: ReaderField, skip_sum: bool = False) -> int:
        if field.types == [GGUFValueType.ARRAY, GGUFValueType.STRING]:
            field = _Strings(*field)
        return super()._push_field(field, skip_sum)

    def _build_fields(self, offs: int, count: int) -> int:
        self._check_rows("keys", count)
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        self._check_rows("tensors", count)
        return super()._build_tensor_info(offs, count)

    def _check_rows(self, what: str, count: int) -> None:
        if count > _MOST_ROWS:
            raise ValueError(f"its header counts {count} {what}, expected {_MOST_ROWS} or fewer")

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        known = {int(kind) for kind in GGMLQuantizationType}
        for field in fields:
            _, name, _, dims, kind, offset = field.parts
            said = f"tensor {bytes(name).decode(errors='replace')}"
            if not 1 <= len(dims) <= _MOST_AXES or 0 in dims:
                raise ValueError(f"{said} has shape {dims.tolist()}, expected 1 to 4 sizes above 0")
            if np.prod(dims, dtype=np.float64) > 2**53:
                raise ValueError(f"{said} has shape {dims.tolist()}, which no file can hold")
            if int(kind[0]) not in known:
                raise ValueError(f"{said} is of type {kind[0]}, which the gguf package lacks")
            begin = int(offset[0])
            self._check_end(start_offs, start_offs + begin)
            if begin % self.alignment:
                raise ValueError(
                    f"{said} begins at {begin}, expected a multiple of {self.alignment}"
                )
        super()._build_tensors(start_offs, fields)


def open_gguf(path: Path) -> Reader:
    """Opens a GGUF file; the last one stays open, until another takes its place under its name.

    Walking through a vocabulary takes a part of a second, and the weights and the tokenizer both
    start with that.

    Raises:
        ValueError: The file is not GGUF, or broken.
    """
    with reading(path):
        now = path.stat()
        if not stat.S_ISREG(now.st_mode):  # opening a pipe would wait for a writer
            raise ValueError("it is no regular file")
        return _open(path, (now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size))


@functools.lru_cache(maxsize=1)
def _open(path: Path, state: tuple[int, ...]) -> Reader:
    del state  # of the file, to tell it from an earlier one
    with path.open("rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise ValueError(f"it begins with {magic!r}, expected b'GGUF'")
    reader = Reader(os.fspath(path))
    if reader.byte_order != "I":
        raise ValueError(
            f"its byte order is not this machine's ({sys.byteorder}-endian); gguf-convert-endian changes it"
        )
    return reader


def read_whole(tensor: Any) -> np.ndarray:
    """Reads a tensor: numbers in 16 bits as they are, others in f32; never the mapped memory itself."""
    dtype = _PLAIN.get(tensor.tensor_type.name)
    if dtype is None:
        return dequantize(tensor.data, tensor.tensor_type)
    mapped = tensor.data.view(dtype)
    array = empty(mapped.shape, dtype)
    array[...] = mapped
    return array


def read_part(tensor: Any, index: tuple[slice, ...]) -> np.ndarray:
    """Reads a part of a tensor's matrices, in float32: rows, and of their columns the blocks that hold them."""
    *rows, columns = index
    block, size = GGML_QUANT_SIZES[tensor.tensor_type]
    first, last = columns.start // block, -(-columns.stop // block)
    codes = tensor.data
    per_block = size // codes.itemsize
    part = np.ascontiguousarray(codes[(*rows, slice(first * per_block, last * per_block))])
    values = dequantize(part, tensor.tensor_type)
    return values[..., columns.start - first * block : columns.stop - first * block]
