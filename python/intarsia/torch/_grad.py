"""Reverse-mode differentiation: an op with a rule gets it, any other says that it has none.

The rules, in `_grad_rules.py`, are of the functional forms; what is written in place is differentiated as the functional
form and a copy. Gradients of gradients are those of the rules' own operations, where these have them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from intarsia.torch._form import Form

Tensors = Sequence[torch.Tensor | None]  # operands in spec order, None for absent ones


@dataclass(frozen=True)
class Gradient:
    """How to differentiate an op.

    Attributes:
      keep: (operands, results) -> the tensors that the backward pass needs.
      backward: (kept, cotangents of the results, attributes) -> cotangents of the operands in spec order, in any float
        dtype; None for indices and absent operands.
      check: raises if a call of these (operands, attributes) cannot be differentiated.
    """

    keep: Callable[[Tensors, Tensors], Tensors]
    backward: Callable[[Tensors, Tensors, dict[str, Any]], Tensors]
    check: Callable[[Tensors, dict[str, Any]], None]


_gradients: dict[str, Gradient] = {}  # by op


def gradient(
    op: str,
    keep: Callable[[Tensors, Tensors], Tensors] = lambda operands, results: operands,
    check: Callable[[Tensors, dict[str, Any]], None] = lambda operands, attributes: None,
):
    """Declares the decorated function to be the backward pass of an op."""

    def declare(backward: Callable[[Tensors, Tensors, dict[str, Any]], Tensors]):
        _gradients[op] = Gradient(keep, backward, check)
        return backward

    return declare


# Of a call in which nothing but the kernel of CPU or CUDA tensors comes after autograd. Integers are compared ten times
# as fast as sets of keys.
_PLAIN = frozenset(
    torch._C.DispatchKeySet(key).raw_repr()
    for key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)
)


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
    differentiated = _by_rule(form, op, rule)
    if written:  # without a rule, what is written takes no part in gradients
        differentiated = rule and _through_copies(form, op, written)

    # Not torch.library.register_autograd, whose kernel costs twice as much where nothing is differentiated.
    def kernel(keyset: Any, *args: torch.Tensor | None, **attributes: Any) -> Any:
        if differentiated and torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return differentiated(keyset & torch._C._after_autograd_keyset, args, attributes)
        for i in written:
            if i < len(args) and args[i] is not None and not args[i].is_inference():
                torch.autograd.graph.increment_version(args[i])
        if plain and (keyset & torch._C._after_ADInplaceOrView_keyset).raw_repr() in _PLAIN:
            return plain(*args, **attributes)
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **attributes)

    fragment.impl(form.name, kernel, "Autograd", with_keyset=True)


Differentiated = Callable[[Any, Sequence[torch.Tensor | None], dict[str, Any]], Any]


def _by_rule(form: Form, op: torch._ops.OpOverload, rule: Gradient | None) -> Differentiated:
    defaults = {row["name"]: row["default"] for row in form.op.attributes}

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, attributes: dict[str, Any], *args: Any) -> Any:
            operands = form.operands(args)
            ctx.attributes = defaults | attributes
            ctx.dtypes = [None if x is None else x.dtype for x in args]
            if rule is not None:
                rule.check(operands, ctx.attributes)
            with torch._C._AutoDispatchBelowAutograd():
                output = op.redispatch(keyset, *args, **attributes)
            if rule is not None:
                results = (output,) if isinstance(output, torch.Tensor) else output
                ctx.save_for_backward(*rule.keep(operands, results))
            return output

        @staticmethod
        def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            if rule is None:
                names = ", ".join(sorted(_gradients))
                raise NotImplementedError(
                    f"{form.op.name}: has no gradient; ops that have one are {names}. "
                    "Keep it out of what is differentiated with detach() on its operands"
                )
            gradients = rule.backward(ctx.saved_tensors, cotangents, ctx.attributes)
            of_args = zip(gradients, ctx.dtypes, strict=False)
            return None, None, *(None if x is None else x.to(dtype) for x, dtype in of_args)

    return lambda keyset, args, attributes: Differentiable.apply(keyset, attributes, *args)


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
