"""An island: a part of a graph without side effects, as XLA programs over torch's tensors."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from intarsia._torchax_import import only_tables_are_wanted

with only_tables_are_wanted():
    from torchax.ops import mappings, ops_registry

    import intarsia.torchax  # noqa: F401  fills the registry, with our ops too

# What torch.get_float32_matmul_precision() is for jax.default_matmul_precision.
_PRECISIONS = {"highest": "highest", "high": "tensorfloat32", "medium": "bfloat16"}
DEVICE_TYPES = {"cpu": "cpu", "cuda": "gpu"}
"""torch's devices for which there are islands, and what JAX calls them."""
# XLA and torch exchange these as bytes: DLPack has had names for them only since version 1.1.
_AS_BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)


def _operator(target: Any) -> ops_registry.Operator | None:
    # The packet's function stands for all overloads but those that write, such as `out`.
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    operators = ops_registry.all_aten_ops
    return operators.get(target) or operators.get(target.overloadpacket)


def has_lowering(target: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether torchax lowers a call of an operator to a pure function of JAX arrays.

    Operators that draw random numbers are not pure: they stay torch's, and draw what they draw in eager torch.
    """
    op = _operator(target)
    if target is torch.ops.aten._to_copy.default and kwargs.get("dtype") is None:
        return False  # torchax takes it for granted
    return bool(op and op.is_jax_function and not op.is_view_op and not op.needs_env)


class _Lowering(torch.fx.Interpreter):
    """Runs a graph on JAX's tracers."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op = _operator(target)
        if op is None:  # operator.getitem and arithmetic on sizes
            return super().call_function(target, args, kwargs)
        return op.func(*args, **kwargs)

    def get_attr(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return jnp.asarray(_to_jax(super().get_attr(target, args, kwargs)))

    def run_node(self, n: torch.fx.Node) -> Any:
        result, fake = super().run_node(n), n.meta.get("val")
        if not isinstance(fake, torch.Tensor) or not hasattr(result, "astype"):
            return result
        dtype = mappings.t2j_dtype(fake.dtype)
        if n.op == "placeholder" and fake.dtype in _AS_BYTES:
            result = jax.lax.bitcast_convert_type(result, dtype)
        # JAX promotes otherwise than torch in places (a Python float and integers, say).
        return result.astype(dtype)

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del target, kwargs
        return jax.tree.map(
            lambda x: jax.lax.bitcast_convert_type(x, jnp.uint8) if _is_fp8(x) else x, args[0]
        )


def _is_fp8(x: Any) -> bool:
    return getattr(x, "dtype", None) in map(mappings.t2j_dtype, _AS_BYTES)


def _to_jax(x: torch.Tensor) -> jax.Array:
    """A JAX array over a tensor's memory; over a copy if that is not dense or not aligned."""
    x = x.detach().contiguous()
    return jax.dlpack.from_dlpack(x.view(torch.uint8) if x.dtype in _AS_BYTES else x)


def _apart(results: Sequence[jax.Array], operands: Sequence[jax.Array | None]) -> list[jax.Array]:
    """Copies results that are an operand, or each other: torch may write to each of its tensors.

    JAX gives back the operand's own array where a program returns it unchanged, as a clone does.
    """
    taken = {x.unsafe_buffer_pointer() for x in operands if x is not None}
    apart = []
    for x in results:
        x = jnp.copy(x) if x.unsafe_buffer_pointer() in taken else x
        taken.add(x.unsafe_buffer_pointer())
        apart.append(x)
    return apart


class Island(torch.nn.Module):
    """Runs a graph as XLA programs, on the one device of what it computes.

    One program for each set of sizes. No operand is donated: the memory is torch's.
    """

    def __init__(self, part: torch.fx.GraphModule) -> None:
        super().__init__()
        nodes = list(part.graph.nodes)
        self._part = part
        self._program = jax.jit(self._run, static_argnums=0)
        (outputs,) = nodes[-1].args
        self._single = not isinstance(outputs, tuple | list)
        fakes = [node.meta["val"] for node in ([outputs] if self._single else outputs)]
        self._fp8 = [fake.dtype if fake.dtype in _AS_BYTES else None for fake in fakes]
        self._device = fakes[0].device
        devices = jax.local_devices(backend=DEVICE_TYPES[self._device.type])
        self._jax_device = devices[self._device.index or 0]
        with warnings.catch_warnings(action="ignore"):  # torch 2.9 warns whoever asks
            self._precision = _PRECISIONS[torch.get_float32_matmul_precision()]
        self._parameters: dict[int, tuple[int, jax.Array]] = {}

    def _run(self, sizes: tuple[int, ...], *arrays: jax.Array | None) -> Any:
        left = iter(sizes)
        values = [next(left) if x is None else x for x in arrays]
        # An interpreter holds the values of one run, and several threads may trace at once.
        results = _Lowering(self._part).run(*values, enable_io_processing=False)
        return (results,) if self._single else tuple(results)

    def forward(self, *values: torch.Tensor | int) -> Any:
        sizes = tuple(x for x in values if not isinstance(x, torch.Tensor))
        with (
            jax.enable_x64(True),
            jax.default_device(self._jax_device),
            jax.default_matmul_precision(self._precision),
        ):
            arrays = self._import(values)
            results = self._program(sizes, *arrays)
            results = _apart(results, arrays)
        if self._device.type == "cpu":
            # torch's CPU operators know of no stream that they could wait on.
            jax.block_until_ready(results)
        tensors = [
            torch.from_dlpack(x) if dtype is None else torch.from_dlpack(x).view(dtype)
            for x, dtype in zip(results, self._fp8, strict=True)
        ]
        return tensors[0] if self._single else tensors

    def _import(self, values: Sequence[torch.Tensor | int]) -> list[jax.Array | None]:
        """The tensors as arrays over their memory.

        Parameters are imported once: that takes 10 us each, and a model has hundreds. Memory that a
        parameter has given up stays until the next call. On CUDA any other import makes XLA wait for
        what torch has enqueued, such as an optimizer's step; without one, parameters are imported, too.
        """
        tensors = [x for x in values if isinstance(x, torch.Tensor)]
        only_parameters = all(isinstance(x, torch.nn.Parameter) for x in tensors)
        return [
            None
            if not isinstance(x, torch.Tensor)
            else self._parameter(place, x)
            if isinstance(x, torch.nn.Parameter)
            and not only_parameters
            and x.device == self._device
            else _to_jax(x.to(self._device))
            for place, x in enumerate(values)
        ]

    def _parameter(self, place: int, x: torch.nn.Parameter) -> jax.Array:
        address, array = self._parameters.get(place, (None, None))
        if address != x.data_ptr():
            array = _to_jax(x)
            if array.unsafe_buffer_pointer() == x.data_ptr():  # not a copy, which could grow old
                self._parameters[place] = x.data_ptr(), array
        return array
