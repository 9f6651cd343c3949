"""A program's operands for tensors of the model that a layer holds by itself, and not as a module of its own.

torch swaps a module's parameters for the operands while a program is traced. An attention's sinks and a router's bias are also
held by objects that are no modules; those ask here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_TRACED: ContextVar[Mapping[int, Any]] = ContextVar("traced operands of the model")


@contextmanager
def traced(tensors: Mapping[str, torch.Tensor], operands: Mapping[str, Any]) -> Iterator[None]:
    """While a program is traced: `operands` stand for `tensors` of the same names."""
    token = _TRACED.set({id(tensor): operands[name] for name, tensor in tensors.items()})
    try:
        yield
    finally:
        _TRACED.reset(token)


def operand_of(tensor: torch.Tensor, what: str) -> Any:
    """The operand for one of the model's own parameters or buffers, or for a part of one.

    Raises:
      NotImplementedError: it is none of them, and would be a constant of the program; `what` names it.
    """
    found = _TRACED.get().get(id(tensor))
    if found is None and tensor._base is not None and tensor.is_contiguous():
        whole = _TRACED.get().get(id(tensor._base))
        if whole is not None and tensor._base.is_contiguous():
            start = tensor.storage_offset() - tensor._base.storage_offset()
            found = whole.reshape(-1)[start : start + tensor.numel()].reshape(tensor.shape)
    if found is None:
        raise NotImplementedError(f"{what} is no parameter of the model, expected one")
    return found
