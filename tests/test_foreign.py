"""A library of ops outside of the tree builds, loads beside ours and runs in a program with it."""

import os
import shutil
import subprocess

import intarsia
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from intarsia.jax import call, simple_add


def configure(build, *options):
    """Configures a copy of tests/foreign outside of it for the CPU; without CMake the test is skipped."""
    cmake = shutil.which("cmake", path=str(support.ROOT / ".venv/bin")) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    source = build.with_name("project")
    shutil.copytree(support.ROOT / "tests" / "foreign", source, dirs_exist_ok=True)
    command = [cmake, "-S", source, "-B", build, "-DINTARSIA_CUDA=off", *options]
    command.append(f"-DINTARSIA_DIR={support.ROOT}")
    if ccache := shutil.which("ccache"):
        command.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    return cmake, subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def library():
    """tests/foreign, copied and built for the CPU, in a folder that stays: core takes half a minute to compile."""
    # One for each of pytest's processes.
    build = support.ROOT / "build" / f"outside{os.environ.get('PYTEST_XDIST_WORKER', '')}" / "build"
    build.parent.mkdir(parents=True, exist_ok=True)
    cmake, configured = configure(build)
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


def test_a_foreign_op_runs_beside_ours(library) -> None:
    assert (library.version, list(library.ops)) == ("1.2.3", ["negate"])
    assert library.find("negate").platforms == ("cpu",)
    assert {handler.target for handler in library.handlers()} == {"foreign.negate"}
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
    with pytest.raises(LookupError, match=r"no op rms_norm; libforeign.so has negate"):
        call("rms_norm", [x], library=library)


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
