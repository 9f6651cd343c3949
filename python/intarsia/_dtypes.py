"""The element types and what each is called: in specs and errors, in arrays, and in StableHLO.

This is the one table of them in Python; `src/core/dtype.h` is the one in C++.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class DType(NamedTuple):
    """An element type by its names."""

    name: str
    """In specs, error texts and the C API."""
    array: str
    """In NumPy (the 16- and 8-bit floats come from ml_dtypes), JAX and torch."""
    mlir: str
    """In StableHLO."""


# In the order of intarsia.h's enum.
DTYPES = (
    DType("f32", "float32", "f32"),
    DType("f16", "float16", "f16"),
    DType("bf16", "bfloat16", "bf16"),
    DType("f8e4m3fn", "float8_e4m3fn", "f8E4M3FN"),
    DType("f8e5m2", "float8_e5m2", "f8E5M2"),
    DType("u8", "uint8", "ui8"),
    DType("i8", "int8", "i8"),
    DType("i32", "int32", "i32"),
    DType("i64", "int64", "i64"),
    DType("bool", "bool", "i1"),
    DType("f8e8m0fnu", "float8_e8m0fnu", "f8E8M0FNU"),
)
ACTIVATIONS = ("f32", "f16", "bf16")
"""What T may be in a spec."""
NAMES = tuple(row.name for row in DTYPES)
_BY_NAME = {row.name: row for row in DTYPES}
_BY_ARRAY = {row.array: row for row in DTYPES}


def expected(rule: str) -> str:
    """What a spec's rule for the dtype of an operand admits, as errors say it."""
    words = rule.split("|")
    if not {"T", *NAMES}.issuperset(words):
        return f"that of {rule}"
    admitted = [*(ACTIVATIONS if "T" in words else ()), *(n for n in NAMES if n in words)]
    return "|".join(dict.fromkeys(admitted))


def mlir_name(name: str) -> str:
    """StableHLO's name of the type with this name."""
    return _BY_NAME[name].mlir


def array_name(name: str) -> str:
    """What NumPy, JAX and torch call the type with this name."""
    return _BY_NAME[name].array


def numpy_dtype(name: str) -> "np.dtype":
    """NumPy's dtype of the type with this name."""
    import ml_dtypes  # noqa: F401  tells NumPy the names of its types
    import numpy as np

    return np.dtype(_BY_NAME[name].array)


def name_of(dtype: Any) -> str:
    """The name of an array's dtype; one that the library lacks is named as NumPy does."""
    row = _BY_ARRAY.get(str(dtype))
    return row.name if row else str(dtype)
