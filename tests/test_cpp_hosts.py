"""Hosts in C++: the library is found by CMake and pkg-config, and shows what the list says."""

import ctypes
import json
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import intarsia
import pytest
import support
from intarsia import _native
from running import cpu_plugin
from test_foreign import find_cmake
from test_repo import build_folder

HOST = support.ROOT / "examples" / "cpp_host"
SAID = f"""intarsia {intarsia.__version__}: rms_norm gives 0.500
refused: rms_norm: weight has n=5 but x has n=8
"""


def run(*command) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, found: str) -> Path:
    cmake = find_cmake()
    run(cmake, "-S", HOST, "-B", folder, found)
    run(cmake, "--build", folder)
    return folder / "host"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    folder = build_folder()
    sanitized = folder and re.search(
        r"^INTARSIA_SANITIZE:\w+=.+$", (folder / "CMakeCache.txt").read_text(), re.M
    )
    if folder is None or sanitized:
        pytest.skip("the build folder of the library is not there, or for sanitizers")
    prefix = tmp_path_factory.mktemp("hosts") / "moved"
    first = prefix.with_name("first")
    run(find_cmake(), "--install", folder, "--component", "host", "--prefix", first)
    return first.rename(prefix)  # nothing in it names where it was installed


def test_cmake_finds_what_is_installed(installed, tmp_path) -> None:
    there = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    package = {"intarsiaConfig.cmake", "intarsiaConfigVersion.cmake", "VERSION"}
    assert there == {
        *("include/intarsia/intarsia.h", "lib/libintarsia.so", "lib/pkgconfig/intarsia.pc"),
        *(f"lib/cmake/intarsia/{name}" for name in package),
    }
    assert run(build(tmp_path / "host", f"-DCMAKE_PREFIX_PATH={installed}")) == SAID


def test_cmake_finds_a_checkout(installed, tmp_path) -> None:
    assert run(build(tmp_path / "host", f"-Dintarsia_DIR={support.ROOT / 'cmake'}")) == SAID


def test_pkg_config_finds_what_is_installed(installed, tmp_path, monkeypatch) -> None:
    program = shutil.which("pkg-config")
    compiler = shutil.which("c++")
    if program is None or compiler is None:
        pytest.skip("no pkg-config, or no c++")
    monkeypatch.setenv("PKG_CONFIG_PATH", str(installed / "lib" / "pkgconfig"))
    assert run(program, "--modversion", "intarsia").strip() == intarsia.__version__
    flags = run(program, "--cflags", "--libs", "intarsia").split()
    host = tmp_path / "host"
    run(compiler, "-std=c++17", HOST / "host.cc", *flags, f"-Wl,-rpath,{installed}/lib", "-o", host)
    assert run(host) == SAID


def test_exported_symbols_are_listed() -> None:
    """tests/data/symbols.json is what hosts may rely on: a name may come, and none may go."""
    listed = json.loads((support.ROOT / "tests" / "data" / "symbols.json").read_text())
    library = _native.main_library().path
    rows = run("nm", "--dynamic", "--defined-only", library).splitlines()
    assert sorted(row.split()[-1].split("@")[0] for row in rows) == listed["exported"]


def test_needed_libraries_are_listed() -> None:
    """And nothing of C++, Python, torch or CUDA among them."""
    listed = json.loads((support.ROOT / "tests" / "data" / "symbols.json").read_text())
    folder = build_folder()
    if (
        folder is None
        or "INTARSIA_SANITIZE:STRING=\n" not in (folder / "CMakeCache.txt").read_text()
    ):
        pytest.skip("the build folder of the library is not there, or for sanitizers")
    needed = set(re.findall(r"NEEDED +(\S+)", run("objdump", "-p", _native.main_library().path)))
    loader = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
    assert needed - {loader.get(platform.machine())} <= set(listed["needed"])


def test_threads_may_register_with_a_plugin_again() -> None:
    plugin = ctypes.CDLL(str(cpu_plugin()))
    plugin.GetPjrtApi.restype = ctypes.c_void_p
    api = ctypes.c_void_p(plugin.GetPjrtApi())
    register = ctypes.CDLL(str(_native.main_library().path)).intarsia_register_with_pjrt
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: register(api), range(64))) == {0}
    assert register(None) != 0
