"""intarsia doctor: versions, GPU, registration, and a self test on each platform."""

import argparse
import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from intarsia import __version__, _environment, _native
from intarsia._packages import Requirement, install, requirements

_PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
    "torch",
    "torch_xla",
    "torchax",
    "flax",
    "lammps-jax-pjrt-cpu",
    "vllm",
    "intarsia-vllm",
    "gguf",
    "tokenizers",
)
# What intarsia's metadata asks for under an extra matters where this package, the extra's own, is installed.
_EXTRAS = {"jax": "jax", "torch": "torch", "torch-xla": "torch_xla"}


class _Report:
    """Prints a line a finding and remembers whether one of them was bad."""

    def __init__(self) -> None:
        self.bad = 0

    def ok(self, what: str, text: str) -> None:
        print(f"  ok    {what}: {text}")

    def note(self, what: str, text: str) -> None:
        print(f"  -     {what}: {text}")

    def problem(self, what: str, text: str) -> None:
        self.bad += 1
        print(f"  FAIL  {what}: {text}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # no options


def main(args: argparse.Namespace) -> int:
    del args
    report = _Report()
    print(f"intarsia {__version__}, Python {platform.python_version()}, {platform.platform()}")
    for check in (
        _check_packages,
        _check_library,
        _check_gpu,
        _check_jax,
        _check_torch,
        _check_torch_xla,
    ):
        try:
            check(report)
        except Exception as error:  # a doctor reports what he finds, whatever it is
            report.problem(check.__name__.removeprefix("_check_"), _cause(error))
    print("all well" if not report.bad else f"{report.bad} problem(s) found")
    return min(report.bad, 1)


def _cause(error: Exception) -> str:
    """What an error says in a line; where it says nothing, as a bare assertion does, what failed and where."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    if not text:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{frame.line} ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {text}{_platforms_chosen()}"


def _platforms_chosen() -> str:
    chosen = ",".join(sorted(_environment.jax_platforms()))
    return f"; JAX_PLATFORMS is {chosen}" if chosen else ""


def _cause_of_traceback(text: str) -> str:
    """The same of what another process left on stderr."""
    *above, last = text.strip().splitlines() or ["no output"]
    if last.endswith("Error"):  # a bare assertion: what failed, and where
        places = [i for i, line in enumerate(above) if line.lstrip().startswith('File "')]
        last = " ".join([f"{last}:", *(line.strip() for line in above[places[-1] :][:2])])
    return last + _platforms_chosen()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_packages(report: _Report) -> None:
    for package in _PACKAGES:
        if version := _version(package):
            report.ok(package, version)
    if _version("jax") is None:
        report.note("jax", f"not installed; `{install('jax')}` for intarsia.jax")
    if _version("torch") is None:
        report.note("torch", f"not installed; `{install('torch')}` for intarsia.torch")
    needed = requirements()
    if not needed:
        report.note("intarsia", "not installed as a package: nothing says which versions it needs")
    for row in needed:
        if row.extra in _EXTRAS and _version(_EXTRAS[row.extra]) is not None:
            _check_version(report, row)


def _check_version(report: _Report, row: Requirement) -> None:
    got, command = _version(row.package), install(row.extra)
    if got is None:
        report.note(row.package, f"not installed, which {row.extra} needs: {command}")
    elif row.relation == ">=" and _numbers(got) < _numbers(row.version):
        text = f"{got} is too old, {row.version} or newer is needed: {command}"
        report.problem(row.package, text)
    elif row.relation == "==" and _numbers(got) != _numbers(row.version):
        text = f"{got} does not fit, {row.extra} needs {row.version}: {command}"
        report.problem(row.package, text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _check_library(report: _Report) -> None:
    library = _native.main_library()
    cuda = library.manifest["cuda"]
    partly = "".join(
        f", {op.name} on {', '.join(op.platforms)} alone"
        for op in library.ops.values()
        if len(op.platforms) == 1
    )
    report.ok(
        "library",
        f"{library.path.name} {library.version}, {len(library.ops)} ops{partly}, "
        + f"{library.manifest['isa']}, "
        + (f"CUDA {cuda}" if cuda else "without CUDA"),
    )
    if library.version != __version__:
        report.problem(
            "library", f"version {library.version} under package {__version__}: reinstall"
        )


def _check_gpu(report: _Report) -> None:
    if not shutil.which("nvidia-smi"):
        report.note("GPU", "no nvidia-smi on PATH: CPU only")
        return
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    for line in subprocess.run(
        query, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        name, driver, capability = (field.strip() for field in line.split(","))
        text = f"{name}, driver {driver}, compute capability {capability}"
        if float(capability) < 8.0:
            report.problem("GPU", f"{text}; 8.0 or newer is needed")
        else:
            report.ok("GPU", text)
    for device in _native.main_library().devices():
        what = f"kernels on GPU {device['index']}"
        if "error" in device:
            report.problem(what, device["error"])
        else:
            first, *kernels = _kernels_of(device)
            report.ok(what, first)
            for line in kernels:
                print(f"          {line}")


def _kernels_of(device: Mapping[str, Any]) -> list[str]:
    """The GPU, then a line for each kernel with the calls that it gets: prefill bf16 d=64,96; weights in int4, rows: 1,16."""
    kilobytes = device["shared_bytes_per_block"] // 1024
    calls: dict[str, dict[str, list[str]]] = {}
    for row in device["kernels"]:
        [call] = re.findall(r"^(?:.* d=|.*: |.*)", row["call"])
        calls.setdefault(row["kernel"], {}).setdefault(call, []).append(row["call"][len(call) :])
    lines = [f"as sm_{device['arch']} with {kilobytes} KB of shared memory per block"]
    for kernel, of in calls.items():
        chosen = "; ".join(call + ",".join(sizes) for call, sizes in of.items())
        lines.append(f"{kernel}: {chosen}")
    return lines


def _check_jax(report: _Report) -> None:
    if importlib.util.find_spec("jax") is None:
        return
    import jax

    from intarsia.jax import register

    registered: dict[str, int] = {}
    for handler in register(_native.main_library()):
        registered[handler.platform] = registered.get(handler.platform, 0) + 1
    report.ok(
        "registration", ", ".join(f"{n} targets on {p}" for p, n in sorted(registered.items()))
    )
    jax.devices()  # where it raises, JAX has no device at all
    for name in ("cpu", "cuda"):
        try:
            devices = jax.devices(name)
        except RuntimeError as error:
            if name == "cuda" and _wants_gpus():
                report.problem(f"JAX on {name}", _cause(error))
            else:
                report.note(f"JAX on {name}", "no such device")
            continue
        if name == "cuda" and "CUDA" not in registered:
            report.problem("JAX on cuda", "JAX has a GPU but this library was built without CUDA")
            continue
        _self_test(report, name, lambda device=devices[0]: jax.default_device(device))
        if len(devices) > 1:
            _test_sum(report, name, devices)


def _wants_gpus() -> bool:
    """Whether JAX has a plugin for GPUs and may choose it. Where it is told to choose it, `jax.devices()` fails without a GPU."""
    plugins = ("jax-cuda13-plugin", "jax-cuda12-plugin")
    told_otherwise = _environment.jax_platforms() or _environment.hides_gpus()
    return not told_otherwise and any(_version(plugin) for plugin in plugins)


def _check_torch(report: _Report) -> None:
    if importlib.util.find_spec("torch") is not None:
        _test_in_torch(report, "torch on cpu", "torch", "cpu")


def _check_torch_xla(report: _Report) -> None:
    if importlib.util.find_spec("torch_xla") is not None:
        _test_in_torch(report, "torch_xla on INTARSIA", "torch_xla", "xla", PJRT_DEVICE="INTARSIA")


def _test_in_torch(
    report: _Report, what: str, module: str, device: str, **environment: str
) -> None:
    """In a process of its own: torch, which may not load, and torch_xla, which has one device a process."""
    program = (
        f"import torch, {module}, intarsia.torch\n"
        f"x = torch.linspace(-1, 1, 64).reshape(2, 32).to({device!r})\n"
        "got = torch.ops.xla_gpu.rms_norm(x).cpu()\n"
        "want = torch.nn.functional.rms_norm(x.cpu(), (32,), eps=1e-6)\n"
        "print((got - want).abs().max().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=_environment.child(JAX_TRACEBACK_FILTERING="off", **environment),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        report.problem(what, _cause_of_traceback(done.stderr or f"exit {done.returncode}"))
        return
    _judge(report, f"rms_norm by {what}", float(done.stdout.splitlines()[-1]))


def _self_test(report: _Report, name: str, on_device: Callable) -> None:
    import jax
    import numpy as np

    from intarsia.jax import rms_norm

    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    with on_device():
        got = np.asarray(jax.jit(rms_norm)(x))
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    _judge(report, f"rms_norm on {name}", float(np.abs(got - want).max()))


def _test_sum(report: _Report, name: str, devices: list) -> None:
    """A sum over all devices, as tensor parallelism needs it."""
    import jax
    import numpy as np

    count, mesh = len(devices), jax.sharding.Mesh(devices, ("all",))
    rows = jax.sharding.PartitionSpec("all")
    add = jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=rows, out_specs=rows)
    x = np.arange(32 * count, dtype=np.float32).reshape(count, 32)  # exact in any order
    what = f"sum over {count} devices on {name}"
    try:
        error = float(np.abs(np.asarray(jax.jit(add)(x)) - x.sum(0)).max())
    except jax.errors.JaxRuntimeError as failure:
        hint = "; from jax 0.12 on NCCL must be 2.29 or newer" if name == "cuda" else ""
        report.problem(what, (str(failure).splitlines() or [repr(failure)])[0] + hint)
        return
    _judge(report, what, error)


def _judge(report: _Report, what: str, error: float) -> None:
    if error < 1e-5:
        report.ok(what, f"largest error {error:.1e}")
    else:
        report.problem(what, f"largest error {error:.1e}, expected below 1e-5")
