"""`intarsia doctor`, and the range of jax versions that it reads from the package's metadata."""

import importlib.metadata
import re
import tomllib

import pytest
import running
import support
from intarsia.cli import doctor

PYPROJECT = tomllib.loads((support.ROOT / "pyproject.toml").read_text())


def test_all_bounds_of_jax_are_one() -> None:
    project = PYPROJECT["project"]["optional-dependencies"]
    rows = [*PYPROJECT["build-system"]["requires"], *project["jax"], *project["cuda13"]]
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


def test_a_package_that_is_not_installed_says_nothing_of_jax(monkeypatch) -> None:
    def requires(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert doctor._oldest("jax") is None


def test_this_machine_is_well(capsys) -> None:
    if "has no CUDA handlers" in (running.why_not("gpu") or ""):
        pytest.skip("a GPU, but a library built without CUDA, is not well")
    assert doctor.main(None) == 0, capsys.readouterr().out
