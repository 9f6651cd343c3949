"""Experts with weights in codes: the op, and for many tokens on a GPU the op of plain weights, decoded first."""

import functools
import inspect
import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from intarsia import _native
from intarsia._packing import ARRAYS, PackedWeight
from intarsia.jax import _decoding, wire
from intarsia.jax._call import abstract, as_array
from intarsia.jax._quantized import decoded_stack
from intarsia.jax._types import refuse_sharded, vary_alike

_NAME = "fused_experts_quantized"
_PARAMETERS = inspect.signature(wire.fused_experts_quantized).parameters.values()
_ATTRIBUTES = {p.name: p.default for p in _PARAMETERS if p.kind is p.KEYWORD_ONLY}
_MOST_DECODED_BYTES = 4 << 30
"""Of decoded weights of a layer, for which a program needs room."""
_PARTS = ("", *(f"_{name}" for name in ARRAYS[1:]))
"""What the names of a matrix's operands end with, in the order of `PackedWeight.arrays`."""
_OF_CODES = ("format", "w2_format", "w1_group", "w2_group", "zeros_are")
"""Attributes that the op of plain weights does not have."""


def fused_experts_quantized(
    x: ArrayLike,
    w1: ArrayLike,
    w1_scales: ArrayLike,
    w2: ArrayLike,
    w2_scales: ArrayLike,
    weights: ArrayLike,
    ids: ArrayLike,
    w1_zeros: ArrayLike | None = None,
    w2_zeros: ArrayLike | None = None,
    w1_bias: ArrayLike | None = None,
    w2_bias: ArrayLike | None = None,
    expert_map: ArrayLike | None = None,
    w1_outer_scales: ArrayLike | None = None,
    w1_outer_zeros: ArrayLike | None = None,
    w2_outer_scales: ArrayLike | None = None,
    w2_outer_zeros: ArrayLike | None = None,
    *,
    format: wire.Format = "u4",
    w2_format: wire.W2Format = "same",
    w1_group: int = 0,
    w2_group: int = 0,
    zeros_are: wire.ZerosAre = "points",
    activation: wire.Activation = "silu",
    limit: float = 7,
    alpha: float = 1.702,
    apply_router_weight_on_input: bool = False,
) -> jax.Array:
    """The gated MLPs of each token's experts, with weights in 8 bits or less.

    `fused_experts` of decoded weights, which `intarsia.repack` packs. It is one custom call, in which codes become numbers in registers.
    With 2048 tokens and more of bf16, or of f16 with scales in f16, a GPU decodes a layer's weights to T first, unless that takes more
    than 4 GiB. It does so from 512 on for 5 and 6 bits, groups of 16, and outer scales. Hopper does so from 16384 tokens on, for 4 bits
    in groups of 128, and for mxfp4 and nvfp4 with bf16.

    Args:
      x: [..., 16*u] T; tokens.
      w1: [e, c, nb, b, 16, 4] u8; codes of gate and up of each expert, as in `linear_quantized`; b is a code's bits.
      w1_scales: [e, c, ng, 16] f32, f16, bf16, u8, i8, f8e4m3fn or f8e8m0fnu; of each group.
      w2: [e, u, ib, b, 16, 4] u8; the way back, of 8*c columns.
      w2_scales: [e, u, ig, 16], like those of w1.
      weights: [..., k] f32 or T; of each token's experts.
      ids: [..., k] i32 or i64; which experts these are. One that is not there adds nothing.
      w1_zeros, w2_zeros: [e, c, ng, 16] and [e, u, ig, 16] f32, f16, bf16, u8 or i8.
      w1_bias: [e, 16*c] T; added to the first product.
      w2_bias: [e, 16*u] T; added to the second product.
      expert_map: [g] i32 or i64; the expert of each id, negative where it is elsewhere. None: the id itself.
      w1_outer_scales: [e], or [e, c, no, 16] of ng / no groups each; f32, f16 or bf16. What scales of w1 are multiplied by.
      w1_outer_zeros: the same for minimums of w1.
      w2_outer_scales, w2_outer_zeros: [e], or [e, u, io, 16] f32, f16 or bf16; the same of w2.
      format: what a code stands for, as in `linear_quantized`.
      w2_format: what a code of w2 stands for; "same": as `format` says.
      w1_group, w2_group: columns that share a scale, 16 or a multiple of 32; 0: all.
      zeros_are: "points" or "minimums", of both matrices; outer zeros are of minimums.
      activation: "silu", "gelu_tanh": gate and up side by side; "swigluoai": in turn, as gpt-oss has them.
      limit: swigluoai: the most that a gate counts as, and the most size of up.
      alpha: swigluoai: what its logistic curve is steeper by.
      apply_router_weight_on_input: weights multiply the first product, before its bias, not the results.

    T is one of f32, f16 and bf16.

    Returns:
      [..., 16*u] T.

    Raises:
      ValueError: shapes or dtypes do not fit; the text names the operand, what was got and expected.

    Example:
      >>> x = jnp.ones((3, 32))
      >>> w1 = jnp.zeros((4, 4, 1, 4, 16, 4), jnp.uint8)
      >>> w1_scales = jnp.ones((4, 4, 1, 16), jnp.float16)
      >>> w2 = jnp.zeros((4, 2, 1, 4, 16, 4), jnp.uint8)
      >>> w2_scales = jnp.ones((4, 2, 1, 16), jnp.float16)
      >>> weights = jnp.ones((3, 2))
      >>> ids = jnp.array([[3, 2], [2, 3], [3, 0]], jnp.int32)
      >>> out = fused_experts_quantized(x, w1, w1_scales, w2, w2_scales, weights, ids, format='u4b8', w1_group=32, w2_group=32)
      >>> print(jax.typeof(out))
      float32[3,32]
    """
    given = dict(locals())
    if math.prod(np.shape(x)[:-1]) < _decoding.EXPERTS.slowly:  # as in each step of decoding
        return wire.fused_experts_quantized(**given)
    # None is no choice, and so the default.
    attributes = {n: d if given[n] is None else given[n] for n, d in _ATTRIBUTES.items()}
    operands = {
        name: x if x is None else as_array(f"{_NAME}: {name}", x)
        for name, x in given.items()
        if name not in _ATTRIBUTES
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


def arguments_of_experts(w1: PackedWeight, w2: PackedWeight) -> dict[str, Any]:
    """What `fused_experts_quantized` takes of stacked weights: gates and ups, and the way back."""
    given = {
        name + part: array
        for name, weight in (("w1", w1), ("w2", w2))
        for part, array in zip(_PARTS, weight.arrays, strict=True)
    }
    zeros_are = (w1 if w1.zeros is not None else w2).zeros_are
    forms = {"format": w1.format, "w2_format": w2.format, "zeros_are": zeros_are}
    return given | forms | {"w1_group": w1.group, "w2_group": w2.group}


def _in_codes(attributes: dict[str, Any], operands: dict[str, Any]) -> jax.Array:
    return wire.fused_experts_quantized(**operands, **attributes)


def _pays_to_decode(operands: dict[str, Any], attributes: dict[str, Any]) -> bool:
    """Whether the experts are to be numbers of x's type on a GPU."""
    x, w1, w2 = operands["x"], operands["w1"], operands["w2"]
    _, c, *_ = w1.shape
    weights = len(w1) * 16 * (c * x.shape[-1] + w2.shape[1] * 8 * c)

    def given(kind: str) -> list[Any]:
        names = (f"{of}_{outer}{kind}" for of in ("w1", "w2") for outer in ("", "outer_"))
        return [operands.get(name) for name in names]

    by_wgmma = functools.partial(_are_multiplied_by_wgmma, operands, attributes)

    def are_slow() -> bool:
        are_rare = any(
            _decoding.are_rare(of["format"], of["group"], operands.get(f"{name}_outer_scales"))
            for name, of in ((name, _attributes_of(name, attributes)) for name in ("w1", "w2"))
        )
        return are_rare and not (by_wgmma() and _decoding.is_hopper())

    return weights * x.dtype.itemsize <= _MOST_DECODED_BYTES and _decoding.pays(
        x, given("scales"), given("zeros"), _decoding.EXPERTS, by_wgmma, are_slow
    )


def _are_multiplied_by_wgmma(operands: dict[str, Any], attributes: dict[str, Any]) -> bool:
    """Whether Hopper's kernel for groups of many rows takes both products."""
    x = operands["x"]
    between = jax.ShapeDtypeStruct((1, 8 * operands["w1"].shape[1]), x.dtype)  # the products
    return all(
        of.shape[-1] % 32 == 0
        and _decoding.are_of_hopper(
            of,
            operands[f"{name}_scales"],
            operands[f"{name}_zeros"],
            operands.get(f"{name}_outer_scales"),
            **_attributes_of(name, attributes),
        )
        for name, of in (("w1", x), ("w2", between))
    )


def _attributes_of(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Those of w1 or w2 by the names that `linear_quantized` has for them."""
    format = attributes["format"]
    if name == "w2" and attributes["w2_format"] != "same":
        format = attributes["w2_format"]
    return {
        "format": format,
        "group": attributes[f"{name}_group"],
        "zeros_are": attributes["zeros_are"],
    }


def _decoded(attributes: dict[str, Any], operands: dict[str, Any]) -> jax.Array:
    x, c = operands["x"], operands["w1"].shape[1]

    def matrices(name: str, columns: int) -> jax.Array:
        arrays = [operands.pop(name + part) for part in _PARTS]
        numbers = decoded_stack(columns, arrays, **_attributes_of(name, attributes))
        return lax.optimization_barrier(numbers.astype(x.dtype))

    operands = dict(operands)
    given = {name: value for name, value in attributes.items() if name not in _OF_CODES}
    given |= {name: matrices(name, size) for name, size in (("w1", x.shape[-1]), ("w2", 8 * c))}
    return wire.fused_experts(**operands, **given)
