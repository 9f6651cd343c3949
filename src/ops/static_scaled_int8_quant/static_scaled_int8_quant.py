"""static_scaled_int8_quant: what it computes, in NumPy; its cases; and plain XLA's way of computing it."""

from intarsia_src.quant.given_scale import CASES, GivenScale
from intarsia_src.quant.reference import floor

__all__ = ["CASES", "arguments", "exact", "floor", "plain_xla", "reference"]

_OP = GivenScale("i8")
arguments, reference, exact, plain_xla = _OP.arguments, _OP.reference, _OP.exact, _OP.plain_xla
