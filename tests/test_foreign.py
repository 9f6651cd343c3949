"""A library of ops outside of the tree builds, loads beside ours and runs in a program with it."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import intarsia
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from intarsia import cli
from intarsia.jax import call, simple_add


def find_cmake() -> str:
    cmake = shutil.which("cmake", path=str(support.ROOT / ".venv/bin")) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    return cmake


def install(prefix) -> Path:
    """Installs what a wheel has for CMake; the folder of its package files. Nothing is compiled."""
    cmake, build = find_cmake(), prefix.with_name("configured")
    for command in (
        [cmake, "-S", support.ROOT, "-B", build, "-DINTARSIA_CUDA=off"],
        [cmake, "--install", build, "--prefix", prefix, "--component", "sdk"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return prefix / "intarsia" / "sdk" / "cmake"


def configure(build, *options, found=f"-DINTARSIA_DIR={support.ROOT}"):
    """Configures a copy of tests/foreign outside of it for the CPU; without CMake the test is skipped."""
    cmake = find_cmake()
    source = build.with_name("project")
    shutil.copytree(support.ROOT / "tests" / "foreign", source, dirs_exist_ok=True)
    command = [cmake, "-S", source, "-B", build, "-DINTARSIA_CUDA=off", found, *options]
    if ccache := shutil.which("ccache"):
        command.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    return cmake, subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def library():
    """tests/foreign, copied and built for the CPU by installed sources, in a folder that stays: core takes half a minute."""
    build = support.ROOT / "build" / "outside" / "build"
    build.parent.mkdir(parents=True, exist_ok=True)
    with (build.parent / "lock").open(
        "w"
    ) as lock:  # of pytest's processes one builds, and the others find it done
        fcntl.flock(lock, fcntl.LOCK_EX)
        package = install(build.with_name("installed"))
        # What is tested here is no speed, and optimizing takes most of a compiler's time.
        options = ("-DCMAKE_CXX_FLAGS_RELEASE=-O0",)
        cmake, configured = configure(build, *options, found=f"-Dintarsia_DIR={package}")
        assert configured.returncode == 0, configured.stdout + configured.stderr
        built = subprocess.run([cmake, "--build", build, "-j2"], capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
        return intarsia.load_ops(build / "libforeign.so")


def test_a_foreign_library_compiles_no_family_that_it_does_not_name(library, tmp_path) -> None:
    objects = [path.name for path in library.path.parent.glob("CMakeFiles/**/*.o")]
    assert "library.cc.o" in objects
    # Attention, and the PJRT plugin of the project's own library.
    assert not {"forward.cc.o", "forward_cpu.cc.o", "wrapper.cc.o"} & set(objects)

    _, configured = configure(
        tmp_path / "named", "-DFAMILIES=attention;norm", "-DCMAKE_EXPORT_COMPILE_COMMANDS=on"
    )
    assert configured.returncode == 0, configured.stdout + configured.stderr
    commands = (tmp_path / "named" / "compile_commands.json").read_text()
    assert "src/attention/cpu/forward.cc" in commands and "src/quant/" not in commands

    _, configured = configure(tmp_path / "unknown", "-DFAMILIES=intention")
    assert configured.returncode != 0
    assert "foreign: there is no family intention" in configured.stderr


def test_find_package_finds_the_installed_sources_and_their_version(library) -> None:
    cache = (library.path.parent / "CMakeCache.txt").read_text()
    package = library.path.parents[1] / "installed" / "intarsia" / "sdk" / "cmake"
    assert (
        f"intarsia_DIR:PATH={package}\n" in cache
        or f"intarsia_DIR:UNINITIALIZED={package}\n" in cache
    )
    assert not list(package.parent.rglob("*.py"))
    for found in (package, support.ROOT / "cmake"):  # as `intarsia --cmake-dir` says, in a checkout
        script = f"set(PACKAGE_FIND_VERSION %s)\ninclude({found}/intarsiaConfigVersion.cmake)\n"
        script += 'message("${PACKAGE_VERSION} ${PACKAGE_VERSION_COMPATIBLE}")\n'
        for wanted, fits in (("0.1", "ON"), ("99.0", "")):
            path = library.path.parents[1] / "version.cmake"
            path.write_text(script % wanted)
            said = subprocess.run([find_cmake(), "-P", path], capture_output=True, text=True)
            assert said.stderr.strip() == f"{intarsia.__version__} {fits}".strip()


def test_the_command_prints_where_cmake_finds_it(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")  # argparse would break a longer path
    with pytest.raises(SystemExit) as ended:
        cli.main(["--cmake-dir"])
    assert ended.value.code == 0
    assert (Path(capsys.readouterr().out.strip()) / "intarsiaConfig.cmake").is_file()


def test_a_foreign_op_runs_beside_ours(library) -> None:
    assert (library.version, list(library.ops)) == ("1.2.3", ["negate", "row_norm"])
    assert library.find("negate").platforms == ("cpu",)
    targets = {handler.target for handler in library.handlers()}
    assert targets == {"foreign.negate", "foreign.row_norm", "foreign.chain"}
    x = np.linspace(-2, 2, 37, dtype=np.float32)

    @jax.jit
    def program(x):
        (negated,) = call("negate", [x], library=library)
        return simple_add(negated, negated)

    np.testing.assert_array_equal(program(jnp.asarray(x)), -2 * x)
    # vmap asks the spec alone, so it knows ops that this package does not.
    (mapped,) = jax.vmap(lambda x: call("negate", [x], library=library))(np.stack([x, 2 * x]))
    np.testing.assert_array_equal(mapped, np.stack([-x, -2 * x]))
    with pytest.raises(NotImplementedError, match="negate: has no gradient"):
        jax.grad(lambda x: call("negate", [x], library=library)[0].sum())(x)
    gpu = jax.jit(program).trace(x)
    with pytest.raises(NotImplementedError, match="negate: runs on cpu, not in a program for cuda"):
        gpu.lower(lowering_platforms=("cuda",))
    with pytest.raises(LookupError, match=r"no op rms_norm; libforeign.so has negate, row_norm"):
        call("rms_norm", [x], library=library)


def check_row_norm(library) -> None:
    rng = np.random.default_rng(0)
    norm = jax.jit(lambda x: call("row_norm", [x], library=library)[0])
    for shape in ((2, 8), (3, 5, 37), (300, 576), (5, 1), (5, 0), (0, 8), (2, 20000)):
        for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
            x = rng.standard_normal(shape).astype(dtype)
            want = np.sqrt((x.astype(np.float64) ** 2).sum(-1))
            got = np.asarray(norm(x))
            assert got.dtype == dtype
            within = 2e-6 if dtype == jnp.float32 else 1.01 * jnp.finfo(dtype).eps / 2
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=within)


def test_a_reduction_outside_of_the_tree(library) -> None:
    check_row_norm(library)


def find_nvcc() -> str:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    return nvcc


@pytest.mark.full
def test_its_cuda_half_compiles(tmp_path) -> None:
    options = (f"-DCMAKE_CUDA_COMPILER={find_nvcc()}", "-DCMAKE_CUDA_ARCHITECTURES=80-real")
    cmake, configured = configure(tmp_path / "build", "-DINTARSIA_CUDA=on", *options)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    target = "ops/row_norm/row_norm_cuda.cu.o"  # of CMake's Makefiles, for each object
    command = [cmake, "--build", tmp_path / "build", "--target", target]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.mark.gpu
def test_its_cuda_half_runs(tmp_path) -> None:
    options = (f"-DCMAKE_CUDA_COMPILER={find_nvcc()}", "-DCMAKE_CUDA_ARCHITECTURES=native")
    cmake, configured = configure(tmp_path / "build", "-DINTARSIA_CUDA=on", *options)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    command = [cmake, "--build", tmp_path / "build", "-j", str(os.cpu_count())]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    check_row_norm(intarsia.load_ops(tmp_path / "build" / "libforeign.so"))


def test_a_foreign_op_in_torch(library) -> None:
    torch = pytest.importorskip("torch")
    import intarsia.torch

    fragment = intarsia.torch.register(library, "foreign_tests")
    assert intarsia.torch.register(library, "foreign_tests") is fragment
    negate, x = torch.ops.foreign_tests.negate, torch.linspace(-2, 2, 37)
    assert torch.equal(negate(x), -x)
    compiled = torch.compile(lambda x: negate(x) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), -2 * x)
    assert negate(x.to("meta")).shape == x.shape
    with pytest.raises(NotImplementedError, match="negate: has no gradient"):
        negate(x.requires_grad_()).sum().backward()
    with pytest.raises(RuntimeError, match=r"torch\.ops\.xla_gpu\.\w+ is defined already"):
        intarsia.torch.register.__wrapped__(intarsia._native.main_library(), "xla_gpu")
