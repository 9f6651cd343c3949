"""What a traced array's type says beyond shape and dtype: its sharding, and the axes of a `shard_map` it varies over."""

from collections.abc import Collection
from typing import Any

import jax
from jax import lax

# JAX 0.9 has the set of axes in the type as `vma`, later ones within `manual_axis_type`.
_HAS_MANUAL_AXIS_TYPE = hasattr(jax.sharding, "ManualAxisType")


def refuse_sharded(what: str, x: jax.Array) -> None:
    """Raises if an array's type says that it is sharded: XLA would gather it on every device."""
    spec = getattr(jax.typeof(x).sharding, "spec", None) or ()
    if any(axis is not None for axis in spec):
        raise ValueError(
            f"{what} is sharded as {spec}, but XLA cannot split a custom call; "
            "call it through intarsia.jax.shard, or within jax.shard_map"
        )


def varying_axes(aval: Any) -> frozenset[str]:
    """The axes of a `shard_map` that arrays of this type vary over."""
    return aval.manual_axis_type.varying if _HAS_MANUAL_AXIS_TYPE else aval.vma


def _varying(x: jax.Array) -> frozenset[str]:
    return varying_axes(jax.typeof(x))


def vary_alike(arrays: Collection[jax.Array | None]) -> list[jax.Array | None]:
    """The arrays, each varying over all the manual axes that one of them varies over.

    A weight that is one for all devices becomes each device's own, so that its gradient is summed.
    """
    every = frozenset[str]().union(*(_varying(x) for x in arrays if x is not None))

    def widen(x: jax.Array) -> jax.Array:
        missing = every - _varying(x)
        return lax.pcast(x, tuple(missing), to="varying") if missing else x

    return [None if x is None else widen(x) for x in arrays]


def result_type(
    shape: tuple[int, ...], dtype: jax.typing.DTypeLike, like: jax.Array
) -> jax.ShapeDtypeStruct:
    """The type of a result that varies over the manual axes that an operand varies over."""
    axes = _varying(like)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    sharding = jax.NamedSharding(jax.typeof(like).sharding.mesh, jax.P())
    if _HAS_MANUAL_AXIS_TYPE:
        manual = jax.sharding.ManualAxisType(varying=axes)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=manual)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, vma=axes)  # type: ignore[call-arg]


def place(
    x: jax.Array, spec: jax.P, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> jax.Array:
    """Under explicit sharding, an array whose type says that it is whole everywhere, cut; else as it is."""
    whole = all(axis is None for axis in jax.typeof(x).sharding.spec)
    return (
        jax.reshard(x, spec) if whole and jax.sharding.AxisType.Explicit in mesh.axis_types else x
    )
