"""Packages of others, without what they need: `put(folder, names)` makes those in a folder importable.

A module of one of the names is a stand-in, which has whatever it is asked for. What a test calls must not need one.
"""

import importlib.abc
import importlib.machinery
import sys
from unittest import mock


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
