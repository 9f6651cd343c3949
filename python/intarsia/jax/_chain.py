"""Several of the library's calls as one custom call (src/ffi/chain.h).

In XLA's CUDA graphs, a custom call waits for the previous one to finish. Kernels inside one custom call can overlap.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from intarsia import _native
from intarsia.jax._call import register
from intarsia.jax._types import result_type, varying_axes

# Primitives that wrap our calls, and the parameter with the wrapped jaxpr. Since JAX 0.11, jit(inline=True) stays in the jaxpr.
_WRAPPERS = {"jit": "jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call"}

_P = ParamSpec("_P")
_R = TypeVar("_R")


def chain(fun: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes each run of the library's calls in a function one custom call.

    On a GPU the kernels of one custom call overlap: each may begin while the one before it ends. Results are the same to the bit.

    A run has calls that follow each other with nothing but reshapes between them. Any other operation that reads one of its results
    ends it, be it a slice or a cast. Operations that read none are computed before the run. Not chained are calls in loops and
    branches, for which `chain` goes around the body; calls of other libraries (`load_ops`); and functions that choose by platform
    (`linear`, `linear_quantized`, `grouped_matmul`), in whose place `fused_linear_quantized` and those of `intarsia.jax.wire` are.

    Args:
      fun: any function. Arrays among its arguments are traced, anything else reaches it as it is.

    Returns:
      The same function. It traces `fun` at each call: call it under `jax.jit`. Chained calls have no derivatives; for `jax.vmap`,
      chain the mapped function.

    Raises:
      What `fun` raises.

    Example:
      >>> step = jax.jit(chain(lambda x, w: rms_norm(silu_and_mul(x), w)))
      >>> step(jnp.ones((2, 16)), jnp.ones(8)).shape
      (2, 8)
    """

    @functools.wraps(fun)
    def chained(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        leaves, tree = jax.tree.flatten((args, kwargs))
        given = [x for x in leaves if _is_array(x)]

        def traced_part(*arrays: jax.Array) -> _R:
            left = iter(arrays)
            mixed = [next(left) if _is_array(x) else x for x in leaves]
            args, kwargs = jax.tree.unflatten(tree, mixed)
            return fun(*args, **kwargs)

        traced_part.__name__ = getattr(fun, "__name__", "fun")  # in JAX's errors
        traced, shapes = jax.make_jaxpr(traced_part, return_shape=True)(*given)
        steps: list[_Step] = []
        outs = _flatten(traced, [_Value(jax.typeof(x), x) for x in given], steps)
        return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(steps, outs))

    return chained


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def chain_target(library: _native.Library) -> str:
    """The target of a library's chains."""
    prefix, _, _ = next(iter(library.ops.values())).target.rpartition(".")
    return f"{prefix}.chain"


class _Buffer:
    """A result of the chain. Once its value is dead, another one may lie there."""

    def __init__(self, number: int, type_: Any) -> None:
        self.number = number
        self.type = type_
        self.last_use = -1  # by its number, the last step that uses what lies there


class _Value:
    """A value of the traced function: an array once there is one, before that in a buffer of the pending chain."""

    def __init__(self, type_: Any, array: Any = None) -> None:
        self.array = array
        self.type = type_
        self.buffer: _Buffer | None = None
        self.last_use = -1  # the last step that uses it


class _View(NamedTuple):
    """Where a call finds an operand or a result: an operand of the chain by its number, or a buffer, as which shape."""

    source: int | _Buffer
    shape: tuple[int, ...]


class _Step:
    """An equation of the traced function.

    Attributes:
      call: the name of the op if it is a call of the library.
      overwrites: what each result of a call is written over, by the result's number.
    """

    def __init__(
        self, jaxpr: Any, equation: Any, inputs: list[_Value], outputs: list[_Value]
    ) -> None:
        self.equation = equation
        self.inputs = inputs
        self.outputs = outputs
        self.call = _call_of(equation)
        aliases = equation.params["input_output_aliases"] if self.call else ()
        self.overwrites = {result: inputs[operand] for operand, result in aliases}
        self._jaxpr = jaxpr  # the jaxpr it belongs to

    @property
    def is_view(self) -> bool:
        """Whether it only gives another shape to what a buffer holds. An array without axes is none: its sizes cannot be written."""
        if not (self.inputs and self.inputs[0].buffer and self.outputs[0].type.shape):
            return False
        name, params = self.equation.primitive.name, self.equation.params
        if name == "reshape":
            return params["dimensions"] is None  # else it transposes first
        # `x[None]` broadcasts to axes of one element.
        same_size = self.outputs[0].type.size == self.inputs[0].type.size
        return name == "squeeze" or (name == "broadcast_in_dim" and same_size)

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


