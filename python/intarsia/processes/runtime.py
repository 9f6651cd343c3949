"""Joins the processes that run one model, and brings values from one to another: JAX's distributed runtime, bounded in time.

JAX's coordinator, in process 0, knows who is there: a process that sends it no heartbeats has died. JAX would end the others with a
stack trace that names nobody, so here they are recoverable tasks (`jax_enable_recoverability`), which `endings.py` asks about and ends.
Addresses are chosen here too, since JAX's coordinator listens on all interfaces by default, and gloo on whatever the host's name
resolves to.
"""

import contextlib
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.backend import register_backend_factory

from intarsia import _environment
from intarsia.processes import addresses, door
from intarsia.processes.endings import FAREWELL_SECONDS, Endings
from intarsia.processes.peers import PREFIX, Peers
from intarsia.processes.place import Limits, Place
from intarsia.processes.progress import Progress

_DAY_SECONDS = 24 * 3600


def join(
    place: Place,
    limits: Limits | None = None,
    *,
    listen: str | None = None,
    say: Callable[[str], None] | None = None,
    names: Sequence[str] | None = None,
    port_known: bool = False,
) -> "Processes":
    """Makes this process one of several, before JAX has touched a device.

    Args:
        place: Which one, and where they meet.
        limits: Of time.
        listen: The address of this host at which gloo listens, and in process 0 the coordinator. If None, the
            coordinator listens where `place` says, and gloo at the address that faces it.
        say: Prints the line that says why the process ends; on stderr if None.
        names: What lines call each process; its number if None.
        port_known: Whether all know the coordinator's port, which process 0 keeps by a socket of its own. Then nobody asks at
            the door.

    Raises:
        ValueError: It is to listen on all interfaces.
        OSError: The coordinator's port is in use, or the address is none of this host.
        TimeoutError: There is no coordinator.
    """
    listen = listen and listen.strip("[]")
    limits = limits or Limits()
    say = say or print_line
    names = names or [f"process {i}" for i in range(place.count)]
    name = f"{names[place.index]} of {place.count}"
    deadline = addresses.Deadline(limits.start)
    bind = _bind_address(place, listen)
    own = listen or addresses.retry(
        lambda: addresses.facing(place.address), name, place.address, deadline
    )
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    register_backend_factory("cpu", lambda: _cpu_client(own), priority=0, fail_quietly=False)
    late = (  # JAX's coordinator does not say who is missing
        f"{name}: fewer than {place.count} processes connected to the coordinator at {place.coordinator} within "
        f"{limits.start} s"
    )
    with (
        _meeting_point(name, place, bind, deadline, port_known) as (coordinator, bound, missing),
        _bounded(max(deadline.left, 1), lambda: say(late + _named(missing(), names))),
    ):
        jax.distributed.initialize(
            coordinator,
            num_processes=place.count,
            process_id=place.index,
            local_device_ids=place.devices,
            cluster_detection_method="deactivate",
            coordinator_bind_address=bound,
            initialization_timeout=limits.start + FAREWELL_SECONDS,
            heartbeat_timeout_seconds=limits.heartbeat,
            shutdown_timeout_seconds=FAREWELL_SECONDS,
        )
    return Processes(place, limits, say, names)


def _bind_address(place: Place, listen: str | None) -> tuple[str, int]:
    """Where process 0 listens."""
    if listen:
        addresses.refuse_all_interfaces("the address to listen at", listen)
        return listen, place.address[1]
    if bind := _environment.jax_coordinator_bind():
        host, port = addresses.parse("JAX_COORDINATOR_BIND_ADDRESS", bind)
        addresses.refuse_all_interfaces("the host of JAX_COORDINATOR_BIND_ADDRESS", host)
        return host, port
    return place.address


@contextlib.contextmanager
def _meeting_point(
    name: str, place: Place, bind: tuple[str, int], deadline: addresses.Deadline, port_known: bool
) -> Iterator[tuple[str, str, Callable[[], list[int]]]]:
    """The coordinator's address, the one at which it listens, on a port that is kept for it meanwhile, and who has not come, where
    that is known.
    """
    host = place.address[0]
    if port_known:
        if place.index:
            addresses.connected(name, place.address, deadline).close()
        yield place.coordinator, addresses.host_port(*bind), list
    elif place.index:
        port = door.ask(name, place, deadline)
        yield addresses.host_port(host, port), addresses.host_port(bind[0], port), list
    else:
        holder = door.listen(name, bind)
        with addresses.reserved_port(bind[0]) as port:
            missing = door.keep(holder, place, port).missing
            yield addresses.host_port(host, port), addresses.host_port(bind[0], port), missing


