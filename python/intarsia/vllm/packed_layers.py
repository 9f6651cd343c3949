"""Quantised weights of vLLM's layers in the layout of `linear_quantized`: packed once loaded, and the product with them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

import intarsia.jax as ops
from intarsia._packing import ARRAYS, TILE_ROWS, PackedWeight
from intarsia.vllm.compat import is_traced
from intarsia.vllm.layers import call_jax

_OURS = "intarsia_"
"""What the names of our parameters begin with."""
_BITS = {1: np.uint8, 2: np.uint16}
"""As what numbers are handed over whose dtype torch or DLPack does not know, by their bytes."""


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A parameter's numbers on the host; those of 8 bits that NumPy lacks are ml_dtypes'."""
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("float8", "bfloat16")):
        size = torch.uint8 if tensor.element_size() == 1 else torch.uint16
        return tensor.view(size).numpy().view(jnp.dtype(name))
    return tensor.numpy()


def pack(layer: torch.nn.Module, weight: PackedWeight, instead_of: Sequence[str]) -> None:
    """Gives a layer a packed weight in the place of the parameters that it was loaded into."""
    device = next(layer.parameters()).device
    for name in instead_of:
        if getattr(layer, name, None) is not None:
            delattr(layer, name)
    dtypes = {}
    for name, array in zip(ARRAYS, weight.arrays, strict=True):
        if array is None:
            continue
        dtypes[name] = array.dtype
        bits = array if array.dtype == np.float32 else array.view(_BITS[array.dtype.itemsize])
        tensor = torch.from_numpy(np.ascontiguousarray(bits)).to(device)
        layer.register_parameter(_OURS + name, torch.nn.Parameter(tensor, requires_grad=False))
    layer.packed_form = (dtypes, weight.rows, weight.columns, weight.attributes)


def apply_packed(
    layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """x w^T, plus a bias, in x's dtype."""
    if not is_traced(x):
        raise NotImplementedError(f"{type(layer).__name__}: packed weights outside of a program")
    dtypes, rows, columns, attributes = layer.packed_form

    def run(x: jax.Array, bias: jax.Array | None, *bits: jax.Array) -> jax.Array:
        given = {
            name: jax.lax.bitcast_convert_type(array, dtype)
            for (name, dtype), array in zip(dtypes.items(), bits, strict=True)
        }
        arrays = [given.get(name) for name in ARRAYS]
        if bias is not None:
            bias = jnp.pad(bias.astype(x.dtype), (0, -rows % TILE_ROWS))
        return ops.linear_packed(x, PackedWeight(*arrays, rows, columns, **attributes), bias)

    return call_jax(run, x, bias, *(getattr(layer, _OURS + name) for name in dtypes))
