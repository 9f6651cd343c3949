"""What has to hold between vLLM, torch and torchax for the plugin to work.

Beside the torch that a vLLM pins, and beside CUDA, some things must be kept from torchax 0.0.13, or given to it.
"""

import functools
import logging
from types import ModuleType
from typing import Any

import torch

from intarsia._torchax_import import missing_ops_are_named, no_device_is_renamed

VLLM_VERSIONS = ("0.32", "0.33")
"""Minor versions of vLLM that the plugin runs with: CI has 0.33, 0.32 ran on a GPU (docs/notebook/vllm.md)."""


_LINEAR_DTYPES = ("float32", "float16", "bfloat16")


def check_vllm_version() -> None:
    """Raises an ImportError unless the installed vLLM is one that the plugin knows."""
    import vllm

    minor = ".".join(vllm.__version__.split(".")[:2])
    if minor not in VLLM_VERSIONS:
        expected = " or ".join(f"{version}.*" for version in VLLM_VERSIONS)
        raise ImportError(
            f"intarsia-vllm: vLLM {vllm.__version__} is installed, expected {expected}; "
            "VLLM_PLUGINS= (empty) runs vLLM without the plugin"
        )


@functools.cache
def import_torchax() -> tuple[ModuleType, Any]:
    """Imports torchax beside a newer torch, without making its device the process's accelerator.

    Returns:
      The module torchax, and its environment. To be called before anything else imports torchax, and, where there are
      several processes, after `jax.distributed.initialize`: the environment makes a random key.
    """
    with missing_ops_are_named(), no_device_is_renamed():
        import torchax
        import torchax.interop
        import torchax.view

        environment = torchax.default_env()
    # The name of the device "jax" before it is renamed.
    label = property(lambda self: torch.device("privateuseone:0"))
    torchax.tensor.Tensor.device = torchax.view.View.device = label
    # vLLM's norms read `weight.data`, of which torchax warns at each tracing.
    logging.getLogger("torchax.tensor").setLevel(logging.ERROR)
    _complete(environment)
    return torchax, environment


def dtype_name(dtype: torch.dtype) -> str:
    """As JAX, NumPy and vLLM's options name it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def is_traced(x: Any) -> bool:
    """Whether a tensor is torchax's, and so part of a program."""
    return type(x).__module__.startswith("torchax")


def _complete(environment: Any) -> None:
    """Corrects `view(dtype)`, which torchax 0.0.13 takes for a view of another shape, and adds `promote_types`.

    Linear layers in a program for a CPU become calls of `intarsia.jax.linear`; elsewhere they stay torchax's.
    """
    import jax
    from torch._prims_common import get_higher_dtype
    from torchax.ops import mappings
    from torchax.ops.ops_registry import Operator

    import intarsia.jax as ij

    by_xla = environment._ops[torch.nn.functional.linear].func

    def view_dtype(x: jax.Array, dtype: torch.dtype) -> jax.Array:
        wanted = mappings.t2j_dtype(dtype)
        return x if x.dtype == wanted else jax.lax.bitcast_convert_type(x, wanted)

    def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        one_dtype = all(x.dtype == weight.dtype for x in (input, bias) if x is not None)
        ours = one_dtype and weight.dtype.name in _LINEAR_DTYPES and weight.ndim == 2
        if ours and jax.default_backend() == "cpu":
            return ij.linear(input, weight, bias)
        return by_xla(input, weight, bias)

    for op, function, of_arrays in (
        (torch.nn.functional.linear, linear, True),
        (torch.ops.aten.view.dtype, view_dtype, True),
        (torch.promote_types, get_higher_dtype, False),  # not by torch, which would come back here
    ):
        environment._ops[op] = Operator(
            op,
            function,
            is_jax_function=of_arrays,
            is_user_defined=True,
            needs_env=False,
            is_view_op=False,
        )
