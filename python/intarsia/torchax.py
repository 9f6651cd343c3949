"""Our ops on torchax's tensors: importing this module makes `torch.ops.xla_gpu` work on them.

Under `jax.jit` each op is the custom call that it is as a function of `intarsia.jax`.

Example:
  >>> import torch, torchax, intarsia.torchax
  >>> with torchax.default_env():
  ...     x = torch.ones(4, 64, device="jax")
  ...     y = torch.ops.xla_gpu.rms_norm(x)
"""

from collections.abc import Callable
from typing import Any

from intarsia._packages import needed_by

with needed_by("intarsia.torchax"):
    import jax.numpy as jnp
    import torch

from intarsia import _native
from intarsia._torchax_import import missing_ops_are_named
from intarsia.jax import _call
from intarsia.torch import NAMESPACE, _attention
from intarsia.torch._form import Form, absent, find, forms, one_or_all

with needed_by("intarsia.torchax"), missing_ops_are_named():
    import torchax
    from torchax.ops import ops_registry
    from torchax.tensor import Tensor
    from torchax.view import View

    torchax.default_env()  # fills the tables

_ABSENT = absent("cpu").numpy()


def register(library: _native.Library, namespace: str) -> None:
    """Makes a library's ops, registered with torch in that namespace, work on torchax's tensors."""
    for op in library.ops.values():
        for form in forms(op):
            _define(
                find(f"{namespace}::{form.name}"),
                _mutating(form, library) if form.written else _pure(form, library),
                is_jax_function=not form.written,
            )


def _define(op: Any, function: Callable[..., Any], is_jax_function: bool) -> None:
    """Makes a function what an op, an overload or all of one name, does with torchax's tensors.

    Args:
      is_jax_function: it takes arrays; otherwise tensors as they come, of which those that are views can be written, too.
    """
    ops_registry.register_torch_dispatch_op(
        op, function, is_jax_function=is_jax_function, is_view_op=not is_jax_function
    )
    # An environment has taken over the registry's ops when it was made.
    torchax.default_env()._ops[op] = ops_registry.all_aten_ops[op]


def _register_composites() -> None:
    """The ops that are made of others. torchax sees the name that is called, before torch chooses an overload."""
    for name in _attention.SCHEMAS:
        _define(find(name), _in_environment(_attention.composite(name)), is_jax_function=False)
        packet = find(name).overloadpacket
        if packet not in ops_registry.all_aten_ops:
            _define(packet, _in_environment(_overload_of(packet)), is_jax_function=False)


def _in_environment(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls torch, for torchax to call, which has left its environment by then."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torchax.default_env():
            return function(*args, **kwargs)

    return run


def _overload_of(packet: torch._ops.OpOverloadPacket) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        overload = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
        return getattr(packet, overload or "default")(*args, **kwargs)

    return run


def _pure(form: Form, library: _native.Library) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        operands, attributes = form.bind(args, kwargs)
        results = _call.call_in_places(
            form.op.name, [*operands.values()], library=library, **attributes
        )
        return one_or_all([_or_absent(x) for x in results])

    return run


def _mutating(form: Form, library: _native.Library) -> Callable[..., Any]:
    def run(*args: Tensor | View | None, **kwargs: Any) -> Any:
        operands, attributes = form.bind(args, kwargs)
        arrays = [None if x is None else x.jax() for x in operands.values()]
        results = _call.call_in_places(form.op.name, arrays, library=library, **attributes)
        returned = []
        for row, result in zip(form.rows, results, strict=True):
            if not form.destination(row):
                returned.append(_or_absent(result))
            elif result is not None:
                _write(operands[form.destination(row)], result)
        return one_or_all(torchax.default_env().j2t_iso(returned))

    return run


def _or_absent(x: Any) -> Any:
    return jnp.asarray(_ABSENT) if x is None else x


def _write(tensor: Tensor | View, array: Any) -> None:
    if isinstance(tensor, View):
        tensor.update(torchax.default_env().j2t_iso(array))
    else:
        tensor._elem = array


register(_native.main_library(), NAMESPACE)
_register_composites()
