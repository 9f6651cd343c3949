"""What the tests of the bridge share: numbers, and ops written in Python."""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

by_both_ways = pytest.mark.parametrize("via", ["c", "python"])

# torch's C functions pass strings and lists from here on.
HAS_STRINGS_AND_LISTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
_NUMBERS = itertools.count()
RNG = np.random.default_rng(7)


def normal(*shape: int, dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(RNG.standard_normal(shape), dtype)


class Mallinfo2(ctypes.Structure):  # of glibc's malloc.h
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]


def allocated() -> int:
    """The bytes that this process has of malloc and has not freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    return mallinfo2().field7  # uordblks


def need_op(name: str, config: pytest.Config) -> None:
    """Skips the test unless an op is in a library given by --torch-ops. (`intarsia.vllm` defines some by our own kernels.)"""
    libraries = config.getoption("--torch-ops")
    for library in libraries:
        torch.ops.load_library(library)
    if not libraries or not torch._C._jit_get_schemas_for_operator(name):
        pytest.skip(f"needs {name} of a library given by --torch-ops")


def define_python_ops() -> None:
    """Registers them with torch, under intarsia_tests::."""

    @torch.library.custom_op("intarsia_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float, fail: bool = False) -> torch.Tensor:
        if fail:
            raise KeyError("no such scale")
        return x * by

    @scaled.register_fake
    def _(x: torch.Tensor, by: float, fail: bool = False) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("intarsia_tests::count_up", mutates_args={"x"})
    def count_up(x: torch.Tensor) -> None:
        x += 1

    @torch.library.custom_op("intarsia_tests::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)

    @torch.library.custom_op("intarsia_tests::liar", mutates_args=())
    def liar(x: torch.Tensor) -> torch.Tensor:
        return x.double() if x.numel() == 4 else torch.cat([x, x])

    liar.register_fake(torch.empty_like)


# What ops may return that torch's C functions do not pass, and such a value from a tensor.
BESIDE_A_TENSOR: dict[str, Callable[[torch.Tensor], Any]] = {
    "Tensor?": torch.neg,
    "int": lambda x: 3,
    "int?": lambda x: None,
    "SymInt": lambda x: x.shape[0],
    "float": lambda x: 0.5,
    "bool": lambda x: True,
    "Scalar": lambda x: 2,
    "str": lambda x: "text",
    "ScalarType": lambda x: torch.float32,
    "int[]": lambda x: [1, 2],
    "Tensor[]?": lambda x: None,
}
_LIBRARY = torch.library.Library("intarsia_tests", "FRAGMENT")


def returning(schema: str, function: Callable[..., Any], arguments: str = "Tensor x") -> str:
    """The name of a new op that returns what the schema says."""
    name = f"returns_{next(_NUMBERS)}"
    _LIBRARY.define(f"{name}({arguments}) -> {schema}")
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    return f"intarsia_tests::{name}"


define_python_ops()
