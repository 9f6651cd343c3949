"""Hosts to run ranks on: network namespaces of this machine where it lets us make them, else loopback addresses."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

_MAPPED = "0000000000000000FFFF0000"  # before an IPv4 address in IPv6


@dataclasses.dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
      address: its own, which the others and the test reach.
      namespace: its network namespace, or None.
    """

    address: str
    namespace: str | None = None
    _link: str | None = None

    def command(self, *arguments: str) -> list[str]:
        """A command that runs there."""
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*inside, *arguments]

    def environment(self) -> dict[str, str]:
        """What a process there has besides: hosts on one loopback device have to be told which they are."""
        return {} if self.namespace else {"VLLM_HOST_IP": self.address}

    def cut(self) -> None:
        """Takes the host off the network."""
        _ip("link", "set", self._link, "down")

    def mend(self) -> None:
        """Brings it back."""
        _ip("link", "set", self._link, "up")

    def listening_elsewhere(self) -> set[str]:
        """The addresses, other than its own and loopback, at which processes of the host listen for TCP."""
        own = "".join(f"{int(x):02X}" for x in reversed(self.address.split(".")))
        expected = {own, "0100007F", f"{_MAPPED}{own}", f"{_MAPPED}0100007F"}
        return self._listening() - expected

    def _listening(self) -> set[str]:
        """As hex digits of /proc/net/tcp."""
        code = "print(open('/proc/self/net/tcp').read() + open('/proc/self/net/tcp6').read())"
        text = subprocess.check_output(self.command("python3", "-c", code), text=True)
        rows = [row.split() for row in text.splitlines()]
        return {row[1].split(":")[0] for row in rows if len(row) > 3 and row[3] == "0A"}


def can_make_namespaces() -> bool:
    """Whether this machine lets us."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"intarsia-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    return not subprocess.run(["ip", "netns", "del", name], check=False).returncode


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Sequence[Host]]:
    """So many hosts, on one network with the test."""
    if not can_make_namespaces():
        yield [Host(f"127.0.0.{i + 1}") for i in range(count)]
        return
    number = next((n for n in range(1, 255) if _added(f"ib{n}")), None)
    assert number, "no bridge could be made: 254 runs of these tests have left theirs (ip link)"
    bridge, network = f"ib{number}", f"10.77.{number}"
    made = [Host(f"{network}.{i + 1}", f"ih{number}-{i}", f"iv{number}-{i}") for i in range(count)]
    with contextlib.ExitStack() as stack:
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{network}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in made:
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "del", host.namespace)
            _ip(*f"link add {host._link} type veth peer name eth0 netns {host.namespace}".split())
            # Connections that nobody answers keep a namespace, and its link, for a minute after its end.
            stack.callback(_ip, "link", "del", host._link)
            _ip(*f"link set {host._link} master {bridge} up".split())
            _ip("-n", host.namespace, *f"addr add {host.address}/24 dev eth0".split())
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _added(bridge: str) -> bool:
    """Whether the bridge is new: another run of the tests may have its own."""
    command = ["ip", "link", "add", bridge, "type", "bridge"]
    return not subprocess.run(command, capture_output=True, check=False).returncode
