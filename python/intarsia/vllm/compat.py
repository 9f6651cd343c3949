"""What has to hold between vLLM, torch and torchax for the plugin to work.

torchax 0.0.13 is written for torch up to 2.12, and for processes that are its own. Beside the torch that a vLLM pins, and
beside CUDA, three things must be kept from it, or given to it, while it is imported.
"""

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

VLLM_VERSIONS = ("0.32", "0.33")
"""Minor versions of vLLM that the plugin is tested with."""


def check_vllm_version() -> None:
    """Raises an ImportError unless the installed vLLM is one that the plugin knows."""
    import vllm

    minor = ".".join(vllm.__version__.split(".")[:2])
    if minor not in VLLM_VERSIONS:
        expected = " or ".join(f"{version}.*" for version in VLLM_VERSIONS)
        raise ImportError(
            f"intarsia-vllm: vLLM {vllm.__version__} is installed, expected {expected}; "
            "VLLM_PLUGINS= (empty) runs vLLM without the plugin"
        )


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
def _missing_ops_are_named() -> Iterator[None]:
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
def _no_device_is_renamed() -> Iterator[None]:
    """torchax renames torch's PrivateUse1 device to "jax".

    From then on `torch.accelerator`, pinned memory and dynamo take that for the accelerator of the process, on a machine
    with CUDA too, and vLLM's worker dies at its first synchronisation.
    """
    rename, register = torch.utils.rename_privateuse1_backend, torch._register_device_module
    torch.utils.rename_privateuse1_backend = torch._register_device_module = lambda *_: None
    try:
        yield
    finally:
        torch.utils.rename_privateuse1_backend, torch._register_device_module = rename, register


@functools.cache
def import_torchax() -> tuple[ModuleType, Any]:
    """Imports torchax beside a newer torch, without making its device the process's accelerator.

    Returns:
      The module torchax, and its environment. To be called before anything else imports torchax, and, where there are
      several processes, after `jax.distributed.initialize`: the environment makes a random key.
    """
    with _missing_ops_are_named(), _no_device_is_renamed():
        import torchax
        import torchax.interop
        import torchax.view

        environment = torchax.default_env()
    label = property(
        lambda self: torch.device("privateuseone:0")
    )  # the name of "jax" before it is renamed
    torchax.tensor.Tensor.device = torchax.view.View.device = label
    _complete(environment)
    return torchax, environment


def is_traced(x: Any) -> bool:
    """Whether a tensor is torchax's, and so part of a program."""
    return type(x).__module__.startswith("torchax")


def _complete(environment: Any) -> None:
    """Corrects `view(dtype)`, which torchax 0.0.13 takes for a view of another shape."""
    import jax
    from torchax.ops import mappings
    from torchax.ops.ops_registry import Operator

    def view_dtype(x: jax.Array, dtype: torch.dtype) -> jax.Array:
        wanted = mappings.t2j_dtype(dtype)
        return x if x.dtype == wanted else jax.lax.bitcast_convert_type(x, wanted)

    op = torch.ops.aten.view.dtype
    environment._ops[op] = Operator(
        op,
        view_dtype,
        is_jax_function=True,
        is_user_defined=True,
        needs_env=False,
        is_view_op=False,
    )
