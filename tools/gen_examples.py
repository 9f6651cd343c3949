"""An example of each op in Python, as a doctest: for docstrings and pages. tests/test_docs_ops.py runs them."""

import inspect
import re
import textwrap

import intarsia.jax
import numpy as np
import support
import wire
from intarsia import _dtypes, _native

# Arrays of integers of up to so many elements are written out; larger ones are made of zeros.
_WRITTEN_OUT = 24
_JNP = {row.name: row.array for row in _dtypes.DTYPES}


def _array(name: str, value: np.ndarray) -> str:
    """An expression for an operand of this shape and dtype; indices are those of the op's wire case."""
    dtype = _JNP[_dtypes.name_of(value.dtype)]
    of = "" if dtype == "float32" else f", jnp.{dtype}"
    if value.dtype.kind in "iu" and value.size <= _WRITTEN_OUT:
        inner = re.sub(r"\s+", " ", np.array2string(value, separator=", ", threshold=1000))
        return f"jnp.array({inner}{of})"
    shape = f"({value.size},)" if value.ndim == 1 else str(value.shape)
    filled = "zeros" if "cache" in name or value.dtype.kind in "iu" else "ones"
    return f"jnp.{filled}({shape}{of})"


def _generated(op: _native.Op) -> list[str]:
    """A call of the function in intarsia.jax.wire, with the operands of the op's wire case."""
    call = wire.example(op)
    rows = list(zip(op.operands, call.operands, strict=False))
    lines = [f"{row['name']} = {_array(row['name'], x)}" for row, x in rows if x is not None]
    last = max(i for i, (_, x) in enumerate(rows) if x is not None)
    arguments = [row["name"] if x is not None else "None" for row, x in rows[: last + 1]]
    defaults = {row["name"]: row["default"] for row in op.attributes}
    arguments += [f"{k}={v!r}" for k, v in call.attributes.items() if v != defaults[k]]
    tensors = [
        None if x is None else _native.Tensor(x.shape, _dtypes.name_of(x.dtype))
        for x in call.operands
    ]
    inferred = _native.main_library().infer(op.name, tensors, call.attributes)
    there = [
        (row["name"], result)
        for row, result in zip(op.results, inferred, strict=True)
        if result is not None and not result.workspace
    ]
    names = [name for name, _ in there]
    prefix = "" if is_exported(op) else "wire."
    lines.append(f"{', '.join(names)} = {prefix}{op.name}({', '.join(arguments)})")
    lines.append(f"print({', '.join(f'jax.typeof({name})' for name in names)})")
    types = [f"{_JNP[r.dtype]}[{','.join(map(str, r.shape))}]" for _, r in there]
    return [*(f">>> {line}" for line in lines), " ".join(types)]


def is_exported(op: _native.Op) -> bool:
    """Whether intarsia.jax has the function of intarsia.jax.wire as it is, or will once that is written."""
    function = getattr(intarsia.jax, op.name, None)
    return function is getattr(intarsia.jax.wire, op.name, None)


def of_wire(op: _native.Op) -> list[str]:
    """The lines for the docstring in intarsia.jax.wire; none for an op that makes no sense alone."""
    return [] if op.name in support.NOT_CALLED_ALONE else _generated(op)


def of_page(op: _native.Op) -> list[str]:
    """The lines for the op's page: of the function of intarsia.jax, whose own docstring may have them."""
    if is_exported(op):
        lines = of_wire(op)
    else:
        doc = inspect.getdoc(getattr(intarsia.jax, op.name)) or ""
        _, _, section = doc.partition("\nExample:\n")
        lines = textwrap.dedent(section).rstrip().splitlines()
        if not lines:
            raise ValueError(f"the docstring of intarsia.jax.{op.name} has no Example: at its end")
    head = [">>> import jax, jax.numpy as jnp", f">>> from intarsia.jax import {op.name}"]
    return [*head, *lines]
