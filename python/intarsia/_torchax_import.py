"""Importing torchax into a process that is not torchax's own: with a newer torch, or beside CUDA.

torchax 0.0.13 is written for torch up to 2.12, and makes its device the accelerator of the process.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.torch_version import TorchVersion


class _Gone:
    """Stands for an op that torchax names and this torch no longer has."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, key: str) -> "_Gone":
        if key.startswith("__"):
            raise AttributeError(key)
        return _Gone(f"{self._name}.{key}")

    def __repr__(self) -> str:
        return self._name


@contextlib.contextmanager
def missing_ops_are_named() -> Iterator[None]:
    """torchax's tables name overloads (gone in torch 2.13) and ops (gone in 2.14) as they are made."""
    classes = (torch._ops.OpOverloadPacket, torch._ops._OpNamespace)
    saved = [cls.__getattr__ for cls in classes]

    def lenient(original: Any) -> Any:
        def getattr_(self: Any, key: str) -> Any:
            try:
                return original(self, key)
            except AttributeError:
                if key.startswith("_"):
                    raise
                return _Gone(f"{self}.{key}")

        return getattr_

    for cls, original in zip(classes, saved, strict=True):
        cls.__getattr__ = lenient(original)
    try:
        yield
    finally:
        for cls, original in zip(classes, saved, strict=True):
            cls.__getattr__ = original


@contextlib.contextmanager
def no_device_is_renamed() -> Iterator[None]:
    """torchax renames torch's PrivateUse1 device to "jax".

    From then on `torch.accelerator`, pinned memory and dynamo take that for the accelerator of the process, on a machine
    with CUDA too. Then `torch.compile` fails with "PyTorch is not linked with support for jax devices", and vLLM's worker
    dies at its first synchronization.
    """
    rename, register = torch.utils.rename_privateuse1_backend, torch._register_device_module
    torch.utils.rename_privateuse1_backend = torch._register_device_module = lambda *_: None
    try:
        yield
    finally:
        torch.utils.rename_privateuse1_backend, torch._register_device_module = rename, register


def can_bear_device() -> bool:
    """Whether torch.compile still works in a process whose accelerator is torchax's device."""
    return not torch.cuda.is_available() and TorchVersion(torch.__version__) < (2, 10)


@contextlib.contextmanager
def only_tables_are_wanted() -> Iterator[None]:
    """For who lowers by torchax without its device, and compiles: the device is renamed only where that can be borne.

    Raises:
      RuntimeError: it has been renamed already where that cannot be borne; dynamo would say nothing of what to do.
    """
    if not can_bear_device() and torch._C._get_privateuse1_backend_name() == "jax":
        raise RuntimeError(
            'this process has imported torchax, whose device "jax" is now its accelerator, and torch.compile fails with '
            f"that in torch {torch.__version__}{' with CUDA' if torch.cuda.is_available() else ''}: "
            'use torch.compile(backend="intarsia") in a process that does not use that device'
        )
    with (
        missing_ops_are_named(),
        contextlib.nullcontext() if can_bear_device() else no_device_is_renamed(),
    ):
        yield
