"""Linear layers whose weights are plain arrays, numbers in 16 bits or codes as the model's file has them, or quantized to fp8.

This module alone knows which: a `Weight` is one of these, and `linear`, `norm_for` and `fused` do what it calls for.
A quantized layer is vLLM's W8A8 scheme with a scale for each output channel and each token:

    out[t, o] = (sum over i of x_codes[t, i] * w_codes[o, i]) * x_scale[t] * w_scale[o]

Codes lie row by row, as `intarsia.jax.scaled_matmul` takes them: its scales multiply f32 sums, which are rounded once.
"""

import dataclasses
import functools
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import intarsia.jax as ij
from intarsia import _dtypes
from intarsia._packing import TILE_ROWS, PackedWeight
from intarsia._steps import on_gpu
from intarsia.jax._linear import product_by_xla

# More take less time with weights that are widened first. Those of a vocabulary seldom meet so many.
_FEW_ROWS = 64
# Of more rows than a decode step has, products take so much longer than what is around them that fewer kernels gain little.
_FEW_FUSED_ROWS = 64


class QuantizedWeight(NamedTuple):
    """A weight in fp8.

    Attributes:
        codes: [out, in], float8_e4m3fn.
        scale: What a code of 1 stands for in each output channel, f32 [out].
    """

    codes: jax.Array
    scale: jax.Array


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["codes", "scale"], meta_fields=["dtype"]
)
@dataclasses.dataclass(frozen=True)
class QuantizedRows:
    """Activations in fp8.

    Attributes:
        codes: [t, in], float8_e4m3fn.
        scale: What a code of 1 stands for in each row, f32 [t, 1].
        dtype: What they were quantized from, and what a linear layer makes of them.
    """

    codes: jax.Array
    scale: jax.Array
    dtype: Any


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["parts"],
    meta_fields=["dtype", "int8_activations"],
)
@dataclasses.dataclass(frozen=True)
class PackedMatrix:
    """A weight [out, in] in the codes that the model's file has.

    Attributes:
        parts: Rows one after the other, each part in a format of its own.
        dtype: Of the activations.
        int8_activations: Whether products round them to int8, 32 neighbors at a time.
    """

    parts: tuple[PackedWeight, ...]
    dtype: Any
    int8_activations: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]"""
        return sum(part.rows for part in self.parts), self.parts[0].columns

    def take(self, rows: jax.Array) -> jax.Array:
        """Some rows [t] of a matrix of one part: [t, in]."""
        (part,) = self.parts
        return ij.take_packed(part, rows).astype(self.dtype)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["dtype"])
@dataclasses.dataclass(frozen=True)
class NarrowMatrix:
    """A weight [out, in] in the 16 bits that the model's file has, beside activations in f32.

    `len` and `[]` are those of the matrix in f32: an embedding can be one.

    Attributes:
        numbers: [out, in], f16 or bf16.
        dtype: Of the activations.
    """

    numbers: jax.Array
    dtype: Any

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: jax.Array) -> jax.Array:
        return self.numbers[rows].astype(self.dtype)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["stream", "weight"], meta_fields=["eps"]
)
@dataclasses.dataclass(frozen=True)
class RowsToNorm:
    """Activations that the linear layer which reads them norms itself.

    Attributes:
        stream: The residual stream, [t, in].
        weight: Of the norm, [in].
        eps: What is added to the mean square.
    """

    stream: jax.Array
    weight: jax.Array
    eps: float


Weight = jax.Array | QuantizedWeight | PackedMatrix | NarrowMatrix
Rows = jax.Array | QuantizedRows | RowsToNorm


class Branch(NamedTuple):
    """A linear layer that is computed where its result is added to the residual stream."""

    x: jax.Array
    weight: Weight


def quantize(weight: jax.Array) -> QuantizedWeight:
    """Quantizes a weight [out, in], best in f32, with a scale for each output channel."""
    codes, scale = ij.dynamic_per_token_scaled_fp8_quant(weight)
    return QuantizedWeight(codes, scale[:, 0])


def product(x: jax.Array, weight: jax.Array, dtype: Any = None) -> jax.Array:
    """Multiplies x [t, in] by weight [out, in] by XLA; `dtype` is the result's if not that of x."""
    return product_by_xla(x, weight, ((1,), (1,)), dtype)


def linear(ops: ModuleType, x: Rows, weight: Weight) -> jax.Array:
    """Applies a linear layer to rows [t, in]: [t, out] in the dtype of the activations.

    A quantized layer takes rows in fp8 or plain ones, which it quantizes. Its product is `intarsia.jax`'s whatever `ops` are. Where the
    input is spread over devices (tensor parallelism's wo and w_down), each device quantizes its part of a
    row by that part's own largest number, as vLLM does. Its product is scaled before the parts are
    summed. So devices need not agree upon a scale, and a smaller part has a finer scale.
    """
    if isinstance(x, RowsToNorm):
        return fused(x, weight)
    if not isinstance(weight, QuantizedWeight):
        assert isinstance(x, jax.Array)
        return product_of(x, weight)
    if not isinstance(x, QuantizedRows):
        x = QuantizedRows(*ops.dynamic_per_token_scaled_fp8_quant(x), dtype=x.dtype)
    return ij.scaled_matmul(
        x.codes, weight.codes, x.scale, weight.scale, out_dtype=_dtypes.name_of(x.dtype)
    )


