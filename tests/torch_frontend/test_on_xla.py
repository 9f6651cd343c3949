"""Runs the tests of tests/torch_frontend/xla in a process of their own, since a process has one device for torch_xla."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent / "xla"


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="no torch_xla")
@pytest.mark.skipif("PJRT_DEVICE" in os.environ, reason="this is such a process")
def test_on_xla(tmp_path: pathlib.Path) -> None:
    """XLA's modules are written where test_xla_in_place.py reads one."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    if os.environ.get("INTARSIA_TEST_FULL") == "1":
        command += ["-m", ""]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = os.environ | {"PJRT_DEVICE": "INTARSIA", "XLA_FLAGS": flags}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and " skipped" not in done.stdout, done.stdout
