"""The functions of `intarsia.jax` by their names, for modules that the package itself imports."""

from collections.abc import Callable
from typing import Any

from intarsia.jax import (
    _attention,
    _cache,
    _cache_blocks,
    _cascade,
    _coded_experts,
    _exchange,
    _grouped,
    _linear,
    _quantized,
    _ragged,
    wire,
)

# What says an op otherwise than the wire stands before the wire.
_HOMES = (
    _attention,
    _cache,
    _cache_blocks,
    _cascade,
    _coded_experts,
    _exchange,
    _grouped,
    _linear,
    _quantized,
    _ragged,
    wire,
)


def function_of(name: str) -> Callable[..., Any]:
    """The function of that name; one that there is."""
    return next(vars(home)[name] for home in _HOMES if name in vars(home))
