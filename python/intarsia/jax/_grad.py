"""Reverse-mode differentiation: an op with a rule gets it by `jax.custom_vjp`, any other says in the backward pass that it has
none.

The rules are in `_grad_rules.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from intarsia import _native

Arrays = Sequence[jax.Array | None]  # operands in spec order, None for absent ones
Attributes = dict[str, Any]  # those that are given, by name


@dataclass(frozen=True)
class Gradient:
    """How to differentiate an op.

    Attributes:
      keep: (operands, results, attributes) -> what the backward pass needs, a pytree of arrays.
      backward: (kept, cotangents of the results, attributes) -> cotangents of the operands in spec order, in
        any float dtype; None for indices and absent operands.
    """

    keep: Callable[[Arrays, Arrays, Attributes], Any]
    backward: Callable[[Any, Sequence[jax.Array], Attributes], Arrays]


_gradients: dict[str, Gradient] = {}  # by target
# Ops that have a gradient as functions of `intarsia.jax` and not as bare calls.
functions_with_gradient: set[str] = set()


def gradient(target: str, keep: Callable[[Arrays, Arrays, Attributes], Any]):
    """Declares the decorated function to be the backward pass of an op."""

    def declare(backward: Callable[[Any, Sequence[jax.Array], Attributes], Arrays]):
        _gradients[target] = Gradient(keep, backward)
        return backward

    return declare


def has_gradient(op: _native.Op) -> bool:
    """Whether `jax.grad` goes through the op's function in `intarsia.jax`."""
    return op.target in _gradients or op.name in functions_with_gradient


def differentiable(
    op: _native.Op,
    run: Callable[..., tuple[jax.Array, ...]],
    given: Sequence[bool],
    attributes: Attributes,
) -> Callable[..., tuple[jax.Array, ...]]:
    """A function of an op's present operands, made known to `jax.grad`.

    Args:
      op: the op.
      run: its results from the operands that are present.
      given: which operands are, in spec order.
      attributes: those that are given.
    """
    if op.target not in _gradients:
        return _refusing(op, run)
    rule = _gradients[op.target]
    differentiated = jax.custom_vjp(run)

    def forward(*arrays: jax.Array):
        results = differentiated(*arrays)  # which can be differentiated once more
        left = iter(arrays)
        operands = [next(left) if present else None for present in given]
        # Empty arrays carry the dtypes: a residual can be no dtype.
        return results, (rule.keep(operands, results, attributes), [x.ravel()[:0] for x in arrays])

    def backward(kept: Any, cotangents: tuple[jax.Array, ...]):
        kept, likes = kept
        every = rule.backward(kept, cotangents, attributes)
        present = [x for x, is_given in zip(every, given, strict=True) if is_given]
        return tuple(
            None if x is None else x.astype(like.dtype)
            for x, like in zip(present, likes, strict=True)
        )

    differentiated.defvjp(forward, backward)
    return differentiated


def refusing(run: Callable[..., Any], why: Callable[[], str]) -> Callable[..., Any]:
    """A function that raises `why()` where a gradient flows back to it, and not where it only runs."""
    function = jax.custom_vjp(run)

    def forward(*primals: Any):
        # None has no leaves: a structure of the operands, which `backward` returns for gradients of 0.
        return run(*values_of(primals)), (None,) * len(primals)

    def backward(none: tuple[None, ...], cotangents: Any):
        if all(isinstance(g, SymbolicZero) for g in jax.tree.leaves(cotangents)):
            return none
        raise NotImplementedError(why())

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def values_of(primals: Any) -> Any:
    """The arrays of what the forward pass of a `custom_vjp` with `symbolic_zeros` is given."""
    return jax.tree.map(lambda x: x.value, primals, is_leaf=lambda x: hasattr(x, "perturbed"))


def _refusing(
    op: _native.Op, run: Callable[..., tuple[jax.Array, ...]]
) -> Callable[..., tuple[jax.Array, ...]]:
    def why() -> str:
        if op.name in functions_with_gradient:
            return f"{op.name}: the bare op has no gradient, intarsia.jax.{op.name} has one"
        of_calls = {target.rpartition(".")[2] for target in _gradients}
        names = ", ".join(sorted(of_calls | functions_with_gradient))
        return (
            f"{op.name}: has no gradient; ops that have one are {names}. "
            "Keep it out of what is differentiated with jax.lax.stop_gradient on its operands"
        )

    return refusing(run, why)
