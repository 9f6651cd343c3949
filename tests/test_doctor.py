"""`intarsia doctor`, and the range of jax versions that it reads from the package's metadata."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib

import jax
import pytest
import running
import support
from intarsia import _packages
from intarsia.cli import doctor

PYPROJECT = tomllib.loads((support.ROOT / "pyproject.toml").read_text())


def test_all_bounds_of_jax_are_one() -> None:
    project = PYPROJECT["project"]["optional-dependencies"]
    rows = [*project["jax"], *project["cuda13"], *project["torch-xla"]]
    bounds = [found[1] for row in rows if (found := re.match(r"jax[^>]*>=([\d.]+)", row))]
    assert len(bounds) == 3 and len(set(bounds)) == 1


def test_a_jax_that_is_too_old_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr(doctor, "_version", {"jax": "0.8.2"}.get)
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda name: ["numpy", 'jax>=0.9.1; extra == "jax"']
    )
    report = doctor._Report()
    doctor._check_packages(report)
    assert report.bad == 1
    assert "jax: 0.8.2 is too old, 0.9.1 or newer is needed" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["0.9.1", "0.10.0", "1.0", "0.12.0.dev20260101"])
def test_a_jax_that_will_do(monkeypatch, version: str) -> None:
    monkeypatch.setattr(doctor, "_version", {"jax": version}.get)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ['jax>=0.9.1; extra == "jax"'])
    report = doctor._Report()
    doctor._check_packages(report)
    assert not report.bad


def test_the_metadata_is_read() -> None:
    """As it is written into the installed package: of every extra, and with the version where the doctor looks at it."""
    project = PYPROJECT["project"]["optional-dependencies"]
    got = _packages.requirements()
    asked = [
        (extra, re.match(r"[\w-]+", row)[0]) for extra, rows in project.items() for row in rows
    ]
    assert sorted((row.extra, row.package) for row in got) == sorted(asked)
    rows = [row for extra in doctor._EXTRAS for row in project[extra]]
    of_doctor = [row for row in got if row.extra in doctor._EXTRAS]
    assert sorted(row.package + row.relation + row.version for row in of_doctor) == sorted(rows)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('jax>=0.9.1; extra == "jax"', ("jax", "jax", ">=", "0.9.1", "jax>=0.9.1")),
        ("a[b]>=1.5 ; extra == 'a-b'", ("a-b", "a", ">=", "1.5", "a[b]>=1.5")),
        ('a<5,>=4.57; extra == "x"', ("x", "a", "", "", "a<5,>=4.57")),
        ('a_b; extra == "x"', ("x", "a_b", "", "", "a_b")),
        ("numpy", None),
    ],
)
def test_a_requirement_is_read(monkeypatch, row: str, expected: tuple | None) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [row])
    assert _packages.requirements() == ([expected] if expected else [])


def findings(monkeypatch, capsys, versions: dict[str, str]) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "_version", versions.get)
    report = doctor._Report()
    doctor._check_packages(report)
    return report.bad, capsys.readouterr().out


def test_torch_and_what_goes_with_it(monkeypatch, capsys) -> None:
    project = PYPROJECT["project"]["optional-dependencies"]
    fitting = dict(re.split("[>=]=", row) for row in project["torch-xla"] if "=" in row)
    assert findings(monkeypatch, capsys, fitting | {"torch": "2.9.0+cu128"})[0] == 0
    bad, out = findings(monkeypatch, capsys, fitting | {"torch": "2.11.0"})
    assert bad == 1 and "torch: 2.11.0 does not fit, torch-xla needs 2.9.0: pip install" in out
    del fitting["lammps-jax-pjrt-cpu"]
    bad, out = findings(monkeypatch, capsys, fitting)
    assert not bad and "lammps-jax-pjrt-cpu: not installed, which torch-xla needs" in out
    assert findings(monkeypatch, capsys, {"torch": "2.11.0"})[0] == 0
    bad, out = findings(monkeypatch, capsys, {"torch": "2.8.1"})
    assert bad == 1 and "torch: 2.8.1 is too old, 2.9 or newer is needed" in out


def test_a_package_that_is_not_installed_says_nothing(monkeypatch) -> None:
    def requires(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert _packages.requirements() == []


def test_a_torch_that_does_not_load_is_a_finding(monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no libtorch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = doctor._Report()
    doctor._check_torch(report)
    assert report.bad == (importlib.util.find_spec("torch") is not None)
    assert not report.bad or "torch on cpu: ImportError: no libtorch" in capsys.readouterr().out


def test_a_sum_that_fails_is_a_finding_of_one_line(monkeypatch, capsys) -> None:
    def fail(*args) -> None:
        raise jax.errors.JaxRuntimeError("first\nsecond")

    monkeypatch.setattr(jax.lax, "psum", fail)
    report = doctor._Report()
    doctor._test_sum(report, "cpu", jax.devices("cpu"))
    assert report.bad == 1
    assert capsys.readouterr().out == "  FAIL  sum over 8 devices on cpu: first\n"


def _missing(platform: str | None = None) -> list:
    """jax.devices where there is a CPU alone."""
    if platform == "cuda":
        raise RuntimeError("Backend 'cuda' failed to initialize: no driver.\nmore")
    return [jax.local_devices(backend="cpu")[0]]


def _nothing(platform: str | None = None) -> list:
    raise RuntimeError("Unable to initialize backend 'foo'")


@pytest.mark.parametrize(
    ("devices", "plugin", "variables", "said"),
    [
        (_missing, None, {}, None),
        (_missing, "0.10.2", {}, "JAX on cuda: RuntimeError: Backend 'cuda' failed to initialize"),
        (_missing, "0.10.2", {"JAX_PLATFORMS": "cpu"}, None),
        (_missing, "0.10.2", {"CUDA_VISIBLE_DEVICES": ""}, None),
        (_nothing, None, {}, "jax: RuntimeError: Unable to initialize backend 'foo'"),
    ],
)
def test_a_platform_that_jax_should_have(
    monkeypatch, capsys, devices, plugin: str | None, variables: dict[str, str], said: str | None
) -> None:
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for check in ("packages", "library", "gpu", "torch", "torch_xla"):
        monkeypatch.setattr(doctor, f"_check_{check}", lambda report: None)
    monkeypatch.setattr(doctor, "_version", {"jax-cuda13-plugin": plugin}.get)
    monkeypatch.setattr(jax, "devices", devices)
    assert doctor.main(None) == (said is not None)
    out = capsys.readouterr().out
    assert said is None or f"FAIL  {said}" in out
    assert "more" not in out and ("all well" in out) == (said is None)


def test_an_error_without_a_text_is_placed(monkeypatch) -> None:
    """As JAX's assertion where JAX_PLATFORMS names a platform that is not there."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    try:
        assert not support.ROOT.exists()
    except AssertionError as error:
        error.args = ()
        said = doctor._cause(error)
    assert re.fullmatch(
        r"AssertionError: assert not support\.ROOT\.exists\(\) \(.*test_doctor\.py:\d+\); JAX_PLATFORMS is cuda",
        said,
    )
    monkeypatch.delenv("JAX_PLATFORMS")
    assert doctor._cause(ValueError("first\nsecond")) == "ValueError: first"


