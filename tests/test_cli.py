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


@pytest.mark.parametrize("end", ["return 3", "raise ValueError('a')"])
def test_what_nobody_reads_on_stderr_gets_lost(end: str) -> None:
    """Also what libraries write there by the descriptor."""
    script = f"""
import os, sys
from intarsia import cli

def main(args):
    sys.stdin.read()
    for _ in range(2):
        print("progress", file=sys.stderr, flush=True)
    os.write(2, b"more")
    print("a result")
    {end}

cli.ops.main = main
sys.exit(cli.main(["ops"]))
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        process.stderr.close()
        process.stdin.close()
        assert process.stdout.read() == b"a result\n"
    assert process.returncode == (3 if "return" in end else 2)


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


def test_an_interrupt_while_an_extension_is_initialized_ends_the_command() -> None:
    """Which may crash where one of its imports raises KeyboardInterrupt."""
    script = """
import _imp, signal, sys
from importlib.machinery import ExtensionFileLoader
from intarsia import cli

_imp.exec_dynamic = lambda module: signal.raise_signal(signal.SIGINT)

def main(args):
    try:
        ExtensionFileLoader("x", "x.so").exec_module(sys)
    finally:
        print("went on", flush=True)

cli.ops.main = main
sys.exit(cli.main(["ops"]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "\n")


def test_an_interrupt_counts_from_the_first_argument_on(monkeypatch, capfd) -> None:
    monkeypatch.setattr(cli.generate, "add_arguments", _interrupt)
    assert cli.main(["ops"]) == 130
    assert capfd.readouterr() == ("", "\n")


def test_an_interrupt_in_a_callback_says_nothing(monkeypatch, capfd) -> None:
    class Callback:
        def __del__(self) -> None:
            _interrupt(None)

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    monkeypatch.setattr(cli.ops, "main", lambda args: Callback() and None)
    assert cli.main(["ops"]) == 130
    assert capfd.readouterr() == ("", "\n")


@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_closed_streams_are_no_error(closed) -> None:
    script = """
import sys
from intarsia import cli

def main(args):
    print(sys.stdin.buffer.read(), flush=True)
    sys.stderr.write("")

cli.ops.main = main
sys.exit(cli.main(["ops"]))
"""
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}>&-', sys.executable, script]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
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