def _named(missing: Sequence[int], names: Sequence[str]) -> str:
    return f"; missing: {', '.join(names[i] for i in missing)}" if missing else ""


class Processes:
    """This process and the others.

    As a context, it waits at its end for the others. An error inside ends them all.

    Attributes:
        index: This one's number.
        count: How many there are.
    """

    def __init__(
        self, place: Place, limits: Limits, say: Callable[[str], None], names: Sequence[str]
    ) -> None:
        from jax._src import distributed

        self.index, self.count = place.index, place.count
        self._client: Any = distributed.global_state.client
        peers = Peers(self._client, place.index, names)
        self.name = peers.name
        self._progress = Progress(peers)
        self._endings = Endings(peers, self._progress, limits, say)
        self._made = 0  # keys and barriers

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            try:
                self.finish()
                return
            except BaseException as late:
                error = late
        if isinstance(error, KeyboardInterrupt):
            self.fail(error, 130)
        if isinstance(error, SystemExit):
            self.fail(error, error.code if isinstance(error.code, int) else 1)
        if not isinstance(
            error, jax.errors.JaxRuntimeError
        ):  # whose trace says nothing of what happened elsewhere
            print_line("".join(traceback.format_exception(error)))
        self.fail(error)

    def stage(self, text: str) -> None:
        """Says what this process does from now on, for the case that it stalls."""
        self._progress.mark(text)
        self._progress.tell()

    def mark(self, text: str) -> None:
        """The same at no cost: the others hear of it within a second or two, if it is still true then."""
        self._progress.mark(text)

    def progress(self) -> None:
        """Says that this process got further."""
        self._progress.move()

    def rest(self) -> None:
        """Says that this process has nothing to do, for however long."""
        self._progress.mark("rest")
        self._progress.wait()

    def meet(self, what: str) -> None:
        """Waits for the others to get here: no collective then waits for a process that is not there yet."""
        barrier = self._new(what)
        self._progress.meet(what, barrier.removeprefix(PREFIX))
        self._progress.tell()
        self._client.wait_at_barrier(barrier, _DAY_SECONDS * 1000)
        self.progress()

    def gather(self, what: str, value: str) -> list[str]:
        """Brings a value of each process to process 0, through the coordinator; nothing elsewhere."""
        key = self._new(what)
        self._client.key_value_set(f"{key}/{self.index}", value)
        self.meet(what)
        if self.index:
            return []
        return [self._client.key_value_try_get(f"{key}/{i}") for i in range(self.count)]

    def share(self, what: str, value: str) -> str:
        """Brings a value of process 0 to each process."""
        key = self._new(what)
        if self.index == 0:
            self._client.key_value_set(key, value)
        self.meet(what)
        return self._client.key_value_try_get(key)

    def _new(self, what: str) -> str:
        """A name for a key or a barrier, the same in each process that makes the same calls."""
        self._made += 1
        return f"{PREFIX}{self._made}/{what}"

    def finish(self) -> None:
        """Waits for the others to end as well."""
        self.meet("end")
        self._endings.finish()

    def leave(self, seconds: float) -> None:
        """Ends this process's part, whether or not the others end theirs, of which it tells them."""
        self._endings.leave(seconds)

    def stop(self) -> None:
        """Ends this process and the others, with status 0 and no line: nobody wants what they have left to do."""
        self._endings.stop()

    def fail(self, error: BaseException, status: int = 1) -> None:
        """Ends this process with a line about an error, and the others with one about this process."""
        self._endings.fail(error, status)


def _cpu_client(hostname: str) -> Any:
    """JAX's client of the CPU, whose gloo listens at an address, which JAX has no setting for."""
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax

    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=hostname
    )
    return xla_bridge.make_cpu_client(collectives)


@contextlib.contextmanager
def _bounded(seconds: float, say: Callable[[], None]) -> Iterator[None]:
    """Ends the process if what is inside takes longer: JAX's own limits end it with a stack trace."""
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            say()
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def print_line(line: str) -> None:
    """On stderr, wherever `sys.stderr` goes."""
    # Nobody may read it, and the process is to end all the same.
    with contextlib.suppress(BrokenPipeError):
        os.write(2, f"{line}\n".encode())
