"""The library as a PJRT plugin around another one: what torch_xla sees, and what it is told when there is none."""

import ctypes.util
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
from intarsia import _native

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


def cpu_plugin() -> pathlib.Path:
    spec = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if not spec:
        pytest.skip("no plugin for the CPU; the extra [torch-xla] brings it")
    return pathlib.Path(spec.origin).parent / "pjrt_c_api_cpu_plugin.so"


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


def test_a_program_runs_on_the_device() -> None:
    assert python(USER, PJRT_DEVICE="INTARSIA").splitlines() == ["INTARSIA 1", "10"]


def test_torch_xla_says_why_there_is_no_device() -> None:
    program = """
import torch, torch_xla
try: torch_xla.device()
except RuntimeError as error: print(error)
"""
    text = python(program, PJRT_DEVICE="INTARSIA", INTARSIA_PJRT_PLUGIN="/no/such.so")
    assert "intarsia: cannot load the PJRT plugin: /no/such.so" in text


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


def test_the_optimized_program_copies_no_cache(tmp_path: pathlib.Path) -> None:
    """Two caches of one size, in the order in which XLA by itself would swap them."""
    program = """
import torch, torch_xla, intarsia.torch
key_cache, value_cache = (torch.zeros(4, 16, 2, 64).to("xla") for _ in range(2))
new, slots = torch.ones(3, 2, 64).to("xla"), torch.tensor([1, 2, 3]).to("xla")
torch.ops.xla_gpu.reshape_and_cache_flash(new, new, key_cache, value_cache, slots)
torch_xla.sync(wait=True)
print(int(key_cache.cpu().sum()))
"""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    assert python(program, PJRT_DEVICE="INTARSIA", XLA_FLAGS=flags) == str(3 * 2 * 64)
    modules = [path.read_text() for path in tmp_path.glob("*after_optimizations.txt")]
    (module,) = (text for text in modules if "intarsia.reshape_and_cache_flash" in text)
    assert len(re.findall(r"\{\d\}: \(\d, \{\}, may-alias\)", module.splitlines()[0])) == 2
    assert " copy(" not in module
