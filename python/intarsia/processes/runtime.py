"""Several processes that run one model: JAX's distributed runtime, bounded in time and with words for what went wrong.

JAX's coordinator, in process 0, knows who is there: a process that sends it no heartbeats has died. JAX would end the
others with a stack trace that names nobody, so here they are recoverable tasks (`jax_enable_recoverability`), which a
thread asks about and ends. Addresses are chosen here too, since JAX's coordinator listens on all interfaces by
default, and gloo on whatever the host's name resolves to.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.backend import register_backend_factory

from intarsia import _environment
from intarsia.processes import addresses, door
from intarsia.processes.place import Limits, Place

_PREFIX = "intarsia/"  # of keys and barriers in the coordinator's store
_POLL_SECONDS = 1.0
_FAREWELL_SECONDS = 5
_PARTING_SECONDS = 0.5
_DAY_SECONDS = 24 * 3600
# In errors of collectives and of the coordinator's clients, which name no process.
_OF_PEERS = ("Gloo", "NCCL", "UNAVAILABLE", "CANCELLED", "ABORTED")


def join(
    place: Place,
    limits: Limits | None = None,
    *,
    listen: str | None = None,
    say: Callable[[str], None] | None = None,
    names: Sequence[str] | None = None,
    reserved: bool = False,
) -> "Processes":
    """Makes this process one of several, before JAX has touched a device.

    Args:
        place: Which one, and where they meet.
        limits: Of time.
        listen: The address of this host at which the coordinator, in process 0, and gloo, in all, listen; if
            None, the coordinator listens where `place` says and gloo at the address that faces it.
        say: Prints the line that says why the process ends; on stderr if None.
        names: What lines call each process; its number if None.
        reserved: Whether process 0 keeps the coordinator's port by a socket of its own. Then all know the port, and nobody
            asks at the door.

    Raises:
        ValueError: It is to listen on all interfaces.
        OSError: The coordinator's port is in use, or the address is none of this host.
        TimeoutError: There is no coordinator.
    """
    if listen:
        addresses.refuse_all_interfaces("the address to listen at", listen)
    limits = limits or Limits()
    say = say or print_line
    names = names or [f"process {i}" for i in range(place.count)]
    name = f"{names[place.index]} of {place.count}"
    deadline = time.monotonic() + limits.start
    bind = _environment.jax_coordinator_bind() if listen is None else None
    bind = bind or addresses.joined(listen or place.address[0], place.address[1])
    own = listen or addresses.facing(place.address)
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    register_backend_factory("cpu", lambda: _cpu_client(own), priority=0, fail_quietly=False)
    late = (
        f"{name}: fewer than {place.count} processes connected to the coordinator at {place.coordinator} within "
        f"{limits.start} s"
    )
    with (
        _met(name, place, bind, limits.start, reserved) as (coordinator, bind),
        _bounded(max(deadline - time.monotonic(), 1), lambda: say(late)),
    ):
        jax.distributed.initialize(
            coordinator,
            num_processes=place.count,
            process_id=place.index,
            local_device_ids=place.devices,
            cluster_detection_method="deactivate",
            coordinator_bind_address=bind,
            initialization_timeout=limits.start + _FAREWELL_SECONDS,
            heartbeat_timeout_seconds=limits.heartbeat,
            shutdown_timeout_seconds=_FAREWELL_SECONDS,
        )
    return Processes(place, limits, say, names)


@contextlib.contextmanager
def _met(
    name: str, place: Place, bind: str, seconds: int, reserved: bool
) -> Iterator[tuple[str, str]]:
    """The coordinator's address, and the one at which it listens, on a port that is kept for it meanwhile."""
    if reserved:
        if place.index:
            addresses.connected(name, place.address, seconds).close()
        yield place.coordinator, bind
        return
    coordinator = place.address[0]
    if place.index:
        yield addresses.joined(coordinator, door.ask(name, place, seconds)), bind
        return
    host, _ = addresses.split(bind)
    with addresses.reserved_port(host) as port:
        door.keep(name, bind, place, port)
        yield addresses.joined(coordinator, port), addresses.joined(host, port)


