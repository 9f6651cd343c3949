"""Ops that some platform lacks: XLA's version in their place, and the error where there is none."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from intarsia import _native

# The platforms of JAX that an op can have a half for, as the manifest names them.
_EVERY = ("cpu", "cuda")
_with_fallback: set[str] = set()


def with_fallback(
    name: str, by_op: Callable[..., Any], by_xla: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that is an op on the platforms that have it, and XLA's version of it on all others.

    Both are traced, and a program for one platform holds one of them. The documentation says of the op that its
    function has XLA's version (docs/ops.md).

    Args:
      name: the op, whose platforms its spec states.
      by_op: the results from arrays and keywords, by the op.
      by_xla: the same in plain JAX.

    Returns:
      The function of these arrays and keywords.
    """
    platforms = _native.main_library().find(name).platforms
    _with_fallback.add(name)

    def function(*arrays: jax.Array, **settings: Any) -> Any:
        def ours(*xs: jax.Array) -> Any:
            return by_op(*xs, **settings)

        def xlas(*xs: jax.Array) -> Any:
            return by_xla(*xs, **settings)

        return lax.platform_dependent(*arrays, **dict.fromkeys(platforms, ours), default=xlas)

    return function


def has_fallback(op: _native.Op) -> bool:
    """Whether the op's function in `intarsia.jax` has XLA's version for platforms that lack the op."""
    return op.name in _with_fallback


def on_its_platforms(op: _native.Op, array: jax.Array) -> jax.Array:
    """The array as it is, in a program for a platform that has the op; for any other the lowering raises.

    A program for several platforms is refused if none of them has the op: its call may stand in a branch.
    """
    if set(op.platforms) >= {*_EVERY}:
        return array
    return _on_platforms.bind(array, op=op.name, platforms=op.platforms)


_on_platforms = Primitive("on_platforms")
_on_platforms.def_impl(lambda x, **_: x)
_on_platforms.def_abstract_eval(lambda x, **_: x)


def _lower(ctx: mlir.LoweringRuleContext, x: Any, *, op: str, platforms: tuple[str, ...]) -> list:
    program = ctx.platforms or ctx.module_context.platforms
    if set(program).isdisjoint(platforms):
        instead = f"; intarsia.jax.{op} is XLA's version there" if op in _with_fallback else ""
        raise NotImplementedError(
            f"{op}: runs on {', '.join(platforms)}, not in a program for {', '.join(program)}{instead}"
        )
    return [x]


mlir.register_lowering(_on_platforms, _lower)
