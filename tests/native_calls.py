"""Runs an op without XLA, and without JAX, whose import takes most of a process' time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from intarsia import _dtypes, _native

LIBRARY = _native.main_library()
Arrays = Sequence[np.ndarray | None]


def run_over_garbage(
    ops: Sequence[str], run_over: Callable[[int], list[list[np.ndarray]]]
) -> list[list[np.ndarray]]:
    """The results of calls in memory full of a byte; where that does not show, of two runs that must agree."""
    # All bits set is NaN: an element that is not written shows. An integer has none: there, results
    # must not depend on what was in their memory.
    results = run_over(0xFF)
    if any(np.issubdtype(x.dtype, np.integer) for xs in results for x in xs):
        for op, xs, ys in zip(ops, results, run_over(0x55), strict=True):
            for x, y in zip(xs, ys, strict=True):
                assert x.tobytes() == y.tobytes(), (
                    f"{op}: a result has elements that are not written"
                )
    return results


def tensor(x: np.ndarray | None) -> _native.Tensor | None:
    """NumPy's memory as the library sees it, its strides included."""
    if x is None:
        return None
    strides = tuple(n // x.itemsize for n in x.strides) if x.ndim and x.size else None
    return _native.Tensor(x.shape, _dtypes.name_of(x.dtype), x.ctypes.data, strides)


def run_native(op: str, operands: Arrays, attributes: dict[str, Any]) -> list[np.ndarray]:
    """The results of an op on the CPU without XLA: no compilation, so this suits many shapes."""
    return run_over_garbage(
        [op], lambda fill: [run_where_they_lie(op, _copies(operands), attributes, fill)]
    )[0]


def _copies(operands: Arrays) -> Arrays:
    return [None if x is None else np.array(x, order="C") for x in operands]


def run_where_they_lie(
    op: str, operands: Arrays, attributes: dict[str, Any], fill: int = 0xFF
) -> list[np.ndarray]:
    """The same on the caller's memory: results that share an operand's buffer are that operand."""
    results: list[np.ndarray | None] = []
    workspaces = []
    for row in LIBRARY.infer(op, [tensor(x) for x in operands], attributes):
        if row is None:
            results.append(None)
        elif row.alias is not None:
            results.append(operands[row.alias])
        else:
            result = np.empty(row.shape, _dtypes.numpy_dtype(row.dtype))
            result.reshape(-1).view(np.uint8).fill(fill)
            results.append(result)
        workspaces.append(row is not None and row.workspace)
    LIBRARY.call(
        op, "Host", [tensor(x) for x in operands], attributes, [tensor(x) for x in results]
    )
    return [
        x for x, hidden in zip(results, workspaces, strict=True) if x is not None and not hidden
    ]