class Processes:
    """This process and the others.

    Attributes:
        index: This one's number.
        count: How many there are.
    """

    def __init__(
        self, place: Place, limits: Limits, say: Callable[[str], None], names: Sequence[str]
    ) -> None:
        from jax._src import distributed

        self.index, self.count = place.index, place.count
        self._called = names
        self._limits, self._say = limits, say
        self._client: Any = distributed.global_state.client
        self._over, self._ending = threading.Event(), threading.Lock()
        self._moved: float | None = time.monotonic()
        self._at = self._told = ""
        self._made = 0  # keys and barriers
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._watch_words, self._watch_lives)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def name(self) -> str:
        """As messages have it."""
        return f"{self._called[self.index]} of {self.count}"

    def stage(self, text: str) -> None:
        """Says what this process does from now on, for the case that it stalls."""
        self.mark(text)
        self._tell_stage()

    def mark(self, text: str) -> None:
        """The same at no cost: the others hear of it within a second or two, if it is still true then."""
        self._at = text
        self.progress()

    def progress(self) -> None:
        """Says that this process got further."""
        self._moved = time.monotonic()

    def rest(self) -> None:
        """Says that this process has nothing to do, for however long."""
        self._at, self._moved = "rest", None

    def _tell_stage(self) -> None:
        text = self._at
        if text != self._told:
            self._client.key_value_set(f"{_PREFIX}stage/{self.index}", text, allow_overwrite=True)
            self._told = text

    def meet(self, what: str) -> None:
        """Waits for the others to get here: no collective then waits for a process that is not there yet."""
        self.stage(what)
        self._moved = None  # whoever is late has a limit of its own
        self._client.wait_at_barrier(self._new(what), _DAY_SECONDS * 1000)
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
        return f"{_PREFIX}{self._made}/{what}"

    def finish(self) -> None:
        """Waits for the others to end as well."""
        self.meet("end")
        self._over.set()
        done = f"{_PREFIX}done/{self.index}"
        self._client.key_value_set(done, "")  # a slower one need not miss it
        if self.index == 0:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the work is done
                self._wait_for_goodbyes()
        jax.distributed.shutdown()
        for thread in self._threads:
            thread.join(_FAREWELL_SECONDS)

    def _wait_for_goodbyes(self) -> None:
        """Waits for the others to leave the coordinator: JAX aborts who finds it gone, even on the way out."""
        deadline = time.monotonic() + self._limits.heartbeat
        while time.monotonic() < deadline:
            if len(self._client.get_live_nodes(list(range(self.count)))) == 1:
                return
            time.sleep(0.05)

    def leave(self, seconds: float) -> None:
        """Ends this process's part, whether or not the others end theirs, of which it tells them."""
        self._over.set()
        try:
            self._client.wait_at_barrier(f"{_PREFIX}leave", int(seconds * 1000))
        except jax.errors.JaxRuntimeError:  # some go on, or have died
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{_PREFIX}failed", f"{self.index} was told to end")
                time.sleep(_PARTING_SECONDS)
        if self.index == 0:
            time.sleep(_PARTING_SECONDS)  # JAX aborts whom the coordinator leaves behind
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.distributed.shutdown()

    def fail(self, error: BaseException, status: int = 1) -> None:
        """Ends this process with a line about an error, and the others with one about this process."""
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            text = "interrupted"
        elif any(word in text for word in _OF_PEERS):
            # Most likely another one died, and whoever watches lives will end this one with its number.
            time.sleep(self._limits.heartbeat + _FAREWELL_SECONDS)
        self._end(text, status, tell=True)

    def _end(
        self, text: str, status: int, *, tell: bool = False, alive: Sequence[int] | None = None
    ) -> None:
        """Prints a line and ends the process, after those who are alive have had time to hear of it."""
        if not self._ending.acquire(blocking=False):
            time.sleep(2 * _FAREWELL_SECONDS)  # another thread does it
        self._say(f"{self.name}: {text}")
        with contextlib.suppress(Exception):
            if tell:
                self._client.key_value_set(f"{_PREFIX}failed", f"{self.index} {text}")
            # Process 0 has the store that the others read the line from.
            barrier = f"{_PREFIX}failed", _FAREWELL_SECONDS * 1000
            self._client.wait_at_barrier(*barrier, process_ids=alive)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        if self.index == 0:
            time.sleep(_PARTING_SECONDS)  # JAX aborts whom the coordinator leaves behind
        os._exit(status)

    def _watch_words(self) -> None:
        """Ends this process when another one says that it failed, or when this one gets no further."""
        while not self._over.is_set():
            try:
                said = self._client.blocking_key_value_get(
                    f"{_PREFIX}failed", int(_POLL_SECONDS * 1000)
                )
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    self._over.wait(_POLL_SECONDS)  # JAX ends a process whose coordinator is gone
            else:
                index, _, text = said.partition(" ")
                if int(index) != self.index:
                    self._end(f"ended, since {self._called[int(index)]} failed: {text}", 1)
                return
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._tell_stage()
            moved, limit = self._moved, self._limits.stall
            if moved is not None and time.monotonic() - moved > limit:
                self._end(f"no progress for {limit} s; {self._stages()}", 1, tell=True)

    def _watch_lives(self) -> None:
        """Ends this process when the coordinator has missed another one's heartbeats."""
        everyone = list(range(self.count))
        while True:
            try:
                alive = sorted(self._client.get_live_nodes(everyone))
            except jax.errors.JaxRuntimeError:
                if self._over.wait(_POLL_SECONDS):
                    return
                continue
            gone = [index for index in everyone if index not in alive]
            if gone and not self._over.wait(_POLL_SECONDS) and (dead := self._not_done(gone)):
                called = ", ".join(self._called[index] for index in dead)
                text = f"ended, since {called} sent no heartbeat for {self._limits.heartbeat} s"
                self._end(text, 1, alive=alive)
            if self._over.wait(_POLL_SECONDS):
                return

    def _not_done(self, gone: list[int]) -> list[int]:
        """Those that did not leave after all had met at the end; this one's main thread may lag behind them."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            keys = self._client.key_value_dir_get(f"{_PREFIX}done/")
            done = {int(key.rsplit("/", 1)[1]) for key, _ in keys}
            return [index for index in gone if index not in done]
        return gone

    def _stages(self) -> str:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            stages = self._client.key_value_dir_get(f"{_PREFIX}stage/")
            said = {int(key.rsplit("/", 1)[1]): text for key, text in stages}
            return ", ".join(
                f"{self._called[i]} is at {text!r}" for i, text in sorted(said.items())
            )
        return "the coordinator is gone"


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
    os.write(2, f"{line}\n".encode())
