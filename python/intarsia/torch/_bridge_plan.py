"""What a custom call of the bridge runs: an op's name and schema, and what fills each argument.

A plan is JSON text, the attribute `plan` of the custom call, so that a program means the same in every process. Values
are tagged lists: `["tensor"]` and `["mutated", r]` take the next operand, `["fresh", r]` the buffer of result r,
`["int", 3]`, `["float", 0.5]`, `["bool", true]`, `["str", "auto"]`, `["dtype", "bfloat16"]`, `["none"]` and
`["list", [...]]` stand for themselves.
"""

import dataclasses
import functools
import json
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from intarsia.jax._call import as_array
from intarsia.torch import _bridge_native as native

Entry = list[Any]
MORE = "..."
# Types that torch's C functions pass from 2.9 on; from 2.10 on `str` and lists, too.
_C_TYPES = ("Tensor", "int", "float", "bool", "ScalarType")


def find_op(name: str | Any) -> torch._ops.OpOverload:
    """The op of a name "namespace::op" or "namespace::op.overload"; LookupError lists what there is."""
    if isinstance(name, torch._ops.OpOverload):
        return name
    if isinstance(name, torch._ops.OpOverloadPacket):
        name = name._qualified_op_name
    match = re.fullmatch(r"(\w+)::(\w+)(?:\.(\w+))?", name) if isinstance(name, str) else None
    if not match:
        raise TypeError(f"the op is {name!r}, expected 'namespace::name' or its '.overload' too")
    namespace, op, overload = match.groups()
    packet = getattr(getattr(torch.ops, namespace), op, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise LookupError(f"torch has no op {name}: import what registers it")
    overloads = packet.overloads()
    if overload is None and "default" not in overloads and len(overloads) == 1:
        overload = overloads[0]
    if (overload or "default") not in overloads:
        listed = ", ".join(f"{namespace}::{op}.{o}" for o in overloads if o != "default")
        raise LookupError(f"torch has no op {name}; there is {listed or f'{namespace}::{op}'}")
    return getattr(packet, overload or "default")


def name_of(op: torch._ops.OpOverload) -> str:
    """ "aten::mm", or "aten::mm.out"."""
    return op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


@dataclasses.dataclass(frozen=True)
class Wide:
    """An array whose integers the op is to get as int64. See `intarsia.torch.bridge.int64`."""

    array: Any


def writes(alias_info: Any) -> bool:
    return alias_info is not None and alias_info.is_write


def bound(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """A value for each argument of the schema, by position, name, or its default."""
    name, schema = name_of(op), op._schema
    values = dict(kwargs)
    unknown = values.keys() - {a.name for a in schema.arguments}
    if unknown:
        raise TypeError(f"{name}: unknown argument {', '.join(sorted(unknown))}, expected {schema}")
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(positional):
        raise TypeError(f"{name}: got {len(args)} positional arguments, expected {schema}")
    for argument, value in zip(positional, args, strict=False):
        if argument in values:
            raise TypeError(f"{name}: argument {argument} is given twice")
        values[argument] = value
    result = []
    for a in schema.arguments:
        if a.name not in values and not a.has_default_value():
            raise TypeError(f"{name}: argument {a.name} is missing, expected {schema}")
        result.append(values.get(a.name, a.default_value))
    return result


def element_type(type_name: str) -> str | None:
    """The type of a list's elements; None if it is no list."""
    match = re.fullmatch(r"List\[(.*)\]", type_name)
    return match[1] if match else None


def is_tensor_list(type_name: str) -> bool:
    return element_type(type_name) == "Tensor"


def split_optional(type_name: str) -> tuple[bool, str]:
    """Whether a type is optional, and what it is if given."""
    match = re.fullmatch(r"Optional\[(.*)\]", type_name)
    return (True, match[1]) if match else (False, type_name)


class Operands:
    """Encodes values as a plan's entries, and keeps the arrays among them."""

    def __init__(self, name: str):
        self.name = name
        self.arrays: list[Any] = []
        # Every tensor that the op takes, in the schema's order, as torch is to see it.
        self.tensors: list[jax.ShapeDtypeStruct] = []
        # What the op writes: for each its type, and the number of the operand that it shares a buffer with, if any.
        self.written: list[tuple[jax.ShapeDtypeStruct, int | None]] = []

    def encode(self, what: str, type_name: str, mutable: bool, value: Any) -> Entry:
        """An entry for the value of an argument; TypeError if it does not fit the schema."""
        optional, inner = split_optional(type_name)
        if value is None and optional:
            return ["none"]
        if inner == "Tensor":
            return self._tensor(what, mutable, value)
        element = element_type(inner)
        if element is not None and isinstance(value, list | tuple):
            return ["list", [self.encode(what, element, mutable, v) for v in value]]
        if inner == "ScalarType" and value is not None:
            return ["dtype", _dtype_name(self._wrong(what, "dtype", value), value)]
        for kind, types in _ACCEPTED.get(inner, ()):
            if isinstance(value, types) and (kind == "bool" or not isinstance(value, bool)):
                if kind == "int" and not _fits_64_bits(int(value)):
                    raise ValueError(self._wrong(what, "a 64-bit integer", value))
                return [kind, _PLAIN[kind](value)]
        known = inner in _ACCEPTED or inner == "ScalarType" or element is not None
        expected = inner if known else f"no value: the bridge passes no {inner}"
        raise TypeError(self._wrong(what, expected, value))

    def _wrong(self, what: str, expected: str, value: Any) -> str:
        if isinstance(value, jax.core.Tracer):
            expected += " known while the program is traced"
        said = value.aval.str_short() if isinstance(value, jax.Array) else repr(value)
        return f"{self.name}: argument {what} is {said}, expected {expected}"

    def _tensor(self, what: str, mutable: bool, value: Any) -> Entry:
        if isinstance(value, jax.ShapeDtypeStruct):
            if not mutable:
                raise TypeError(
                    f"{self.name}: argument {what} is a ShapeDtypeStruct, which stands for a "
                    "result that the op writes; the op only reads it"
                )
            self.tensors.append(value)
            self.written.append((value, None))
            return ["fresh", len(self.written) - 1]
        wide = isinstance(value, Wide)
        raw = value.array if wide else value
        if isinstance(raw, torch.Tensor) or not hasattr(raw, "shape"):
            raise TypeError(self._wrong(what, "an array", raw))
        array = self._wide(what, raw) if wide else as_array(f"{self.name}: argument {what}", raw)
        self.arrays.append(array)
        with jax.enable_x64(True):
            seen = jax.ShapeDtypeStruct(array.shape, array.dtype)
        self.tensors.append(seen)
        if not mutable:
            return ["tensor"]
        self.written.append((seen, len(self.arrays) - 1))
        return ["mutated", len(self.written) - 1]

    def _wide(self, what: str, raw: Any) -> jax.Array:
        if not np.issubdtype(raw.dtype, np.integer):
            raise TypeError(
                f"{self.name}: argument {what} is {raw.dtype}, expected integers in int64()"
            )
        with jax.enable_x64(True):
            array = as_array(f"{self.name}: argument {what}", raw)
            return lax.convert_element_type(array, np.int64)


_ACCEPTED: dict[str, tuple[tuple[str, Any], ...]] = {
    "int": (("int", numbers.Integral),),
    "float": (("float", numbers.Real),),
    "bool": (("bool", bool | np.bool_),),
    "str": (("str", str),),
    "number": (
        ("bool", bool | np.bool_),
        ("int", numbers.Integral),
        ("float", numbers.Real),
    ),
}
_PLAIN: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def is_plain(type_name: str, kind: Any, value: Any) -> bool:
    """Whether `encode` may have made the entry `[kind, value]` for a number or text of a type."""
    kinds = [kind for kind, _ in _ACCEPTED.get(type_name, ())]
    return kind in kinds and type(value) is _PLAIN[kind] and (kind != "int" or _fits_64_bits(value))


def _fits_64_bits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _dtype_name(wrong: str, value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    try:
        name = jnp.dtype(value).name
    except TypeError:
        raise TypeError(wrong) from None
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise TypeError(wrong)
    return name


def shifted(entry: Entry, by: int) -> Entry:
    """An entry whose results are numbered from `by` on."""
    kind, *rest = entry
    if kind in ("mutated", "fresh"):
        return [kind, rest[0] + by]
    return ["list", [shifted(e, by) for e in rest[0]]] if kind == "list" else entry


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan as it was read. `returns` says for each return of the schema which result it becomes: a number or None. A list of
    tensors has a list of these, at whose end MORE stands for any number that are dropped."""

    op: torch._ops.OpOverload
    python: bool
    arguments: tuple[Entry, ...]
    returns: tuple[Any, ...]
    num_results: int

    def flat_returns(self) -> list[int]:
        """What becomes of each thing that the op returns, those in lists one by one."""
        flat: list[int | None] = []
        for where in self.returns:
            flat += [w for w in where if w != MORE] if isinstance(where, list) else [where]
        return [native.DROP if number is None else number for number in flat]

    def flatten(self, returned: Any) -> list[torch.Tensor | None]:
        """The tensors of what the op returned, as `flat_returns` counts them."""
        count = len(self.returns)
        items = (returned,) if count == 1 else returned if count else ()
        flat: list[torch.Tensor | None] = []
        for where, item in zip(self.returns, items, strict=True):
            if isinstance(where, list):
                expected = len(where) - (where[-1:] == [MORE])
                if len(item) < expected or (len(item) > expected == len(where)):
                    raise RuntimeError(f"it returned {len(item)} tensors, expected {expected}")
                flat += item[:expected]
            else:
                flat.append(item if isinstance(item, torch.Tensor) else None)
        return flat

    def fill(self, tensors: Iterator[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """The op's arguments, positional and by name, tensors taken in turn."""
        args, kwargs = [], {}
        for a, entry in zip(self.op._schema.arguments, self.arguments, strict=True):
            value = _value(entry, tensors)
            if a.kwarg_only:
                kwargs[a.name] = value
            else:
                args.append(value)
        return args, kwargs


def _value(entry: Entry, tensors: Iterator[torch.Tensor]) -> Any:
    kind, *rest = entry
    if kind in ("tensor", "mutated", "fresh"):
        return next(tensors)
    if kind == "none":
        return None
    if kind == "list":
        return [_value(element, tensors) for element in rest[0]]
    return getattr(torch, rest[0]) if kind == "dtype" else rest[0]


def to_text(plan: Plan) -> str:
    row = {
        "op": name_of(plan.op),
        "schema": str(plan.op._schema),
        "python": plan.python,
        "arguments": plan.arguments,
        "returns": plan.returns,
        "results": plan.num_results,
    }
    return json.dumps(row)


def why_not_c(
    op: torch._ops.OpOverload, arguments: Sequence[Entry], strings: bool, lists: bool
) -> str | None:
    """What of a call torch's C functions cannot pass; None if they can make it."""

    def can(type_name: str) -> bool:
        _, inner = split_optional(type_name)
        element = element_type(inner)
        if element is not None:
            return lists and can(element)
        return inner in _C_TYPES or (strings and inner == "str")

    for a, entry in zip(op._schema.arguments, arguments, strict=True):
        _, inner = split_optional(str(a.real_type))
        if entry != ["none"] and not can(inner):
            # Torch's C functions take every argument, and know no defaults.
            default = f", {a.default_value!r} unless given," if a.has_default_value() else ""
            return f"argument {a.name}{default} is a {inner.replace('number', 'Scalar')}"
    types = [str(returned.real_type) for returned in op._schema.returns]
    for i, returned in enumerate(types):
        if returned != "Tensor" and not (lists and is_tensor_list(returned)):
            return f"result {i} is a {returned}"
    # torch takes the last value by the first type (aoti_torch_call_dispatcher in torch/csrc/shim_common.cpp, 2.9 to 2.11).
    if len(set(types)) > 1:
        return f"the results are {', '.join(types)}"
    return None


def native_arguments(plan: Plan) -> list[native.Argument]:
    """The arguments as libintarsia_bridge.so takes them: after a list its elements."""
    flat: list[native.Argument] = []

    def add(type_name: str, entry: Entry) -> None:
        optional, inner = split_optional(type_name)
        kind, *rest = entry
        fields = _NATIVE[kind](*rest)
        if plan.python and fields["kind"] in (native.BITS, native.DTYPE, native.STRING):
            fields = {"kind": native.PYTHON}
        flat.append(native.Argument(optional=optional, **fields))
        for element in rest[0] if kind == "list" else ():
            add(element_type(inner), element)

    for a, entry in zip(plan.op._schema.arguments, plan.arguments, strict=True):
        add(str(a.real_type), entry)
    return flat


def native_returns(plan: Plan) -> list[native.Return]:
    """What is returned as libintarsia_bridge.so takes it, a row for each return of the schema."""
    rows = []
    for where in plan.returns:
        numbers = where if isinstance(where, list) else []
        more = numbers[-1:] == [MORE]
        rows.append(native.Return(isinstance(where, list), len(numbers) - more, more))
    return rows


def _bits(value: bool | int | float) -> dict[str, Any]:
    return {"kind": native.BITS, "bits": native.bits(value)}


_NATIVE: dict[str, Callable[..., dict[str, Any]]] = {
    "none": functools.partial(dict, kind=native.NONE),
    "tensor": functools.partial(dict, kind=native.OPERAND),
    "mutated": lambda r: {"kind": native.MUTATED, "result": r},
    "fresh": lambda r: {"kind": native.FRESH, "result": r},
    "list": lambda elements: {"kind": native.LIST, "bits": len(elements)},
    "int": _bits,
    "float": _bits,
    "bool": _bits,
    "dtype": lambda name: {"kind": native.DTYPE, "text": name.encode()},
    "str": lambda text: {"kind": native.STRING, "text": text.encode()},
}
