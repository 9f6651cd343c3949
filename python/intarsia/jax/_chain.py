"""Several of the library's calls as one custom call (src/ffi/chain.h).

XLA's CUDA graphs let no kernel begin before the custom call before its own has ended. Kernels of one custom call may overlap.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from intarsia import _native
from intarsia.jax._call import register
from intarsia.jax._types import result_type

# What a call of the library stands in, with its rules for grad and vmap, and the parameter that holds it. JAX 0.11 keeps
# functions that `jax.jit` is to inline.
_WRAPPERS = {"jit": "jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call"}

P = ParamSpec("P")
R = TypeVar("R")


def chain(fun: Callable[P, R]) -> Callable[P, R]:
    """Makes each run of the library's calls in a function one custom call.

    On a GPU the kernels of one custom call overlap: each may begin while the one before it ends. A run has calls that follow each
    other with nothing but reshapes between them. XLA computes all else in `fun`, before a run where it can. Results are the same to
    the bit. Calls in loops and branches stay as they are, and so do those of other libraries (`load_ops`). Functions that are under
    `jax.jit` inside `fun` are inlined if they have calls.

    Errors are those of `fun`. The result has neither derivatives nor a rule for `jax.vmap`: JAX refuses both.

    Args:
      fun: a function of pytrees of arrays.

    Returns:
      The same function. It traces `fun` each time that it is called: call it under `jax.jit`.

    Example:
      >>> step = jax.jit(chain(lambda x, w: rms_norm(silu_and_mul(x), w)))
      >>> step(jnp.ones((2, 16)), jnp.ones(8)).shape
      (2, 8)
    """

    @functools.wraps(fun)
    def chained(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves, tree = jax.tree.flatten((args, kwargs))

        def flat(*arrays: jax.Array) -> R:
            args, kwargs = jax.tree.unflatten(tree, arrays)
            return fun(*args, **kwargs)

        traced, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        steps: list[_Step] = []
        outs = _flatten(traced, [_Value(jax.typeof(x), x) for x in leaves], steps)
        return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(steps, outs))

    return chained


class _Place:
    """A result of the chain, where values lie one after the other."""

    def __init__(self, number: int, type_: Any) -> None:
        self.number = number
        self.type = type_
        self.last = -1  # the last step that uses what lies there


class _Value:
    """A value of the traced function: an array once there is one, before that in a place of the pending chain."""

    def __init__(self, type_: Any, array: Any = None) -> None:
        self.array = array
        self.type = type_
        self.place: _Place | None = None
        self.last = -1  # the last step that uses it


class _Where(NamedTuple):
    """Where a call finds an operand: its number among those of the chain, or a place, as which shape."""

    source: int | _Place
    shape: tuple[int, ...]


class _Step:
    """An equation of the traced function. `call`: the name of the op if it is a call of the library."""

    def __init__(
        self, jaxpr: Any, equation: Any, inputs: list[_Value], outputs: list[_Value]
    ) -> None:
        self.equation = equation
        self.inputs = inputs
        self.outputs = outputs
        self.call = _call_of(equation)
        self._jaxpr = jaxpr  # that it is of

    def bind(self) -> None:
        """Evaluates it alone."""
        equation = self.equation
        given = {
            atom: value.array
            for atom, value in zip(equation.invars, self.inputs, strict=True)
            if not isinstance(atom, Literal)
        }
        alone = self._jaxpr.replace(
            constvars=[], invars=[*given], outvars=equation.outvars, eqns=[equation]
        )
        outs = jaxpr_as_fun(ClosedJaxpr(alone, []))(*given.values())
        for value, out in zip(self.outputs, outs, strict=True):
            value.array = out


@functools.cache
def _ops() -> dict[str, str]:
    """The ops that can be chained, by their targets."""
    library = _native.main_library()
    register(library)
    return {op.target: op.name for op in library.ops.values()}


def chain_target(library: _native.Library) -> str:
    """The target of a library's chains."""
    prefix, _, _ = next(iter(library.ops.values())).target.rpartition(".")
    return f"{prefix}.chain"


def _call_of(equation: Any) -> str | None:
    if equation.primitive.name != "ffi_call":
        return None
    return _ops().get(equation.params["target_name"])


def _has_call(jaxpr: Any) -> bool:
    return any(
        _call_of(equation) or (inner and _has_call(inner.jaxpr))
        for equation in jaxpr.eqns
        for inner in [_wrapped(equation)]
    )


def _wrapped(equation: Any) -> ClosedJaxpr | None:
    parameter = _WRAPPERS.get(equation.primitive.name)
    return equation.params[parameter] if parameter else None


