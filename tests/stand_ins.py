"""Packages of others, without what they need: `put(folder, names)` makes those in a folder importable, `run` tests one.

A module of one of the names is a stand-in, which has whatever it is asked for. What a test calls must not need one.
"""

import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import support


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{x}.") for x in self._names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__name__=spec.name, __path__=[])

    def exec_module(self, module):
        pass


def put(folder: str, names: tuple[str, ...]) -> None:
    sys.meta_path.insert(0, _StandIns(names))
    sys.path.append(folder)


def run(package: Path, code: str, **environment: str) -> None:
    """Runs code, whose first argument is the package's folder, in a process of its own; skips where there is no such folder."""
    if not package.exists():
        pytest.skip(f"no {package.relative_to(support.ROOT)}: make setup-dev puts it there")
    pytest.importorskip("flax")
    path = os.pathsep.join([str(support.ROOT / "tests"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}", package],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
