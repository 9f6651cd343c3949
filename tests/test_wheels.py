"""How intarsia finds the library of intarsia-cuda13, and what a release asks for. `make test-wheels` installs the wheels."""

import importlib
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import support
from intarsia import _native

find = _native.main_library.__wrapped__  # without its cache
RELEASE = runpy.run_path(str(support.ROOT / "tools" / "release.py"))
VERSION = (support.ROOT / "python" / "intarsia" / "VERSION").read_text().strip()


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """intarsia-cuda13 as it is installed, with this build's library; gives its folder."""
    folder = tmp_path / "intarsia_cuda13"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "lib" / "libintarsia.so").symlink_to(_native.main_library().path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert "intarsia_cuda13" not in sys.modules
    return folder


def test_the_cuda_half_is_taken_where_it_is_installed(half) -> None:
    assert find().path == half / "lib" / "libintarsia.so"
    assert "intarsia_cuda13" not in sys.modules  # found, not imported


def test_a_half_of_another_version_is_refused(half, monkeypatch) -> None:
    monkeypatch.setattr(_native.Library, "version", "9.8.7")
    text = rf"intarsia-cuda13 9\.8\.7 is installed beside intarsia {VERSION}, .* intarsia-cuda13=={VERSION}"
    with pytest.raises(ImportError, match=text):
        find()


def test_a_half_without_its_library_is_refused(half) -> None:
    (half / "lib" / "libintarsia.so").unlink()
    text = r"intarsia_cuda13/lib/libintarsia\.so does not exist: pip install --force-reinstall"
    with pytest.raises(ImportError, match=text):
        find()


def test_the_guide_lists_the_versions_that_wheels_are_tried_with() -> None:
    groups = tomllib.loads((support.ROOT / "pyproject.toml").read_text())["dependency-groups"]
    text = (support.ROOT / "docs" / "start" / "install.md").read_text()
    rows = re.findall(r"^\| `intarsia` \| .*`make test-wheels` \|$", text, re.M)
    assert len(rows) == 2
    for row, group in zip(rows, ("wheels-oldest", "wheels-newest"), strict=True):
        pins = dict(pin.split("==") for pin in groups[group] if "==" in pin)
        assert pins["jax"] == pins["jaxlib"]
        assert f"| {pins['jax']} | {pins['torch']} |" in row


CHANGELOG = (
    f"# Changelog\n\n## {VERSION} (2026-01-31)\n\n- New.\n\n## 0.0.1 (2025-01-31)\n\n- Old.\n"
)


def test_a_release_needs_one_version_and_a_date() -> None:
    problems = RELEASE["problems"]
    assert problems(VERSION, CHANGELOG, "") == []
    unreleased = CHANGELOG.replace("2026-01-31", "unreleased")
    (problem,) = problems(VERSION, unreleased, "")
    assert problem.startswith(f"CHANGELOG.md: {VERSION} has (unreleased)")
    assert "not committed" in problems(VERSION, CHANGELOG, " M README.md")[0]
    found = problems("9.8.7", CHANGELOG, "")
    assert [row.split()[0] for row in found] == [
        "CHANGELOG.md",
        "plugins/cuda13/pyproject.toml",
        "plugins/vllm/pyproject.toml",
    ]


def test_notes_are_the_section_of_the_version() -> None:
    assert RELEASE["notes"](VERSION, CHANGELOG) == f"# Intarsia {VERSION}\n\n- New.\n"


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"abc")
    (tmp_path / "SHA256SUMS").write_text("an older one")
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert RELEASE["checksums"](tmp_path) == f"{of_abc}  a.whl\n"
