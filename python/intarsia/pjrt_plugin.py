"""The device INTARSIA of torch_xla: XLA's own PJRT plugin for the CPU or for NVIDIA GPUs, with our ops in it.

torch_xla finds it by itself (entry point `torch_xla.plugins`), so that a program says nothing of it:

    PJRT_DEVICE=INTARSIA python program.py
"""

import ctypes
import functools
import importlib.util
import os
import pathlib
import sys
from typing import Any

from torch_xla.experimental import plugins

from intarsia import _native

PLUGIN_VARIABLE = "INTARSIA_PJRT_PLUGIN"
_CPU_PLUGIN = "pjrt_c_api_cpu_plugin.so"  # XLA's own name for it, wherever it lies


class IntarsiaPlugin(plugins.DevicePlugin):
    """torch_xla's device INTARSIA.

    It runs on NVIDIA GPUs where there is a driver, `intarsia[cuda13]` is installed and the library
    was built with CUDA; otherwise on the CPU, by the plugin that `intarsia[torch-xla]` brings.
    INTARSIA_PJRT_PLUGIN, set to a plugin's path, overrides the choice.
    """

    def library_path(self) -> str:
        """The path of our library, which is a PJRT plugin and loads the one that was chosen.

        Raises:
          ImportError: there is no plugin to wrap; the text says what to install.
        """
        os.environ.setdefault(PLUGIN_VARIABLE, str(_cuda_plugin() or _cpu_plugin()))
        # JAX only traces for torch_xla, for which its CPU backend will do; it shall not take the
        # GPU's memory for a client of its own. A program that wants both says so.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        _serve_ragged_paged_attention()
        if "intarsia.torch" in sys.modules:  # or else it will see PJRT_DEVICE
            sys.modules["intarsia.torch"]._xla.serve_device()
        return str(_native.main_library().path.resolve())

    def client_create_options(self) -> dict[str, str | int | bool]:
        """One device of a CPU; all GPUs that CUDA_VISIBLE_DEVICES shows, memory taken as needed."""
        if pathlib.Path(os.environ[PLUGIN_VARIABLE]).name == _CPU_PLUGIN:
            return {"cpu_device_count": 1}
        return {"platform_name": "cuda", "preallocate": False}


def _serve_ragged_paged_attention() -> None:
    """Puts our paged attention behind `torch.ops.xla.ragged_paged_attention`, whose own kernel is for TPUs."""
    from torch_xla.core import xla_builder
    from torch_xla.experimental import custom_kernel

    without_kernel = custom_kernel.ragged_paged_attention

    @functools.wraps(without_kernel)
    def ragged_paged_attention(*args: Any, use_kernel: bool = True, **options: Any) -> Any:
        if not use_kernel:
            return without_kernel(*args, use_kernel=False, **options)
        from intarsia import jax

        return xla_builder.call_jax(jax.ragged_paged_attention, args, options)

    custom_kernel.ragged_paged_attention = ragged_paged_attention


def _cuda_plugin() -> pathlib.Path | None:
    """JAX's plugin for CUDA 13, its libraries loaded; None where it cannot be used."""
    try:
        ctypes.CDLL("libcuda.so.1")
        from jax_plugins import xla_cuda13
    except (ImportError, OSError):
        return None
    if _native.main_library().manifest["cuda"] is None:
        return None
    xla_cuda13._load_nvidia_libraries()  # what the plugin is linked against, from NVIDIA's packages
    return pathlib.Path(xla_cuda13.__file__).parent / "xla_cuda_plugin.so"


def _cpu_plugin() -> pathlib.Path:
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if spec is None or spec.origin is None:
        raise ImportError(
            "the device INTARSIA wraps a PJRT plugin and there is none for this machine: "
            f"pip install 'intarsia[torch-xla]', or set {PLUGIN_VARIABLE} to the path of one"
        )
    return pathlib.Path(spec.origin).parent / _CPU_PLUGIN