def can_fuse(ops: ModuleType, weight: Weight | None, rows: int) -> bool:
    """Whether a layer is to be one op with the norm before it, and the activation or the sum behind it (docs/adr/0028-fused-linear.md)."""
    if not isinstance(weight, PackedMatrix) or weight.int8_activations or ops is not ij:
        return False
    first, *others = weight.parts
    is_whole = not others and first.rows % (2 * TILE_ROWS) == 0
    return is_whole and rows <= _FEW_FUSED_ROWS and _gains_by_fusion()


def _gains_by_fusion() -> bool:
    return on_gpu()


def fused(
    x: Rows,
    weight: Weight,
    residual: jax.Array | None = None,
    gating: Literal["none", "silu", "gelu_tanh"] = "none",
) -> jax.Array:
    """A layer that `can_fuse`, with the norm that x may want: plus `residual`, or the product of gates and ups."""
    assert isinstance(weight, PackedMatrix)
    (part,) = weight.parts
    norm: dict[str, Any] = {}
    if isinstance(x, RowsToNorm):
        norm = {"norm_weight": x.weight, "eps": x.eps}
        x = x.stream
    return ij.fused_linear_quantized(
        x, *part.arrays, residual=residual, gating=gating, **part.attributes, **norm
    )


def product_of(
    x: jax.Array,
    weight: jax.Array | PackedMatrix | NarrowMatrix,
    out_dtype: Literal["auto", "f32"] = "auto",
) -> jax.Array:
    """Multiplies rows [t, in] by a weight that leaves them as they are."""
    if isinstance(weight, NarrowMatrix):
        return _product_of_narrow(x, weight.numbers)
    if not isinstance(weight, PackedMatrix):
        return ij.linear(x, weight, out_dtype=out_dtype)
    if weight.int8_activations:
        outs = [_product_in_int8(x, part, out_dtype) for part in weight.parts]
    else:
        outs = [ij.linear_packed(x, part, out_dtype=out_dtype) for part in weight.parts]
    return outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=-1)


def _product_in_int8(x: jax.Array, part: PackedWeight, out_dtype: Literal["auto", "f32"]) -> Any:
    out = ij.linear_quantized_int8(x, *part.arrays, **part.attributes, out_dtype=out_dtype)
    return out[..., : part.rows]


def _product_of_narrow(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Multiplies f32 rows by numbers in 16 bits, without making these f32 if the rows are few.

    A row is the sum of three in bf16, or of two in f16, and the product with all of them reads the weights once. Products are
    exact, and sums f32 in any case.
    """
    if len(x) > _FEW_ROWS:
        return ij.linear(x, numbers.astype(x.dtype))
    # XLA may take a conversion to 16 bits and back for none, but not `reduce_precision`.
    kept = jnp.finfo(numbers.dtype).nmant
    # A row's largest number becomes about 2^14, so that f16 holds it, and what f16 cuts off the smallest does not count.
    power = lax.reduce_precision(jnp.abs(x).max(axis=1, keepdims=True), 8, 0)
    scale = 2.0**14 / jnp.maximum(power, 2.0**-100)
    left, pieces = x * scale, []
    for _ in range(24 // (kept + 1)):
        pieces.append(lax.reduce_precision(left, 8, kept))
        left = left - pieces[-1]
    rows = jnp.concatenate(pieces).astype(numbers.dtype)
    sums = ij.linear(rows, numbers, out_dtype="f32").reshape(len(pieces), *x.shape[:1], -1)
    return sums.sum(axis=0) / scale


class Shares(NamedTuple):
    """Says that an array is a device's share of a sum.

    Attributes:
        axis: The mesh axis to sum over.
        exchange: What `intarsia.jax.all_reduce_fused_add_rms_norm` may sum through.
    """

    axis: str
    exchange: ij.Exchange | None


def norm_for(
    ops: ModuleType,
    weight: Weight | None,
    x: jax.Array,
    residual: jax.Array | None,
    norm_weight: jax.Array,
    shares: Shares | None = None,
    **settings: Any,
) -> tuple[Rows, jax.Array]:
    """Adds x to the residual stream and norms it, in the form that the layer which follows takes.

    Args:
        ops: Where the kernels come from.
        weight: Of the linear layer that reads the normed rows; None if something else does.
        x: What a branch of the network adds, [t, n]; without `residual`, the stream itself.
        residual: The residual stream so far, [t, n], or None.
        norm_weight: Scale of each column, [n].
        shares: Given if x is this device's share.
        settings: `eps` and `rounding` of the norm ops.

    Returns:
        The normed rows and the residual stream.
    """
    if shares and residual is not None and not isinstance(weight, QuantizedWeight):
        return ops.all_reduce_fused_add_rms_norm(
            x,
            residual,
            norm_weight,
            axis_name=shares.axis,
            exchange=shares.exchange,
            **settings,
        )
    if shares:
        x = lax.psum(x, shares.axis)
    if isinstance(weight, QuantizedWeight):
        codes, scale, *added = ops.rms_norm_dynamic_per_token_quant(
            x, norm_weight, residual=residual, **settings
        )
        return QuantizedRows(codes, scale, x.dtype), *(added or [x])
    if residual is None:
        return ops.rms_norm(x, norm_weight, **settings), x
    return ops.fused_add_rms_norm(x, residual, norm_weight, **settings)
