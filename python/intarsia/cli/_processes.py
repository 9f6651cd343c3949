"""The flags for several processes, and how a command runs in each of them."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from intarsia import _environment

if TYPE_CHECKING:
    import jax

    from intarsia.processes import Place, Processes

_METHODS = ("auto", "slurm", "ompi", "mpi4py")
# Flags that a process may have to itself; the others are the run's.
_OWN = {
    *("coordinator_address", "num_processes", "process_id", "distributed", "listen"),
    *("start_timeout", "heartbeat_timeout", "stall_timeout"),
}
_REFUSALS = (ValueError, OSError, ImportError, NotImplementedError, MemoryError)
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags; where `jax.distributed.initialize` has such an argument, they are named as there."""
    group = parser.add_argument_group(
        "several processes, one for each host or GPU, of which the first prints (docs/scaling.md)"
    )
    group.add_argument(
        "--coordinator-address",
        "--coordinator",
        metavar="HOST:PORT",
        help="where process 0 listens, and the others meet it",
    )
    group.add_argument("--num-processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process-id", type=int, metavar="I", help="which one this is, from 0 on")
    group.add_argument(
        "--distributed",
        nargs="?",
        const="auto",
        choices=_METHODS,
        help="take these three from the environment, as JAX reads it: of Slurm, Open MPI or Kubernetes",
    )
    group.add_argument(
        "--data-parallel",
        "--data-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="replicas of the model to divide prompts among, each on devices of its own (default: %(default)s)",
    )
    group.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="this host's address that the coordinator and the CPU's collectives listen at (default: the "
        "coordinator's, and the one that faces it)",
    )
    for name, default, help_text in (
        ("start", 300, "for all processes to have connected"),
        ("heartbeat", 30, "for a sign of life, before a process counts as dead"),
        ("stall", 600, "for a process to get any further"),
    ):
        group.add_argument(
            f"--{name}-timeout",
            type=int,
            default=default,
            metavar="SECONDS",
            help=f"how long to wait {help_text} (default: %(default)s)",
        )


class Share(NamedTuple):
    """What a process has to do beside the others; without others, everything.

    Attributes:
        processes: All of them; None if there are no others.
        replicas: Copies of the model, each of as many processes.
        replica: The one that this process is a part of.
    """

    processes: "Processes | None" = None
    replicas: int = 1
    replica: int = 0

    @property
    def prints(self) -> bool:
        """Whether this is the process that prints."""
        return self.processes is None or self.processes.index == 0

    def of(self, items: Sequence[T]) -> Sequence[T]:
        """The part of a list that is for this replica: neighbors, one more for each of the first replicas."""
        if len(items) < self.replicas:
            raise ValueError(
                f"--data-parallel is {self.replicas}, expected at most {len(items)}: the prompts or pieces of text"
            )
        size, more = divmod(len(items), self.replicas)
        begin = self.replica * size + min(self.replica, more)
        return items[begin : begin + size + (self.replica < more)]

    def gather(self, what: str, value: Any) -> list[Any]:
        """What replicas made, as JSON has it, in their order; nothing but on process 0."""
        if self.processes is None:
            return [value]
        parts = self.processes.gather(what, json.dumps(value))
        each = self.processes.count // self.replicas  # its first process answers for a replica
        return [json.loads(part) for part in parts[::each]]

    def agree(self, what: str, value: int) -> int:
        """Process 0's value."""
        return value if self.processes is None else int(self.processes.share(what, str(value)))

    def local_devices(self, size: int) -> int:
        """How many of a replica's devices a process has.

        Raises:
            ValueError: They cannot be divided among its processes.
        """
        each = 1 if self.processes is None else self.processes.count // self.replicas
        if size % each:
            raise ValueError(
                f"{size} devices (--tensor-parallel or --expert-parallel), expected a multiple of {each}: the "
                "processes of a replica (--num-processes by --data-parallel)"
            )
        return size // each

    def devices(self, size: int) -> "Sequence[jax.Device]":
        """This replica's.

        Raises:
            ValueError: A process has others than it needs.
        """
        import jax

        if self.processes is None:
            return jax.devices()
        if (got := jax.local_device_count()) != (expected := self.local_devices(size)):
            raise ValueError(
                f"a process has {got} devices, expected {expected}: a replica's {size} by its processes; "
                "CUDA_VISIBLE_DEVICES gives a process its own"
            )
        everywhere = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        return everywhere[self.replica * size : (self.replica + 1) * size]

    def stage(self, text: str) -> None:
        """Says what comes next, for the case that it does not end."""
        if self.processes:
            self.processes.stage(text)

    def meet(self, what: str) -> None:
        """Waits for the others to get here."""
        if self.processes:
            self.processes.meet(what)

    def progress(self) -> None:
        """Says that there was some."""
        if self.processes:
            self.processes.progress()