def _call_of(equation: Any) -> str | None:
    """The op that an equation calls, as this package calls it."""
    if equation.primitive.name != "ffi_call" or equation.effects:
        return None
    layouts = [*equation.params["input_layouts"], *equation.params["output_layouts"]]
    if any(tuple(layout) != (*reversed(range(len(layout))),) for layout in layouts):
        return None
    return _ops().get(equation.params["target_name"])


def _wrapped(equation: Any) -> ClosedJaxpr | None:
    """The jaxpr within a wrapper of calls."""
    parameter = _WRAPPERS.get(equation.primitive.name)
    if parameter is None or not _is_plain(equation.params):
        return None
    inner = equation.params[parameter]
    return inner if any(_call_of(e) or _wrapped(e) for e in inner.jaxpr.eqns) else None


def _is_plain(params: dict[str, Any]) -> bool:
    """Whether a wrapper, if it is `jax.jit`, asks for nothing that inlining would lose."""
    shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    asked = any(isinstance(x, jax.sharding.Sharding) for x in shardings)
    return not asked and not params.get("compiler_options_kvs")


def _flatten(closed: ClosedJaxpr, inputs: list[_Value], steps: list[_Step]) -> list[_Value]:
    """Appends a traced function's equations, those in wrappers of calls among them; returns its results."""
    jaxpr = closed.jaxpr
    constants = [_Value(jax.typeof(x), x) for x in closed.consts]
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def value_of(atom: Any) -> _Value:
        return _Value(atom.aval, atom.val) if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [value_of(atom) for atom in equation.invars]
        if inner := _wrapped(equation):
            made = _flatten(inner, given, steps)
        else:
            made = [_Value(variable.aval) for variable in equation.outvars]
            steps.append(_Step(jaxpr, equation, given, made))
        values.update(zip(equation.outvars, made, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _evaluate(steps: Sequence[_Step], outs: Sequence[_Value]) -> list[Any]:
    steps = _without_dead(steps, outs)
    for i, step in enumerate(steps):
        for value in step.inputs:
            value.last_use = i
    for value in outs:
        value.last_use = len(steps)
    pending = _Chain()
    for i, step in enumerate(steps):
        if step.is_view:
            pending.view(step)
        elif pending.can_take(step, i):
            pending.take(step, i)
        elif pending.can_follow(step):
            step.bind()
        else:
            pending.finish(i)
            pending = _Chain()
            if pending.can_take(step, i):
                pending.take(step, i)
            else:
                step.bind()
        pending.release(i)
    pending.finish(len(steps))
    return [value.array for value in outs]


def _without_dead(steps: Sequence[_Step], outs: Sequence[_Value]) -> list[_Step]:
    """Leaves out steps that no result needs, as XLA would."""
    needed, kept = {*outs}, []
    for step in reversed(steps):
        if step.equation.effects or not needed.isdisjoint(step.outputs):
            needed.update(step.inputs)
            kept.append(step)
    return kept[::-1]


class _Chain:
    """Calls that are to be one custom call."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._operands: dict[_Value, int] = {}
        self._overwritten: set[_Value] = set()  # operands, by calls that write in place
        self._values: list[_Value] = []  # that lie in buffers
        self._buffers: list[_Buffer] = []
        self._free: list[_Buffer] = []
        self._aliases: dict[int, int] = {}  # operands to buffers
        self._ops_used: dict[tuple[str, Any], int] = {}
        self._program: list[tuple[int, list[_View], list[_View]]] = []

    def can_take(self, step: _Step, index: int) -> bool:
        """Whether a step can be the next call.

        It may not read what an earlier call overwrote, nor overwrite what it or a later step reads. All calls vary over the same
        axes of a `shard_map`.
        """
        if not step.call or not self._overwritten.isdisjoint(step.inputs):
            return False
        if self._steps and _axes_of(step) != _axes_of(self._steps[0]):
            return False
        buffers = [value.buffer for value in step.inputs]

        def can_overwrite(value: _Value) -> bool:
            if not value.buffer:
                return step.inputs.count(value) == 1
            return buffers.count(value.buffer) == 1 and value.buffer.last_use <= index

        return all(map(can_overwrite, step.overwrites.values()))

    def can_follow(self, step: _Step) -> bool:
        """Whether the chain can come after a step that is no call."""
        return not (
            step.call or step.equation.effects or any(value.buffer for value in step.inputs)
        )

    def view(self, step: _Step) -> None:
        """Gives what lies in a buffer another shape."""
        buffer = step.inputs[0].buffer
        assert buffer
        self._put(step.outputs[0], buffer)

    def take(self, step: _Step, index: int) -> None:
        """Adds a call."""
        op = (step.call or "", step.equation.params["attributes"])
        for value in step.inputs:
            if not value.buffer:
                self._operands.setdefault(value, len(self._operands))
        reads = [_View(x.buffer or self._operands[x], x.type.shape) for x in step.inputs]
        writes = []
        for i, value in enumerate(step.outputs):
            source = step.overwrites.get(i)
            buffer = source.buffer if source else self._free_buffer(value.type)
            if not buffer:
                buffer = self._new_buffer(value.type)
            if source and not source.buffer:
                self._aliases[self._operands[source]] = buffer.number
                self._overwritten.add(source)
            buffer.last_use = max(buffer.last_use, index)
            self._put(value, buffer)
            writes.append(_View(buffer, value.type.shape))
        self._steps.append(step)
        self._program.append((self._ops_used.setdefault(op, len(self._ops_used)), reads, writes))

    def release(self, index: int) -> None:
        """Frees the buffers that no step after this one uses."""
        self._free = [buffer for buffer in self._buffers if buffer.last_use <= index]

    def finish(self, index: int) -> None:
        """Makes the custom call; what step `index` or a later one uses becomes arrays."""
        if not self._steps:
            return
        if len(self._steps) == 1:
            (step,) = self._steps
            step.bind()
            arrays = {value.buffer: value.array for value in step.outputs}
        else:
            arrays = dict(zip(self._buffers, self._call(), strict=True))
        for value in self._values:
            if value.last_use >= index:
                value.array = lax.reshape(arrays[value.buffer], value.type.shape)
            value.buffer = None

    def _put(self, value: _Value, buffer: _Buffer) -> None:
        value.buffer = buffer
        buffer.last_use = max(buffer.last_use, value.last_use)
        self._values.append(value)

    def _free_buffer(self, type_: Any) -> _Buffer | None:
        for buffer in self._free:
            if (buffer.type.shape, buffer.type.dtype) == (type_.shape, type_.dtype):
                self._free.remove(buffer)
                buffer.last_use = -1
                return buffer
        return None

    def _new_buffer(self, type_: Any) -> _Buffer:
        self._buffers.append(_Buffer(len(self._buffers), type_))
        return self._buffers[-1]

    def _call(self) -> Sequence[jax.Array]:
        arrays = [value.array for value in self._operands]
        types = [result_type(x.type.shape, x.type.dtype, like=arrays[0]) for x in self._buffers]
        attributes: dict[str, Any] = {}
        for (name, of_call), i in self._ops_used.items():
            attributes |= {f"op_{i}": name, f"attributes_{i}": dict(of_call)}
        target = chain_target(_native.main_library())
        call = jax.ffi.ffi_call(target, types, input_output_aliases=self._aliases)
        run = functools.partial(call, program=self._text(), **attributes)
        mapped = jax.custom_batching.custom_vmap(lambda *arrays: run(*arrays))
        mapped.def_vmap(_refuse_vmap)
        with jax.named_scope("chain"):
            return mapped(*arrays)

    def _text(self) -> str:
        def text(view: _View) -> str:
            if isinstance(view.source, int):
                return str(view.source)
            number = len(self._operands) + view.source.number
            if view.shape == view.source.type.shape:
                return str(number)
            return f"{number}:{','.join(map(str, view.shape))}"

        return " ".join(
            f"{i} {' '.join(map(text, reads))} > {' '.join(map(text, writes))};"
            for i, reads, writes in self._program
        )


def _refuse_vmap(*_: Any) -> Any:
    raise NotImplementedError("chain: got jax.vmap, expected none: chain the mapped function")


def _axes_of(step: _Step) -> frozenset[str]:
    return varying_axes(step.outputs[0].type)
