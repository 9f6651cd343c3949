"""Packages that only a part of intarsia needs, and what to install where one is missing."""

import contextlib
import importlib.metadata
import re
from collections.abc import Iterator
from typing import NamedTuple

# Its extra pins torch as well, which it does not need.
_BY_ITSELF = ("torchax",)


class Requirement(NamedTuple):
    """What an extra of ours asks for."""

    extra: str
    package: str
    relation: str
    """">=" or "=="; "" if any version will do, or what is asked for is another one."""
    version: str
    text: str
    """The whole, as pip takes it."""


_FORM = re.compile(
    r"""(([\w-]+)(?:\[[\w,-]+\])?(?:(>=|==)([\d.]+))?[^;]*?)\s*;\s*extra == ["']([\w-]+)["']"""
)


def requirements() -> list[Requirement]:
    """What the extras ask for, by intarsia's own metadata; nothing where it is not installed as a package."""
    try:
        rows = importlib.metadata.requires("intarsia") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = (_FORM.fullmatch(row) for row in rows)
    return [Requirement(m[5], m[2], m[3] or "", m[4] or "", m[1]) for m in found if m]


def install(extra: str) -> str:
    """The command that installs an extra of ours."""
    return f"pip install 'intarsia[{extra}]'"


def remedy(module: str) -> str | None:
    """The command that installs the package of a module; None if no extra of ours has it."""
    package = _package(module)
    found = {row.extra: row for row in requirements() if _package(row.package) == package}
    if not found:
        return None
    row = found.get(package) or next(iter(found.values()))
    return f"pip install '{row.text}'" if package in _BY_ITSELF else install(row.extra)


class MissingPackageError(ModuleNotFoundError):
    """A package that a part of intarsia needs, and how to install it."""


@contextlib.contextmanager
def needed_by(part: str) -> Iterator[None]:
    """Makes a missing package an error that says what needs it and, if an extra of ours has it, how to install it.

    A package that is there and lacks a module is another one than was meant, as a rule an older one: that error stays. So
    does what a part within has said.

    Example:
      >>> with needed_by("intarsia.jax"):
      ...     import jax
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        if error.name in (None, "intarsia") or "." in error.name:
            raise
        command = remedy(error.name)
        text = f"{part} needs {_package(error.name)}, which is not installed"
        text += f": {command}" if command else ""
        raise MissingPackageError(text, name=error.name) from error


def _package(module: str) -> str:
    return module.partition(".")[0].replace("_", "-")
