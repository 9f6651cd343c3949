"""The rules of docs/design.md that a machine can check."""

import ast
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tomllib

import pytest
import support
from intarsia import _dtypes, _native

ROOT = support.ROOT
SOURCE = (".py", ".cc", ".h", ".cu", ".cuh")
NOT_OURS = {"build", "dist", ".git", ".venv", "__pycache__", "node_modules", "third_party"}
# Folders of src, each with those whose headers and Python modules it may include.
LAYERS = {
    "core": {"core"},
    "activation": {"core", "quant", "activation"},
    "quant": {"core", "quant"},
    "norm": {"core", "quant", "norm"},
    "attention": {"core", "attention"},
    "cache": {"core", "cache"},
    "rotary": {"core", "rotary"},
    "matmul": {"core", "activation", "matmul"},
    "ops": {"core", "quant", "activation", "norm", "attention", "cache", "rotary", "matmul", "ops"},
    "ffi": {"core", "ops", "ffi"},
    "pjrt": {"core", "pjrt"},
    "bridge": {"core", "torch", "bridge"},  # a library of its own
    "torch": {"core", "ops", "torch"},
    "api": {"core", "ops", "ffi", "pjrt", "torch", "api"},
}
# Kernels that ops share, each family in a folder of src.
FAMILIES = LAYERS["ops"] - {"core", "ops"}
# Written by tools/gen.py: as long as there are ops.
GENERATED = "python/intarsia/jax/wire/"
# Files of more than 400 lines, with the reason.
LONG_FILES: dict[str, str] = {}


@functools.cache
def every_file() -> list[pathlib.Path]:
    """The project's files; folders of others' are not entered, for an environment holds 100,000 files."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - NOT_OURS)
        found += [pathlib.Path(folder, name).relative_to(ROOT) for name in names]
    return sorted(found)


def files(*suffixes: str) -> list[pathlib.Path]:
    """Those with these endings."""
    return [path for path in every_file() if path.suffix in suffixes]


@functools.cache
def text(path: pathlib.Path) -> str:
    return (ROOT / path).read_text()


def code(path: pathlib.Path) -> str:
    """C++ without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text(path), flags=re.S)


def occurrences(pattern: str, *suffixes: str, under: str = "src") -> dict[str, list[str]]:
    """Where C++ code has a pattern: by file."""
    found = {}
    for path in files(*suffixes):
        if path.parts[0] == under and (hits := re.findall(pattern, code(path))):
            found[str(path)] = hits
    return found


def test_files_are_short() -> None:
    paths = {str(path): path for path in files(*SOURCE)}
    lengths = {
        p: text(path).count("\n") for p, path in paths.items() if not p.startswith(GENERATED)
    }
    assert {p: n for p, n in lengths.items() if n > 800} == {}
    long = {p for p, n in lengths.items() if n > 400}
    assert long == set(LONG_FILES), "each needs a reason in LONG_FILES, and no other may have one"


