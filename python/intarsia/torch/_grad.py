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


def register_gradient(
    form: Form, op: torch._ops.OpOverload, fragment: torch.library.Library
) -> None:
    """Makes a form known to autograd."""
    rule = _gradients.get(form.op.name)
    if not form.written:
        _register_rule(form, op, rule, fragment)
    elif rule is not None:
        fragment.impl(form.name, _through_copies(form, op), "Autograd", with_keyset=True)


def _register_rule(
    form: Form, op: torch._ops.OpOverload, rule: Gradient | None, fragment: torch.library.Library
) -> None:
    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        operands = form.operands(inputs)
        ctx.attributes = keyword_only_inputs or {}
        ctx.dtypes = [None if x is None else x.dtype for x in operands]
        if rule is None:
            return
        rule.check(operands, ctx.attributes)
        results = (output,) if isinstance(output, torch.Tensor) else output
        ctx.save_for_backward(*rule.keep(operands, results))

    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if rule is None:
            names = ", ".join(sorted(_gradients))
            raise NotImplementedError(
                f"{form.op.name}: has no gradient; ops that have one are {names}. "
                "Keep it out of what is differentiated with detach() on its operands"
            )
        gradients = rule.backward(ctx.saved_tensors, cotangents, ctx.attributes)
        return tuple(
            None if x is None else x.to(dtype)
            for x, dtype in zip(gradients, ctx.dtypes, strict=True)
        )

    torch.library.register_autograd(op, backward, setup_context=setup_context, lib=fragment)


def _through_copies(form: Form, op: torch._ops.OpOverload) -> Callable[..., None]:
    """The kernel for autograd of an op that writes its operands."""
    functional = op._overloadpacket.functional
    names = [row["name"] for row in form.op.operands]
    written = [names.index(name) for name in form.written]

    def kernel(keyset: Any, *args: torch.Tensor | None, **attributes: Any) -> None:
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)):
            with torch._C._AutoDispatchBelowAutograd():
                op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **attributes)
            return
        operands = form.operands(args)
        # What the backward pass keeps must not be what is written.
        kept = [x.clone() if i in written and x is not None else x for i, x in enumerate(operands)]
        results = functional(*kept, **attributes)
        for i, result in zip(written, results, strict=True):
            if operands[i] is not None:
                operands[i].copy_(result)

    return kernel
