"""`intarsia ops`; the other commands have their tests where their subjects have them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

import jax
import pytest
from intarsia import __version__, _native, cli


def test_every_target_is_listed(capsys) -> None:
    assert cli.main(["ops"]) == 0
    ops = _native.main_library().ops.values()
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == sorted(
        {name for op in ops for name in (op.target, op.target_alias) if name}
    )
    assert all(len(row.split()) > 3 for row in rows), "a summary is missing"
    of_gpus = next(row for row in rows if "all_reduce_fused_add_rms_norm" in row)
    built = _native.main_library().manifest["cuda"] is not None
    assert ("not built" in of_gpus) != built and ("  CUDA" in of_gpus) == built


def test_the_manifest_is_printed(capsys) -> None:
    assert cli.main(["ops", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == _native.main_library().manifest


def test_a_reader_that_has_enough() -> None:
    script = "import sys; from intarsia.cli import main; sys.exit(main(['ops', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 0


def test_the_version_is_told(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"intarsia {__version__}\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError(), "out of memory"),
        (ValueError(), "ValueError"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: No such file or directory"),
    ],
)
def test_no_error_is_an_empty_line(monkeypatch, capsys, error: Exception, text: str) -> None:
    monkeypatch.setattr(cli.ops, "main", lambda args: (_ for _ in ()).throw(error))
    assert cli.main(["ops"]) == 2
    assert capsys.readouterr().err == f"intarsia ops: {text}\n"


def test_what_jax_says_where_memory_ends_is_one_line(monkeypatch, capsys) -> None:
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory: 9 bytes.\nBuffers:\n 1")
    monkeypatch.setattr(cli.ops, "main", lambda args: (_ for _ in ()).throw(error))
    assert cli.main(["ops"]) == 2
    assert capsys.readouterr().err == "intarsia ops: Out of memory: 9 bytes.\n"
    error = jax.errors.JaxRuntimeError("INTERNAL: a fault")
    with pytest.raises(RuntimeError, match="INTERNAL: a fault"):
        cli.main(["ops"])


def _interrupt(args: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def _interrupt_in_vain(args: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # as JAX's callbacks do
        _interrupt(args)


def _interrupt_an_import(args: Any) -> None:
    try:
        _interrupt(args)
    except KeyboardInterrupt:
        raise ImportError("an extension") from None


@pytest.mark.parametrize("command", [_interrupt, _interrupt_in_vain, _interrupt_an_import])
def test_an_interrupt_ends_the_line_and_says_nothing(monkeypatch, capfd, command) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(cli.ops, "main", command)
    assert cli.main(["ops"]) == 130
    assert capfd.readouterr() == ("", "\n")
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_that_gets_lost_ends_the_command_all_the_same() -> None:
    script = """
import contextlib, signal, sys, time
from intarsia import cli

def main(args):
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    time.sleep(60)

cli.ops.main = main
sys.exit(cli.main(["ops"]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (run.returncode, run.stderr) == (130, "\n")


@pytest.mark.parametrize("closed", ["1", "2"])
def test_closed_streams_are_no_error(closed) -> None:
    script = "import sys; from intarsia import cli; sys.exit(cli.main(['ops']))"
    command = f'exec "{sys.executable}" -c "{script}" {closed}>&-'
    run = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("platforms", "arguments", "said"),
    [
        ("nowhere", [], "JAX_PLATFORMS=nowhere: JAX has no such device; see intarsia doctor"),
        pytest.param(
            *(
                "",
                ["--device", "cuda"],
                "--device cuda: JAX has no such device; see intarsia doctor",
            ),
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_platform_that_is_not_there_is_one_line(platforms, arguments, said) -> None:
    if arguments and any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    script = (
        "import sys; from intarsia.cli import main; sys.exit(main(['generate'] + sys.argv[1:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "JAX_PLATFORMS": platforms},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"intarsia generate: {said}"
    assert "Traceback" not in ended.stderr


def test_a_device_that_cannot_start_has_its_reason(monkeypatch, capsys) -> None:
    def full() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda': INTERNAL:\n out of memory")

    monkeypatch.setattr(jax, "devices", full)
    assert cli.main(["generate", "--prompt", "x"]) == 2
    [line] = [x for x in capsys.readouterr().err.splitlines() if "out of memory" in x]
    assert line.endswith("'cuda': INTERNAL: out of memory; see intarsia doctor")


def test_a_command_that_is_not_there_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    for word, said in (("genrate", ", did you mean generate?"), ("xyzzy", "doctor\n")):
        with pytest.raises(SystemExit):
            cli.main([word])
        assert capsys.readouterr().err.rstrip("\n").endswith(said.rstrip("\n"))


def test_an_option_that_is_not_there_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    for word, said in (("--modle", ", did you mean --model?"), ("--xyzzy", "")):
        with pytest.raises(SystemExit) as ended:
            cli.main(["generate", word, "x"])
        assert ended.value.code == 2
        assert capsys.readouterr().err.endswith(f"unrecognized arguments: {word} x{said}\n")
