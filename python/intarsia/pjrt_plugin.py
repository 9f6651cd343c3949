"""The device INTARSIA of torch_xla: XLA's own PJRT plugin for the CPU or for NVIDIA GPUs, with our ops in it.

torch_xla finds it by itself (entry point `torch_xla.plugins`), so that a program says nothing of it:

    PJRT_DEVICE=INTARSIA python program.py
"""

import ctypes
import functools
import importlib.util
import pathlib
import sys
import warnings
from typing import Any

from intarsia import _environment, _native
from intarsia._packages import needed_by

with needed_by("the device INTARSIA"):
    from torch_xla.experimental import plugins

PLUGIN_VARIABLE = _environment.PJRT_PLUGIN


class IntarsiaPlugin(plugins.DevicePlugin):
    """torch_xla's device INTARSIA.

    It runs on NVIDIA GPUs where there is a driver, `intarsia[cuda13]` is installed and the library
    was built with CUDA; otherwise on the CPU, by the plugin that `intarsia[torch-xla]` brings.
    INTARSIA_PJRT_PLUGIN, set to a plugin's path, is the choice instead.
    """

    def library_path(self) -> str:
        """The path of our library, which is a PJRT plugin and loads the one that was chosen.

        Raises:
          ImportError: there is no plugin to wrap; the text says what to install.

        Warns:
          RuntimeWarning: the device is the CPU though there is an NVIDIA driver; the text says why.
        """
        plugin = pathlib.Path(_environment.asked_pjrt_plugin() or _choose_plugin())
        _environment.choose_pjrt_plugin(str(plugin))  # where our library looks for it
        _load_libraries(plugin)
        _prepare_process()
        return str(_native.main_library().path.resolve())

    def client_create_options(self) -> dict[str, str | int | bool]:
        """One device of a CPU; all GPUs that CUDA_VISIBLE_DEVICES shows, memory taken as needed."""
        if _is_for_gpus(_environment.chosen_pjrt_plugin()):
            return {"platform_name": "cuda", "preallocate": False}
        return {"cpu_device_count": 1}


def _prepare_process() -> None:
    """What a process needs besides the plugin that uses the device."""
    # JAX only traces for torch_xla, for which its CPU backend will do; it shall not take the
    # GPU's memory for a client of its own. A program that wants both says so.
    _environment.default_jax_to_cpu()
    _serve_ragged_paged_attention()
    if "intarsia.torch" in sys.modules:  # or else it will see PJRT_DEVICE
        sys.modules["intarsia.torch"]._xla.serve_device()


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


def _choose_plugin() -> pathlib.Path:
    """The plugin for what this machine has."""
    if not _has_driver():
        return _cpu_plugin()
    if _native.main_library().manifest["cuda"] is None:
        reason = "the library was built without CUDA"
    elif plugin := _cuda_plugin():
        return plugin
    else:
        reason = "there is no plugin for it: pip install 'intarsia[cuda13]'"
    plugin = _cpu_plugin()
    warnings.warn(
        f"the device INTARSIA is the CPU though this machine has NVIDIA's driver: {reason}; "
        f"if it is meant to be, set {PLUGIN_VARIABLE}={plugin}",
        RuntimeWarning,
        stacklevel=3,
    )
    return plugin


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _cuda_plugin() -> pathlib.Path | None:
    """JAX's plugin for CUDA 13; None if it is not installed."""
    try:
        from jax_plugins import xla_cuda13
    except ImportError:
        return None
    return pathlib.Path(xla_cuda13.__file__).parent / "xla_cuda_plugin.so"


def _load_libraries(plugin: pathlib.Path) -> None:
    """Loads what JAX's plugin for CUDA is linked against from NVIDIA's packages, for no other plugin."""
    if plugin == _cuda_plugin():
        from jax_plugins import xla_cuda13

        xla_cuda13._load_nvidia_libraries()


def _cpu_plugin() -> pathlib.Path:
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if spec is None or spec.origin is None:
        raise ImportError(
            "the device INTARSIA wraps a PJRT plugin and there is none for this machine: "
            f"pip install 'intarsia[torch-xla]', or set {PLUGIN_VARIABLE} to the path of one"
        )
    return pathlib.Path(spec.origin).parent / "pjrt_c_api_cpu_plugin.so"


class _Extension(ctypes.Structure):
    """PJRT_Extension_Base; what an extension offers follows it."""


_Extension._fields_ = [
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.POINTER(_Extension)),
]
_GPU_CUSTOM_CALLS = 0  # PJRT_Extension_Type_Gpu_Custom_Call


class _Api(ctypes.Structure):
    """How a PJRT_Api begins."""

    _fields_ = [("struct_size", ctypes.c_size_t), ("extensions", ctypes.POINTER(_Extension))]


def _is_for_gpus(path: str) -> bool:
    """Whether a plugin takes custom calls for GPUs, by which our library tells them apart, too."""
    try:
        get_api = ctypes.CDLL(path).GetPjrtApi
    except (OSError, AttributeError):
        return False  # our library says what is wrong with it
    get_api.restype = ctypes.POINTER(_Api)
    extension = get_api().contents.extensions
    while extension:
        if extension.contents.type == _GPU_CUSTOM_CALLS:
            return True
        extension = extension.contents.next
    return False
