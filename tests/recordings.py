"""Exported programs of every release, with what went in and came out: they must work for ever.

tests/data/exported/<version>/<op>.npz holds the op's `wire` example: the program as `jax.export` serialized
it, for the op's platforms in one, its operands, and its results on a CPU, or by its reference where it has no
CPU half. tools/record_exports.py writes them, tests/test_jax_export.py replays them.
"""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterator

import intarsia.jax
import jax
import ml_dtypes
import numpy as np
import running
import support
import wire
from intarsia import _dtypes, _native
from jax import export

FOLDER = support.ROOT / "tests" / "data" / "exported"
LIBRARY = _native.main_library()


@dataclasses.dataclass(frozen=True)
class Recording:
    """One exported program and a call of it."""

    program: bytes
    operands: list[np.ndarray]
    results: list[np.ndarray]

    def save(self, path: pathlib.Path) -> None:
        arrays = {
            f"{kind}{i}": x
            for kind, xs in (("operand", self.operands), ("result", self.results))
            for i, x in enumerate(xs)
        }
        # As bytes: NumPy's format does not know bfloat16 and fp8.
        types = {name: [str(x.dtype), list(x.shape)] for name, x in arrays.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            program=np.frombuffer(self.program, np.uint8),
            types=np.array(json.dumps(types)),
            **{name: np.frombuffer(x.tobytes(), np.uint8) for name, x in arrays.items()},
        )

    @staticmethod
    def load(path: pathlib.Path) -> "Recording":
        with np.load(path) as file:
            types = json.loads(str(file["types"]))

            def arrays(kind: str) -> Iterator[np.ndarray]:
                for name, (dtype, shape) in types.items():
                    if name.startswith(kind):
                        known = getattr(ml_dtypes, dtype, dtype)
                        yield np.frombuffer(file[name].tobytes(), known).reshape(shape)

            program = file["program"].tobytes()
            return Recording(program, list(arrays("operand")), list(arrays("result")))

    def exported(self) -> export.Exported:
        """The program."""
        return export.deserialize(bytearray(self.program))

    def replay(self, platform: str = "cpu") -> list[np.ndarray]:
        """What the program gives now, on "cpu" or "gpu"."""
        wide = any(x.dtype == np.int64 for x in self.operands)
        with jax.enable_x64(wide), jax.default_device(jax.devices(platform)[0]):
            return [np.asarray(x) for x in jax.tree.leaves(self.exported().call(*self.operands))]


def path_of(op: str, version: str = LIBRARY.version) -> pathlib.Path:
    return FOLDER / version / f"{op}.npz"


def record(op: str) -> Recording:
    """Exports an op's example as it is today. A machine without a GPU exports for GPUs as well."""
    call = wire.example(LIBRARY.find(op))
    platforms = call.op.platforms
    given = [x for x in call.operands if x is not None]

    def program(*arrays: jax.Array):
        left = iter(arrays)
        operands = [None if x is None else next(left) for x in call.operands]
        return intarsia.jax.call(op, operands, **call.attributes)

    exporter = export.export(
        jax.jit(program), platforms=platforms, disabled_checks=intarsia.jax.export_exemptions()
    )
    with _no_source_locations():
        exported = exporter(*given)
    if "cpu" in platforms:
        results = [np.asarray(x) for x in exported.call(*given)]
    else:
        module = support.op_module(op)
        wanted = module.reference(*map(running.as_f64, call.operands), **call.attributes)
        types = [result.dtype for result in call.results if not result.workspace]
        results = [
            np.asarray(x, _dtypes.numpy_dtype(dtype))
            for x, dtype in zip(wanted, types, strict=True)
        ]
    return Recording(bytes(exported.serialize()), given, results)


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Keeps the paths of this machine out of programs."""
    name = "jax_traceback_in_locations_limit"
    before = jax.config.values[name]
    jax.config.update(name, 0)
    try:
        yield
    finally:
        jax.config.update(name, before)


def missing(version: str = LIBRARY.version) -> list[str]:
    """The ops of which this version has no recording, or one that is not for all of the op's platforms."""

    def is_there(op: str) -> bool:
        path = path_of(op, version)
        return path.exists() and Recording.load(path).exported().platforms == support.platforms(op)

    return [op for op in sorted(LIBRARY.ops) if not is_there(op)]
