"""The library as a PJRT plugin around another one: what torch_xla sees, and what it is told when there is none."""

import ctypes.util
import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest
from intarsia import _native
from running import cpu_plugin

LIBRARY = _native.main_library().path.resolve()

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("no torch_xla", allow_module_level=True)


def python(program: str, **environment: str) -> str:
    """What a program prints, in a process of its own: a process has one plugin and one device."""
    variables = {k: v for k, v in os.environ.items() if k != "INTARSIA_PJRT_PLUGIN"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# As a caller does who checks nothing but errors: PJRT_Plugin_Initialize, then the error's text.
INITIALIZE = f"""
import ctypes
class Api(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("head", ctypes.c_void_p * 3), ("version", ctypes.c_int * 2)]
    _fields_ += [("functions", ctypes.c_void_p * 4)]
class Args(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("more", ctypes.c_void_p), ("error", ctypes.c_void_p)]
    _fields_ += [("text", ctypes.c_char_p), ("length", ctypes.c_size_t)]
library = ctypes.CDLL({str(LIBRARY)!r})
library.GetPjrtApi.restype = ctypes.POINTER(Api)
api = library.GetPjrtApi().contents
function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Args))
error = function(api.functions[3])(ctypes.byref(Args(size=16)))
if error:
    args = Args(size=40, error=error)
    function(api.functions[1])(ctypes.byref(args))
    print(ctypes.string_at(args.text, args.length).decode())
else:
    print("initialized", api.version[0], api.version[1] >= 96, api.size >= 1064)
"""


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (None, "INTARSIA_PJRT_PLUGIN is not set, expected the path of the PJRT plugin to wrap"),
        ("/no/such.so", "cannot load the PJRT plugin: /no/such.so: cannot open shared object file"),
        (str(LIBRARY), "which is this library, expected the plugin to wrap"),
        (ctypes.util.find_library("m"), "is no PJRT plugin: it has no GetPjrtApi"),
    ],
)
def test_a_plugin_that_cannot_be_wrapped_is_an_error(plugin: str | None, message: str) -> None:
    environment = {} if plugin is None else {"INTARSIA_PJRT_PLUGIN": plugin}
    text = python(INITIALIZE, **environment)
    assert text.startswith("intarsia: ") and message in text


def test_wraps_the_cpu_plugin() -> None:
    text = python(INITIALIZE, INTARSIA_PJRT_PLUGIN=str(cpu_plugin()))
    assert text == "initialized 0 True True"


def test_registers_with_a_plugin_that_another_program_loaded() -> None:
    program = f"""
import ctypes
plugin, library = ctypes.CDLL({str(cpu_plugin())!r}), ctypes.CDLL({str(LIBRARY)!r})
plugin.GetPjrtApi.restype = ctypes.c_void_p
api = ctypes.c_void_p(plugin.GetPjrtApi())
print([library.intarsia_register_with_pjrt(api) for _ in range(2)])
"""
    assert python(program) == "[0, 0]"


def test_is_an_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="torch_xla.plugins", name="intarsia")
    assert found.value == "intarsia.pjrt_plugin:IntarsiaPlugin"


USER = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
device = torch_xla.device()
print(xm.xla_device_hw(device), torch_xla.runtime.global_device_count())
print(torch.arange(5, device=device).sum().item())
"""


@pytest.mark.full
def test_torch_xla_says_why_there_is_no_device() -> None:
    program = """
import torch, torch_xla
try: torch_xla.device()
except RuntimeError as error: print(error)
"""
    text = python(program, PJRT_DEVICE="INTARSIA", INTARSIA_PJRT_PLUGIN="/no/such.so")
    assert "intarsia: cannot load the PJRT plugin: /no/such.so" in text


@pytest.mark.full
def test_leaves_other_devices_alone() -> None:
    """torch_xla asks every installed plugin to load, whatever the device."""
    program = f"""{USER}
