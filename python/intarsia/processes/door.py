"""Where the processes of a run meet before JAX's coordinator.

JAX's coordinator takes a second process of a number for a restart of the first, whose run then ends. So process 0 listens at the
address that the run was given, tells each number once where the coordinator is, and turns away whoever comes from another run.
"""

import contextlib
import socket
import threading
import time

from intarsia.processes import addresses
from intarsia.processes.place import Place

_SECONDS = 5  # for a line
_LONGEST = 64  # bytes of a line
_PAUSE_SECONDS = 0.1


def keep(name: str, bind: str, count: int, port: int) -> None:
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
    threading.Thread(target=_answer_all, args=(holder, count, port), daemon=True).start()


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
            connection.sendall(f"{place.index} {place.count}\n".encode())
            word, _, rest = _line(connection).partition(" ")
        except OSError:
            word = ""
    if word == "port":
        return int(rest)
    if word == "count":
        raise OSError(f"{name}: the run at {where} has {rest} processes, expected {place.count}")
    if word == "taken":
        raise OSError(
            f"{name}: met another run at {where}, which has a process {place.index}: give each run a port"
        )
    raise TimeoutError(f"{name}: no coordinator at {where}: something else listens there")


def _answer_all(holder: socket.socket, count: int, port: int) -> None:
    come: set[int] = set()
    lock = threading.Lock()  # or two of a number could come at once
    while True:
        try:
            connection, _ = holder.accept()
        except OSError:  # there are no more file descriptors, say
            time.sleep(_PAUSE_SECONDS)
            continue
        answer = (connection, come, lock, count, port)
        threading.Thread(target=_answer, args=answer, daemon=True).start()


def _answer(
    connection: socket.socket, come: set[int], lock: threading.Lock, count: int, port: int
) -> None:
    with connection, contextlib.suppress(OSError, ValueError):
        connection.settimeout(_SECONDS)
        index, expected = map(int, _line(connection).split())
        with lock:
            if expected != count or not 0 < index < count:
                said = f"count {count}"
            elif index in come:
                said = "taken"
            else:
                said = f"port {port}"
            connection.sendall(f"{said}\n".encode())
            if said.startswith("port"):
                come.add(index)


def _line(connection: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n") and len(text) < _LONGEST and (more := connection.recv(_LONGEST)):
        text += more
    return text.decode("ascii", "replace").strip()
