"""Norms of heads, rotation and write to the cache together, where queries, keys and values are parts of one product.

Most of vLLM's models split what `QKVParallelLinear` gives, norm each head of queries and keys or do not, turn them, and call
`Attention`. While a step is traced, each tensor remembers its product, norm and rotation. Reshapes keep that. Any other operation gives
a tensor that remembers nothing, and a change in place makes it forget. Then each step has an op of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear

from intarsia.vllm.compat import is_traced
from intarsia.vllm.replacing import replace

_PART, _NORMED, _TURNED = "_intarsia_part", "_intarsia_normed", "_intarsia_turned"
_SHAPING = ("flatten", "reshape", "unflatten", "view", "view_as")
"""torch's methods that give the same numbers in the same order."""
_LARGEST_NORMED = 3 << 20
"""Numbers of the largest product whose heads the op norms on a GPU. In a larger one it takes longer than norms, rotation and write
apart (docs/notebook/vllm.md)."""


@dataclass(frozen=True, eq=False)
class Product:
    """Queries, keys and values [t, numbers], one after the other, as they were when they were split."""

    whole: jax.Array
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Normed:
    """What normed the heads of a product's queries, or of its keys."""

    product: Product
    weight: jax.Array
    eps: float


@dataclass(frozen=True, eq=False)
class Turned:
    """What turned the queries and keys of a product, and before that normed both, or neither."""

    product: Product
    norms: tuple[Normed, Normed] | None
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
            _follow(part, _PART)
    return parts


def _follow(x: torch.Tensor, name: str) -> None:
    """Lets other shapes of a tensor say what it says."""
    for method in _SHAPING:
        setattr(x, method, partial(_shaped, x, name, method))


def _shaped(x: torch.Tensor, name: str, method: str, *args: Any, **options: Any) -> torch.Tensor:
    shaped = getattr(torch.Tensor, method)(x, *args, **options)
    source, index = _said(x, name)
    if source is not None and shaped.dtype == x.dtype:  # a view may be one of other numbers
        _say(shaped, name, source, index)
        _follow(shaped, name)
    return shaped


def _value(x: torch.Tensor) -> Any:
    """What a tensor is at the moment: another object once it was changed in place."""
    return x.jax() if is_traced(x) else x


def _say(x: torch.Tensor, name: str, source: Any, index: int) -> None:
    setattr(x, name, (source, index, _value(x)))


def _said(x: Any, name: str) -> tuple[Any, int]:
    """What a tensor is number `index` of, if it says so and is what it was then."""
    source, index, value = getattr(x, name, (None, 0, None))
    return (source, index) if source is not None and _value(x) is value else (None, 0)


def mark_normed(
    given: torch.Tensor, normed: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    """Lets normed queries or keys say so, if they were a product's and their last axis is what was normed."""
    product, i = _said(given, _PART)
    if product is not None:
        _say(normed, _NORMED, Normed(product, _value(weight), eps), i)
        _follow(normed, _NORMED)


def mark_turned(
    positions: torch.Tensor,
    given: tuple[torch.Tensor, torch.Tensor | None],
    turned: tuple[torch.Tensor, torch.Tensor | None],
    table: torch.Tensor,
    is_neox: bool,
    head_size: int,
) -> None:
    """Lets turned queries and keys say so, if they were a product's, or its normed ones."""
    product, _ = _said(given[0], _PART)
    norms = None
    if product is None:
        norms = _norms_of(*given, head_size)
        if norms is None:
            return
        product = norms[0].product
    elif [_said(x, _PART) for x in given] != [(product, 0), (product, 1)]:
        return
    by = Turned(product, norms, _value(positions), _value(table), is_neox, head_size)
    for i, x in enumerate(turned):
        _say(x, _TURNED, by, i)


def _norms_of(query: Any, key: Any, head_size: int) -> tuple[Normed, Normed] | None:
    """What normed the heads of one product's queries and keys, if the op has the form: not, say, all heads as one."""
    (of_query, i), (of_key, j) = _said(query, _NORMED), _said(key, _NORMED)
    if of_query is None or of_key is None or (i, j) != (0, 1):
        return None
    of_heads = of_query.weight.shape == of_key.weight.shape == (head_size,)
    alike = of_query.product is of_key.product and of_query.eps == of_key.eps
    return (of_query, of_key) if of_heads and alike else None


def _turned_of(query: Any, key: Any, value: Any, head_size: int) -> Turned | None:
    """What turned a layer's queries and keys, if all three are parts of one product in heads of one size."""
    turned, at = _said(query, _TURNED)
    if turned is None or at != 0 or _said(key, _TURNED) != (turned, 1):
        return None
    product = turned.product
    _, keys, values = product.sizes
    in_heads = keys == values and all(size % head_size == 0 for size in product.sizes)
    of_tokens = math.prod(turned.positions.shape) == product.whole.shape[0]
    fits = in_heads and of_tokens and turned.head_size == head_size
    fits = fits and (turned.norms is None or _pays(product))
    return turned if fits and _said(value, _PART) == (product, 2) else None


def _pays(product: Product) -> bool:
    """Whether the op that norms heads is faster than others apart."""
    return jax.default_backend() == "cpu" or math.prod(product.whole.shape) <= _LARGEST_NORMED


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
