"""Quantized weights of vLLM's layers in the layout of `linear_quantized`: packed once loaded, and the product with them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

import intarsia.jax as ops
from intarsia._packing import ARRAYS, TILE_ROWS, PackedWeight
from intarsia.vllm.compat import dtype_name, is_traced
from intarsia.vllm.layers import call_jax

_OURS = "intarsia_"
"""What the names of our parameters begin with."""
_BITS = {1: np.uint8, 2: np.uint16}
"""As what numbers are handed over whose dtype torch or DLPack does not know, by their bytes."""


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A parameter's numbers on the host; those of 8 bits that NumPy lacks are ml_dtypes'."""
    tensor = tensor.detach().cpu().contiguous()
    name = dtype_name(tensor.dtype)
    if name.startswith(("float8", "bfloat16")):
        size = torch.uint8 if tensor.element_size() == 1 else torch.uint16
        return tensor.view(size).numpy().view(jnp.dtype(name))
    return tensor.numpy()


def pack(
    layer: torch.nn.Module, weight: PackedWeight, instead_of: Sequence[str], name: str = ""
) -> None:
    """Gives a layer a packed weight in the place of the parameters that it was loaded into.

    Args:
      layer: of vLLM's.
      weight: the same numbers.
      instead_of: parameters that it no longer needs.
      name: which of a layer's several weights this is.
    """
    device = next(layer.parameters()).device
    for old in instead_of:
        if getattr(layer, old, None) is not None:
            delattr(layer, old)
    dtypes = {}
    for part, array in zip(ARRAYS, weight.arrays, strict=True):
        if array is None:
            continue
        dtypes[part] = array.dtype
        bits = array if array.dtype == np.float32 else array.view(_BITS[array.dtype.itemsize])
        tensor = torch.from_numpy(np.ascontiguousarray(bits)).to(device)
        parameter = torch.nn.Parameter(tensor, requires_grad=False)
        layer.register_parameter(_OURS + name + part, parameter)
    form = PackedForm(dtypes, weight.rows, weight.columns, weight.attributes)
    setattr(layer, _OURS + name + "form", form)


class PackedForm(NamedTuple):
    """What is known of a packed weight beside its arrays."""

    dtypes: dict[str, np.dtype]
    """Of the arrays that it has."""
    rows: int
    columns: int
    attributes: dict[str, Any]

    def weight(self, bits: Sequence[jax.Array]) -> PackedWeight:
        """The weight, within a program, from the arrays as they were handed over."""
        given = {
            part: jax.lax.bitcast_convert_type(array, dtype)
            for (part, dtype), array in zip(self.dtypes.items(), bits, strict=True)
        }
        arrays = [given.get(part) for part in ARRAYS]
        return PackedWeight(*arrays, self.rows, self.columns, **self.attributes)


def packed_parts(layer: torch.nn.Module, name: str = "") -> tuple[PackedForm, list[torch.Tensor]]:
    """A layer's packed weight: its form and its arrays."""
    form = getattr(layer, _OURS + name + "form")
    return form, [getattr(layer, _OURS + name + part) for part in form.dtypes]


def apply_packed(
    layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """x w^T, plus a bias, in x's dtype."""
    if not is_traced(x):
        raise NotImplementedError(f"{type(layer).__name__}: packed weights outside of a program")
    form, parts = packed_parts(layer)

    def run(x: jax.Array, bias: jax.Array | None, *bits: jax.Array) -> jax.Array:
        if bias is not None:
            bias = jnp.pad(bias.astype(x.dtype), (0, -form.rows % TILE_ROWS))
        return ops.linear_packed(x, form.weight(bits), bias)

    return call_jax(run, x, bias, *parts)
