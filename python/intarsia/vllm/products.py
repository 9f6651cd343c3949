"""Rotation and write to the cache in one op, where queries, keys and values are parts of one product.

Most of vLLM's models split what `QKVParallelLinear` gives, turn queries and keys, and call `Attention`. While a step is
traced, a part says what it is a part of, and a turned part what it was turned by. A model that does anything else in between
(norms of queries and keys) makes new tensors, which say nothing, or changes a tensor, whose word no longer counts: then the two
ops do it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear

from intarsia.vllm.compat import is_traced
from intarsia.vllm.replacing import replace

_PART, _TURNED = "_intarsia_part", "_intarsia_turned"


@dataclass(frozen=True, eq=False)
class Product:
    """Queries, keys and values [t, numbers], one after the other, as they were when they were split."""

    whole: jax.Array
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Turned:
    """What turned the queries and keys of a product."""

    product: Product
    positions: jax.Array
    table: jax.Array
    is_neox: bool
    head_size: int


@QKVParallelLinear.register_oot
class XlaQKVParallelLinear(QKVParallelLinear):
    """Gives a product that knows its parts."""

    def forward(self, input_: torch.Tensor) -> Any:
        output = super().forward(input_)
        whole = output[0] if isinstance(output, tuple) else output
        if is_traced(whole) and whole.ndim == 2:
            whole.split = lambda split_size, dim=0: _split(whole, split_size, dim)
        return output


def _split(whole: torch.Tensor, sizes: int | Sequence[int], dim: int) -> tuple[torch.Tensor, ...]:
    parts = torch.Tensor.split(whole, sizes, dim)
    if dim in (-1, 1) and len(parts) == 3:
        product = Product(_value(whole), tuple(part.shape[1] for part in parts))
        for i, part in enumerate(parts):
            _say(part, _PART, product, i)
    return parts


def _value(x: torch.Tensor) -> Any:
    """What a tensor is at the moment: another object once it was changed in place."""
    return x.jax() if is_traced(x) else x


def _say(x: torch.Tensor, name: str, source: Any, index: int) -> None:
    setattr(x, name, (source, index, _value(x)))


def _said(x: Any, name: str) -> tuple[Any, int]:
    """What a tensor is number `index` of, if it says so and is what it was then."""
    source, index, value = getattr(x, name, (None, 0, None))
    return (source, index) if source is not None and _value(x) is value else (None, 0)


def mark_turned(
    positions: torch.Tensor,
    given: tuple[torch.Tensor, torch.Tensor | None],
    turned: tuple[torch.Tensor, torch.Tensor | None],
    table: torch.Tensor,
    is_neox: bool,
    head_size: int,
) -> None:
    """Lets turned queries and keys say so, if they were a product's."""
    product, _ = _said(given[0], _PART)
    if product is None or [_said(x, _PART) for x in given] != [(product, 0), (product, 1)]:
        return
    by = Turned(product, _value(positions), _value(table), is_neox, head_size)
    for i, x in enumerate(turned):
        _say(x, _TURNED, by, i)


def _turned_of(query: Any, key: Any, value: Any, head_size: int) -> Turned | None:
    """What turned a layer's queries and keys, if all three are parts of one product in heads of one size."""
    turned, at = _said(query, _TURNED)
    if turned is None or at != 0 or _said(key, _TURNED) != (turned, 1):
        return None
    product = turned.product
    _, keys, values = product.sizes
    in_heads = keys == values and all(size % head_size == 0 for size in product.sizes)
    fits = in_heads and turned.head_size == head_size
    return turned if fits and _said(value, _PART) == (product, 2) else None


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
        self.impl.turned = self.impl._query = None


_by_vllm = replace(Attention, "forward", _attend)
