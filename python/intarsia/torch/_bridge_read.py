"""Reads the plan of a program that this process has not traced: an exported one, whose every word may be wrong.

The op must be allowed (`allow`), and each entry is held against the op's schema: torch's C functions take an argument's
bits for what the schema says they are, an int in place of a tensor for an address. What a process traces itself is filed
as it is traced, under the same text, and does not come here.
"""

import fnmatch
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from intarsia.torch import _bridge_plan
from intarsia.torch._bridge_plan import MORE, Entry, Plan

# Those of torch's core ops that hand out memory as they find it.
_UNINITIALIZED = {"empty", "empty_strided", "resize_"}
_FIELDS = {
    "op": str,
    "schema": str,
    "python": bool,
    "arguments": list,
    "returns": list,
    "results": int,
}

_lock = threading.Lock()
_patterns: set[str] = set()


def allow(patterns: Sequence[str]) -> None:
    """Allows programs from elsewhere the ops of these names, beside those allowed before.

    Raises:
      ValueError: one of them is no "namespace::op", with or without ".overload", with or without "*".
    """
    if isinstance(patterns, str):
        raise TypeError(f"allow is {patterns!r}, expected a list of such names")
    for pattern in patterns:
        if not re.fullmatch(r"[\w*]+::[\w*]+(\.[\w*]+)?", pattern):
            raise ValueError(
                f"allow has {pattern!r}, expected 'namespace::op', its '.overload' too, '*' for any text"
            )
    with _lock:
        _patterns.update(patterns)


def is_allowed(op: torch._ops.OpOverload) -> bool:
    """Whether a program from elsewhere may call an op."""
    return is_core(op) or _is_named(op)


def is_core(op: torch._ops.OpOverload) -> bool:
    """Whether an op computes from its operands alone, by whoever wrote it.

    Those that torch tags as core or pointwise (torch/_ops.py, Tag), written in place or into `out` as well, and ours.
    """
    namespace, name = op._schema.name.split("::")
    if namespace == "xla_gpu":
        return True
    if namespace != "aten" or name in _UNINITIALIZED:
        return False
    tags = (torch.Tag.core, torch.Tag.pointwise)
    return any(tag in other.tags for other in _siblings(name) for tag in tags)


def _siblings(name: str) -> Iterator[torch._ops.OpOverload]:
    """All overloads of an op of torch, and of the one that it is the in-place form of."""
    for packet in {name, name.removesuffix("_")}:
        if hasattr(torch.ops.aten, packet):
            found = getattr(torch.ops.aten, packet)
            yield from (getattr(found, overload) for overload in found.overloads())


def _is_named(op: torch._ops.OpOverload) -> bool:
    names = (op._schema.name, _bridge_plan.name_of(op))
    with _lock:
        return any(fnmatch.fnmatchcase(n, pattern) for n in names for pattern in _patterns)


def from_text(text: str) -> Plan:
    """Reads a plan.

    Raises:
      LookupError: this process' torch does not have the op as it was.
      PermissionError: the op is not allowed.
      ValueError: the plan does not fit the op's schema.
    """
    row = json.loads(text)
    if not isinstance(row, dict):
        raise ValueError(f"the plan is a {type(row).__name__}, expected an object")
    for key, kind in _FIELDS.items():
        if type(row.get(key)) is not kind:
            raise ValueError(f"the plan's {key} is {_said(row.get(key))}, expected {kind.__name__}")
    op = _bridge_plan.find_op(row["op"])
    name = _bridge_plan.name_of(op)
    if not is_allowed(op):
        raise PermissionError(
            f"{name}: a program that this process has not traced calls it, which nobody allowed; "
            f'if you trust the program: intarsia.torch.bridge.register(allow=["{name}"])'
        )
    if str(op._schema) != row["schema"]:
        raise LookupError(f"{op._schema} is what torch has, the program expects {row['schema']}")
    return _Reader(op, row["results"]).read(row["python"], row["arguments"], row["returns"])


class _Reader:
    """Encodes a plan's entries once more, by the op's schema, as `_bridge_plan.Operands` did."""

    def __init__(self, op: torch._ops.OpOverload, num_results: int):
        self._op = op
        self._name = _bridge_plan.name_of(op)
        self._num_results = num_results

    def read(self, python: bool, arguments: list[Any], returns: list[Any]) -> Plan:
        schema = self._op._schema
        self._count("arguments", len(arguments), len(schema.arguments))
        self._count("returns", len(returns), len(schema.returns))
        return Plan(
            self._op,
            python,
            tuple(
                self._argument(a, str(a.real_type), entry)
                for a, entry in zip(schema.arguments, arguments, strict=True)
            ),
            tuple(
                self._return(f"return {i}", r, where)
                for i, (r, where) in enumerate(zip(schema.returns, returns, strict=True))
            ),
            self._num_results,
        )

    def _count(self, what: str, got: int, expected: int) -> None:
        if got != expected:
            raise ValueError(f"{self._name}: the plan has {got} {what}, the op {expected}")

    def _argument(self, a: Any, type_name: str, entry: Any) -> Entry:
        optional, inner = _bridge_plan.split_optional(type_name)
        kind, *rest = entry if isinstance(entry, list) and entry else [None]
        element, value = _bridge_plan.element_type(inner), rest[0] if len(rest) == 1 else None
        if optional and entry == ["none"]:
            return ["none"]
        if inner == "Tensor":
            if not _bridge_plan.writes(a.alias_info):
                if entry == ["tensor"]:
                    return ["tensor"]
            elif len(rest) == 1 and (kind == "mutated" or (kind == "fresh" and self._fills(a))):
                return [kind, self._result(f"argument {a.name}", value)]
        elif element is not None:
            if kind == "list" and isinstance(value, list):
                return ["list", [self._argument(a, element, e) for e in value]]
        elif inner == "ScalarType":
            if kind == "dtype" and isinstance(value, str) and _is_dtype(value):
                return ["dtype", value]
        elif _bridge_plan.is_plain(inner, kind, value):
            return [kind, value]
        raise ValueError(
            f"{self._name}: the plan's argument {a.name} is {_said(entry)}, expected {type_name}"
        )

    def _fills(self, a: Any) -> bool:
        """Whether an op writes all of an argument without reading it: an `out`; who names an op vouches for it."""
        return a.is_out or _is_named(self._op)

    def _result(self, what: str, number: Any) -> int:
        if type(number) is not int or not 0 <= number < self._num_results:
            raise ValueError(
                f"{self._name}: the plan's {what} is result {_said(number)}, "
                f"expected 0 to {self._num_results - 1}"
            )
        return number

    def _return(self, what: str, returned: Any, where: Any) -> Any:
        """What becomes of a result, as in `Plan.returns`."""
        type_name = str(returned.real_type)
        if _bridge_plan.is_tensor_list(type_name) and isinstance(where, list):
            more = [MORE] if where[-1:] == [MORE] else []
            numbers = where[: len(where) - len(more)]
            return [n if n is None else self._result(what, n) for n in numbers] + more
        if where is None:
            return None
        if type_name != "Tensor" or _bridge_plan.writes(returned.alias_info):
            raise ValueError(
                f"{self._name}: the plan's {what} is {_said(where)}, the op's is {type_name}"
            )
        return self._result(what, where)


def _is_dtype(name: str) -> bool:
    return isinstance(getattr(torch, name, None), torch.dtype)


def _said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
