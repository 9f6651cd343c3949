"""Any op of PyTorch's dispatcher inside a JAX program: over XLA's buffers, on XLA's stream, without a copy of the operands.

    import jax, torch
    from intarsia.torch import bridge

    @jax.jit
    def scores(q, k):
        return bridge.call("aten::cdist", q, k, 2.0, None)

Needs jax and torch >= 2.9, and the op's library loaded where the program is traced and where it runs. docs/bridge.md has
the whole of it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia._packages import needed_by

with needed_by("intarsia.torch.bridge"):
    import jax
    import numpy as np
    import torch
    from jax import lax

from intarsia.jax._types import refuse_sharded, result_type, vary_alike
from intarsia.torch import _bridge_plan, _bridge_read, _bridge_results, _bridge_run

__all__ = ["TARGETS", "Op", "call", "int64", "op", "register"]

# The custom calls: what `jax.export` is to be told of (DisabledSafetyCheck.custom_call).
TARGETS = ("intarsia.torch_op", "intarsia.torch_op.capturable")


def register(allow: Sequence[str] = ()) -> None:
    """Registers the custom calls with XLA, and says which ops a program may call that this process has not traced.

    `call` registers them too: this is for a process that runs exported programs. Such a program names the ops that it
    calls, and so is code. Without `allow` it may call ops of this package and those of torch that PyTorch tags as core
    or pointwise, all of which compute from their operands alone. A call of another op raises an error that names it.
    What this process traces itself may call any op.

    Args:
      allow: names of more ops, "namespace::op" or "namespace::op.overload", where "*" stands for any text. They are
        added to those of earlier calls.

    Example:
      >>> register(allow=["_C::*", "aten::sort.stable"])
    """
    _bridge_read.allow(allow)
    _bridge_run.library()


def int64(x: jax.typing.ArrayLike) -> _bridge_plan.Wide:
    """Says that the op is to get the integers of an array as int64, whether or not JAX has jax_enable_x64.

    NumPy's int64 arrive as they are, however large.

    Example:
      >>> import jax.numpy as jnp
      >>> bridge.call("aten::index_select", jnp.arange(5.0), 0, bridge.int64(jnp.array([3, 1])))
      Array([3., 1.], dtype=float32)
    """
    return _bridge_plan.Wide(x)


@dataclass(frozen=True)
class Op:
    """An op of torch's dispatcher as a function of JAX arrays. Made by `op`, which tells what the fields are."""

    name: str
    overload: torch._ops.OpOverload
    via: str = "c"
    capturable: bool = False
    outputs: tuple[int, ...] | None = None
    results: tuple[jax.ShapeDtypeStruct, ...] | None = None
    vmap_method: str | None = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the op. See `call`."""
        schema = self.overload._schema
        operands = _bridge_plan.Operands(self.name)
        values = _bridge_plan.bound(self.overload, args, kwargs)
        entries = tuple(
            operands.encode(a.name, str(a.real_type), _bridge_plan.writes(a.alias_info), value)
            for a, value in zip(schema.arguments, values, strict=True)
        )
        self._refuse_what_torch_lacks(entries, operands.tensors)
        returned, types = _bridge_results.infer(
            self.overload, self.name, entries, operands.tensors, self.outputs, self.results
        )
        first_written = len(types)
        plan = _bridge_plan.Plan(
            self.overload,
            self.via == "python",
            tuple(_bridge_plan.shifted(entry, first_written) for entry in entries),
            returned,
            first_written + len(operands.written),
        )
        text = _bridge_plan.to_text(plan)
        _bridge_run.file(text, plan)
        types += [written for written, _ in operands.written]
        aliases = tuple(
            (operand, first_written + i)
            for i, (_, operand) in enumerate(operands.written)
            if operand is not None
        )
        signature = tuple(
            (tuple(t.shape), np.dtype(t.dtype), jax.dtypes.canonicalize_dtype(t.dtype))
            for t in types
        )
        run = _function(self, text, signature, aliases)
        for i, x in enumerate(operands.arrays):
            refuse_sharded(f"{self.name}: operand {i}", x)
        results = run(*vary_alike(operands.arrays))
        return results[0] if len(results) == 1 else results

    def _refuse_what_torch_lacks(
        self, entries: Sequence[_bridge_plan.Entry], tensors: Sequence[jax.ShapeDtypeStruct]
    ) -> None:
        for tensor in tensors:
            if not _bridge_run.library().has_dtype(tensor.dtype.name):
                raise TypeError(f"{self.name}: an argument is {tensor.dtype}, which torch lacks")
        if self.via == "python":
            return
        if reason := _bridge_run.why_not_c(self.overload, entries):
            raise NotImplementedError(
                f'{self.name}: {reason}; bridge.op("{self.name}", via="python") calls it from Python'
            )


def op(
    name: str | Any,
    *,
    via: str = "c",
    capturable: bool = False,
    outputs: Sequence[int] | None = None,
    results: Sequence[jax.ShapeDtypeStruct] | None = None,
    vmap_method: str | None = None,
) -> Op:
    """An op of torch's dispatcher, as a function of JAX arrays.

    Args:
      name: "namespace::op", with ".overload" where it has several; or `torch.ops.namespace.op`.
      via: who calls the dispatcher when the program runs. With "c" torch's C functions do, without Python. They pass tensors,
        int, float, bool, dtypes, and from torch 2.10 on strings and lists. They do not pass numbers of any type (`Scalar`),
        nor results other than tensors or lists of them. With "python" Python does: it passes those too, and drops results
        that are no tensors. It takes the GIL, some 10 us a call more (docs/notebook/torch.md). Neither passes a device,
        layout, memory format, generator or complex number: such an argument must be None.
      capturable: that the op may become part of a CUDA graph. Such an op only enqueues work on the current stream, and what
        it enqueues depends only on shapes and on arguments that are no tensors. While XLA captures, Python calls the op,
        whose memory then comes from a pool of the graphs; a replay runs no Python.
      outputs: which of the op's results are wanted, by number; the others are dropped. Default: all that are tensors.
      results: shapes and dtypes of the results wanted, for an op that has no fake kernel to tell. Of a list of tensors
        that is the only result, those of the first ones.
      vmap_method: as in `jax.ffi.ffi_call`: "sequential" and so on. Default: vmap is refused.

    Raises:
      LookupError: torch has no such op or overload; the text lists the overloads.
    """
    overload = _bridge_plan.find_op(name)
    if via not in ("c", "python"):
        raise ValueError(f"{name}: via is {via!r}, expected 'c' or 'python'")
    return Op(
        _bridge_plan.name_of(overload),
        overload,
        via,
        capturable,
        None if outputs is None else tuple(outputs),
        None if results is None else tuple(results),
        vmap_method,
    )


def call(name: str | Any, /, *args: Any, **kwargs: Any) -> Any:
    """Calls an op of torch's dispatcher inside an XLA program: `op(name)(*args, **kwargs)`.

    Args:
      name: "namespace::op" or "namespace::op.overload".
      *args, **kwargs: the arguments of the op's schema; what is not given has the schema's default. Tensors are arrays,
        None where optional. A `jax.ShapeDtypeStruct` for a tensor that the op writes without reading makes that a
        result of its own. dtypes are torch's, NumPy's or JAX's.

    Returns:
      First the op's results that are not arguments of it, then the new value of each argument that it writes
      (`Tensor(a!)`); one array by itself, several as a tuple. What is written shares its operand's buffer: donate the
      operand to the enclosing jit, or XLA copies it first. Without jax_enable_x64, int64 results are made int32.

    Raises:
      TypeError, ValueError: an argument does not fit the schema, or the op's fake kernel refuses the shapes.
      NotImplementedError: the op cannot be called like this; the text says what can be done.
      jax.errors.JaxRuntimeError: when the program runs, with the op's name and the exception's text.

    Example:
      >>> import jax.numpy as jnp
      >>> call("aten::mm", jnp.ones((2, 3)), jnp.ones((3, 1)))
      Array([[3.],
             [3.]], dtype=float32)
    """
    return op(name)(*args, **kwargs)


@functools.lru_cache(maxsize=4096)
def _function(
    made_of: Op,
    plan: str,
    signature: tuple[tuple[tuple[int, ...], np.dtype, np.dtype], ...],
    aliases: tuple[tuple[int, int], ...],
) -> Callable[..., tuple[jax.Array, ...]]:
    """The custom call as a function of its operands, which refuses what it cannot do.

    The signature has, for each result, its shape, torch's dtype of it, and JAX's, which is narrower without x64.
    """

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        with jax.enable_x64(True):
            like = arrays[:1]
            types = [
                result_type(shape, dtype, like=like[0])
                if like
                else jax.ShapeDtypeStruct(shape, dtype)
                for shape, dtype, _ in signature
            ]
            custom_call = jax.ffi.ffi_call(
                TARGETS[made_of.capturable],
                types,
                has_side_effect=not types,
                vmap_method=made_of.vmap_method,
                input_output_aliases=dict(aliases),
            )
            results = custom_call(*arrays, plan=plan)
            return tuple(
                lax.convert_element_type(x, narrow)
                for x, (_, _, narrow) in zip(results, signature, strict=True)
            )

    function = _without_gradient(made_of.name, _without_vmap(made_of, run))
    function.__name__ = made_of.name.replace("::", "_").replace(".", "_")
    return jax.jit(function, inline=True)


def _without_vmap(made_of: Op, run: Callable[..., Any]) -> Callable[..., Any]:
    if made_of.vmap_method is not None:
        return run
    guarded = jax.custom_batching.custom_vmap(run)

    @guarded.def_vmap
    def refuse(size: int, is_batched: Sequence[bool], *arrays: jax.Array):
        raise NotImplementedError(
            f"{made_of.name}: torch's op has no rule for vmap; "
            f'bridge.op("{made_of.name}", vmap_method="sequential") calls it once for each element'
        )

    return guarded


def _without_gradient(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    guarded = jax.custom_jvp(run)

    @guarded.defjvp
    def refuse(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]):
        raise NotImplementedError(
            f"{name}: JAX cannot differentiate torch's op; "
            "give it a gradient by jax.custom_vjp, from the op of torch that computes it"
        )

    return guarded
