"""The one road from a Python function to a custom call: shapes from the library, attributes cast, aliases placed."""

import ctypes
import functools
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from intarsia import _dtypes, _native
from intarsia._cache_form import check_num_seqs
from intarsia.jax._grad import differentiable
from intarsia.jax._platforms import on_its_platforms
from intarsia.jax._types import refuse_sharded, result_type, vary_alike
from intarsia.jax._vmap import batch

_ATTRIBUTE_CASTS = {"bool": bool, "i64": np.int64, "f32": np.float32, "string": str}


@functools.cache
def register(library: _native.Library) -> tuple[_native.Handler, ...]:
    """Registers a library's handlers with XLA, on every platform that it was built for."""
    return register_handlers(library.handlers())


def register_handlers(handlers: Sequence[_native.Handler]) -> tuple[_native.Handler, ...]:
    """Registers typed FFI handlers with XLA, each stage that there is."""
    for handler in handlers:
        stages = {"execute": handler.execute, "initialize": handler.initialize}
        capsules = {stage: _capsule(address) for stage, address in stages.items() if address}
        jax.ffi.register_ffi_target(
            handler.target,
            capsules if len(capsules) > 1 else capsules["execute"],
            platform=handler.platform,
        )
    return tuple(handlers)


def _capsule(address: int) -> Any:
    return jax.ffi.pycapsule(ctypes.cast(address, ctypes.CFUNCTYPE(None)))


def call(
    name: str,
    operands: Sequence[ArrayLike | None],
    *,
    library: _native.Library | None = None,
    **attributes: Any,
) -> tuple[jax.Array, ...]:
    """Calls an op inside an XLA program.

    Args:
      name: the op, without the library's prefix: "rms_norm".
      operands: arrays in spec order, None for absent optional ones; the last ones may be left out.
      library: a library from `intarsia.load_ops`; default: the package's own.
      **attributes: by name; None means not given.

    Returns:
      The results that exist, in spec order, without workspaces. An aliased result shares its
      operand's buffer: donate the operand to the enclosing jit, or XLA copies it first.

    Raises:
      ValueError, TypeError: a wrong call, told as `<op>: <operand> <what> <got> <expected>`.
      NotImplementedError: a legal call that is not built; when it is lowered, also one in a program for a
        platform that lacks the op.
      LookupError: no such op; the text lists those there are.
    """
    results = call_in_places(name, operands, library=library, **attributes)
    return tuple(x for x in results if x is not None)


def call_in_places(
    name: str,
    operands: Sequence[ArrayLike | None],
    *,
    library: _native.Library | None = None,
    **attributes: Any,
) -> tuple[jax.Array | None, ...]:
    """The same as `call`, with None in the place of each result that does not exist."""
    if hasattr(operands, "shape"):
        raise TypeError(f"{name}: operands is one array, expected a sequence of arrays")
    library = library or _native.main_library()
    register(library)
    op = library.find(name)
    missing = op.operands[len(operands) :]
    if len(operands) > len(op.operands) or not all(row["optional"] for row in missing):
        names = ", ".join(row["name"] for row in op.operands)
        raise TypeError(
            f"{name}: got {len(operands)} operands, expected {names} (None where absent)"
        )
    operands = [*operands, *(None for _ in missing)]
    arrays = [
        None if x is None else narrowed(as_array(f"{name}: {row['name']}", x), row["dtype"])
        for x, row in zip(operands, op.operands, strict=True)
    ]
    for x, row in zip(arrays, op.operands, strict=True):
        if x is not None:
            refuse_sharded(f"{name}: {row['name']}", x)
    results = _infer(library, name, tuple(abstract(x) for x in arrays), attributes)
    arrays = vary_alike(arrays)
    given = {k: v for k, v in attributes.items() if v is not None}
    present = tuple(x is not None for x in arrays)
    function = _function(library, op.name, present, tuple(given.items()), results)
    found = iter(function(*(x for x in arrays if x is not None)))
    return tuple(
        None if result is None else next(found)
        for result, row in zip(results, op.results, strict=True)
        if not row["workspace"]
    )


def _infer(
    library: _native.Library,
    name: str,
    operands: tuple[_native.Tensor | None, ...],
    attributes: dict[str, Any],
) -> tuple[_native.Result | None, ...]:
    """`Library.infer`, which the layers of a model ask the same, each time they are traced."""
    given = tuple((k, type(v), v) for k, v in attributes.items())  # True equals 1
    try:
        hash(given)
    except TypeError:  # the library says what is wrong
        return tuple(library.infer(name, operands, attributes))
    return _inferred(library, name, operands, given)


@functools.lru_cache(maxsize=4096)
def _inferred(
    library: _native.Library,
    name: str,
    operands: tuple[_native.Tensor | None, ...],
    attributes: tuple[tuple[str, type, Any], ...],
) -> tuple[_native.Result | None, ...]:
    return tuple(library.infer(name, operands, {k: v for k, _, v in attributes}))


