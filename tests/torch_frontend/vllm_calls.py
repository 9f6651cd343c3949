"""A call of an op of vLLM, with what it must write, and the list that vllm_names.py fills."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import intarsia.torch  # noqa: F401  defines torch.ops.xla_gpu
import torch
from intarsia.torch._form import find
from torch.utils._pytree import tree_leaves, tree_map_only

xla_gpu = torch.ops.xla_gpu
FP8, INT8 = torch.float8_e4m3fn, torch.int8


@dataclass
class Call:
    """A call of `namespace::op`, and the values that the arguments of these positions must have afterwards.

    `unused` are arguments that the op does not look at, or takes from any device. `returned` is what it returns.
    """

    op: str
    arguments: list[Any]
    want: dict[int, Any]  # tensors, or lists of them
    unused: tuple[torch.Tensor, ...] = ()
    returned: tuple[torch.Tensor, ...] = ()

    def overload(self) -> torch._ops.OpOverload:
        """torch's op."""
        return find(self.op)

    def check(self, device: str) -> None:
        """Calls the op on that device; all else than what it must write stays as it was."""
        moved = tree_map_only(torch.Tensor, lambda x: x.to(device), self.arguments)
        made = [x for x in tree_leaves(self.overload()(*moved)) if x is not None]
        for x, y in zip(made, self.returned, strict=True):
            same(x.cpu(), y, exact=not _is_gpu(device))
        for i, (old, new) in enumerate(zip(self.arguments, moved, strict=True)):
            wanted = tree_leaves(self.want.get(i, old))
            for x, y in zip(tree_leaves(new), wanted, strict=True):
                if isinstance(x, torch.Tensor):
                    same(x.cpu(), y, exact=not _is_gpu(device))


def _is_gpu(device: str) -> bool:
    return device == "cuda" or (device == "xla" and on_gpu())


def on_gpu() -> bool:
    """Whether torch_xla's device is a GPU."""
    import torch_xla
    from intarsia import pjrt_plugin

    torch_xla.device()
    return pjrt_plugin._is_for_gpus(os.environ[pjrt_plugin.PLUGIN_VARIABLE])


_LAST_DIGITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # relative
_A_CODE = 3e-2  # a neighboring code here and there


def same(got: torch.Tensor, want: torch.Tensor, exact: bool = True) -> None:
    """Bit by bit where both sides run the same code; a GPU may have other last digits than the CPU."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if exact:
        got, want = (x.reshape(-1).view(torch.uint8) for x in (got, want))
        assert torch.equal(got, want)
    else:
        tolerance = _LAST_DIGITS.get(got.dtype, _A_CODE)
        got, want = (torch.nan_to_num(x.double(), posinf=1e30, neginf=-1e30) for x in (got, want))
        assert (got - want).norm() <= tolerance * want.norm()


CASES: dict[str, Callable[[], Call]] = {}


def case(make: Callable[..., Call], name: str = "", **options: Any) -> Callable[..., Call]:
    CASES[name or make.__name__] = lambda: make(**options)
    return make


def also(name: str, **options: Any) -> Callable[..., Any]:
    return lambda make: case(make, f"{make.__name__} {name}", **options)


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape or (6, 64))


def _codes(dtype: torch.dtype = FP8, rows: int = 6) -> torch.Tensor:
    return torch.zeros(rows, 64, dtype=dtype)


def _scale() -> torch.Tensor:
    return torch.tensor([0.1])
