"""The kernels of torch_xla's tensors: an op is the custom call that it is in JAX, in the program that torch_xla collects.

torch_xla and jax are imported at the first call: without them, the kernels of other tensors work.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from intarsia import _environment, _native
from intarsia._packages import needed_by
from intarsia.torch._fake import fake
from intarsia.torch._form import (
    DISPATCH_KEYS,
    Form,
    Row,
    as_sequence,
    check_devices,
    find,
    forms,
    one_or_all,
    to_return,
)

DEVICE = "INTARSIA"  # as PJRT_DEVICE names it


def register(library: _native.Library, fragment: torch.library.Library) -> None:
    """Registers kernels for XLA tensors of a library's ops, whose schemas `fragment` holds."""
    for op in library.ops.values():
        for form in forms(op):
            if form.written:
                _register_mutating(library, fragment, form)
            else:
                fragment.impl(form.name, kernel(form, library), "XLA")


def kernel(form: Form, library: _native.Library) -> Callable[..., Any]:
    """The kernel of an op that writes to none of its operands."""

    def run(*args: torch.Tensor | None, **attributes: Any) -> Any:
        operands = form.operands(args)
        results = lower(form.op, library, operands, attributes)
        return to_return(results, operands[0].device)

    return run


# ---------------------------------------------------------------------------- ops that write
#
# XLA's programs are functional, and so are torch_xla's tensors: torch puts a layer around them (functionalization) that
# lets pass only ops that write nothing. So an op that writes gets a companion that returns what it would write, and in
# that layer a kernel that calls the companion and lets the tensors stand for its results.


@dataclass(frozen=True)
class _Returning(Form):
    """The companion of an op that writes."""

    @property
    def name(self) -> str:
        return f"_returning_{super().name}"

    def destination(self, row: Row) -> str:
        return ""


def _register_mutating(
    library: _native.Library, fragment: torch.library.Library, form: Form
) -> None:
    returning = _Returning(form.op, form.in_place)
    fragment.define(returning.schema(), tags=(torch.Tag.pt2_compliant_tag,))
    fragment.impl(returning.name, _donating(form, kernel(returning, library)), "XLA")
    for key in DISPATCH_KEYS:  # what torch.compile makes of the op there, once the layer knows it
        fragment.impl(returning.name, _on_copies(form, fragment.ns), key)
    name = f"{fragment.ns}::{returning.name}"
    torch.library.register_fake(name, fake(returning, library), lib=fragment)
    register_writing(fragment, form.name, _writing_kernel(form, name))


# Where that layer knows an op, torch.compile no longer finds out by itself how CPU and CUDA tensors can be
# written in place. So it is told only in a process that uses the device.
_writing: list[tuple[torch.library.Library, str, Callable[..., Any]]] = []


def register_writing(
    fragment: torch.library.Library, name: str, function: Callable[..., Any]
) -> None:
    """Makes `function`, which may call any op of torch, the kernel for XLA tensors of an op that writes."""
    _writing.append((fragment, name, function))
    if _environment.torch_xla_device() == DEVICE:
        serve_device()


def serve_device() -> None:
    """Makes the ops that write work on XLA tensors: to be called in a process that uses the device INTARSIA."""
    while _writing:
        fragment, name, function = _writing.pop()
        fragment.impl(name, function, "Functionalize")


