"""How an op of vLLM is declared, and what the functions of `_ops.py`, `_ops_cache.py`, `_ops_experts.py` and `_ops_quantized.py` do with its arguments."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FP8 = torch.float8_e4m3fn
Tensor = torch.Tensor
INT, ANY = (torch.int32,), (torch.float32, torch.float16, torch.bfloat16)
INDICES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Op:
    """An op of vLLM: `function` takes the arguments of `schema`, by position, and raises errors that begin with `name`."""

    namespace: str
    name: str
    schema: str
    function: Callable[..., Any]


OPS: list[Op] = []


def declare(
    arguments: str, namespace: str = "_C", returns: str = "()"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the decorated function, which takes its own name before them, to be the op of that name with these arguments."""

    def bind(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        bound = functools.partial(function, name)
        OPS.append(Op(namespace, name, f"{name}({arguments}) -> {returns}", bound))
        return function

    return bind


def refuse(op: str, **given: Any) -> None:
    """Raises if an argument, given with the value that is built, asks for something else."""
    for name, (value, built) in given.items():
        if value is not built and (built is None or value != built):
            got = "given" if isinstance(value, Tensor) else value
            raise NotImplementedError(f"{op}: {name} is {got}, expected {built}")


def on_one_device(op: str, **given: Tensor | None) -> None:
    """Raises if a tensor is on another device than the first: torch would say so of an op of its own."""
    tensors = {name: x for name, x in given.items() if x is not None}
    device = next(iter(tensors.values())).device
    for name, x in tensors.items():
        if x.device != device:
            raise ValueError(f"{op}: {name} is on {x.device}, expected {device}")


def check(
    op: str, **given: tuple[Tensor | None, tuple[int | str, ...], Sequence[torch.dtype]]
) -> None:
    """Raises if a tensor has another shape than it must have, where a text stands for any size, or none of some dtypes."""
    on_one_device(op, **{name: tensor for name, (tensor, _, _) in given.items()})
    for name, (tensor, shape, dtypes) in given.items():
        if tensor is None:
            continue
        if tensor.dtype not in dtypes:
            said = " or ".join(map(str, dtypes))
            raise ValueError(f"{op}: {name} has dtype {tensor.dtype}, expected {said}")
        sizes = zip(tensor.shape, shape, strict=False)
        if tensor.ndim != len(shape) or any(
            not isinstance(want, str) and n != want for n, want in sizes
        ):
            expected = ", ".join(map(str, shape))
            raise ValueError(f"{op}: {name} has shape {[*tensor.shape]}, expected [{expected}]")


def check_number(op: str, name: str, number: int, low: int, high: int | None = None) -> None:
    """Raises if a number is below `low` or above `high`."""
    if number < low or (high is not None and number > high):
        wanted = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"{op}: {name} is {number}, expected {wanted}")


def inside(indices: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which indices are of one of `count` rows, and the rows; 0 for the others, which the ops skip."""
    are = (indices >= 0) & (indices < count)
    return are, torch.where(are, indices, 0).long()


def inside_rows(table: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Which indices are of one of a table's rows, and the rows; any numbers for the others."""
    are, places = inside(indices, table.shape[0])
    return are, (table if table.shape[0] else table.new_zeros(1, *table.shape[1:]))[places]


def one(scale: Tensor | None) -> Tensor | None:
    """A scale of a whole tensor is one number of any rank in vLLM, and [1] here."""
    return scale.reshape(1) if scale is not None and scale.numel() == 1 else scale


def flat(op: str, name: str, tensor: Tensor, axes: int) -> Tensor:
    """A view of a dense tensor with so many axes, and one of all others."""
    if not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} is strided, expected a dense row-major array")
    return tensor.view(*tensor.shape[:axes], -1 if tensor.numel() else 0)


def of_tokens(scales: Tensor, given: Tensor) -> Tensor:
    """Scales of tokens as vLLM has them, [t, 1] or [t], however many axes the tokens have."""
    return scales.reshape(-1, 1) if given.ndim == 2 else scales.reshape(-1)


def write(op: str, **results: tuple[Tensor, Tensor]) -> None:
    """Copies to each tensor, named, the result that belongs there; to none if one does not fit."""
    fitting = [
        (rows_of(op, name, tensor, result.shape, result.dtype, result.device), result)
        for name, (tensor, result) in results.items()
    ]
    for rows, result in fitting:
        rows.copy_(result)


def rows_of(
    op: str, name: str, tensor: Tensor, shape: Any, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """As many rows of a tensor as the shape has; raises if they are not of that shape, dtype and device."""
    if tensor.device != device:
        raise ValueError(f"{op}: {name} is on {tensor.device}, expected {device}")
    if tensor.dtype != dtype:
        raise ValueError(f"{op}: {name} has dtype {tensor.dtype}, expected {dtype}")
    got, shape = list(tensor.shape), list(shape)
    if got == shape:
        return tensor
    if len(got) != len(shape) or got[1:] != shape[1:] or got[0] < shape[0]:
        raise ValueError(f"{op}: {name} has shape {got}, expected {shape}")
    return tensor[: shape[0]]
