"""Rotation and write to the cache in one op, where queries, keys and values are parts of one product.

Most of vLLM's models split what `QKVParallelLinear` gives, turn queries and keys, and call `Attention`. While a step is
traced, a part says what it is a part of, and a turned part what it was turned by. A model that does anything else in between
(norms of queries and keys) makes new tensors, which say nothing, and then the two ops do it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear

from intarsia.vllm.compat import is_traced
from intarsia.vllm.replacing import replace

_PART, _TURNED = "_intarsia_part", "_intarsia_turned"


@dataclass(frozen=True, eq=False)
class Product:
    """Queries, keys and values [t, numbers], one after the other."""

    whole: torch.Tensor
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Turned:
    """What turned the queries and keys of a product."""

    product: Product
    positions: torch.Tensor
    table: torch.Tensor
    is_neox: bool


@QKVParallelLinear.register_oot
class XlaQKVParallelLinear(QKVParallelLinear):
    """Gives a product that knows its parts."""

    def forward(self, input_: torch.Tensor) -> Any:
        output = super().forward(input_)
        whole = output[0] if isinstance(output, tuple) else output
        if is_traced(whole) and whole.ndim == 2:
            whole.split = lambda sizes, dim=0: _split(whole, sizes, dim)
        return output


def _split(whole: torch.Tensor, sizes: int | Sequence[int], dim: int) -> tuple[torch.Tensor, ...]:
    parts = torch.Tensor.split(whole, sizes, dim)
    if dim in (-1, 1) and len(parts) == 3:
        product = Product(whole, tuple(part.shape[1] for part in parts))
        for i, part in enumerate(parts):
            setattr(part, _PART, (product, i))
    return parts


def mark_turned(
    positions: torch.Tensor,
    given: tuple[torch.Tensor, torch.Tensor | None],
    turned: tuple[torch.Tensor, torch.Tensor | None],
    table: torch.Tensor,
    is_neox: bool,
) -> None:
    """Lets turned queries and keys say so, if they were a product's."""
    product, _ = getattr(given[0], _PART, (None, 0))
    if product is None or [getattr(x, _PART, None) for x in given] != [(product, 0), (product, 1)]:
        return
    for i, x in enumerate(turned):
        setattr(x, _TURNED, (Turned(product, positions, table, is_neox), i))


def _turned_of(query: Any, key: Any, value: Any, head_size: int) -> Turned | None:
    """What turned a layer's queries and keys, if all three are parts of one product in heads of one size."""
    turned, at = getattr(query, _TURNED, (None, 0))
    of_key, key_at = getattr(key, _TURNED, (None, 0))
    if turned is None or of_key is None or (at, key_at) != (0, 1):
        return None
    product = turned.product
    whole = of_key.product is product and getattr(value, _PART, None) == (product, 2)
    _, keys, values = product.sizes
    in_heads = keys == values and all(size % head_size == 0 for size in product.sizes)
    return turned if whole and in_heads else None


def _attend(
    self: Attention, query: torch.Tensor, key: Any, value: Any, *args: Any, **options: Any
) -> torch.Tensor:
    """`Attention.forward`, whose implementation is told what is turned for as long as it lasts."""
    takes = hasattr(self.impl, "turned") and self.kv_sharing_target_layer_name is None
    turned = _turned_of(query, key, value, self.head_size) if takes else None
    if turned is None:
        return _by_vllm(self, query, key, value, *args, **options)
    self.impl.turned = turned
    try:
        return _by_vllm(self, query, key, value, *args, **options)
    finally:
        self.impl.turned = None


_by_vllm = replace(Attention, "forward", _attend)
