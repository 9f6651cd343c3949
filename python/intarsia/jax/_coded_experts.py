"""Experts with weights in codes: the op, and for many tokens on a GPU the op of plain weights, decoded first."""

import functools
import inspect
from typing import Any

import jax
from jax import lax

from intarsia import _native
from intarsia.jax import wire
from intarsia.jax._call import abstract, as_array
from intarsia.jax._quantized import decoded_stack, fits_decoded
from intarsia.jax._types import refuse_sharded, vary_alike

_NAME = "fused_experts_quantized"
_SIGNATURE = inspect.signature(wire.fused_experts_quantized)
_FEWEST_DECODED = {"u4b8": 4096}
_FEWEST_DECODED_OF_OTHERS = 2048
"""Tokens from which a GPU decodes all experts first (docs/notebook/weights_in_codes.md, "Many rows")."""
_MOST_DECODED_BYTES = 4 << 30
"""Of decoded weights of a layer, for which a program needs room."""
_OF_CODES = ("format", "w1_group", "w2_group", "zeros_are")
"""Attributes that the op of plain weights does not have."""


@functools.wraps(wire.fused_experts_quantized)
def fused_experts_quantized(*args: Any, **options: Any) -> jax.Array:
    given = _SIGNATURE.bind(*args, **options)
    given.apply_defaults()
    is_operand = {
        name: parameter.kind is not parameter.KEYWORD_ONLY
        for name, parameter in _SIGNATURE.parameters.items()
    }
    attributes = {name: x for name, x in given.arguments.items() if not is_operand[name]}
    operands = {
        name: x if x is None else as_array(f"{_NAME}: {name}", x)
        for name, x in given.arguments.items()
        if is_operand[name]
    }
    types = [None if x is None else abstract(x) for x in operands.values()]
    _native.main_library().infer(_NAME, types, attributes)  # or it raises
    in_codes = functools.partial(_in_codes, attributes)
    if not _pays_to_decode(operands, attributes):
        return in_codes(operands)
    for name, array in operands.items():
        if array is not None:
            refuse_sharded(f"{_NAME}: {name}", array)
    operands = dict(zip(operands, vary_alike(operands.values()), strict=True))
    decode = functools.partial(_decoded, attributes)
    return lax.platform_dependent(operands, cuda=decode, default=in_codes)


def _in_codes(attributes: dict[str, Any], operands: dict[str, Any]) -> jax.Array:
    return wire.fused_experts_quantized(**operands, **attributes)


def _pays_to_decode(operands: dict[str, Any], attributes: dict[str, Any]) -> bool:
    """Whether the experts are to be numbers of x's type on a GPU."""
    x, w1, w2 = operands["x"], operands["w1"], operands["w2"]
    tokens = x.size // max(x.shape[-1], 1)
    _, c, *_ = w1.shape
    weights = len(w1) * 16 * (c * x.shape[-1] + w2.shape[1] * 8 * c)
    return (
        tokens >= _FEWEST_DECODED.get(attributes["format"], _FEWEST_DECODED_OF_OTHERS)
        and weights * x.dtype.itemsize <= _MOST_DECODED_BYTES
        and all(fits_decoded(x, operands[name]) for name in ("w1_scales", "w2_scales"))
    )


def _decoded(attributes: dict[str, Any], operands: dict[str, Any]) -> jax.Array:
    x, c = operands["x"], operands["w1"].shape[1]

    def matrices(name: str, columns: int) -> jax.Array:
        codes, scales, zeros = (operands.pop(name + part) for part in ("", "_scales", "_zeros"))
        form = {"format": attributes["format"], "zeros_are": attributes["zeros_are"]}
        numbers = decoded_stack(
            columns, codes, scales, zeros, group=attributes[f"{name}_group"], **form
        )
        return lax.optimization_barrier(numbers.astype(x.dtype))

    operands = dict(operands)
    plain = {name: matrices(name, size) for name, size in (("w1", x.shape[-1]), ("w2", 8 * c))}
    others = {name: value for name, value in attributes.items() if name not in _OF_CODES}
    return wire.fused_experts(**operands, **plain, **others)
