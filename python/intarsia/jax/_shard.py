"""The ops on several devices: each function under `jax.shard_map`, cut where its op lets it be cut. XLA cannot split a
custom call: without this it gathers the operands and computes everything everywhere.
"""

import dataclasses
import functools
import inspect
import math
import numbers
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from intarsia import _native
from intarsia._cache_form import infer_layout, split
from intarsia._dims import STARTS, Axes, CallAxes, axes_of_call
from intarsia.jax import _cache
from intarsia.jax._call import as_array
from intarsia.jax._functions import function_of
from intarsia.jax._types import place

AxisName = str | tuple[str, ...]
_KV_HEADS = "hk"
_HEADS = {"h", _KV_HEADS}


def shard(
    function: Callable[..., Any],
    mesh: jax.sharding.Mesh,
    *,
    tokens: AxisName | None = None,
    heads: AxisName | None = None,
    columns: AxisName | None = None,
) -> Callable[..., Any]:
    """A function of this package with its work spread over the devices of a mesh.

    Args:
      function: one of `intarsia.jax`: `paged_attention`, `rms_norm`, `cascade_attention`, ...
      mesh: the devices.
      tokens: the mesh axis that the first of the free leading axes ("..."), or the tokens "t", go over; for
        ops whose tokens do not meet: not for attention and cache writes.
      heads: the mesh axis that query heads h and KV heads hk go over. Where it has more devices than
        there are KV heads, keys and values are given to several; a cache then has `kv_heads` of them.
      columns: the mesh axis that the last axis of a gated activation goes over, whose gate and up come apart,
        or that of `linear`'s result.

    Returns:
      A function with the same arguments and results, of whole arrays, to be called under `jax.jit`.
      Operands without the axis (weights, tables, lengths) go to every device. No device talks to another.

    Raises:
      ValueError: the function is no op of this package; or, when called, the axis does not divide what it is
        to cut; the text says which.

    Example:
      >>> attend = shard(paged_attention, mesh, heads="model")
      >>> out = attend(query, caches, seqused_k, block_table, cu_seqlens_q)
    """
    _op_of(function)  # or it is none
    return _Sharded(function, mesh, _wanted(tokens, heads, columns), strict=True)


class ShardedOps:
    """The functions of this package, each as `shard` makes it: a model that takes its ops from here is sharded.

    Each is cut along those of the axes that its op has; the others hold the whole. Where one axis of the mesh is
    given twice, heads go before columns, and columns before tokens.

    Example:
      >>> ops = ShardedOps(mesh, heads="model", columns="model")
      >>> hidden = ops.silu_and_mul(gate, up)
      >>> query, key = ops.rotary_embedding(positions, query, table, key)
    """

    def __init__(
        self,
        mesh: jax.sharding.Mesh,
        *,
        tokens: AxisName | None = None,
        heads: AxisName | None = None,
        columns: AxisName | None = None,
    ):
        self._mesh = mesh
        self._wanted = _wanted(tokens, heads, columns)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _names_of_ops():
            raise AttributeError(f"ShardedOps has no {name}; it has the ops of intarsia.jax")
        if name == "rotary_embedding_and_cache" and "heads" in dict(self._wanted):
            return functools.partial(_cache.rotary_embedding_then_cache, self)
        return _Sharded(function_of(name), self._mesh, self._wanted, strict=False)


def kv_heads(count: int, mesh: jax.sharding.Mesh, heads: AxisName) -> int:
    """How many KV heads a cache has that is sharded by heads: at least one for each device.

    Raises:
      ValueError: neither of `count` and the number of devices divides the other.
    """
    devices = _devices(mesh, heads)
    if count % devices and devices % count:
        raise ValueError(
            f"{devices} devices of mesh axis {heads!r} cannot share {count} KV heads evenly"
        )
    return max(count, devices)


def kv_cache_sharding(
    mesh: jax.sharding.Mesh, heads: AxisName, *, layout: str = "NHD", layers: bool = False
) -> jax.NamedSharding:
    """Where a paged cache's pages lie when they are sharded by heads.

    Args:
      mesh, heads: as in `shard`.
      layout: as in `reshape_and_cache_flash`.
      layers: whether the cache has an axis of layers.
    """
    letters = _native.main_library().cache_axes(layout, layers)
    return jax.NamedSharding(mesh, jax.P(*(heads if _is_heads(x) else None for x in letters)))


def _wanted(
    tokens: AxisName | None, heads: AxisName | None, columns: AxisName | None
) -> tuple[tuple[str, AxisName], ...]:
    """The mesh axes that are given, in the order in which they go before each other."""
    kinds = {"heads": heads, "columns": columns, "tokens": tokens}
    return tuple((kind, name) for kind, name in kinds.items() if name is not None)


