"""Builds the wheels and sdists of a release into a folder: intarsia, intarsia-cuda13, intarsia-vllm (`make wheel`, ADR 25).

Nothing is fetched: what builds them is in .venv (`make wheel` installs it). auditwheel refuses a wheel that needs more than
manylinux_2_28 has, and this program one that is larger than it may be.
"""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
TOOLS = pathlib.Path(sys.executable).parent
PLATFORM = f"manylinux_2_28_{platform.machine()}"
MEGABYTES = {"intarsia": 8, "intarsia-cuda13": 60, "intarsia-vllm": 1}  # at most, of a wheel


def run(*command: object, **variables: str) -> None:
    environment = os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}"} | variables
    subprocess.run([str(part) for part in command], check=True, env=environment)


def build(source: pathlib.Path, folder: pathlib.Path, *settings: str) -> None:
    """The sdist and the wheel of a source tree, by its own backend, without a network."""
    base = (TOOLS / "uv", "build", "--offline", "--no-build-isolation")
    base = (*base, "--python", sys.executable, "--out-dir", folder)
    run(*base, "--sdist", source)
    configured = [part for setting in settings for part in ("-C", setting)]
    run(*base, "--wheel", *configured, source)


def library(source: pathlib.Path, folder: pathlib.Path, *settings: str) -> None:
    """`build`, and the wheel tagged for old distributions, if auditwheel finds it fit for them."""
    raw = folder / "raw"
    build(source, raw, "cmake.define.INTARSIA_MANYLINUX=on", *settings)
    for sdist in raw.glob("*.tar.gz"):
        sdist.replace(folder / sdist.name)
    for wheel in raw.glob("*.whl"):
        audit = (sys.executable, "-m", "auditwheel")
        run(*audit, "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", folder, wheel)
    shutil.rmtree(raw)


def staged() -> pathlib.Path:
    """A copy of the tree that is intarsia-cuda13's: its pyproject.toml and README in the root."""
    stage = ROOT / "build" / "cuda13"
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    kept = {stage / name for name in names if name}
    for old in stage.rglob("*"):
        if old.is_file() and stage / "build" not in old.parents and old not in kept:
            old.unlink()
    for name in filter(None, names):
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, stage / name)  # with its time, so that little is compiled again
    for own in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / "plugins" / "cuda13" / own, stage / own)
    return stage


def check_sizes(folder: pathlib.Path) -> None:
    for wheel in sorted(folder.glob("*.whl")):
        limit = MEGABYTES[wheel.name.partition("-")[0].replace("_", "-")]
        size = wheel.stat().st_size / 1e6
        print(f"{size:6.2f} MB  {wheel.name}")
        if size > limit:
            raise SystemExit(f"{wheel.name} has {size:.1f} MB, expected at most {limit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cuda", action="store_true", help="intarsia-cuda13 too, by nvcc")
    parser.add_argument("--architectures", help="GPUs, as for CMake; default: the release's")
    args = parser.parse_args()
    folder = args.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    library(ROOT, folder, "build-dir=build/wheel")
    if args.cuda:
        chosen = args.architectures
        library(
            staged(), folder, *([f"cmake.define.CMAKE_CUDA_ARCHITECTURES={chosen}"] * bool(chosen))
        )
    build(ROOT / "plugins" / "vllm", folder)
    check_sizes(folder)


if __name__ == "__main__":
    main()