@functools.lru_cache(maxsize=4096)
def _function(
    library: _native.Library,
    name: str,
    present: tuple[bool, ...],
    attributes: tuple[tuple[str, Any], ...],
    results: tuple[_native.Result | None, ...],
) -> Callable[..., tuple[jax.Array, ...]]:
    """The op as a function of the operands that are present, with its rules for vmap and grad."""
    op = library.find(name)
    given = [i for i, is_given in enumerate(present) if is_given]
    ordered = sorted((r for r in results if r is not None), key=lambda r: r.workspace)
    aliases = {given.index(r.alias): i for i, r in enumerate(ordered) if r.alias is not None}
    wire = _wire_attributes(op, present, dict(attributes))

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        types = [
            result_type(r.shape, _dtypes.numpy_dtype(r.dtype), like=arrays[0]) for r in ordered
        ]
        first = on_its_platforms(op, arrays[0])
        custom_call = jax.ffi.ffi_call(op.target, types, input_output_aliases=aliases)
        with jax.named_scope(op.name):  # HLO and profiles would say ffi_call of each op
            outputs = custom_call(first, *arrays[1:], **wire)
        return tuple(x for x, r in zip(outputs, ordered, strict=True) if not r.workspace)

    run.__name__ = op.name  # in jaxprs
    mapped = jax.custom_batching.custom_vmap(run)

    @mapped.def_vmap
    def batched(size: int, is_batched: Sequence[bool], *arrays: jax.Array):
        def spread(values: Sequence[Any], absent: Any) -> list[Any]:
            left = iter(values)
            return [next(left) if is_given else absent for is_given in present]

        outs = batch(
            op,
            lambda operands: call(name, operands, library=library, **dict(attributes)),
            size,
            spread(is_batched, False),
            spread(arrays, None),
            dict(attributes),
        )
        return outs, (True,) * len(outs)

    # As the op has them: NumPy's f64 would make a gradient f64 in x64 mode.
    numbers_of = {a["name"] for a in op.attributes if a["type"] == "f32"}
    seen = {k: float(np.float32(v)) if k in numbers_of else v for k, v in attributes}
    function = differentiable(op, mapped, present, seen)
    function.__name__ = op.name  # in XLA's metadata and in profiles
    return jax.jit(function, inline=True)  # traced once a shape; inlined where it is called


def one_or_all(results: tuple[jax.Array, ...]) -> Any:
    """What a function returns for these results: the only one itself, several as a tuple."""
    return results[0] if len(results) == 1 else results


def as_array(what: str, x: Any) -> jax.Array:
    """An operand as JAX takes it; raises where that would lose something."""
    beyond = ValueError(f"{what} has values beyond int32; enable jax_enable_x64 to pass int64")
    try:
        array = jnp.asarray(x)
    except OverflowError as error:
        raise beyond from error
    except (TypeError, ValueError) as error:
        said = "None" if x is None else f"a {type(x).__name__}"
        raise TypeError(f"{what} is {said}, expected an array: {error}") from error
    if not all(isinstance(n, int) for n in array.shape):
        raise NotImplementedError(f"{what} has the symbolic shape {array.shape}, expected numbers")
    # Without x64, JAX narrows int64 without a word; a slot of 2**32 + 5 would become slot 5.
    numpys = isinstance(x, np.ndarray | np.generic)
    wide = numpys and x.dtype == np.int64 and array.dtype != np.int64
    if wide and not np.array_equal(x, x.astype(array.dtype)):
        raise beyond
    return array


def as_indices(what: str, x: Any) -> jax.Array:
    """Integers as the ops take them; raises for others, where a cast would lose something."""
    array = as_array(what, x)
    if array.dtype not in (jnp.int32, jnp.int64):
        raise ValueError(f"{what} has dtype {array.dtype}, expected int32 or int64")
    return array


def as_count(what: str, n: Any) -> int:
    """A number of rows, which shapes are made of; raises for what is none."""
    try:
        count = operator.index(n)
    except TypeError:
        count = -1
    if not 0 <= count <= np.iinfo(np.int32).max:
        raise ValueError(f"{what} is {n!r}, expected a number of rows")
    return count


def as_f32(what: str, x: ArrayLike | None) -> jax.Array | None:
    return None if x is None else as_array(what, x).astype(jnp.float32)


def as_num_seqs(op: str, num_seqs: ArrayLike | None, cu_seqlens_q: ArrayLike) -> jax.Array | None:
    """How many sequences are real, [1]; None: all."""
    if num_seqs is None:
        return None
    if isinstance(num_seqs, numbers.Integral):
        check_num_seqs(op, int(num_seqs), as_array(f"{op}: cu_seqlens_q", cu_seqlens_q))
        num_seqs = np.int32(int(num_seqs))
    count = as_indices(f"{op}: num_seqs", num_seqs)
    if count.size != 1:
        raise ValueError(f"{op}: num_seqs has shape {list(count.shape)}, expected one number")
    return count.reshape(1)


def narrowed(array: jax.Array, dtype: str) -> jax.Array:
    """A number as ops take it: in x64 mode 0 is int64, and 0.5 f64. An index beyond int32 stays beyond."""
    if dtype == "i32" and array.dtype == np.int64:
        limits = np.iinfo(np.int32)
        return jnp.clip(array, limits.min, limits.max).astype(np.int32)
    if "f32" in dtype.split("|") and array.dtype == np.float64 and array.weak_type:
        return array.astype(np.float32)
    return array


def abstract(x: jax.Array | None) -> _native.Tensor | None:
    """Shape and dtype of an operand, as the library is told them; None for one that is absent."""
    return None if x is None else _native.Tensor(tuple(x.shape), _dtypes.name_of(x.dtype))


def _wire_attributes(
    op: _native.Op, present: Sequence[bool], attributes: dict[str, Any]
) -> dict[str, Any]:
    types = {a["name"]: a["type"] for a in op.attributes}
    wire = {k: _ATTRIBUTE_CASTS[types[k]](v) for k, v in attributes.items()}
    optional = [p for p, row in zip(present, op.operands, strict=True) if row["optional"]]
    if optional:
        wire["present"] = np.int64(sum(1 << i for i, p in enumerate(optional) if p))
    return wire


def two_sides(operand: str, window: Any) -> tuple[Any, Any]:
    """A window's left and right side; anything else raises ValueError, with `operand` in front."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(
            f"{operand} is {window!r:.60}, expected a pair: keys to the left and to the right"
        ) from None
    return left, right
