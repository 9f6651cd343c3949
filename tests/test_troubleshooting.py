"""docs/troubleshooting.md: the program below a message raises it."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import support

PAGE = support.ROOT / "docs" / "troubleshooting.md"
# Messages without a program, and why.
WITHOUT = {
    "intarsia.torch needs torch, which is not installed": "tests/test_missing_packages.py raises it",
    "libintarsia.so does not exist": "the library is there when tests run",
    "unhandled system error": "needs two GPUs and an old NCCL",
    "rms_norm: torch_xla's device is CPU": "needs a process with another device",
    "cannot load the PJRT plugin": "needs a process with another device",
    "model '/tmp/nomodel' is neither": "tests/models/test_weights.py raises it",
    "Address already in use": "tests/models/test_process_faults.py raises it",
}
COMMON = "import jax, jax.numpy as jnp, intarsia.jax as ij\n"
# Runs programs given as JSON {message: program}, each in a module of its own, and prints what they raise as such.
RUNNER = """
import json, sys, warnings
said = {}
for message, program in json.load(sys.stdin).items():
    with warnings.catch_warnings():
        try:
            exec(compile(program, message, "exec"), {"__name__": "__main__"})
        except Exception as error:
            said[message] = f"{type(error).__name__}: {error}"
        else:
            said[message] = "nothing was raised"
print(json.dumps(said))
"""


def sections() -> dict[str, str | None]:
    """The program below each message, or None."""
    found = {}
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.M)[1:]:
        heading, _, body = section.partition("\n")
        if message := re.fullmatch(r"`(.*)`", heading.strip()):
            programs = re.findall(r"^```python\n(.*?)^```", body, re.S | re.M)
            assert len(programs) <= 1, heading
            found[message[1]] = programs[0] if programs else None
    return found


def run(programs: dict[str, str], **environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(programs),
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_program_raises_its_message() -> None:
    """In three processes: JAX's import is most of the time."""
    groups: dict[str, dict[str, str]] = {"": {}, "INTARSIA_CHECK=1": {}}
    for message, program in sections().items():
        if program is None:
            continue
        first = program.splitlines()[0]
        if re.fullmatch(r"# \w+=\w+", first):
            groups.setdefault(first[2:], {})[message] = COMMON + program
        elif (
            first == "# in a process of its own"
        ):  # one before the library is there, one that adds a second
            groups["INTARSIA_CHECK=1"][message] = program
        elif first == "# torch":
            if importlib.util.find_spec("torch") is not None:
                groups[""][message] = "import torch, intarsia.torch\n" + program
        else:
            groups[""][message] = COMMON + program
    said = {}
    for setting, programs in groups.items():
        said |= run(programs, **dict([setting.split("=")] if setting else []))
    assert {m: text for m, text in said.items() if m not in text} == {}
    assert len(said) > 15


def test_messages_without_a_program_have_a_reason() -> None:
    missing = {message for message, program in sections().items() if program is None}
    for message in missing:
        assert any(message.startswith(known) for known in WITHOUT), message
    assert len(missing) == len(WITHOUT)


def test_messages_without_a_program_are_in_the_sources() -> None:
    """Those that are ours: a message that the sources no longer have leads nobody here."""
    sources = [
        path.read_text()
        for folder in ("python/intarsia", "src")
        for path in (support.ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cc", ".h")
    ]
    for text in (
        "which is not installed",
        "does not exist: run `make build`",
        "whose plugin has no such op",
        "cannot load the PJRT plugin: ",
        "is neither a file nor a directory nor one of ",
    ):
        assert any(text in source for source in sources), text