def test_python_functions_are_short() -> None:
    long = []
    for path in files(".py"):
        for node in ast.walk(ast.parse(text(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                # A docstring is documentation, however long.
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and body[-1].end_lineno - body[0].lineno >= 80:
                    long.append(f"{path}:{node.lineno} {node.name}")
    assert long == []


def test_docstrings_have_no_surrogates() -> None:
    r"""Python 3.13 does not compile a docstring with a \ud83d that is not raw."""
    wrong = []
    for path in files(".py"):
        for node in ast.walk(ast.parse(text(path))):
            match node:
                case ast.Expr(ast.Constant(str(said))) if re.search(r"[\ud800-\udfff]", said):
                    wrong.append(f"{path}:{node.lineno}")
    assert wrong == []


def imports(path: pathlib.Path) -> list[str]:
    """The modules that a Python file imports, wherever in it, and what it takes from them."""
    found = []
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.parts[0] != "src", f"{path}: a relative import"
            found += [f"{node.module}.{name.name}" for name in node.names]
    return found


def test_folders_depend_downwards() -> None:
    wrong = []
    for path in files(".cc", ".h", ".cu", ".cuh"):
        if path.parts[0] != "src":
            continue
        for include in re.findall(r'#include "src/(\w+)/', text(path)):
            if include not in LAYERS[path.parts[1]]:
                wrong.append(f"{path} includes src/{include}")
    for path in files(".py"):
        if path.parts[0] != "src":
            continue
        for imported in imports(path):
            package, *folders = imported.split(".")
            if package == "intarsia_src" and folders[0] not in LAYERS[path.parts[1]]:
                wrong.append(f"{path} imports {imported}")
    assert wrong == []
    assert {p.name for p in (ROOT / "src").iterdir() if p.is_dir()} - {"__pycache__"} == set(LAYERS)


def test_no_folder_is_taken_for_a_package() -> None:
    """A folder on sys.path is a package if no other has its name: `torch`, where torch is missing."""
    extras = tomllib.loads(text(pathlib.Path("pyproject.toml")))["project"]["optional-dependencies"]
    packages = {
        re.match(r"[\w-]+", row)[0].replace("-", "_") for rows in extras.values() for row in rows
    }
    references = {path.parts[1] for path in files(".py") if path.parts[0] == "src"}
    references -= {"core"}  # tests/core holds tests in C++
    assert {"torch", "jax"} <= packages and "attention" in references
    wrong = []
    for name in packages | references | {"torch", "vllm"}:
        spec = importlib.util.find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            inside = pathlib.Path(folder).is_relative_to(ROOT)
            if inside and not pathlib.Path(folder).is_relative_to(sys.prefix):
                wrong.append(folder)
    assert wrong == []


def test_nothing_below_api_calls_the_public_functions() -> None:
    """`src/api` defines them upon everything else, so a call from below would be a circle."""
    header = text(pathlib.Path("include/intarsia/intarsia.h"))
    functions = re.findall(r"\b(intarsia_\w+|GetPjrtApi)\(", header)
    assert "intarsia_call" in functions and "intarsia_infer" in functions
    found = occurrences(rf"\b(?:{'|'.join(functions)})\(", ".cc", ".h", ".cu", ".cuh")
    # The plugin is made at its first use, by whoever loads the library, and takes the handlers then.
    # It defines GetPjrtApi, which libraries of other ops do not have.
    assert found.pop("src/pjrt/plugin/wrapper.cc") == ["intarsia_handlers(", "GetPjrtApi("]
    assert set(found) == {"src/api/library.cc"}


def room(path: str) -> tuple[str, ...]:
    """The folders of a file that stand for a platform and a GPU architecture: cuda, sm80."""
    return tuple(re.findall(r"/(cpu|cuda|sm\d+)(?=/)", path))


def test_rooms_of_a_family_depend_downwards() -> None:
    """Platforms stay apart, architectures too, and what they share includes neither."""
    wrong = []
    for path in files(".cc", ".h", ".cu", ".cuh"):
        if path.parts[0] != "src" or path.parts[1] not in FAMILIES:
            continue
        for include in re.findall(rf'#include "(src/{path.parts[1]}/[^"]+)"', text(path)):
            ours, theirs = room(str(path)), room(include)
            # The choice among architectures knows their tiles and launches, never their kernels.
            chooses = ours == ("cuda",) == theirs[:1] and include.endswith(".h")
            if theirs != ours[: len(theirs)] and not chooses:
                wrong.append(f"{path} includes {include}")
    assert wrong == []


def test_only_ffi_knows_xla() -> None:
    xla = occurrences(r'#include [<"]xla/', ".cc", ".h", ".cu", ".cuh")
    assert xla and all(path.startswith(("src/ffi/", "src/bridge/handlers.cc")) for path in xla)


def test_vendored_headers_are_those_of_jaxlib() -> None:
    vendored = ROOT / "third_party" / "xla_ffi"
    headers = sorted(path.relative_to(vendored) for path in vendored.rglob("*.h"))
    defined = re.findall(
        r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)",
        (vendored / "xla/ffi/api/c_api.h").read_text(),
    )
    readme = (vendored / "README.md").read_text()
    assert re.findall(r"typed FFI (\d+)\.(\d+)", readme) == [tuple(defined)]
    installed = importlib.metadata.version("jaxlib")
    if installed not in re.findall(r"\d+\.\d+\.\d+", readme):
        pytest.skip(f"the headers are not those of jaxlib {installed}")
    (jaxlib,) = importlib.util.find_spec("jaxlib").submodule_search_locations
    include = pathlib.Path(jaxlib) / "include"
    assert headers == sorted(path.relative_to(include) for path in include.rglob("xla/ffi/**/*.h"))
    for header in headers:
        assert (vendored / header).read_bytes() == (include / header).read_bytes(), header


def test_only_torch_knows_torch() -> None:
    torch = occurrences(r"\baoti_torch_", ".cc", ".h", ".cu", ".cuh")
    assert torch and all(path.startswith("src/torch/") for path in torch)
    assert occurrences(r'#include [<"](?:torch|ATen|c10)/', ".cc", ".h", ".cu", ".cuh") == {}


def test_only_config_reads_the_environment() -> None:
    found = occurrences(r"\bgetenv\b", ".cc", ".h", ".cu", ".cuh")
    assert list(found) == ["src/core/config.cc"]


def test_kernels_neither_allocate_nor_wait() -> None:
    calls = r"\bcuda(?:Malloc|Free|HostAlloc|DeviceSynchronize|StreamSynchronize|Memcpy)\w*\("
    found = occurrences(calls, ".cc", ".h", ".cu", ".cuh")
    allowed = {"src/core/cuda/check_range.cc"}  # only with INTARSIA_CHECK=1, outside of graphs
    assert set(found) <= allowed


def test_nothing_is_printed() -> None:
    printing = r"std::c(?:out|err)\b|\bf?printf\(|\babort\(|\bexit\("
    assert occurrences(printing, ".cc", ".h", ".cu", ".cuh") == {}


def test_macros_are_few() -> None:
    macros = set()
    for path in files(".cc", ".h", ".cu", ".cuh"):
        if path.parts[0] in ("src", "include"):
            macros |= set(re.findall(r"^\s*#define (INTARSIA_\w+)", text(path), re.M))
    guards = {name for name in macros if name.endswith("_H_")}
    assert len(macros - guards) < 10, sorted(macros - guards)


def test_headers_are_guarded() -> None:
    for path in files(".h", ".cuh"):
        assert "#pragma once" in text(path) or path.parts[0] == "include", path


@pytest.mark.parametrize("op", support.listed_ops())
def test_an_op_is_a_folder(op: str) -> None:
    """With a half for each platform that the spec names, and for no other."""
    folder = support.OPS / op
    for name in (f"{op}.h", f"{op}.py"):
        assert (folder / name).is_file(), name
    halves = {"cpu": f"{op}_cpu.cc", "cuda": f"{op}_cuda.cu"}
    there = {platform for platform, name in halves.items() if (folder / name).is_file()}
    assert there == set(support.platforms(op))
    module = support.op_module(op)
    assert module.CASES
    called = () if op in support.NOT_CALLED_ALONE else ("floor", "plain_xla")
    for function in ("arguments", "reference", *called):
        assert callable(getattr(module, function))


def test_ops_inc_is_sorted_and_complete() -> None:
    names = support.listed_ops()
    folders = sorted(p.name for p in support.OPS.iterdir() if (p / f"{p.name}.h").is_file())
    assert names == folders == sorted(_native.main_library().ops)


@pytest.mark.parametrize("op", support.NOT_CALLED_ALONE)
def test_what_is_not_called_alone_has_tests_of_its_own(op: str) -> None:
    assert op in support.listed_ops()
    _, tests = support.NOT_CALLED_ALONE[op]
    assert f'"{op}"' in text(pathlib.Path("tests") / tests)


# ---------------------------------------------------------------------------- the built library


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@functools.cache
def build_folder() -> pathlib.Path | None:
    """The build folder that the package's library comes from, if it is still there."""
    ours = _native.main_library().path.read_bytes()
    for library in ROOT.glob("build/*/libintarsia.so"):
        if library.read_bytes() == ours:
            return library.parent
    return None


def test_make_echoes_commands_only_if_asked() -> None:
    """On a terminal its own lines are to be seen, and commands of 200 columns are not."""
    make = ("make", "--directory", str(ROOT), "--print-data-base", "--dry-run", "help")
    assert ".SILENT:" in run(*make).splitlines()
    assert ".SILENT:" not in run(*make, "VERBOSE=1").splitlines()


def planned(target: str, *variables: str) -> str:
    """What make would run, in an environment with nothing installed, and not as a part of this make."""
    outer = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "TESTS", "ARGS")
    without = (f"--unset={name}" for name in outer)
    make = ("make", "--directory", str(ROOT), "-n", target, "VENV=/nowhere", *variables)
    return run("env", *without, *make)


def test_formatting_needs_the_formatters_alone() -> None:
    commands = planned("format")
    assert "--extra lint" in commands and "clang-format -i" in commands
    assert "--extra test" not in commands and "--preset" not in commands


def test_a_part_of_the_tests_runs_no_others() -> None:
    assert "bin/ctest" in planned("test", "CUDA=off")
    for part in ("TESTS=tests/test_wire.py", "ARGS=-k wire"):
        assert "bin/ctest" not in planned("test", "CUDA=off", part)


def test_exported_symbols_are_those_of_the_header() -> None:
    symbols = run("nm", "--dynamic", "--defined-only", str(_native.main_library().path))
    exported = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    header = text(pathlib.Path("include/intarsia/intarsia.h"))
    assert exported == set(re.findall(r"INTARSIA_API [^;(]*?\b(intarsia_\w+|GetPjrtApi)\(", header))


def test_ctypes_mirror_the_header() -> None:
    header = text(pathlib.Path("include/intarsia/intarsia.h"))
    numbers = dict(re.findall(r"\b(INTARSIA_\w+) = (-?\d+)", header))
    assert numbers["INTARSIA_ABI_VERSION"] == str(_native._ABI_VERSION)
    assert numbers["INTARSIA_MAX_RANK"] == str(_native._MAX_RANK)
    assert numbers["INTARSIA_MAX_RESULTS"] == str(_native._MAX_RESULTS)
    assert numbers["INTARSIA_TORCH_IN_PLACE"] == str(_native._TORCH_IN_PLACE)
    assert numbers["INTARSIA_TORCH_TEXT_ADDRESSES"] == str(_native._TORCH_TEXT_ADDRESSES)
    enums = dict(re.findall(r"enum \{([^}]*)\} intarsia_(\w+);", header))
    named = {what: re.findall(r"INTARSIA_(\w+)", body) for body, what in enums.items()}
    assert named["dtype"] == [*(name.upper() for name in _dtypes.NAMES), "NONE"]
    kinds = [name.removeprefix("ATTR_").lower() for name in named["attribute_type"]]
    assert kinds == list(_native._ATTRIBUTE_TYPES)


def test_instruction_sets_share_no_code() -> None:
    """A weak function of two object files is linked once: from the AVX-512 one, it kills others."""
    folder = build_folder()
    objects = sorted(folder.glob("CMakeFiles/intarsia_k*.dir/**/*_cpu.cc.o")) if folder else []
    if not objects:
        pytest.skip("the object files of the library are not there")
    names = {path.name for path in objects}
    assert names >= {f"{op}_cpu.cc.o" for op in support.op_names("cpu")}
    weak = {}
    for path in objects:
        symbols = run("nm", "-C", "--defined-only", str(path)).splitlines()
        # W: a weak function. Weak data (V, u) is the same in every copy.
        found = [line for line in symbols if re.match(r"\w+ [Ww] ", line)]
        if found:
            weak[f"{path.parts[-4]}/{path.name}"] = found
    assert weak == {}


SIZES = pathlib.Path(__file__).parent / "data" / "library_size.json"


def code_and_data(library: pathlib.Path) -> int:
    """Bytes that are loaded: no symbols, no debug information."""
    text_size, data_size = run("size", str(library)).splitlines()[1].split()[:2]
    return int(text_size) + int(data_size)


def test_library_size() -> None:
    """At most 5 % above what is recorded; who adds more records it: python tests/test_repo.py."""
    folder = build_folder()
    cache = (folder / "CMakeCache.txt").read_text() if folder else ""
    release = re.search(r"^CMAKE_BUILD_TYPE:\w+=(Release)?$", cache, re.M)
    sanitized = re.search(r"^INTARSIA_SANITIZE:\w+=.+$", cache, re.M)
    if not release or sanitized or _native.main_library().manifest["cuda"] is not None:
        pytest.skip("only of a Release build without CUDA")
    recorded = json.loads(SIZES.read_text()).get(platform.machine())
    if recorded is None:
        pytest.skip(f"nothing is recorded for {platform.machine()}")
    size = code_and_data(_native.main_library().path)
    assert size <= 1.05 * recorded, f"{size} bytes, recorded are {recorded}"


if __name__ == "__main__":
    sizes = json.loads(SIZES.read_text()) if SIZES.exists() else {}
    sizes[platform.machine()] = code_and_data(_native.main_library().path)
    SIZES.write_text(json.dumps(sizes, indent=2) + "\n")
