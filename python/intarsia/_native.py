"""The library behind `include/intarsia/intarsia.h`, through ctypes: the only way into it."""

import ctypes
import functools
import importlib.util
import json
import numbers
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia import _dtypes

_ABI_VERSION = 1
_MAX_RANK = 8
_MAX_RESULTS = 6
_NONE = -1
_TORCH_IN_PLACE = 1
_TORCH_TEXT_ADDRESSES = 2
_ATTRIBUTE_TYPES = {"bool": 1, "i64": 2, "f32": 3, "string": 4}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("strided", ctypes.c_int32),
        ("dims", ctypes.c_int64 * _MAX_RANK),
        ("strides", ctypes.c_int64 * _MAX_RANK),
    ]


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("i64", ctypes.c_int64),
        ("f64", ctypes.c_double),
        ("text", ctypes.c_char_p),
    ]


class _Result(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("alias", ctypes.c_int32), ("workspace", ctypes.c_int32)]


class _Handler(ctypes.Structure):
    _fields_ = [
        ("target", ctypes.c_char_p),
        ("platform", ctypes.c_char_p),
        ("initialize", ctypes.c_void_p),
        ("execute", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Tensor:
    """A tensor as the library sees it. `strides` in elements; None: dense row-major."""

    shape: tuple[int, ...]
    dtype: str
    data: int | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Result:
    """A result of a call: its shape and dtype, and the operand (spec position) it shares a buffer with."""

    shape: tuple[int, ...]
    dtype: str
    alias: int | None
    workspace: bool


@dataclass(frozen=True)
class Handler:
    """A typed FFI handler for one target on one platform ("Host" or "CUDA"); addresses."""

    target: str
    platform: str
    initialize: int | None
    execute: int


Row = Mapping[str, Any]
"""An operand, an attribute or a result in the manifest."""


@dataclass(frozen=True)
class Op:
    """An op of the manifest, by the names its spec gives."""

    name: str
    target: str
    summary: str
    operands: tuple[Row, ...]
    attributes: tuple[Row, ...]
    results: tuple[Row, ...]
    target_alias: str
    source: str
    separable: str = ""
    platforms: tuple[str, ...] = ("cpu", "cuda")


def read_handlers(function: Any) -> list[Handler]:
    """The rows of a C function that gives a table of `intarsia_handler` and its length."""
    function.restype = ctypes.POINTER(_Handler)
    count = ctypes.c_size_t()
    rows = function(ctypes.byref(count))
    return [
        Handler(r.target.decode(), r.platform.decode(), r.initialize, r.execute)
        for r in (rows[i] for i in range(count.value))
    ]


def _tensor(what: str, rule: str, tensor: Tensor | None) -> _Tensor:
    if tensor is None:
        return _Tensor(dtype=_NONE)
    rank = len(tensor.shape)
    if rank > _MAX_RANK:
        raise ValueError(f"{what} has rank {rank}, at most {_MAX_RANK} is supported")
    if tensor.dtype not in _dtypes.NAMES:
        raise ValueError(
            f"{what} has dtype {tensor.dtype}, expected {_dtypes.expected(rule)}: convert it first"
        )
    pad = (0,) * (_MAX_RANK - rank)
    return _Tensor(
        data=tensor.data,
        dtype=_dtypes.NAMES.index(tensor.dtype),
        rank=rank,
        dims=(ctypes.c_int64 * _MAX_RANK)(*tensor.shape, *pad),
        strided=tensor.strides is not None,
        strides=(ctypes.c_int64 * _MAX_RANK)(*(tensor.strides or (0,) * rank), *pad),
    )


def _tensors(op: str, rows: Sequence[Mapping[str, Any]], tensors: Sequence[Tensor | None]) -> Any:
    """A C array of tensors, each named by its row of the manifest should it be refused."""
    named = [(row["name"], row["dtype"]) for row in rows]
    named += [("an operand too many", "no other")] * len(tensors)
    return (_Tensor * len(tensors))(
        *(_tensor(f"{op}: {n}", rule, t) for (n, rule), t in zip(named, tensors, strict=False))
    )


class Library:
    """One shared library that exports the functions of intarsia.h."""

    def __init__(self, path: pathlib.Path):
        if not path.exists():
            raise ImportError(f"{path} does not exist")
        self.path = path
        self._lib = ctypes.CDLL(str(path.resolve()))
        if not hasattr(self._lib, "intarsia_abi_version"):
            raise ImportError(f"{path} is no Intarsia library: it has no intarsia_abi_version")
        for name in ("version", "error", "manifest"):
            getattr(self._lib, f"intarsia_{name}").restype = ctypes.c_char_p
        abi = self._lib.intarsia_abi_version()
        if abi != _ABI_VERSION:
            raise ImportError(
                f"{path} has ABI version {abi}, this package expects {_ABI_VERSION}: install both from one release"
            )
        self.manifest: Mapping[str, Any] = json.loads(self._lib.intarsia_manifest())
        self.ops = {row["name"]: _op(row) for row in self.manifest["ops"]}
        self._aliases = {op.target_alias: op.name for op in self.ops.values() if op.target_alias}

    @property
    def version(self) -> str:
        return self._lib.intarsia_version().decode()

    def devices(self) -> list[dict[str, Any]]:
        """The GPUs as the library sees them, and which kernels each gets; see intarsia_devices in intarsia.h.

        Raises:
          NotImplementedError: a GPU or its driver cannot run this build; the text says why.
        """
        text = ctypes.c_char_p()
        self._check(self._lib.intarsia_devices(ctypes.byref(text)))
        return json.loads(ctypes.string_at(text))

    def handlers(self) -> list[Handler]:
        """The handlers to register with XLA, a row for each target and platform."""
        return read_handlers(self._lib.intarsia_handlers)

    def infer(
        self, op: str, operands: Sequence[Tensor | None], attributes: Mapping[str, Any]
    ) -> list[Result | None]:
        """Checks a call and returns its results in spec order, None for those that do not exist.

        Raises:
          ValueError: the call is wrong; the text names op, operand, what was got and expected.
          NotImplementedError: the call is legal but not built; the text lists what is.
        """
        results = (_Result * _MAX_RESULTS)()
        count = ctypes.c_size_t()
        self._check(
            self._lib.intarsia_infer(
                op.encode(),
                *self._arguments(op, operands, attributes),
                results,
                ctypes.byref(count),
            )
        )
        return [_result(results[i]) for i in range(count.value)]

    def call(
        self,
        op: str,
        platform: str,
        operands: Sequence[Tensor | None],
        attributes: Mapping[str, Any],
        results: Sequence[Tensor | None],
        stream: int | None = None,
    ) -> None:
        """Runs an op on memory that the caller owns, without XLA. See intarsia_call in intarsia.h."""
        outs = _tensors(op, self.find(op).results, results)
        self._check(
            self._lib.intarsia_call(
                op.encode(),
                platform.encode(),
                *self._arguments(op, operands, attributes),
                outs,
                ctypes.c_size_t(len(results)),
                ctypes.c_void_p(stream),
            )
        )

    def enable_peer_access(self, devices: Sequence[int]) -> None:
        """Lets GPUs (CUDA's ordinals) reach each other's memory.

        Raises:
          NotImplementedError: two of them cannot; the text names them. Or there is no CUDA in the library.
        """
        ordinals = (ctypes.c_int32 * len(devices))(*devices)
        self._check(self._lib.intarsia_enable_peer_access(ordinals, ctypes.c_size_t(len(devices))))

    def register_with_torch(
        self, op: str, torch_name: str, *, in_place: bool, text_addresses: bool
    ) -> None:
        """Gives an op kernels in torch's dispatcher. See intarsia_register_with_torch in intarsia.h."""
        form = _TORCH_IN_PLACE * in_place | _TORCH_TEXT_ADDRESSES * text_addresses
        self._check(self._lib.intarsia_register_with_torch(op.encode(), torch_name.encode(), form))

    def _arguments(
        self, op: str, operands: Sequence[Tensor | None], attributes: Mapping[str, Any]
    ) -> tuple:
        types = {a["name"]: a["type"] for a in self.find(op).attributes}
        rows = []
        for name, value in attributes.items():
            if name not in types:
                raise TypeError(
                    f"{op}: unknown attribute {name}, expected some of {', '.join(types)}"
                )
            if value is not None:
                rows.append(_attribute(op, name, types[name], value))
        return (
            _tensors(op, self.find(op).operands, operands),
            ctypes.c_size_t(len(operands)),
            (_Attribute * len(rows))(*rows),
            ctypes.c_size_t(len(rows)),
        )

    def find(self, op: str) -> Op:
        """The op of that name or target alias; an unknown one raises LookupError with those there are."""
        op = self._aliases.get(op, op)
        if op in self.ops:
            return self.ops[op]
        raise LookupError(f"no op {op}; {self.path.name} has {', '.join(sorted(self.ops))}")

    def cache_axes(self, layout: str, layers: bool) -> list[str]:
        """The axes of key_cache in a layout, slowest first, in the letters of src/core/cache_layout.h.

        Args:
          layout: a name of the manifest, or an order of axes such as "p hk s d".
          layers: whether the cache has an axis of layers: in front, unless the order says where.
        """
        named = {row["name"]: row["axes"] for row in self.manifest["layouts"]}
        axes = named.get(layout, layout).split()
        return ["l", *axes] if layers and "l" not in axes else axes

    def _check(self, code: int) -> None:
        if code:
            raise _EXCEPTIONS.get(code, RuntimeError)(self._lib.intarsia_error().decode())


_EXCEPTIONS: dict[int, Callable[[str], Exception]] = {3: ValueError, 12: NotImplementedError}


def _attribute(op: str, name: str, kind: str, value: Any) -> _Attribute:
    accepted: Any = {"bool": bool, "i64": numbers.Integral, "f32": numbers.Real, "string": str}[
        kind
    ]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "bool"):
        raise TypeError(f"{op}: attribute {name} is {value!r}, expected {kind}")
    if kind == "i64" and not -(2**63) <= value < 2**63:
        raise ValueError(f"{op}: attribute {name} is {value}, which is no 64-bit integer")
    row = _Attribute(name=name.encode(), type=_ATTRIBUTE_TYPES[kind])
    if kind == "f32":
        row.f64 = value
    elif kind == "string":
        row.text = value.encode()
    else:
        row.i64 = int(value)
    return row


def _result(row: _Result) -> Result | None:
    if row.tensor.dtype == _NONE:
        return None
    return Result(
        shape=tuple(row.tensor.dims[: row.tensor.rank]),
        dtype=_dtypes.NAMES[row.tensor.dtype],
        alias=None if row.alias < 0 else row.alias,
        workspace=bool(row.workspace),
    )


def _op(row: Mapping[str, Any]) -> Op:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Op(**fields)


@functools.cache
def main_library() -> Library:
    """The library of the distribution intarsia-cuda13 where that is installed, else the one of this package.

    Raises:
      ImportError: there is none, or intarsia-cuda13 is of another version than this package.
    """
    folder = pathlib.Path(__file__).parent
    half = importlib.util.find_spec("intarsia_cuda13")
    if half is None:
        return _library_in(folder, "run `make build`, or install the wheel")
    version = (folder / "VERSION").read_text().strip()
    remedy = f"pip install --force-reinstall intarsia-cuda13=={version}"
    library = _library_in(pathlib.Path(str(half.origin)).parent, remedy)
    if library.version != version:
        raise ImportError(
            f"intarsia-cuda13 {library.version} is installed beside intarsia {version}, expected one version: {remedy}"
        )
    return library


def _library_in(folder: pathlib.Path, remedy: str) -> Library:
    path = folder / "lib" / "libintarsia.so"
    if not path.exists():
        raise ImportError(f"{path} does not exist: {remedy}")
    return Library(path)


@functools.cache
def load_ops(path: str | pathlib.Path) -> Library:
    """Loads another library of ops that exports intarsia.h's functions (`intarsia_add_library` in CMake).

    Its ops can then be called by `intarsia.jax.call(op, ..., library=load_ops(path))`.
    """
    return Library(pathlib.Path(path))
