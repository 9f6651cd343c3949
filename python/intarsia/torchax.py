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

import jax.numpy as jnp
import torchax
from torchax.ops import ops_registry
from torchax.tensor import Tensor
from torchax.view import View

from intarsia import _native
from intarsia.jax import _call
from intarsia.torch import NAMESPACE
from intarsia.torch._fake import one_or_all
from intarsia.torch._form import Form, find, forms


def register(library: _native.Library, namespace: str) -> None:
    """Makes a library's ops, registered with torch in that namespace, work on torchax's tensors."""
    for op in library.ops.values():
        for form in forms(op):
            overload = find(f"{namespace}::{form.name}")
            ops_registry.register_torch_dispatch_op(
                overload,
                _mutating(form, library) if form.written else _pure(form, library),
                is_jax_function=not form.written,
                is_view_op=bool(form.written),  # operands come as they are: views are written, too
            )
            # An environment has taken over the registry's ops when it was made.
            torchax.default_env()._ops[overload] = ops_registry.all_aten_ops[overload]


def _pure(form: Form, library: _native.Library) -> Callable[..., Any]:
    def run(*arrays: Any, **attributes: Any) -> Any:
        results = _call.call_in_places(
            form.op.name, form.operands(arrays), library=library, **attributes
        )
        absent = jnp.zeros(0, jnp.float32)
        return one_or_all([absent if x is None else x for x in results])

    return run


def _mutating(form: Form, library: _native.Library) -> Callable[..., Any]:
    def run(*tensors: Tensor | View | None, **attributes: Any) -> Any:
        operands = form.operands(tensors)
        by_name = dict(zip((row["name"] for row in form.op.operands), operands, strict=True))
        arrays = [None if x is None else x.jax() for x in operands]
        results = _call.call_in_places(form.op.name, arrays, library=library, **attributes)
        rows = [row for row in form.op.results if not row["workspace"]]
        returned = []
        for row, result in zip(rows, results, strict=True):
            if not form.destination(row):
                returned.append(jnp.zeros(0, jnp.float32) if result is None else result)
            elif result is not None:
                _write(by_name[form.destination(row)], result)
        return one_or_all(torchax.default_env().j2t_iso(returned))

    return run


def _write(tensor: Tensor | View, array: Any) -> None:
    if isinstance(tensor, View):
        tensor.update(torchax.default_env().j2t_iso(array))
    else:
        tensor._elem = array


register(_native.main_library(), NAMESPACE)
