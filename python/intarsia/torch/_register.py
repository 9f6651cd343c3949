"""Registers ops with torch: schemas, kernels, fake kernels, gradients.

Kernels for torch_xla's tensors, the key XLA, are `_xla.py`'s.
"""

import ctypes
import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from intarsia import _native
from intarsia.torch import _xla
from intarsia.torch._fake import fake
from intarsia.torch._form import DISPATCH_KEYS, Form, find, forms
from intarsia.torch._grad import register_gradient

# Before, torch hands no `str` to a kernel that it knows by its stable C functions. There the kernel has a name of its
# own with integers for strings, and a Python function stands between it and the public schema.
_HAS_TEXTS = torch.torch_version.TorchVersion(torch.__version__) >= (2, 10)  # type: ignore[operator]


@functools.cache
def register(library: _native.Library, namespace: str) -> torch.library.Library:
    """Registers a library's ops as `torch.ops.<namespace>.<op>`, once.

    Args:
      library: from `intarsia.load_ops`, or the package's own.
      namespace: one that other modules may define ops in as well.

    Returns:
      The fragment of the namespace that holds the definitions.

    Raises:
      RuntimeError: another module has defined an op of one of these names; nothing is registered then.
    """
    refuse_names(library, namespace)
    every = [form for op in library.ops.values() for form in forms(op)]
    fragment = torch.library.Library(namespace, "FRAGMENT")
    # torch looks up once which overloads a name has, so all are defined before any is found.
    for form in every:
        fragment.define(form.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        if _needs_addresses(form):
            fragment.define(form.schema(_private(form), text_addresses=True))
    for form in every:
        _implement(library, fragment, form)
    _xla.register(library, fragment)
    return fragment


def refuse_names(library: _native.Library, namespace: str) -> None:
    """Raises if another module has defined an op of a library in this namespace."""
    for op in library.ops.values():
        for form in forms(op):
            refuse_defined(f"{namespace}::{form.name}")


def refuse_defined(name: str) -> None:
    """Raises if there is an op with this name, overload included."""
    packet, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(packet)
    if all(schema.overload_name != overload for schema in schemas):
        return
    found = re.search(r"registered at (\S+)", torch._C._dispatch_dump(name))
    where = f" ({found[1]})" if found else ""
    raise RuntimeError(
        f"torch.ops.{packet.replace('::', '.')} is defined already, by another module{where}: "
        "a process can have only one definition, so import either that module or intarsia.torch"
    )


def _needs_addresses(form: Form) -> bool:
    return bool(form.texts) and not _HAS_TEXTS


def _private(form: Form) -> str:
    return f"_{form.name}"


def _implement(library: _native.Library, fragment: torch.library.Library, form: Form) -> None:
    needs_addresses = _needs_addresses(form)
    native = f"{fragment.ns}::{_private(form) if needs_addresses else form.name}"
    library.register_with_torch(
        form.op.name, native, in_place=form.in_place, text_addresses=needs_addresses
    )
    plain = _by_addresses(form, find(native)) if needs_addresses else None
    if plain:
        for key in DISPATCH_KEYS:
            fragment.impl(form.name, plain, key)
        fragment.impl(_private(form), torch.library.fallthrough_kernel, "Autograd")
    name = f"{fragment.ns}::{form.name}"
    torch.library.register_fake(name, fake(form, library), lib=fragment)
    register_gradient(form, find(name), plain, fragment)
    if form.written:
        fragment.impl(form.name, _without_negative_views(form, find(name)), "Negative")


def _without_negative_views(form: Form, op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The op, whose kernel sees the numbers in memory: torch's own way round that is for ops that return what they write."""

    def kernel(*args: torch.Tensor | None, **attributes: Any) -> Any:
        for name, x in form.by_name(args).items():
            if name in form.written and x is not None and x.is_neg():
                raise ValueError(
                    f"{form.op.name}: {name} is a negative view and is written, expected the numbers in memory"
                )
        return op(*(None if x is None else x.resolve_neg() for x in args), **attributes)

    return kernel


def _by_addresses(form: Form, private: torch._ops.OpOverload) -> Callable[..., Any]:
    texts = tuple(form.texts.items())
    call = private._op  # what the overload calls, 0.3 us earlier

    def kernel(*args: Any, **attributes: Any) -> Any:
        for name, default in texts:
            attributes[name] = _address(attributes.get(name, default))
        return call(*args, **attributes)

    return kernel


_kept: list[ctypes.Array] = []


@functools.cache
def _address(text: str) -> int:
    """That of a C string that lives as long as the process."""
    _kept.append(ctypes.create_string_buffer(text.encode()))
    return ctypes.addressof(_kept[-1])