def _donating(form: Form, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, whose results may have the buffers of the operands that they share one with in XLA."""

    def donating(*args: torch.Tensor | None, **attributes: Any) -> Any:
        operands = form.by_name(args)
        shared = [operands[row["alias"]] for row in form.rows if row["alias"]]
        try:
            _set_donor(shared, True)
            return run(*args, **attributes)
        except BaseException:
            _set_donor(shared, False)  # or the next program that reads one would take its buffer
            raise

    return donating


def _set_donor(tensors: Sequence[torch.Tensor | None], donates: bool) -> None:
    for x in tensors:
        if x is not None:
            torch.ops.xla.dynamo_set_buffer_donor_(x, donates)


def _writing_kernel(form: Form, companion: str) -> Callable[..., Any]:
    """The op by its companion."""

    def write(*args: torch.Tensor | None, **attributes: Any) -> Any:
        operands = form.by_name(args)
        check_devices(form.op, [*operands.values()])  # before torch takes them all to be XLA's
        _check_written(form, operands)
        results = as_sequence(find(companion)(*args, **attributes))
        returned = []
        for row, result in zip(form.rows, results, strict=True):
            written = form.destination(row)
            if not written:
                returned.append(result)
            elif operands[written] is not None:
                operands[written].copy_(result)
        return one_or_all(returned)

    return write


def _check_written(form: Form, operands: Mapping[str, torch.Tensor | None]) -> None:
    """Raises unless each element that is written has memory of its own.

    XLA tensors have no strides. What is known of a view is how it was made and the size of the memory that it is of.
    """
    written: list[tuple[str, torch.Tensor, list[tuple[Any, ...]]]] = []
    for name in form.written:
        x = operands[name]
        if x is None or not x.numel():
            continue
        views = _views(x)
        room = x.untyped_storage().nbytes() // x.element_size()
        if x.numel() > room or any("expand" in view[0].__name__ for view in views):
            raise ValueError(
                f"{form.op.name}: {name} is expanded and is written, expected memory for each element"
            )
        for other, y, its_views in written:
            if x.untyped_storage()._cdata != y.untyped_storage()._cdata:
                continue
            if views == its_views or x.numel() + y.numel() > room:
                raise ValueError(
                    f"{form.op.name}: {name} shares memory with {other} and both are written"
                )
        written.append((name, x, views))
    for other, x in operands.items():
        for name, y, views in written:
            if other in form.written or x is None:
                continue
            if x.untyped_storage()._cdata == y.untyped_storage()._cdata and _views(x) == views:
                raise ValueError(
                    f"{form.op.name}: {name} shares memory with {other} and is written"
                )


def _views(x: torch.Tensor) -> list[tuple[Any, ...]]:
    """How a view was made: the steps from the tensor that it is of."""
    steps = torch._C._functionalization.get_view_meta_sequence(x)
    return [(type(step), *step.as_tuple()) for step in steps]


def _on_copies(form: Form, namespace: str) -> Callable[..., Any]:
    """The companion by its op."""

    def run(*args: torch.Tensor | None, **attributes: Any) -> Any:
        operands = form.by_name(args)
        for name in form.written:
            operands[name] = None if operands[name] is None else operands[name].clone()
        returned = find(f"{namespace}::{form.name}")(*operands.values(), **attributes)
        left = iter(as_sequence(returned))
        results = [
            operands[form.destination(row)] if form.destination(row) else next(left)
            for row in form.rows
        ]
        return to_return(results, args[0].device)

    return run


# ---------------------------------------------------------------------------- lowering


def lower(
    op: _native.Op,
    library: _native.Library,
    operands: Sequence[torch.Tensor | None],
    attributes: Mapping[str, Any],
) -> list[torch.Tensor | None]:
    """Adds a call of an op to the program that torch_xla collects.

    Returns:
      The results in spec order without workspaces, None for those that do not exist.

    Raises:
      ValueError, TypeError, NotImplementedError: as in JAX; nothing was added then.
    """
    _check_runtime(op)
    check_devices(op, operands)
    arrays = tuple(x for x in operands if x is not None)
    call, exists = _program(
        library,
        op.name,
        tuple(x is not None for x in operands),
        tuple(sorted((k, v) for k, v in attributes.items() if v is not None)),
        tuple((x.shape, x.dtype) for x in arrays),
    )
    left = iter(as_sequence(call(arrays)))
    return [next(left) if there_is else None for there_is in exists]


@functools.lru_cache(maxsize=4096)
def _program(
    library: _native.Library,
    name: str,
    present: tuple[bool, ...],
    attributes: tuple[tuple[str, Any], ...],
    types: tuple[tuple[torch.Size, torch.dtype], ...],
) -> tuple[Callable[[tuple[torch.Tensor, ...]], Any], list[bool]]:
    """An op as a computation over the operands that are present, and which of its results there are.

    What `torch_xla.core.xla_builder.call_jax` does, which makes int32 of int64 and takes four times as long a call.
    """
    from torch_xla._internal import jax_workarounds
    from torch_xla.core import xla_builder

    jax_workarounds.maybe_get_jax(log=False)  # sets JAX up for what torch_xla expects of programs
    with needed_by(f"{name} on XLA tensors"):
        import jax

        from intarsia.jax import _call

    exists: list[bool] = []

    def function(*arrays: Any) -> list[Any]:
        left = iter(arrays)
        operands = [next(left) if is_given else None for is_given in present]
        results = _call.call_in_places(name, operands, library=library, **dict(attributes))
        exists[:] = [x is not None for x in results]
        return [x for x in results if x is not None]

    with jax.enable_x64(True):  # operands are of the dtypes that they have
        abstract = [
            jax.ShapeDtypeStruct(shape, jax.numpy.dtype(str(dtype).removeprefix("torch.")))
            for shape, dtype in types
        ]
        lowered = jax.jit(function, keep_unused=True).lower(*abstract)
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    computation = xla_builder.computation_from_module_proto(name, module)
    return xla_builder.xla_computation_as_func(computation, f"intarsia::{name}"), exists


def _check_runtime(op: _native.Op) -> None:
    from torch_xla import runtime

    if runtime.device_type() != DEVICE:
        raise NotImplementedError(
            f"{op.name}: torch_xla's device is {runtime.device_type()}, whose plugin has no such op; "
            f"set PJRT_DEVICE={DEVICE}"
        )