def _flatten(closed: ClosedJaxpr, inputs: list[_Value], steps: list[_Step]) -> list[_Value]:
    """Appends a traced function's equations, those in the library's wrappers among them; returns its results."""
    jaxpr = closed.jaxpr
    constants = [_Value(jax.typeof(x), x) for x in closed.consts]
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def value_of(atom: Any) -> _Value:
        return _Value(atom.aval, atom.val) if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [value_of(atom) for atom in equation.invars]
        inner = _wrapped(equation)
        if inner and _has_call(inner.jaxpr):
            made = _flatten(inner, given, steps)
        else:
            made = [_Value(variable.aval) for variable in equation.outvars]
            steps.append(_Step(jaxpr, equation, given, made))
        values.update(zip(equation.outvars, made, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _evaluate(steps: Sequence[_Step], outs: Sequence[_Value]) -> list[Any]:
    for i, step in enumerate(steps):
        for value in step.inputs:
            value.last = i
    for value in outs:
        value.last = len(steps)
    pending = _Chain()
    for i, step in enumerate(steps):
        if not (pending.can_take(step, i) or pending.passes(step)):
            pending.finish(i)
            pending = _Chain()
        if pending.can_take(step, i):
            pending.take(step, i)
        elif not any(value.place for value in step.outputs):
            step.bind()
        pending.release(i)
    pending.finish(len(steps))
    return [value.array for value in outs]


class _Chain:
    """Calls that are to be one custom call."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._operands: dict[_Value, int] = {}
        self._overwritten: set[_Value] = set()  # operands, by calls that write in place
        self._values: list[_Value] = []  # that lie in places
        self._places: list[_Place] = []
        self._free: list[_Place] = []
        self._aliases: dict[int, int] = {}  # operands to places
        self._kinds: dict[tuple[str, Any], int] = {}
        self._program: list[tuple[int, list[_Where], list[_Place]]] = []

    def can_take(self, step: _Step, index: int) -> bool:
        """Whether a step can be the next call: not if it reads what an earlier one overwrote, or overwrites what is read later."""
        if not step.call or not self._overwritten.isdisjoint(step.inputs):
            return False
        overwrites = [step.inputs[i] for i, _ in step.equation.params["input_output_aliases"]]
        return all(
            step.inputs.count(value) == 1 and not (value.place and value.place.last > index)
            for value in overwrites
        )

    def passes(self, step: _Step) -> bool:
        """Whether a step that is no call can come before the chain, or gives another shape to what lies in a place, which is done here."""
        if step.call or step.equation.effects or not self._overwritten.isdisjoint(step.inputs):
            return False
        if not any(value.place for value in step.inputs):
            return True
        if step.equation.primitive.name != "reshape" or not step.outputs[0].type.shape:
            return False
        place = step.inputs[0].place
        assert place
        self._put(step.outputs[0], place)
        return True

    def take(self, step: _Step, index: int) -> None:
        """Adds a call."""
        aliases = {out: operand for operand, out in step.equation.params["input_output_aliases"]}
        kind = (step.call or "", step.equation.params["attributes"])
        for value in step.inputs:
            if not value.place:
                self._operands.setdefault(value, len(self._operands))
        sources = [
            step.inputs[aliases[i]] if i in aliases else None for i in range(len(step.outputs))
        ]
        read = [
            _Where(value.place or self._operands[value], value.type.shape) for value in step.inputs
        ]
        wrote = []
        for value, source in zip(step.outputs, sources, strict=True):
            place = source.place if source else self._free_place(value.type)
            if not place:
                place = self._new_place(value.type)
            if source and not source.place:
                self._aliases[self._operands[source]] = place.number
                self._overwritten.add(source)
            place.last = max(place.last, index)
            self._put(value, place)
            wrote.append(place)
        self._steps.append(step)
        self._program.append((self._kinds.setdefault(kind, len(self._kinds)), read, wrote))

    def release(self, index: int) -> None:
        """Frees the places that no step after this one uses."""
        self._free = [place for place in self._places if place.last <= index]

    def finish(self, index: int) -> None:
        """Makes the custom call; what step `index` or a later one uses becomes arrays."""
        if not self._steps:
            return
        if len(self._steps) == 1:
            (step,) = self._steps
            step.bind()
            arrays = {value.place: value.array for value in step.outputs}
        else:
            arrays = dict(zip(self._places, self._call(), strict=True))
        for value in self._values:
            if value.last >= index:
                value.array = lax.reshape(arrays[value.place], value.type.shape)
            value.place = None

    def _put(self, value: _Value, place: _Place) -> None:
        value.place = place
        place.last = max(place.last, value.last)
        self._values.append(value)

    def _free_place(self, type_: Any) -> _Place | None:
        for place in self._free:
            if (place.type.shape, place.type.dtype) == (type_.shape, type_.dtype):
                self._free.remove(place)
                place.last = -1
                return place
        return None

    def _new_place(self, type_: Any) -> _Place:
        self._places.append(_Place(len(self._places), type_))
        return self._places[-1]

    def _call(self) -> Sequence[jax.Array]:
        arrays = [value.array for value in self._operands]
        types = [result_type(x.type.shape, x.type.dtype, like=arrays[0]) for x in self._places]
        attributes: dict[str, Any] = {}
        for (name, of_call), kind in self._kinds.items():
            attributes |= {f"op_{kind}": name, f"attributes_{kind}": dict(of_call)}
        call = jax.ffi.ffi_call(
            chain_target(_native.main_library()), types, input_output_aliases=self._aliases
        )
        with jax.named_scope("chain"):
            return call(*arrays, program=self._text(), **attributes)

    def _text(self) -> str:
        def number(place: _Place) -> int:
            return len(self._operands) + place.number

        def operand(where: _Where) -> str:
            if isinstance(where.source, int):
                return str(where.source)
            if where.shape == where.source.type.shape:
                return str(number(where.source))
            return f"{number(where.source)}:{','.join(map(str, where.shape))}"

        calls = [
            f"{kind} {' '.join(map(operand, read))} > {' '.join(str(number(x)) for x in wrote)};"
            for kind, read, wrote in self._program
        ]
        return " ".join(calls)
