"""Where the processes of a run meet before JAX's coordinator.

JAX's coordinator takes a second process of a number for a restart of the first, whose run then ends. So process 0 listens at the
address that the run was given, tells each number once where the coordinator is, and turns away whoever comes from another run: one
whose number is taken, or whose command is another (`Place.run`).
"""

import contextlib
import hashlib
import json
import socket
import threading
import time

from intarsia.processes import addresses
from intarsia.processes.place import Place

_SECONDS = 5  # for a line
_PAUSE_SECONDS = 0.1  # where the door cannot be opened
_LONGEST = 1 << 14  # bytes of a line


def keep(name: str, bind: str, place: Place, port: int) -> None:
    """Tells the other processes the coordinator's port, as long as this one lives.

    Raises:
      OSError: The port of `bind` is in use, or its host is none of this host's addresses.
    """
    host, number = addresses.split(bind)
    try:
        holder = addresses.listening(host, int(number))
    except OSError as error:
        raise OSError(
            f"{name}: the coordinator cannot listen on {bind}: {error.strerror}"
        ) from None
    door = _Door(place, port)
    threading.Thread(target=door.answer_all, args=(holder,), daemon=True).start()


def ask(name: str, place: Place, seconds: int) -> int:
    """The coordinator's port, which process 0 tells when it is there.

    Raises:
      TimeoutError: Nobody listens there, or nobody that answers.
      OSError: It is another run's.
    """
    where = place.coordinator
    connection = addresses.connected(name, place.address, seconds)
    with connection:
        connection.settimeout(_SECONDS)
        try:
            connection.sendall(
                f"{json.dumps([place.index, place.count, _marks(place)])}\n".encode()
            )
            word, _, rest = _line(connection).partition(" ")
        except OSError:
            word = ""
    if word == "port":
        return int(rest)
    if word == "count":
        raise OSError(f"{name}: the run at {where} has {rest} processes, expected {place.count}")
    if word == "differs":
        raise OSError(
            f"{name}: met another run at {where}, which differs in {rest}: give each run a port, and all its "
            "processes the same command"
        )
    if word == "taken":
        raise OSError(
            f"{name}: met another run at {where}, which has a process {place.index}: give each run a port"
        )
    raise TimeoutError(f"{name}: no coordinator at {where}: something else listens there")


class _Door:
    """Process 0's, which knows who came."""

    def __init__(self, place: Place, port: int) -> None:
        self._place, self._port = place, port
        self._marks = _marks(place)
        self._come: set[int] = set()
        self._lock = threading.Lock()

    def answer_all(self, holder: socket.socket) -> None:
        while True:
            try:
                connection, _ = holder.accept()
            except OSError:  # there are no more file descriptors, say
                time.sleep(_PAUSE_SECONDS)
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # Whoever sends something else gets no answer.
        with connection, contextlib.suppress(OSError, ValueError, TypeError):
            connection.settimeout(_SECONDS)
            index, count, marks = json.loads(_line(connection))
            with self._lock:  # or two of a number could come at once
                said = self._said(index, count, dict(marks))
                connection.sendall(f"{said}\n".encode())
                if said.startswith("port"):
                    self._come.add(index)

    def _said(self, index: int, count: int, marks: dict[str, str]) -> str:
        expected = self._place.count
        if count != expected or not 0 < index < count:
            return f"count {expected}"
        names = sorted({*marks, *self._marks})
        if differ := [name for name in names if marks.get(name) != self._marks.get(name)]:
            return f"differs {', '.join(differ)}"
        return "taken" if index in self._come else f"port {self._port}"


def _marks(place: Place) -> dict[str, str]:
    """What tells the command's values apart, and does not tell them."""
    return {
        name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in place.run.items()
    }


def _line(connection: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n") and len(text) < _LONGEST and (more := connection.recv(_LONGEST)):
        text += more
    return text.decode("ascii", "replace").strip()