@dataclass(frozen=True)
class _Cut:
    """How an operand goes over the devices.

    Attributes:
      spec: the mesh axis of each of its axes.
      pick: (axis, elements, sharers) if every device is given the whole and takes so many elements of this
        axis, the same ones for groups of `sharers` neighbors.
    """

    spec: tuple[AxisName | None, ...]
    pick: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class _Sharded:
    """A function of this package that runs under `jax.shard_map`."""

    function: Callable[..., Any]
    mesh: jax.sharding.Mesh
    wanted: tuple[tuple[str, AxisName], ...]  # "heads", "columns", "tokens" and their mesh axes
    strict: bool  # whether each of them must be of use

    @property
    def __name__(self) -> str:
        return self.function.__name__

    @property
    def __wrapped__(self) -> Callable[..., Any]:  # its signature is the function's
        return self.function

    @property
    def op(self) -> _native.Op:
        return _op_of(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        names = [row["name"] for row in self.op.operands]
        given = _given(self.op, bound.arguments)
        arrays = {name: x for name, x in given.items() if not isinstance(x, numbers.Number)}
        shapes = [_shape(row, given.get(row["name"])) for row in self.op.operands]
        attributes = {row["name"]: bound.arguments.get(row["name"]) for row in self.op.attributes}
        attributes["layout"] = _layout_of(self.op.name, bound.arguments)
        axes = axes_of_call(self.op, shapes, attributes)
        use = self._useful(axes)
        cuts = {
            name: self._cut(name, found, shape, use, attributes)
            for name, found, shape in zip(names, axes.operands, shapes, strict=True)
            if found is not None and shape is not None
        }
        results = [self._spec(found, use) for found in axes.results if found is not None]
        return self._run(bound, arrays, cuts, results, use.get("heads"))

    def _useful(self, axes: CallAxes) -> dict[str, AxisName]:
        """Those of the wanted mesh axes that this call can be cut along."""
        letters = {x for found in axes.operands if found for x in found.letters}
        has = {
            "heads": any(map(_is_heads, letters))
            and all(any(map(_is_heads, found.letters)) for found in axes.results if found),
            "columns": self.op.separable in letters,
            "tokens": STARTS not in letters
            and all(found.tokens is not None for found in axes.results if found),
        }
        use: dict[str, AxisName] = {}
        for kind, name in self.wanted:
            taken = {n for other in use.values() for n in _names(other)}
            if has[kind] and not taken & {*_names(name)}:
                use[kind] = name
            elif self.strict:
                raise ValueError(f"{self.op.name}: has no {kind} that mesh axis {name!r} could cut")
        return use

    def _spec(self, axes: Axes, use: Mapping[str, AxisName]) -> tuple[AxisName | None, ...]:
        """The mesh axis of each axis of an array."""
        spec: list[AxisName | None] = [None] * (axes.free or 0)
        for letter in axes.letters:
            is_column = letter.split("*")[-1] == self.op.separable  # c of a result's 16*c
            kind = "heads" if _is_heads(letter) else "columns" if is_column else ""
            spec.append(use.get(kind))
        if axes.tokens is not None and "tokens" in use:
            spec[axes.tokens] = use["tokens"]
        return tuple(spec)

    def _cut(
        self,
        name: str,
        axes: Axes,
        shape: tuple[int, ...],
        use: Mapping[str, AxisName],
        attributes: Mapping[str, Any],
    ) -> _Cut:
        """How one operand is cut; raises if its size forbids it."""
        spec = list(self._spec(axes, use))
        pick = None
        is_cache = "p" in axes.letters
        for at, axis in enumerate(spec):
            if axis is None:
                continue
            devices = _devices(self.mesh, axis)
            letter = axes.letter(at)
            unit = _elements_of_one(letter, attributes)
            count = shape[at] // unit
            if count % devices == 0:
                continue
            size = f"{letter}={shape[at]}" if letter != "..." else f"{shape[at]} tokens"
            what = f"{self.op.name}: {name} has {size}"
            if _KV_HEADS not in letter.split("*") or devices % count:
                raise ValueError(
                    f"{what}, which {devices} devices of mesh axis {axis!r} cannot share evenly"
                )
            if is_cache:
                raise ValueError(
                    f"{what} for {devices} devices; give the cache intarsia.jax.kv_heads() heads"
                )
            pick, spec[at] = (at, unit, devices // count), None
        return _Cut(tuple(spec), pick)

    def _run(
        self,
        bound: inspect.BoundArguments,
        arrays: Mapping[str, jax.Array],
        cuts: Mapping[str, _Cut],
        results: Sequence[tuple[AxisName | None, ...]],
        heads: AxisName | None,
    ) -> Any:
        structures = []

        def local(*parts: jax.Array) -> list[jax.Array]:
            mine = {
                name: _pick(x, cuts[name].pick, heads)
                for name, x in zip(arrays, parts, strict=True)
            }
            call = inspect.BoundArguments(bound.signature, _with(bound.arguments, mine))
            leaves, structure = jax.tree.flatten(self.function(*call.args, **call.kwargs))
            structures.append(structure)
            return leaves

        # Within a shard_map over other axes, the mesh to name is the one that is seen there.
        around = jax.sharding.get_abstract_mesh()
        mesh = around if around.manual_axes else self.mesh
        # Functions make [1] of an array without axes.
        specs = [jax.P(*cuts[name].spec[: x.ndim]) for name, x in arrays.items()]
        leaves = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=tuple(specs),
            out_specs=[jax.P(*spec) for spec in results],
            axis_names={*mesh.axis_names} - {*around.manual_axes},
        )(*(place(x, spec, mesh) for x, spec in zip(arrays.values(), specs, strict=True)))
        return jax.tree.unflatten(structures[-1], leaves)


_IN_ONE_CACHE = ("key_cache", "value_cache")  # operands that are one kv_cache in functions
# Functions that are paged attention with other names for its operands, or further ones: (names, their dims).
_COMPOSED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "cascade_attention": ({}, {"prefix_block_table": "m", "prefix_len": "..."}),
    "ragged_paged_attention": (
        {
            "query": "q",
            "key_cache": "kv_pages",
            "seqused_k": "kv_lens",
            "block_table": "page_indices",
            "cu_seqlens_q": "cu_q_lens",
        },
        {},
    ),
}


