"""Runs functions on eight devices, and asserts that these do not talk to each other."""

import re

import jax
import numpy as np
import running
from intarsia_src.core import cache_layout
from jax.sharding import AxisType

DEVICES = 8
# One without a name among them.
LAYOUTS = [*cache_layout.layout_names(), "p 2 hk s d"]
COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)")
rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def how(layout: str) -> dict[str, str]:
    """What a caller must say of a layout: nothing where the cache's form does."""
    return {} if layout in cache_layout.layout_names() and layout != "HND" else {"layout": layout}


def mesh_of(devices: list[jax.Device] | None = None, **axes: int) -> jax.sharding.Mesh:
    kinds = (AxisType.Auto,) * len(axes)
    devices = devices or jax.devices("cpu")[:DEVICES]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)


def compile_on(mesh, function, operands: dict[str, tuple], donate: tuple[int, ...] = ()):
    """The compiled function and its arrays, each placed as its spec says."""
    arrays = [
        jax.tree.map(lambda x, s=spec: jax.device_put(x, jax.NamedSharding(mesh, s)), value)
        for value, spec in operands.values()
    ]
    return jax.jit(function, donate_argnums=donate).lower(*arrays).compile(), arrays


def run(mesh, sharded, operands: dict[str, tuple]) -> list:
    """The results of a sharded function, asserting that its devices do not talk to each other."""
    compiled, arrays = compile_on(mesh, sharded, operands)
    text = compiled.as_text()
    assert "intarsia." in text and not COLLECTIVES.search(text), COLLECTIVES.findall(text)
    return jax.tree.leaves(compiled(*arrays))


def check(op: str, mesh, function, sharded, operands: dict[str, tuple]) -> list:
    """Asserts that a sharded function gives what the plain one gives on one device, as near as `op` is."""
    got = run(mesh, sharded, operands)
    want = jax.tree.leaves(function(*(value for value, _ in operands.values())))
    for result, expected in zip(got, want, strict=True):
        running.check(op, np.asarray(result), np.asarray(expected, np.float64))
    return got


def paged_batch(h: int, hk: int, layout: str = "NHD"):
    b, page, pages = 3, 4, 12
    shapes = cache_layout.cache_shapes(layout, pages, page, hk, 16)
    caches = tuple(normal(*shape) for shape in shapes if shape)
    table = rng.permutation(pages)[: b * 3].reshape(b, 3).astype(np.int32)
    lens = np.array([5, 12, 1], np.int32)
    return normal(b, h, 16), caches if len(caches) == 2 else caches[0], lens, table
