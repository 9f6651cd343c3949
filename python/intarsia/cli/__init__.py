"""The `intarsia` command: generate, perplexity, export, ops, doctor."""

import argparse
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from intarsia import __version__
from intarsia._packages import needed_by
from intarsia._suggest import did_you_mean
from intarsia.cli import (
    _interrupts,
    _processes,
    _streams,
    doctor,
    export,
    generate,
    ops,
    perplexity,
)
from intarsia.models.memory import JAX_OUT_OF_MEMORY

_COMMANDS = {
    "generate": (
        generate,
        "generate text with a small LLM whose every step is one XLA program of our ops",
    ),
    "perplexity": (perplexity, "tell how well a model predicts a text"),
    "export": (export, "write a model as a Hugging Face directory, for vLLM and transformers"),
    "ops": (ops, "list the registered targets by platform"),
    "doctor": (doctor, "find out what is wrong with an installation"),
}


_SECONDS_TO_END, _SECONDS_TO_END_OF_SEVERAL = 1, 8
"""After Ctrl-C. Of several processes, one takes up to 5.5 s to tell the others (intarsia/processes/endings.py)."""


class _PrintCmakeDir(argparse.Action):
    """As argparse's "version", which breaks a long path into lines."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(_cmake_dir())
        parser.exit()


def main(argv: list[str] | None = None) -> int:
    """Runs one subcommand; returns its exit status. A wrong call is one line on stderr, status 2."""
    with _interrupts.ending(_SECONDS_TO_END) as interrupted, _streams.usable():
        try:
            args = _parsed(argv)
            if hasattr(args, "num_processes") and _processes.asked_for(args):
                interrupted.seconds = _SECONDS_TO_END_OF_SEVERAL
            return _run(args, interrupted)
        except KeyboardInterrupt:
            return _interrupts.STATUS


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="intarsia", description=__doc__)
    parser.add_argument("--version", action="version", version=f"intarsia {__version__}")
    parser.add_argument(
        "--cmake-dir",
        action=_PrintCmakeDir,
        nargs=0,
        help="print the folder for -Dintarsia_DIR=..., where find_package(intarsia) looks, and exit",
    )
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, (module, summary) in _COMMANDS.items():
        module.add_arguments(subparsers.add_parser(name, help=summary, description=summary))
    given = sys.argv[1:] if argv is None else argv
    if given and not given[0].startswith("-") and given[0] not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        parser.error(f"no command {given[0]}, expected {known}{did_you_mean(given[0], _COMMANDS)}")
    args, unknown = parser.parse_known_args(given)
    if unknown:
        command = subparsers.choices[args.command]
        options = [option for action in command._actions for option in action.option_strings]
        command.error(
            f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0], options)}"
        )
    return args


def _run(args: argparse.Namespace, interrupted: threading.Event) -> int:
    try:
        with needed_by("the command"):
            status = _COMMANDS[args.command][0].main(args) or 0
        sys.stdout.flush()  # here, where a closed pipe can be told from an error
    except BrokenPipeError:  # `intarsia ops | head -3`: whoever reads has enough
        _streams.drop(sys.stdout)
        return 0
    except (ValueError, OSError, ImportError, NotImplementedError, MemoryError) as error:
        if not interrupted.is_set():
            print(f"intarsia {args.command}: {_said(error)}", file=sys.stderr)
            return 2
    except RuntimeError as error:
        _, of_jax, text = str(error).partition(JAX_OUT_OF_MEMORY)
        if not of_jax:
            raise
        line = text.partition("\n")[0]  # of many, where XLA lists its buffers
        print(f"intarsia {args.command}: {line}", file=sys.stderr)
        return 2
    return _interrupts.STATUS if interrupted.is_set() else status


def _cmake_dir() -> Path:
    """The folder of intarsiaConfig.cmake: in a wheel beside the sources that it brings, or the checkout's."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "sdk" / "cmake"
    return installed if installed.exists() else package.parents[1] / "cmake"


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return str(error) or "out of memory"
    return str(error) or type(error).__name__
