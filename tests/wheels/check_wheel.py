"""What a wheel must do in an environment that has nothing but it, JAX and torch (`nox -s wheels`). Run outside the checkout.

python check_wheel.py FOLDER_OF_THE_CHECKOUT
"""

import pathlib
import subprocess
import sys

MILLISECONDS = 50  # of the processor, for `import intarsia.jax` where JAX is loaded
IMPORT = """
import time, jax, jax.numpy, jax.export, jax.extend
begin = time.process_time()
import intarsia.jax
print(time.process_time() - begin)
"""


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_jax() -> None:
    import intarsia.jax as ij
    import jax
    import jax.numpy as jnp
    import numpy as np

    x, weight = jax.random.normal(jax.random.key(0), (2, 64)), jnp.full(64, 2.0)
    expected = 2 * x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(jax.jit(ij.rms_norm)(x, weight), expected, rtol=1e-5)
    exported = jax.export.export(
        jax.jit(ij.rms_norm), disabled_checks=ij.export_exemptions(), platforms=["cpu", "cuda"]
    )(x, weight)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(x, weight), jax.jit(ij.rms_norm)(x, weight))
    slope = jax.grad(lambda a: ij.rms_norm(a, weight).sum())(x)
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0


def check_torch() -> None:
    import intarsia.torch  # noqa: F401
    import torch

    x, weight = torch.randn(2, 64), torch.full((64,), 2.0)
    expected = 2 * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    got = torch.ops.xla_gpu.rms_norm(x, weight, eps=1e-6)
    torch.testing.assert_close(got, expected)
    compiled = torch.compile(
        lambda a: torch.ops.xla_gpu.rms_norm(a, weight, eps=1e-6), backend="eager"
    )
    torch.testing.assert_close(compiled(x), got)


def main() -> None:
    checkout = pathlib.Path(sys.argv[1]).resolve()
    import intarsia

    library = intarsia.main_library()
    for path in (pathlib.Path(intarsia.__file__), library.path):
        assert checkout not in path.parents or ".venv" in path.parts, f"{path} is the checkout's"
    check_jax()
    check_torch()
    seconds = min(float(run(sys.executable, "-c", IMPORT)) for _ in range(5))
    assert seconds * 1000 < MILLISECONDS, f"import took {seconds * 1000:.0f} ms"
    command = pathlib.Path(sys.executable).parent / "intarsia"
    assert run(command, "doctor").endswith("all well\n")
    folder = run(command, "--cmake-dir").strip()
    assert (pathlib.Path(folder) / "intarsiaConfig.cmake").exists()
    print(f"{library.path.parents[1].name} {library.version}: import {seconds * 1000:.0f} ms")


if __name__ == "__main__":
    main()
