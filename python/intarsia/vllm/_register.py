"""Puts the functions of `_ops.py` behind vLLM's names: `torch.ops._C`, `torch.ops._C_cache_ops` and `torch.ops._moe_C`."""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from intarsia.torch import _xla
from intarsia.torch._form import DISPATCH_KEYS
from intarsia.vllm import _ops


def register_ops() -> bool:
    """Makes vLLM's ops work on the tensors of torch_xla's device INTARSIA.

    Where vLLM is installed its compiled ops are loaded, and CPU and CUDA tensors stay with them. Where it is not, its
    schemas are defined, and our ops serve CPU and CUDA tensors as well.

    Returns:
      True.

    Raises:
      ImportError: vLLM is installed, but its compiled ops do not load. The names are theirs to define.
    """
    _registered()
    return True


@functools.cache
def _registered() -> list[torch.library.Library]:
    """The libraries, whose registrations last as long as they do."""
    found = importlib.util.find_spec("vllm")
    has_vllm = found is not None and found.origin is not None  # and no folder of that name
    if has_vllm:
        _load_vllm()
    return [_register(op, may_define=not has_vllm) for op in _ops.OPS]


def _load_vllm() -> None:
    try:
        importlib.import_module("vllm._custom_ops")  # loads what this vLLM has for this machine
        if _schema("_C::rms_norm") is None:
            importlib.import_module("vllm._C")  # which says why it was not loaded
    except ImportError as error:
        raise ImportError(
            f"intarsia.vllm.register_ops: vLLM {_vllm_version()} is installed, but its compiled ops do not load: {error}"
        ) from error


def _vllm_version() -> str:
    names = importlib.metadata.packages_distributions().get("vllm", [])
    return " ".join(importlib.metadata.version(name) for name in names[:1])


def _register(op: _ops.Op, may_define: bool) -> torch.library.Library:
    library = torch.library.Library(op.namespace, "FRAGMENT")
    theirs = _schema(f"{op.namespace}::{op.name}")
    if theirs is not None:
        fits = _fits(theirs, torch._C.parse_schema(f"{op.namespace}::{op.schema}"))
        kernel = _kernel(op) if fits else _refusal(op, theirs)
    elif may_define:
        library.define(op.schema, tags=(torch.Tag.pt2_compliant_tag,))
        kernel = _kernel(op)
        # What only writes has no result whose shape torch must know.
        for key in DISPATCH_KEYS if op.schema.endswith("-> ()") else (*DISPATCH_KEYS, "Meta"):
            library.impl(op.name, kernel, key)
    else:
        return library  # this vLLM has no such op
    _xla.register_writing(library, op.name, kernel)
    return library


def _schema(name: str) -> torch.FunctionSchema | None:
    schemas = torch._C._jit_get_schemas_for_operator(name)
    return schemas[0] if schemas else None


def _kernel(op: _ops.Op) -> Callable[..., Any]:
    def kernel(*args: Any) -> Any:
        # As below a kernel in C++: what these ops write is no function of its old value to autograd.
        with torch._C._AutoDispatchBelowAutograd():
            return op.function(*args)

    return kernel


def _refusal(op: _ops.Op, theirs: torch.FunctionSchema) -> Callable[..., None]:
    message = f"{op.name}: vLLM {_vllm_version()} has it as {theirs}, expected {op.schema}"

    def kernel(*args: Any) -> None:
        raise NotImplementedError(message)

    return kernel


def _fits(theirs: torch.FunctionSchema, ours: torch.FunctionSchema) -> bool:
    """Whether their arguments mean what ours of the same positions do, and what they lack has defaults."""
    count = len(theirs.arguments)
    same = [_meaning(x) for x in theirs.arguments] == [_meaning(x) for x in ours.arguments[:count]]
    return same and all(x.has_default_value() for x in ours.arguments[count:])


def _meaning(argument: Any) -> tuple[str, str]:
    """Of what is written, the name is "out" in one build of vLLM and "result" in another."""
    kind = argument.type
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return "written" if argument.is_write else argument.name, str(kind)
