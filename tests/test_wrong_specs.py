"""What the compiler says of a wrong spec: tests/core/wrong_specs.cc must not compile, for the reasons that it states."""

import functools
import os
import re
import shutil
import subprocess

import pytest
import support

SOURCE = support.ROOT / "tests" / "core" / "wrong_specs.cc"
FAULTS = re.findall(r"^// fault: (.*)$", SOURCE.read_text(), re.M)


@functools.cache
def said() -> list[str]:
    """The faults that the compiler names, in its order."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", f"-I{support.ROOT}"]
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run([*command, SOURCE], capture_output=True, text=True, env=environment)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    if "Free Software Foundation" not in version:
        pytest.skip("another compiler than GCC prints template arguments in its own way")
    assert done.returncode == 1 and "warning" not in done.stderr, done.stderr
    found = re.findall(r'FaultInSpec<intarsia::FaultText<\d+>\{"(.*)"\}>', done.stderr)
    assert len(found) == done.stderr.count("error: static assertion failed"), done.stderr
    return [fault.replace('\\"', '"') for fault in found]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.partition(":")[0])
def test_the_compiler_names_op_and_field(fault: str) -> None:
    assert any(line.startswith(fault) for line in said()), said()


def test_no_other_spec_is_refused() -> None:
    """Each op of the file has one fault; the first one, `right`, has none."""
    assert len(said()) == len(FAULTS)
