"""Reverse-mode differentiation: an op with a rule gets it, any other says that it has none.

The rules, in `_grad_rules.py`, are of the functional forms; what is written in place is differentiated as the functional
form and a copy. Gradients of gradients are those of the rules' own operations, where these have them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from intarsia.torch._form import DISPATCH_KEYS, Form, as_sequence

Tensors = Sequence[torch.Tensor | None]  # operands in spec order, None for absent ones


@dataclass(frozen=True)
class Gradient:
    """How to differentiate an op.

    Attributes:
      keep: (operands, results) -> the tensors that the backward pass needs.
      backward: (kept, cotangents of the results, attributes, **what was asked) -> cotangents of the operands in spec
        order, in any float dtype; None for indices and absent operands.
      why_not: why a call of these (operands, attributes) has no gradient; None if it has one.
      ask: () -> what else the backward pass is to be told, beside the attributes, as it is at the forward pass.
    """

    keep: Callable[[Tensors, Tensors], Tensors]
    backward: Callable[..., Tensors]
    why_not: Callable[[Tensors, dict[str, Any]], str | None]
    ask: Callable[[], dict[str, Any]]


_gradients: dict[str, Gradient] = {}  # by op


def gradient(
    op: str,
    keep: Callable[[Tensors, Tensors], Tensors] = lambda operands, results: operands,
    why_not: Callable[[Tensors, dict[str, Any]], str | None] = lambda operands, attributes: None,
    ask: Callable[[], dict[str, Any]] = dict,
):
    """Declares the decorated function to be the backward pass of an op."""

    def declare(backward: Callable[..., Tensors]):
        _gradients[op] = Gradient(keep, backward, why_not, ask)
        return backward

    return declare


def rule_of(op: str) -> Gradient:
    """How an op is differentiated that has a gradient, for the gradients of ops that hold it."""
    return _gradients[op]


# Of a call in which nothing but the kernel of CPU or CUDA tensors comes after autograd. Integers are compared ten times
# as fast as sets of keys, whose intersection costs 0.4 us.
_PLAIN = frozenset(
    torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)).raw_repr() for key in DISPATCH_KEYS
)
_BELOW = torch._C._after_ADInplaceOrView_keyset
_BELOW_BITS = _BELOW.raw_repr()
_is_grad_enabled, _any_requires_grad = torch._C.is_grad_enabled, torch._C._any_requires_grad


def register_gradient(
    form: Form,
    op: torch._ops.OpOverload,
    plain: Callable[..., Any] | None,
    fragment: torch.library.Library,
) -> None:
    """Makes a form known to autograd.

    Args:
      plain: what the op does to CPU and CUDA tensors, if that is a Python function: then it is called from here, without
        another way through the dispatcher.
    """
    rule = _gradients.get(form.op.name)
    names = [row["name"] for row in form.op.operands]
    written = [names.index(name) for name in form.written]
    redispatch = op._handle.redispatch_boxed  # what op.redispatch calls, 0.25 us earlier
    if not written:
        differentiated = _by_rule(form, op, rule)
    elif rule:
        differentiated = _through_copies(form, op, written)
    else:
        differentiated = _breaking(form, op, written)

    # Not torch.library.register_autograd, whose kernel costs twice as much where nothing is differentiated.
    def kernel(keyset: Any, *args: torch.Tensor | None, **attributes: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(form, args)
        if _is_grad_enabled() and _any_requires_grad(*args):
            if torch._C._are_functorch_transforms_active():
                raise NotImplementedError(
                    f"{form.op.name}: torch.func's transformations are not built; "
                    "differentiate with torch.autograd"
                )
            return differentiated(keyset & torch._C._after_autograd_keyset, args, attributes)
        return writing(keyset, *args, **attributes)

    def writing(keyset: Any, *args: torch.Tensor | None, **attributes: Any) -> Any:
        if plain and keyset.raw_repr() & _BELOW_BITS in _PLAIN:
            output = plain(*args, **attributes)
        else:
            output = redispatch(keyset & _BELOW, *args, **attributes)
        for i in written:  # after the call: one that was refused has written nothing
            if i < len(args) and args[i] is not None and not args[i].is_inference():
                torch.autograd.graph.increment_version(args[i])
        return output

    fragment.impl(form.name, kernel, "Autograd", with_keyset=True)
    if written:  # for who calls from below autograd, and in inference mode
        fragment.impl(form.name, writing, "ADInplaceOrView", with_keyset=True)


def _refuse_tangents(form: Form, args: Sequence[torch.Tensor | None]) -> None:
    """Raises where a derivative would be lost in the op."""
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in args):
        raise NotImplementedError(
            f"{form.op.name}: forward-mode differentiation (torch.func.jvp) is not built; "
            "differentiate with torch.autograd"
        )


Differentiated = Callable[[Any, Sequence[torch.Tensor | None], dict[str, Any]], Any]


def _by_rule(form: Form, op: torch._ops.OpOverload, rule: Gradient | None) -> Differentiated:
    defaults = {row["name"]: row["default"] for row in form.op.attributes}

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, attributes: dict[str, Any], *args: Any) -> Any:
            operands = form.operands(args)
            ctx.attributes = defaults | attributes
            ctx.dtypes = [None if x is None else x.dtype for x in args]
            ctx.why_not = None
            if rule is not None:
                ctx.why_not = rule.why_not(operands, ctx.attributes)
                ctx.asked = rule.ask()
            with torch._C._AutoDispatchBelowAutograd():
                output = op.redispatch(keyset, *args, **attributes)
            if rule is not None and ctx.why_not is None:
                ctx.save_for_backward(*rule.keep(operands, as_sequence(output)))
            return output

        @staticmethod
        def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            if rule is None:
                raise _has_no_gradient(form)
            if ctx.why_not is not None:
                raise NotImplementedError(f"{form.op.name}: the gradient {ctx.why_not}")
            gradients = rule.backward(ctx.saved_tensors, cotangents, ctx.attributes, **ctx.asked)
            of_args = zip(gradients, ctx.dtypes, strict=False)
            return None, None, *(None if x is None else x.to(dtype) for x, dtype in of_args)

    return lambda keyset, args, attributes: Differentiable.apply(keyset, attributes, *args)


def _has_no_gradient(form: Form) -> NotImplementedError:
    names = ", ".join(sorted(_gradients))
    return NotImplementedError(
        f"{form.op.name}: has no gradient; ops that have one are {names}. "
        "Keep it out of what is differentiated with detach() on its operands"
    )


# What the history of a tensor ends in that an op without a gradient has written: not in the op's operands, which a cache
# would keep alive.
_END = torch.empty(0, requires_grad=True)


def _breaking(form: Form, op: torch._ops.OpOverload, written: Sequence[int]) -> Differentiated:
    """An op that writes its operands and has no rule: what it writes and returns says so in the backward pass."""

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
            raise _has_no_gradient(form)

    def differentiated(keyset: Any, args: Any, attributes: dict[str, Any]) -> Any:
        tensors = [args[i] for i in written if i < len(args) and args[i] is not None]
        for tensor in tensors:
            _refuse_leaf(form, tensor)
        with torch._C._AutoDispatchBelowAutograd():
            output = op.redispatch(keyset, *args, **attributes)
        # A graph that torch.compile makes differentiates all that is written, whether or not anybody asks for it.
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is None:
            for tensor in (*tensors, *as_sequence(output)):
                if tensor.is_floating_point() and _may_get_history(tensor):
                    Broken.apply(tensor, _END)
        return output

    return differentiated


def _refuse_leaf(form: Form, tensor: torch.Tensor) -> None:
    """As torch does for its own ops in place."""
    for kind, leaf in (("a leaf", tensor), ("a view of a leaf", tensor._base)):
        if leaf is not None and leaf.is_leaf and leaf.requires_grad:
            raise RuntimeError(
                f"{form.op.name}: {kind} Variable that requires grad is being used in an in-place operation."
            )


def _may_get_history(tensor: torch.Tensor) -> bool:
    """Whether torch lets a tensor that is written have a new history, and it does not end in `_END` already."""
    autograd = torch._C._autograd
    if tensor.is_inference():
        return False
    if tensor._is_view():  # one of several of unbind or split, or made in no_grad, cannot have one
        if autograd._get_creation_meta(tensor) != autograd.CreationMeta.DEFAULT:
            return False
        tensor = tensor._base
    edges = () if tensor.grad_fn is None else tensor.grad_fn.next_functions
    return all(getattr(node, "variable", None) is not _END for node, _ in edges)


def _through_copies(
    form: Form, op: torch._ops.OpOverload, written: Sequence[int]
) -> Differentiated:
    """An op that writes its operands, as its functional form and copies."""
    functional = op._overloadpacket.functional

    def differentiated(keyset: Any, args: Any, attributes: dict[str, Any]) -> None:
        operands = form.operands(args)
        # What the backward pass keeps must not be what is written.
        kept = [x.clone() if i in written and x is not None else x for i, x in enumerate(operands)]
        results = functional(*kept, **attributes)
        for i, result in zip(written, results, strict=True):
            if operands[i] is not None:
                operands[i].copy_(result)

    return differentiated
