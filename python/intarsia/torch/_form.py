"""What torch is told of an op: its schemas, written from the manifest."""

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from intarsia import _native

_TYPES = {"bool": "bool", "i64": "int", "f32": "float", "string": "str"}
Row = Mapping[str, Any]
DISPATCH_KEYS = ("CPU", "CUDA")
"""torch's dispatch keys of the tensors that the library's own kernels take."""


@dataclass(frozen=True)
class Form:
    """An op as torch sees it. Operands are positional, attributes keyword-only.

    In place, results that mutate an operand (the manifest says which) are written there and not returned. The overload
    `functional`, of ops that can have one, returns them. A result that does not exist in a call is `absent`.
    """

    op: _native.Op
    in_place: bool = True

    @property
    def name(self) -> str:
        """The op's name, with the overload's."""
        return self.op.name if self.in_place else f"{self.op.name}.functional"

    @property
    def rows(self) -> list[Row]:
        """The results' rows of the manifest, without those of workspaces."""
        return [row for row in self.op.results if not row["workspace"]]

    @property
    def returns(self) -> list[int]:
        """Which of the op's results are returned, by spec position."""
        return [
            i
            for i, row in enumerate(self.op.results)
            if not row["workspace"] and not self.destination(row)
        ]

    @property
    def written(self) -> list[str]:
        """The operands that are written."""
        return [self.destination(row) for row in self.op.results if self.destination(row)]

    @property
    def texts(self) -> dict[str, str]:
        """The attributes that are strings, and their defaults."""
        return {a["name"]: a["default"] for a in self.op.attributes if a["type"] == "string"}

    def destination(self, row: Row) -> str:
        """The operand that a result is written to; "" if it is returned."""
        return row["mutates"] if self.in_place else row["alias"]

    def schema(self, name: str | None = None, text_addresses: bool = False) -> str:
        """The schema in torch's language.

        Args:
          name: default: the form's own.
          text_addresses: strings are integers, the addresses of texts (intarsia.h).
        """
        marks = dict(zip(self.written, string.ascii_lowercase, strict=False))
        arguments = [
            _operand(row, marks.get(row["name"]), self.op.operands[i + 1 :])
            for i, row in enumerate(self.op.operands)
        ]
        if self.op.attributes:
            arguments.append("*")
        arguments += [_attribute(row, text_addresses) for row in self.op.attributes]
        returns = ", ".join("Tensor" for _ in self.returns)
        if len(self.returns) != 1:
            returns = f"({returns})"
        return f"{name or self.name}({', '.join(arguments)}) -> {returns}"

    def operands(self, args: Sequence[Any]) -> list[Any]:
        """All operands from the positional arguments of a call: torch leaves defaults out."""
        return [*args, *(None for _ in self.op.operands[len(args) :])]

    def by_name(self, args: Sequence[Any]) -> dict[str, Any]:
        """All operands from the positional arguments of a call, by their names."""
        names = [row["name"] for row in self.op.operands]
        if len(args) > len(names):
            raise TypeError(
                f"{self.op.name}: got {len(args)} operands, expected {', '.join(names)}"
            )
        return dict(zip(names, self.operands(args), strict=True))

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """All operands by their names, and the attributes given, of a call that torch has not put into order.

        Raises:
          TypeError: there is an operand too many, or one is missing.
        """
        operands, attributes = self.by_name(args), dict(kwargs)
        for i, row in enumerate(self.op.operands):
            name = row["name"]
            if name in attributes and i < len(args):
                raise TypeError(f"{self.op.name}: {name} is given twice")
            operands[name] = attributes.pop(name, operands[name])
            if operands[name] is None and not row["optional"]:
                raise TypeError(f"{self.op.name}: {name} is missing, expected a tensor")
        return operands, attributes


def forms(op: _native.Op) -> Iterator[Form]:
    """The forms in which torch has an op."""
    yield Form(op)
    if any(row["mutates"] and not row["alias"] for row in op.results):
        yield Form(op, in_place=False)


def absent(device: torch.device | str) -> torch.Tensor:
    """What a call returns in the place of a result that does not exist."""
    return torch.empty(0, dtype=torch.float32, device=device)


def one_or_all(results: Sequence[Any]) -> Any:
    """What a schema returns for these results."""
    if len(results) > 1:
        return tuple(results)
    return results[0] if results else None


def as_sequence(output: Any) -> Sequence[torch.Tensor]:
    """The results of a call, of which `one_or_all` made what it returned."""
    return (output,) if isinstance(output, torch.Tensor) else output or ()


def to_return(results: Sequence[torch.Tensor | None], device: torch.device) -> Any:
    """What a schema returns for these results, with `absent` in the place of None, a result that does not exist."""
    return one_or_all([absent(device) if x is None else x for x in results])


def check_devices(op: _native.Op, operands: Sequence[torch.Tensor | None]) -> None:
    """Raises if an operand is not on the first one's device."""
    first, device = op.operands[0]["name"], operands[0].device
    for row, x in zip(op.operands, operands, strict=True):
        if x is not None and x.device != device:
            raise ValueError(
                f"{op.name}: {row['name']} is on {x.device} but {first} is on {device}"
            )


def find(name: str) -> torch._ops.OpOverload:
    """The op "namespace::name" or "namespace::name.overload"."""
    packet, _, overload = name.partition(".")
    namespace, _, op = packet.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload or "default")


def _operand(row: Row, mark: str | None, later: Sequence[Row]) -> str:
    """An operand that can be absent has a default only if no required one follows it."""
    kind = f"Tensor({mark}!)" if mark else "Tensor"
    if not row["optional"]:
        return f"{kind} {row['name']}"
    default = "" if any(not other["optional"] for other in later) else "=None"
    return f"{kind}? {row['name']}{default}"


def _attribute(row: Row, text_addresses: bool) -> str:
    kind, name, default = _TYPES[row["type"]], row["name"], row["default"]
    if kind == "str" and text_addresses:
        return f"int {name}"
    if default is None:
        return f"{kind}? {name}=None"
    if kind == "str":
        return f'{kind} {name}="{default}"'
    return f"{kind} {name}={float(default) if kind == 'float' else default}"