@functools.cache
def _names_of_ops() -> set[str]:
    """Functions that take their op's operands, as no function does that makes some of them up itself."""

    def takes_operands(op: _native.Op) -> bool:
        parameters = {*inspect.signature(function_of(op.name)).parameters, *_IN_ONE_CACHE}
        return all(row["optional"] or row["name"] in parameters for row in op.operands)

    ops = _native.main_library().ops
    return {*_COMPOSED, *(name for name in ops if takes_operands(ops[name]))}


def _op_of(function: Callable[..., Any]) -> _native.Op:
    """The op that a function of this package is, or is cut like."""
    name = getattr(function, "__name__", str(function))
    if name not in _names_of_ops() or function is not function_of(name):
        known = ", ".join(sorted(_names_of_ops()))
        raise ValueError(f"shard: {name} is no op of intarsia.jax, expected one of {known}")
    if name not in _COMPOSED:
        return _native.main_library().find(name)
    names, further = _COMPOSED[name]
    op = _native.main_library().find("paged_attention")
    rows = [{**row, "name": names.get(row["name"], row["name"])} for row in op.operands]
    rows += [{"name": operand, "dims": dims} for operand, dims in further.items()]
    return dataclasses.replace(op, name=name, operands=tuple(rows))


def _given(op: _native.Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has by the names of the op's operands, which the functions' parameters share."""
    found: dict[str, Any] = dict(arguments)
    if "kv_cache" in found:
        found["key_cache"], found["value_cache"] = split(op.name, found.pop("kv_cache"))
    return {  # a number (num_seqs, a scale) stays as it is
        name: x if isinstance(x, numbers.Number) else as_array(f"{op.name}: {name}", x)
        for name in (row["name"] for row in op.operands)
        if (x := found.get(name)) is not None
    }


def _shape(row: Mapping[str, Any], x: Any) -> tuple[int, ...] | None:
    """An operand's shape as the op sees it: where that has [1], functions make it of one number."""
    if x is None:
        return None
    return getattr(x, "shape", ()) or ((1,) if "1" in row["dims"].split(" | ") else ())


def _with(arguments: Mapping[str, Any], arrays: Mapping[str, jax.Array]) -> OrderedDict[str, Any]:
    """The arguments of a call with other arrays."""
    replaced = OrderedDict(arguments)
    for name, value in arguments.items():
        if name == "kv_cache":
            both = [arrays[n] for n in ("key_cache", "value_cache") if n in arrays]
            replaced[name] = _cache.in_form_of(value, both)
        elif name in arrays:
            replaced[name] = arrays[name]
    return replaced


def _layout_of(op: str, arguments: Mapping[str, Any]) -> str | None:
    """The layout of the cache in a call; None if there is none."""
    if "kv_pages" in arguments:
        return "combined"
    if "kv_cache" in arguments:
        cache = arguments["kv_cache"]
    elif arguments.get("block_table") is not None:
        cache = arguments["k"] if arguments["v"] is None else (arguments["k"], arguments["v"])
    else:
        return None
    head = next(arguments[name] for name in ("key", "query", "q", "qkv") if name in arguments)
    return infer_layout(op, cache, head.shape[-1], arguments.get("layout"), arguments.get("layer"))


def _names(axis: AxisName) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else axis


def _devices(mesh: jax.sharding.Mesh, axis: AxisName) -> int:
    return math.prod(mesh.shape[name] for name in _names(axis))


def _is_heads(letter: str) -> bool:
    return not _HEADS.isdisjoint(letter.split("*"))


def _elements_of_one(letter: str, attributes: Mapping[str, Any]) -> int:
    """How many elements of the axis "2*hk" or "h*head_size" one head is; 1 for what is no head."""
    if not _is_heads(letter):
        return 1
    factors = [f for f in letter.split("*") if f not in _HEADS]
    return math.prod(int(f) if f.isdigit() else attributes[f] for f in factors)


def _pick(x: jax.Array, pick: tuple[int, int, int] | None, axis: AxisName | None) -> jax.Array:
    if pick is None:
        return x
    at, elements, sharers = pick
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) // sharers * elements, elements, at)