def asked_for(args: argparse.Namespace) -> bool:
    """Whether flags ask for several processes."""
    return bool(args.distributed) or any(value is not None for value in _given(args).values())


@contextlib.contextmanager
def joined(args: argparse.Namespace, program: str, **common: str) -> Iterator[Share]:
    """Runs what is inside in one of several processes, if flags ask for them; its errors end them all.

    `common` are texts that are the same in all of them, beside their flags.
    """
    place = _place(args, common)
    if place is None:
        yield Share()
        return
    from intarsia.processes import Limits, join, print_line

    replicas = args.data_parallel
    if replicas < 1 or place.count % replicas:
        raise ValueError(
            f"--data-parallel is {replicas}, expected a divisor of {place.count}: the number of processes"
        )
    limits = Limits(args.start_timeout, args.heartbeat_timeout, args.stall_timeout)
    with _only_the_first_prints(place.index):
        processes = join(
            place,
            limits,
            listen=args.listen,
            say=lambda line: print_line(f"{program}: {line}"),
        )
        with processes:
            try:
                yield Share(processes, replicas, place.index * replicas // place.count)
            except BrokenPipeError:  # of stdout: whoever reads what process 0 prints has enough
                processes.stop()
            except _REFUSALS as error:
                processes.fail(error, 2)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of a place."""
    return {
        "--coordinator-address": args.coordinator_address,
        "--num-processes": args.num_processes,
        "--process-id": args.process_id,
    }


def _place(args: argparse.Namespace, common: dict[str, str]) -> "Place | None":
    given = _given(args)
    missing = [flag for flag, value in given.items() if value is None]
    if not asked_for(args):
        if args.data_parallel != 1:
            raise ValueError(
                f"--data-parallel is {args.data_parallel}, expected 1: there is one process (docs/scaling.md)"
            )
        return None
    _environment.quiet_xla_log()  # our lines say the rest
    from intarsia.processes import Place, detect_place

    if args.distributed:
        if len(missing) < len(given):
            present = ", ".join(flag for flag in given if flag not in missing)
            raise ValueError(f"--distributed finds {present} by itself, expected no such flag")
        method = None if args.distributed == "auto" else args.distributed
        place = detect_place(method, args.start_timeout)
    elif missing:
        raise ValueError(
            f"several processes need {', '.join(given)}; missing: {', '.join(missing)}"
        )
    else:
        place = Place(*given.values())
    return dataclasses.replace(place, run=_common(args) | common)


def _common(args: argparse.Namespace) -> dict[str, str]:
    """The flags that must be the same in all processes, as text."""
    return {
        name: json.dumps(value, default=str)
        for name, value in vars(args).items()
        if name not in _OWN
    }


@contextlib.contextmanager
def _only_the_first_prints(index: int) -> Iterator[None]:
    """Leaves stdout to process 0's Python code: gloo, which prints there too, gets stderr."""
    own = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with (
            open(os.devnull, "w") as nowhere,
            open(own, "w", closefd=False) as stdout,
            contextlib.redirect_stdout(nowhere if index else stdout),
            contextlib.redirect_stderr(nowhere if index else sys.stderr),
        ):
            yield
    finally:
        os.dup2(own, 1)
        os.close(own)
