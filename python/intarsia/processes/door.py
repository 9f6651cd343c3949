"""Where the processes of a run meet before JAX's coordinator.

JAX's coordinator takes a second process of a number for a restart of the first, whose run then ends. So process 0 listens at the
address that the run was given. It tells one process of each number where the coordinator is. Whoever comes from another run is turned
away: its number is taken, or its command is another (`Place.run`).
"""

import contextlib
import errno
import hashlib
import json
import secrets
import socket
import threading
import time

from intarsia.processes import addresses
from intarsia.processes.place import Place, differing

_SECONDS = 5  # for a line
_PAUSE_SECONDS = 0.1  # where there are no more threads or file descriptors
_LONGEST = 1 << 14  # bytes of a line


def listen(name: str, bind: tuple[str, int]) -> socket.socket:
    """Opens the door of process 0.

    Raises:
      OSError: The port of `bind` is in use, or its host is none of this host's addresses.
    """
    try:
        return addresses.listening(*bind)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        advice = ": another run may be there; give each run a port" if in_use else ""
        raise OSError(
            f"{name}: the coordinator cannot listen on {addresses.host_port(*bind)}: {error.strerror}{advice}"
        ) from None


def keep(holder: socket.socket, place: Place, port: int) -> "Door":
    """Tells the other processes the coordinator's port, as long as this one lives."""
    door = Door(place, port)
    threading.Thread(target=door.answer_all, args=(holder,), daemon=True).start()
    return door


def ask(name: str, place: Place, deadline: addresses.Deadline) -> int:
    """The coordinator's port, which process 0 tells when it is there.

    Raises:
      TimeoutError: Nobody listens there, or nobody that answers.
      OSError: It is another run's, or something else.
    """
    where = place.coordinator
    token = secrets.token_hex(8)  # an answer may be lost: who asks again is no other process
    question = f"{json.dumps([place.index, place.count, _marks(place), token])}\n".encode()

    def attempt() -> str:
        with addresses.connect(place.address, deadline) as connection:
            try:
                connection.sendall(question)
                return _line(connection, min(_SECONDS, max(1, deadline.left)))
            except OSError:  # process 0 is busy or ends, or it is not process 0
                raise OSError("what listens there does not answer") from None

    word, _, rest = addresses.retry(attempt, name, place.address, deadline).partition(" ")
    if word == "port" and addresses.is_port(rest):
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
            f"{name}: met another run at {where}, which has a process {place.index}, or it was started twice: give "
            "each run a port, and start each of its processes once"
        )
    raise OSError(f"{name}: no coordinator at {where}: something else listens there")


class Door:
    """Process 0's, which knows who came."""

    def __init__(self, place: Place, port: int) -> None:
        self._place, self._port = place, port
        self._marks = _marks(place)
        self._come: dict[int, str] = {}  # the token of each
        self._lock = threading.Lock()

    def missing(self) -> list[int]:
        """The processes that have not come."""
        return [i for i in range(1, self._place.count) if i not in self._come]

    def answer_all(self, holder: socket.socket) -> None:
        while True:
            try:
                connection, _ = holder.accept()
            except OSError:
                time.sleep(_PAUSE_SECONDS)
                continue
            try:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            except RuntimeError:
                connection.close()  # whoever it is asks again
                time.sleep(_PAUSE_SECONDS)

    def _answer(self, connection: socket.socket) -> None:
        # Whoever sends something else gets no answer.
        with (
            connection,
            contextlib.suppress(OSError, ValueError, TypeError, RecursionError),
        ):
            index, count, marks, token = json.loads(_line(connection, _SECONDS))
            with self._lock:  # or two of a number could come at once
                said = self._said(index, count, dict(marks), token)
            connection.settimeout(_SECONDS)
            connection.sendall(f"{said}\n".encode())

    def _said(self, index: int, count: int, marks: dict[str, str], token: str) -> str:
        expected = self._place.count
        if count != expected or not 0 < index < count:
            return f"count {expected}"
        if differ := differing(marks, self._marks):
            return f"differs {', '.join(differ)}"
        return f"port {self._port}" if self._come.setdefault(index, token) == token else "taken"


def _marks(place: Place) -> dict[str, str]:
    """What tells the command's values apart, and does not tell them."""
    return {
        name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in place.run.items()
    }


def _line(connection: socket.socket, seconds: float) -> str:
    """What the other end says, without its end of a line.

    Raises:
      OSError: It has not said a line in time.
    """
    text, deadline = b"", addresses.Deadline(seconds)
    while not text.endswith(b"\n") and len(text) < _LONGEST:
        if (left := deadline.left) <= 0:
            raise TimeoutError("no line")
        connection.settimeout(left)
        if not (more := connection.recv(_LONGEST)):
            raise ConnectionError("no line")
        text += more
    return text.decode("ascii", "replace").strip()