import intarsia.torch
try: torch.ops.xla_gpu.rms_norm(torch.ones(3, 4, device=device))
except NotImplementedError as error: print(error)
"""
    on_cpu, number, refused = python(program, PJRT_DEVICE="CPU").splitlines()
    assert (on_cpu, number) == ("CPU 1", "10")
    assert refused == (
        "rms_norm: torch_xla's device is CPU, whose plugin has no such op; set PJRT_DEVICE=INTARSIA"
    )


# ---------------------------------------------------------------------------- the choice of a plugin


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> Iterator[types.SimpleNamespace]:
    """What pjrt_plugin finds: at first NVIDIA's driver, JAX's plugin and a library with CUDA.

    torch_xla itself takes seconds to import, and wants a process of its own.
    """
    plugins = types.SimpleNamespace(DevicePlugin=object)
    for name in ("torch_xla", "torch_xla.experimental"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(plugins=plugins))
    monkeypatch.delitem(sys.modules, "intarsia.pjrt_plugin", raising=False)
    pjrt_plugin = importlib.import_module("intarsia.pjrt_plugin")

    found = types.SimpleNamespace(driver=True, loaded=[], manifest={"cuda": "13.0"})
    package = types.ModuleType("jax_plugins.xla_cuda13")
    package.__file__ = str(tmp_path / "__init__.py")
    package._load_nvidia_libraries = lambda: found.loaded.append("nvidia")
    found.cuda_plugin = tmp_path / "xla_cuda_plugin.so"
    monkeypatch.setitem(sys.modules, "jax_plugins", types.ModuleType("jax_plugins"))
    monkeypatch.setitem(sys.modules, "jax_plugins.xla_cuda13", package)
    found.path = LIBRARY
    monkeypatch.setattr(pjrt_plugin._native, "main_library", lambda: found)
    monkeypatch.setattr(pjrt_plugin, "_has_driver", lambda: found.driver)
    monkeypatch.setattr(pjrt_plugin, "_prepare_process", lambda: None)
    monkeypatch.setenv("INTARSIA_PJRT_PLUGIN", "")
    found.plugin = pjrt_plugin.IntarsiaPlugin()
    yield found
    del sys.modules["intarsia.pjrt_plugin"]


def choice(machine: types.SimpleNamespace) -> pathlib.Path:
    assert machine.plugin.library_path() == str(LIBRARY)
    return pathlib.Path(os.environ["INTARSIA_PJRT_PLUGIN"])


def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax_plugins.xla_cuda13")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_a_gpu_is_chosen_where_all_is_there(machine: types.SimpleNamespace) -> None:
    assert choice(machine) == machine.cuda_plugin
    assert machine.loaded == ["nvidia"]


def test_the_cpu_is_chosen_where_there_is_no_driver(machine: types.SimpleNamespace) -> None:
    machine.driver = False
    assert choice(machine) == cpu_plugin()
    assert machine.loaded == []


def test_the_cpu_in_place_of_a_gpu_is_told(
    machine: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.manifest = {"cuda": None}
    with pytest.warns(RuntimeWarning, match="is the CPU .* the library was built without CUDA"):
        assert choice(machine) == cpu_plugin()
    machine.manifest = {"cuda": "13.0"}
    monkeypatch.delitem(sys.modules, "jax_plugins.xla_cuda13")
    monkeypatch.setenv("INTARSIA_PJRT_PLUGIN", "")
    with pytest.warns(
        RuntimeWarning, match=r"pip install 'intarsia\[cuda13\]'.* set INTARSIA_PJRT"
    ):
        assert choice(machine) == cpu_plugin()
    assert machine.loaded == []


def test_a_plugin_that_is_named_needs_no_other(
    machine: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No search, no error about what is missing, and NVIDIA's libraries only for a plugin that wants them."""
    monkeypatch.setenv("INTARSIA_PJRT_PLUGIN", "/mine.so")
    assert choice(machine) == pathlib.Path("/mine.so")
    assert machine.loaded == []
    without_packages(monkeypatch)
    assert choice(machine) == pathlib.Path("/mine.so")


def test_no_plugin_at_all_is_an_error(
    machine: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.driver = False
    without_packages(monkeypatch)
    with pytest.raises(ImportError, match=r"intarsia\[torch-xla\]', or set INTARSIA_PJRT_PLUGIN"):
        choice(machine)


def test_options_are_for_what_the_plugin_is(
    machine: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Whatever it is called."""
    renamed = tmp_path / "mine.so"
    renamed.symlink_to(cpu_plugin())
    monkeypatch.setenv("INTARSIA_PJRT_PLUGIN", str(renamed))
    assert machine.plugin.client_create_options() == {"cpu_device_count": 1}
    source = tmp_path / "gpu.c"
    source.write_text(GPU_PLUGIN)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "gpu.so", source], check=True)
    monkeypatch.setenv("INTARSIA_PJRT_PLUGIN", str(tmp_path / "gpu.so"))
    assert machine.plugin.client_create_options() == {
        "platform_name": "cuda",
        "preallocate": False,
    }


# As one with the extension for custom calls on GPUs (type 0) behind another one.
GPU_PLUGIN = """
#include <stddef.h>
struct Extension { size_t size; int type; struct Extension* next; };
static struct Extension gpu = {sizeof gpu, 0, 0}, other = {sizeof other, 5, &gpu};
static struct { size_t size; struct Extension* extensions; } api = {sizeof api, &other};
void* GetPjrtApi(void) { return &api; }
"""
