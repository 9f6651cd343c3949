"""Addresses of this host and of others: what listens where, and what can be reached."""

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def refuse_all_interfaces(what: str, host: str) -> None:
    """Raises ValueError for 0.0.0.0 and the like: whoever reaches a port of a run may disturb it."""
    try:
        # The system takes 0 and 0x0 for addresses, too. Names are looked up when they are listened at.
        found = socket.getaddrinfo(host.strip("[]"), None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return
    address = ipaddress.ip_address(found[0][4][0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_unspecified:
        raise ValueError(
            f"{what} is {host}, which is all interfaces, expected one address of a host"
        )


class Deadline:
    """The end of so many seconds from now on.

    Attributes:
        seconds: So many.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds, 0 or less when it is over."""
        return self._end - time.monotonic()


def connected(name: str, address: tuple[str, int], deadline: Deadline) -> socket.socket:
    """A connection to a coordinator, once it listens: JAX would end the process with a stack trace.

    Raises:
      TimeoutError: It does not.
    """
    return retry(lambda: connect(address, deadline), name, address, deadline)


def connect(address: tuple[str, int], deadline: Deadline) -> socket.socket:
    """One attempt at that.

    Raises:
      OSError: It has failed.
    """
    return socket.create_connection(address, timeout=min(5, max(1, deadline.left)))


def facing(address: tuple[str, int]) -> str:
    """This host's address on the way to another.

    Raises:
      OSError: The other's name has no address, or no way leads there.
    """
    family, kind, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # of UDP: nothing is sent
        return probe.getsockname()[0]


def retry(attempt: Callable[[], _T], name: str, address: tuple[str, int], deadline: Deadline) -> _T:
    """What `attempt` returns when it raises no OSError: for what needs a coordinator.

    Raises:
      TimeoutError: It always does.
    """
    while True:
        try:
            return attempt()
        except OSError as error:
            if deadline.left <= 0:
                within = f"within {deadline.seconds} s: {error}"
                text = f"{name}: no coordinator at {host_port(*address)} {within}"
                raise TimeoutError(text) from None
        time.sleep(min(0.2, deadline.seconds))


def parse(what: str, address: str) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT.

    Raises:
      ValueError: It is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not is_port(port):
        raise ValueError(f"{what} is {address!r}, expected HOST:PORT")
    return host.strip("[]"), int(port)


def is_port(text: str) -> bool:
    """Whether a text is the number of a port that others can be told."""
    return text.isdecimal() and 0 < int(text) < 65536


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """A port that stays free for JAX's coordinator, which ends the process where it finds its port taken.

    A socket that is bound, and does not listen, keeps the port from all but those of this user who set SO_REUSEPORT. gRPC's
    servers do (https://grpc.github.io/grpc/core/group__grpc__arg__keys.html, `grpc.so_reuseport`), and the coordinator is one.
    """
    with _bound(host, 0, socket.SO_REUSEPORT) as holder:
        yield holder.getsockname()[1]


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at one address of this host.

    Raises:
      OSError: The port is in use, or the address is none of this host.
      ValueError: It is all of them.
    """
    holder = _bound(host, port, socket.SO_REUSEADDR)
    try:
        holder.listen(1024)
    except OSError:
        holder.close()
        raise
    return holder


def _bound(host: str, port: int, option: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_STREAM
    )[0]
    refuse_all_interfaces(f"the address of {host}", str(address[0]))
    holder = socket.socket(family, kind)
    try:
        holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(address)
    except OSError:
        holder.close()
        raise
    return holder
