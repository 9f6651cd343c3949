"""What is said where a package is missing that only a part of intarsia needs."""

import ast
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
import support
from intarsia import _packages

# What is done, the package that it lacks, who says so, what is to be installed, and what must be there for it to get so
# far. In one process, from what needs least to what needs most: nothing is imported twice.
CASES = [
    ("import intarsia.jax", "jax", "intarsia.jax", "intarsia[jax]", ()),
    ("import intarsia.torch", "torch", "intarsia.torch", "intarsia[torch]", ()),
    ("import intarsia.xla_ops", "torch", "intarsia.xla_ops", "intarsia[torch]", ()),
    (
        "from intarsia.vllm import register_ops",
        "torch",
        "intarsia.vllm.register_ops",
        "intarsia[torch]",
        (),
    ),
    (
        "import intarsia.torch.bridge",
        "jax",
        "intarsia.torch.bridge",
        "intarsia[jax]",
        ("torch",),
    ),
    ("import intarsia.torchax", "jax", "intarsia.torchax", "intarsia[jax]", ()),
    (
        "import intarsia.torchax",
        "torchax",
        "intarsia.torchax",
        "torchax==0.0.13",
        ("jax", "torch"),
    ),
    (
        "import intarsia.torch.backend",
        "jax",
        'torch.compile(backend="intarsia")',
        "intarsia[jax]",
        ("torch",),
    ),
    (
        "import intarsia.torch.backend",
        "torchax",
        'torch.compile(backend="intarsia")',
        "torchax==0.0.13",
        ("jax", "torch"),
    ),
    (
        "import intarsia.pjrt_plugin",
        "torch_xla",
        "the device INTARSIA",
        "intarsia[torch-xla]",
        (),
    ),
]
# Some packages are not installed in the process that runs this: those of the list `lacked`, empty at first.
LACKS = """
import sys
from importlib.machinery import PathFinder

lacked = []

class Lacks(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in lacked else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Lacks
"""
PROGRAM = (
    LACKS
    + """
import json

for i, (statement, package) in json.loads(sys.argv[1]):
    lacked[:] = [package]
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}
    try:
        exec(statement)
    except ModuleNotFoundError as error:
        print(json.dumps([i, str(error)]))
    sys.modules.update(hidden)
"""
)


def lacking(case: tuple) -> list[str]:
    return [name for name in case[-1] if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def said() -> dict[int, str]:
    """The errors of the cases that can be had here."""
    cases = [(i, case[:2]) for i, case in enumerate(CASES) if not lacking(case)]
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.skipif(not _packages.requirements(), reason="intarsia is not installed as a package")
@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{c[0]} without {c[1]}" for c in CASES])
def test_what_needs_it_and_how_to_install_it(said: dict[int, str], i: int) -> None:
    if missing := lacking(CASES[i]):
        pytest.skip(f"no {', '.join(missing)}")
    _, package, part, install, _ = CASES[i]
    package = package.replace("_", "-")
    assert said[i] == f"{part} needs {package}, which is not installed: pip install '{install}'"


def test_what_no_extra_has_comes_without_a_command() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"^a part needs no-such-thing, .* not installed$"),
        _packages.needed_by("a part"),
    ):
        import no_such_thing.below  # noqa: F401


@pytest.mark.skipif(not _packages.requirements(), reason="intarsia is not installed as a package")
def test_what_models_import_an_extra_has() -> None:
    folder = pathlib.Path(_packages.__file__).parent / "models"
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    found -= {"intarsia", "markupsafe", *sys.stdlib_module_names}  # markupsafe is jinja2's
    assert {"gguf", "ml_dtypes"} <= found
    asked = {
        row.package.replace("-", "_")
        for row in _packages.requirements()
        if row.extra in ("jax", "models")
    }
    assert found - asked == set()


def test_without_metadata_there_is_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_packages, "requirements", list)
    with (
        pytest.raises(ModuleNotFoundError, match=r"^a part needs jax, which is not installed$"),
        _packages.needed_by("a part"),
    ):
        raise ModuleNotFoundError(name="jax")


@pytest.mark.parametrize(
    "raised",
    [
        ModuleNotFoundError(name="intarsia._gone"),
        ModuleNotFoundError(name="jax.not_there_yet"),
        ModuleNotFoundError("nobody knows which"),
        ImportError("x"),
        _packages.MissingPackageError("the part within needs jax", name="jax"),
    ],
    ids=["of ours", "of a package that is there", "without a name", "no missing module", "said"],
)
def test_what_is_no_missing_package_stays_what_it_is(raised: ImportError) -> None:
    with pytest.raises(ImportError) as error, _packages.needed_by("a part"):
        raise raised
    assert error.value is raised


@pytest.mark.full
def test_tests_for_a_gpu_are_collected_with_jax_pytest_and_hypothesis_alone(
    tmp_path: pathlib.Path,
) -> None:
    names = "torch torchax torch_xla vllm psutil gguf jinja2 safetensors tokenizers transformers"
    (tmp_path / "lacking.py").write_text(f"{LACKS}lacked += {names.split()}\n")
    command = [sys.executable, "-m", "pytest", "-p", "lacking", "--collect-only", "-q", "-m", "gpu"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", support.ROOT / "tests"],
        cwd=support.ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    for folder in ("models", "torch_frontend", "vllm_plugin"):
        assert f"tests/{folder} left out: no " in done.stdout
    assert "test_ops.py::" in done.stdout