def test_another_process_says_what_failed_and_where(monkeypatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", "import textwrap\nassert textwrap is None"],
        capture_output=True,
        text=True,
    )
    said = doctor._cause_of_traceback(done.stderr)
    assert said.startswith('AssertionError: File "<string>", line 2')
    assert "\n" not in said
    assert doctor._cause_of_traceback("a\nImportError: no x\n") == "ImportError: no x"
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert doctor._cause_of_traceback("exit 3") == "exit 3; JAX_PLATFORMS is cuda"


def test_kernels_are_a_line_each() -> None:
    rows = [(f"decode {t} d={d}", "portable") for t in ("bf16", "f32") for d in (64, 128)]
    rows += [("prefill bf16 d=64", "sm90 prefill"), ("prefill bf16 d=96", "none")]
    rows += [(f"weights in int4, rows: {n}", "portable") for n in (1, 16)]
    device = {
        "arch": 90,
        "shared_bytes_per_block": 227 * 1024,
        "kernels": [{"call": call, "kernel": kernel} for call, kernel in rows],
    }
    assert doctor._kernels_of(device) == [
        "as sm_90 with 227 KB of shared memory per block",
        "portable: decode bf16 d=64,128; decode f32 d=64,128; weights in int4, rows: 1,16",
        "sm90 prefill: prefill bf16 d=64",
        "none: prefill bf16 d=96",
    ]


@pytest.mark.parametrize(
    "left_out", [["_check_torch_xla"], pytest.param([], marks=pytest.mark.full)], ids=str
)
def test_this_machine_is_well(monkeypatch, capsys, left_out: list[str]) -> None:
    """In `make test-full` torch_xla too, which takes as long to import as all other tests of this file."""
    for check in left_out:
        monkeypatch.setattr(doctor, check, lambda report: None)
    if "has no CUDA handlers" in (running.why_not("gpu") or ""):
        pytest.skip("a GPU, but a library built without CUDA, is not well")
    healthy = doctor.main(None) == 0
    out = capsys.readouterr().out
    assert healthy, out
    assert "sum over 8 devices on cpu: largest error" in out
